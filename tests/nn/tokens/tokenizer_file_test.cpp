// tokenizer.json: reading, writing, and refusing bad files.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <thimble/core/files/bytes.h>
#include <thimble/core/files/npy.h>
#include <thimble/core/ops/copy.h>
#include <thimble/models/datasets/dataset.h>
#include <thimble/models/models.h>
#include <thimble/nn/data/store.h>
#include <thimble/nn/data/synthetic.h>
#include <thimble/nn/data/tokens.h>
#include <thimble/nn/tokens/tokenizer_file.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"
#include "support/skip.h"
#include "support/tokenizers.h"

using namespace thimble;
using namespace files_test;
using Json = nlohmann::ordered_json;

namespace {

Json fixture(const std::string& name) {
  return Json::parse(read_text_file((tests_folder() / "fuzz" / "corpus" / "tokenizer" / name).string()));
}

std::string error_of(const std::string& text) {
  return file_error([&] { data::parse_tokenizer(bytes_of(text), "t.json"); });
}

}  // namespace

TEST_CASE("tokenizer file: what is written is read as the same", "[tokens][files]") {
  const TemporaryFolder folder;
  for (const char* name : {"gpt2", "llama3", "qwen2"}) {
    INFO(name);
    const std::string text = fixture(name).dump();
    const data::Tokenizer first = data::parse_tokenizer(bytes_of(text), "t.json");
    data::write_tokenizer(folder / name, first);
    const data::Tokenizer second = data::read_tokenizer(folder / name);
    const data::TokenizerParts &a = first.parts(), &b = second.parts();
    CHECK(a.vocabulary == b.vocabulary);
    CHECK(a.merges.size() == b.merges.size());
    CHECK(a.added.size() == b.added.size());
    CHECK(a.pattern == b.pattern);
    CHECK(a.is_nfc == b.is_nfc);
    CHECK(a.ignores_merges == b.ignores_merges);
    CHECK(a.prefix == b.prefix);
    CHECK(a.suffix == b.suffix);
    CHECK(data::format_tokenizer(a) == data::format_tokenizer(b));
    // Every key as `tokenizers` wrote it, except keys without effect on tokens, and merges in their old form.
    const Json theirs = fixture(name), ours = Json::parse(read_text_file(folder / name));
    for (const char* key : {"added_tokens", "normalizer", "pre_tokenizer"}) {
      INFO(key);
      CHECK(nlohmann::json::parse(ours.at(key).dump()) == nlohmann::json::parse(theirs.at(key).dump()));
    }
    CHECK(nlohmann::json::parse(ours["model"]["vocab"].dump()) ==
          nlohmann::json::parse(theirs["model"]["vocab"].dump()));
  }
}

TEST_CASE("tokenizer file: ends of a text", "[tokens][files]") {
  Json json = fixture("llama3");
  Json& single = json["post_processor"]["processors"][1]["single"];
  Json token = single[0];
  token["SpecialToken"]["id"] = "<|end_of_text|>";
  single.push_back(token);
  Json names = json["post_processor"]["processors"][1]["special_tokens"];
  names["<|end_of_text|>"] = {{"id", "<|end_of_text|>"}, {"ids", {311}}, {"tokens", {"<|end_of_text|>"}}};
  json["post_processor"]["processors"][1]["special_tokens"] = names;
  const std::string text = json.dump();
  const data::Tokenizer tokenizer = data::parse_tokenizer(bytes_of(text), "t.json");
  const std::uint32_t begin = tokenizer.id_of("<|begin_of_text|>"), end = tokenizer.id_of("<|end_of_text|>");
  CHECK(end == 311);
  CHECK(tokenizer.encode("a", {.adds_ends = true}) == std::vector<std::uint32_t>{begin, tokenizer.id_of("a"), end});
  CHECK(tokenizer.encode("a") == std::vector<std::uint32_t>{tokenizer.id_of("a")});
}

