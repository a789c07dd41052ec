// tokenizer.json: what is read, what is written, and how a bad file is refused.

#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include <thimble/core/files/bytes.h>
#include <thimble/nn/tokens/tokenizer_file.h>

#include "support/catch.h"
#include "support/files.h"

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
    // Key by key as `tokenizers` wrote it, but for what has no effect on tokens, and merges in their old form.
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
  const std::string llama3_regex = fixture("llama3")["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
  const Row rows[] = {
      {"gpt2", [](Json& j) { j["version"] = "2.0"; }, "key 'version': '\"2.0\"'; expected 1.0"},
      {"gpt2",
       [](Json& j) {
         j["truncation"] = {{"max_length", 8}};
       },
       "key 'truncation': '{\"max_length\":8}'; expected null, which the file may be given"},
      {"gpt2",
       [](Json& j) {
         j["padding"] = {{"strategy", "BatchLongest"}};
       },
       "key 'padding': '{\"strategy\":\"BatchLongest\"}'; expected null, which the file may be given"},
      {"gpt2", [](Json& j) { j["surprise"] = 1; }, "the file: unknown key 'surprise'; known: version, truncation"},
      {"gpt2",
       [](Json& j) {
         j["normalizer"] = {{"type", "NFKC"}};
       },
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
      {"gpt2",
       [](Json& j) {
         j["post_processor"] = {{"type", "RobertaProcessing"}};
       },
       "key 'post_processor'"},
      {"gpt2", [](Json& j) { j["decoder"] = nullptr; }, "key 'decoder': 'null'; expected ByteLevel"},
      {"gpt2", [](Json& j) { j["model"]["type"] = "Unigram"; }, "key 'model.type': '\"Unigram\"'; expected BPE"},
      {"gpt2", [](Json& j) { j["model"]["dropout"] = 0.1; }, "key 'model.dropout': '0.1'; expected null"},
      {"gpt2", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "key 'model.end_of_word_suffix'"},
      {"gpt2", [](Json& j) { j["model"]["vocab"]["A"] = -1; },
       "key 'model.vocab': token 'A' has id '-1'; expected 0 to 309"},
      {"gpt2", [](Json& j) { j["model"]["vocab"]["A"] = 3; }, "; expected 0 to 309, each once"},
      {"gpt2", [](Json& j) { j["model"]["vocab"]["AAA"] = 9000000000; }, "token 'AAA' has id '9000000000'"},
      {"gpt2", [](Json& j) { j["model"]["merges"][3] = "abc"; },
       "key 'model.merges[3]': '\"abc\"'; expected two tokens"},
      {"gpt2",
       [](Json& j) {
         j["model"]["merges"][3] = {"q", "zz"};
       },
       "key 'model.merges[3]': token 'zz' is not in 'model.vocab'"},
      {"gpt2", [](Json& j) { j["model"]["merges"].push_back(j["model"]["merges"][0]); }, "merge already"},
      {"qwen2", [](Json& j) { j["added_tokens"][0]["single_word"] = true; },
       "key 'added_tokens[0].single_word': 'true'; expected false"},
      {"qwen2", [](Json& j) { j["added_tokens"][1]["id"] = 500; }, "has id 500; expected 311, the next one"},
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
