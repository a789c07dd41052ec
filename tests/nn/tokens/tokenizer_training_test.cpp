// Training on a text by a tokenizer: what a run reads, what a checkpoint notes, and the program's commands.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/files/npy_tensor.h>
#include <thimble/core/ops/copy.h>
#include <thimble/models/datasets/dataset.h>
#include <thimble/models/models.h>
#include <thimble/nn/data/store_open.h>
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

namespace {

std::string text_of_words(std::size_t bytes) { return data::synthetic_text(bytes, 3); }

models::TrainOptions options_of(const std::string& data, const std::string& tokenizer) {
  models::TrainOptions options;
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
                    Catch::Matchers::Contains("not for bert-base; expected a model of the GPT family"));
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
  models::TrainOptions options = options_of(folder / "text", folder / "a.json");
  options.save = folder / "run";
  options.sample = 20;
  const models::PreparedTraining prepared = models::prepare_training(options);
  const models::TrainReport report = models::train(prepared);
  CHECK(report.measured_peak_bytes == prepared.plan.peak_bytes);
  CHECK(!report.sample.empty());
  options.resume = options.save, options.steps = 5;
  CHECK(models::prepare_training(options).first_step == 3);
  options.setup.tokenizer = folder / "b.json";
  CHECK_THROWS_WITH(models::prepare_training(options), Catch::Matchers::Contains("has tokenizer '300 tokens, crc32c"));
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