TEST_CASE("tokenizer file: refusals name the key, its value and the expected one", "[tokens][files]") {
  struct Row {
    const char* name;
    std::function<void(Json&)> change;
    const char* message;
  };
  static const auto single = [](Json& j) -> Json& { return j["post_processor"]["processors"][1]["single"]; };
  const Row rows[] = {
      {"gpt2", [](Json& j) { j["version"] = "2.0"; }, "key 'version': '\"2.0\"'; expected 1.0"},
      {"gpt2", [](Json& j) { j["truncation"]["max_length"] = 8; },
       "key 'truncation': '{\"max_length\":8}'; expected null, which the file may be given"},
      {"gpt2", [](Json& j) { j["padding"]["strategy"] = "BatchLongest"; },
       "key 'padding': '{\"strategy\":\"BatchLongest\"}'; expected null, which the file may be given"},
      {"gpt2", [](Json& j) { j["surprise"] = 1; }, "the file: unknown key 'surprise'; known: version, truncation"},
      {"gpt2", [](Json& j) { j["normalizer"]["type"] = "NFKC"; },
       "key 'normalizer': '{\"type\":\"NFKC\"}'; expected null, NFC"},
      {"gpt2", [](Json& j) { j["pre_tokenizer"] = nullptr; }, "key 'pre_tokenizer': 'null'; expected ByteLevel"},
      {"gpt2", [](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = true; },
       "key 'pre_tokenizer.add_prefix_space': 'true'; expected false"},
      {"gpt2", [](Json& j) { j["pre_tokenizer"]["use_regex"] = false; },
       "key 'pre_tokenizer.use_regex': 'false'; expected true"},
      {"llama3", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+"; },
       "key 'pre_tokenizer.pretokenizers[0].pattern.Regex': '\"\\\\w+\"'; expected the patterns of gpt2 's|'t"},
      {"llama3", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; },
       "key 'pre_tokenizer.pretokenizers[0].behavior': '\"Removed\"'; expected Isolated"},
      {"llama3", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = true; },
       "key 'pre_tokenizer.pretokenizers[1].use_regex': 'true'; expected false"},
      {"llama3", [](Json& j) { j["post_processor"]["processors"][1]["special_tokens"] = Json::object(); },
       "special_tokens': no token '<|begin_of_text|>', which 'single' has"},
      {"llama3",
       [](Json& j) { j["post_processor"]["processors"][1]["special_tokens"]["<|begin_of_text|>"]["ids"] = {999}; },
       "prefix: token 999; expected below"},
      {"llama3", [](Json& j) { j["post_processor"]["processors"][1]["single"] = Json::array(); },
       "single': '[]'; expected a text A among special tokens"},
      {"gpt2", [](Json& j) { j["post_processor"]["type"] = "RobertaProcessing"; }, "key 'post_processor'"},
      {"llama3", [](Json& j) { single(j).push_back(Json(single(j)[1])); },
       "single[2].Sequence': '{\"id\":\"A\",\"type_id\":0}'; expected the text A, once"},
      {"llama3", [](Json& j) { single(j)[1]["Sequence"]["id"] = "B"; }, "; expected the text A, once"},
      {"llama3", [](Json& j) { single(j)[1]["SpecialToken"] = single(j)[0]["SpecialToken"]; }, "single[1]': "},
      {"llama3", [](Json& j) { j["post_processor"]["processors"][0] = Json(j["post_processor"]["processors"][1]); },
       "; expected one TemplateProcessing"},
      {"llama3", [](Json& j) { j["post_processor"]["processors"][0] = Json(j["post_processor"]); },
       "; expected ByteLevel, TemplateProcessing"},
      {"gpt2", [](Json& j) { j["decoder"] = nullptr; }, "key 'decoder': 'null'; expected ByteLevel"},
      {"gpt2", [](Json& j) { j["model"]["type"] = "Unigram"; }, "key 'model.type': '\"Unigram\"'; expected BPE"},
      {"gpt2", [](Json& j) { j["model"]["dropout"] = 0.1; }, "key 'model.dropout': '0.1'; expected null"},
      {"gpt2", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "key 'model.end_of_word_suffix'"},
      {"gpt2", [](Json& j) { j["model"]["vocab"] = Json::array({"A"}); },
       "key 'model.vocab': '[\"A\"]'; expected an object of tokens and ids"},
      {"gpt2", [](Json& j) { j["model"]["vocab"]["A"] = -1; },
       "key 'model.vocab': token 'A' has id '-1'; expected 0 to 309"},
      {"gpt2", [](Json& j) { j["model"]["vocab"]["A"] = 3; }, "; expected 0 to 309, each once"},
      {"gpt2", [](Json& j) { j["model"]["vocab"]["AAA"] = 9000000000; }, "token 'AAA' has id '9000000000'"},
      {"gpt2", [](Json& j) { j["model"]["merges"][3] = "abc"; },
       "key 'model.merges[3]': '\"abc\"'; expected two tokens"},
      {"gpt2", [](Json& j) { j["model"]["merges"][3] = "q zz"; },
       "key 'model.merges[3]': token 'zz' is not in 'model.vocab'"},
      {"gpt2", [](Json& j) { j["model"]["merges"].push_back(j["model"]["merges"][0]); }, "merge already"},
      {"qwen2", [](Json& j) { j["added_tokens"][0]["single_word"] = true; },
       "key 'added_tokens[0].single_word': 'true'; expected false"},
      {"qwen2", [](Json& j) { j["added_tokens"][1]["id"] = 500; }, "has id 500; expected 311, the next one"},
      {"qwen2", [](Json& j) { j["added_tokens"][1]["id"] = 4294967295; }, "has id 4294967295; expected 311"},
      {"qwen2", [](Json& j) { j["added_tokens"][1]["id"] = 4294967296; }, "expected an id, from 0 to 2^32 - 1"},
      {"qwen2", [](Json& j) { j["added_tokens"][1]["content"] = 7; },
       "key 'added_tokens[1].content': '7'; expected a text"},
  };
  for (const Row& row : rows) {
    Json json = fixture(row.name);
    row.change(json);
    const std::string error = error_of(json.dump());
    INFO(error);
    CHECK(contains(error, "t.json: at byte 0: tokenizer: "));
    CHECK(contains(error, row.message));
  }
}

TEST_CASE("tokenizer file: what is not JSON, or JSON of a hostile kind", "[tokens][files]") {
  CHECK(contains(error_of(""), "the file is not JSON"));
  CHECK(contains(error_of("{\"version\": \"1.0\","), "the file is not JSON"));
  CHECK(contains(error_of("[]"), "the file: '[]'; expected an object"));
  CHECK(contains(error_of(std::string("{}\0{}", 5)), "t.json: at byte 2: tokenizer: a NUL byte"));
  CHECK(contains(error_of("{\"version\": \"1.0\", \"version\": \"1.0\"}"), "key 'version' is there twice"));
  CHECK(contains(error_of(std::string(1'000'000, '[')), "more than 32 values within each other"));
  CHECK(contains(error_of("{\"version\": \"\xff\"}"), "the file is not JSON"));
  for (const std::string& number : {std::string("1e999"), std::string(100'000, '9')}) {
    const std::string error = error_of("{\"version\": " + number + "}");
    CHECK(error.size() < 200);
    CHECK(!contains(error, "json.exception"));
  }
  const TemporaryFolder folder;
  CHECK(contains(file_error([&] { data::read_tokenizer(folder / "none.json"); }), "none.json"));
}

// ---- Training on a text through a tokenizer: inputs of a run, notes in its checkpoint, and the program's commands.

using namespace files_test;

namespace {

std::string text_of_words(std::size_t bytes) { return data::synthetic_text(bytes, 3); }

models::RunOptions options_of(const std::string& data, const std::string& tokenizer) {
  models::RunOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 2;
  options.setup.sizes.layers = 1, options.setup.sizes.heads = 2, options.setup.sizes.width = 16;
  options.setup.sizes.sequence = 16;
  options.setup.tokenizer = tokenizer;
  options.data = data;
  options.steps = 3;
  return options;
}

}  // namespace

TEST_CASE("tokenizer training: batches are windows of the text's tokens", "[tokens][data]") {
  const TemporaryFolder folder;
  const std::string text = text_of_words(20000);
  write_text_file(folder / "text", text);
  const data::Tokenizer tokenizer = tokenizer_test::letter_pairs(400);
  data::write_tokenizer(folder / "t.json", tokenizer);
  const std::vector<std::uint32_t> tokens = tokenizer.encode(text);
  models::ModelOptions sizes;
  sizes.layers = 1, sizes.heads = 1, sizes.width = 8, sizes.sequence = 32;
  for (const char* name : {"char-gpt", "gpt2"}) {
    const auto model = models::make_model(name, sizes, {dry(cpu)});
    const auto data = models::open_dataset(folder / "text", *model, name, 5, folder / "t.json");
    models::ModelOptions fitted = sizes;
    data->fit(fitted);
    CHECK(fitted.vocabulary == tokenizer.size());
    CHECK(data->heap_bytes() == 2 * tokens.size());
    const auto of_data = models::make_model(name, fitted, {dry(cpu)});
    data->open(of_data->options(), 3, 5);
    const models::Batch batch = data->validation_batch(0, cpu, DType::f32);
    const auto inputs = to_host<std::int64_t>(batch.input), targets = to_host<std::int64_t>(batch.target);
    const std::size_t train = tokens.size() / 10 * 9 + tokens.size() % 10 * 9 / 10;
    REQUIRE(inputs.size() == 3 * 32);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      CHECK(inputs[i] == tokens[train + i]);
      CHECK(targets[i] == tokens[train + i + 1]);
    }
    CHECK(data->decode(inputs) == tokenizer.decode(std::span(tokens).subspan(train, inputs.size())));
    CHECK(data->decode({400}) == "\uFFFD");
  }
  const auto bert = models::make_model("bert-base", sizes, {dry(cpu)});
  CHECK_THROWS_WITH(models::open_dataset(folder / "text", *bert, "bert-base", 5, folder / "t.json"),
                    Catch::Matchers::Contains("not for bert-base; expected a GPT or Llama model"));
}

TEST_CASE("tokenizer training: tokens of 32 bits", "[tokens][data]") {
  const std::vector<std::uint8_t> bytes{1, 0, 0, 0, 0, 0, 1, 0, 0xFF, 0xFF, 0xFF, 0xFF};
  const data::TokenStore store(data::ByteStore(bytes), 4);
  REQUIRE(store.size() == 3);
  std::vector<std::int64_t> tokens(3);
  store.read(0, tokens);
  CHECK(tokens == std::vector<std::int64_t>{1, 65536, 0xFFFFFFFF});
  CHECK(store.largest() == 0xFFFFFFFF);

  const TemporaryFolder folder;
  const std::string file = folder / "t.npy";
  save_npy(file, from_host(std::vector<std::int32_t>{5, 0x7FFFFFFF}, {2}));
  CHECK(data::open_tokens(file).largest() == 0x7FFFFFFF);
  save_npy(file, from_host(std::vector<std::int32_t>{5, -3, -70}, {3}));
  CHECK_THROWS_WITH(data::open_tokens(file), file + ": at byte 128: token -3; expected 0 to 2147483647");
}

TEST_CASE("tokenizer training: a run takes the vocabulary, and a checkpoint knows its tokenizer", "[tokens][data]") {
  const TemporaryFolder folder;
  const std::string text = text_of_words(20000);
  write_text_file(folder / "text", text);
  data::write_tokenizer(folder / "a.json", tokenizer_test::letter_pairs(300));
  data::write_tokenizer(folder / "b.json", tokenizer_test::letter_pairs(300, data::WordPattern::llama3));
  models::RunOptions options = options_of(folder / "text", folder / "a.json");
  options.save = folder / "run";
  options.sample = 20;
  models::Engine engine(options);
  const models::TrainReport report = engine.run();
  CHECK(report.measured_peak_bytes == engine.plan().peak_bytes);
  CHECK(!report.sample.empty());
  options.resume = options.save, options.steps = 5;
  CHECK(models::Engine(options).first_step() == 3);
  options.setup.tokenizer = folder / "b.json";
  CHECK_THROWS_WITH(models::Engine(options).plan(), Catch::Matchers::Contains("has tokenizer '300 tokens, crc32c"));
}

TEST_CASE("tokenizer training: the program's commands", "[tokens][program]") {
  const TemporaryFolder folder;
  const std::string text = text_of_words(30000) + "caf\u00e9<|end|>\xFF";
  write_text_file(folder / "text", text);
  const auto run = [&](const std::string& arguments) { return program_test::run(folder, arguments); };
  const std::string json = "'" + (folder / "t.json") + "'", in = "'" + (folder / "text") + "'";
  const data::Tokenizer tokenizer = tokenizer_test::letter_pairs(500, data::WordPattern::llama3, {"<|end|>"});
  data::write_tokenizer(folder / "t.json", tokenizer);
  const std::vector<std::uint32_t> tokens = tokenizer.encode(text);

  const auto printed = run("tokenizer encode --tokenizer " + json + " --data " + in);
  if (!printed) {
    thimble_test::skip("THIMBLE_PROGRAM is not set");
    return;
  }
  std::string numbers;
  for (const std::uint32_t token : tokens) numbers += (numbers.empty() ? "" : " ") + std::to_string(token);
  CHECK(printed->out == numbers + "\n");
  write_text_file(folder / "numbers", printed->out);
  const std::string bin = "'" + (folder / "tokens.bin") + "'";
  CHECK(run("tokenizer encode --tokenizer " + json + " --data " + in + " --out " + bin)->status == 0);
  std::vector<std::int64_t> written(tokens.size());
  const data::TokenStore store = data::open_tokens(folder / "tokens.bin");
  REQUIRE(store.size() == static_cast<std::int64_t>(tokens.size()));
  store.read(0, written);
  CHECK(std::equal(written.begin(), written.end(), tokens.begin()));
  for (const std::string& data : {bin, "'" + (folder / "numbers") + "'"}) {
    CHECK(run("tokenizer decode --tokenizer " + json + " --data " + data)->out == text);
  }

  // A text and its tokens train the same model.
  const std::string sizes =
      " --layers 1 --heads 2 --width 16 --seq 16 --batch 2 --steps 3 --sample 12 --json --tokenizer ";
  const auto losses = [&](const std::string& data) {
    const auto output = run("train char-gpt --data " + data + sizes + json);
    CHECK(output->error.find("thimble:") == std::string::npos);
    REQUIRE(output->status == 0);
    const auto report = nlohmann::json::parse(output->out);
    return std::pair(report.at("loss_last").dump(), report.at("sample").dump());
  };
  CHECK(losses(in) == losses(bin));

  const auto image = run("train resnet18 --data synthetic --tokenizer " + json);
  CHECK(image->status == 2);
  CHECK(contains(image->error, "--tokenizer: '"));
  const auto bad = run("tokenizer encode --tokenizer " + in + " --data " + in);
  CHECK(bad->status == 2);
  CHECK(contains(bad->error, "the file is not JSON"));
}
