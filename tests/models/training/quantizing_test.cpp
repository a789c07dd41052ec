// `thimble quantize` as calls, on untrained nets, which have equal sizes, bytes and errors.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/models/datasets/dataset_text.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/training/quantizing.h>
#include <thimble/models/weights/follow_weights.h>
#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/tokens/tokenizer_file.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/kernel_data.h"
#include "support/program.h"
#include "support/tokenizers.h"

namespace quantizing_test {

using namespace thimble;

models::QuantizeOptions options_for(const std::string& name, const models::ModelOptions& sizes,
                                    const std::string& weights) {
  models::QuantizeOptions o;
  o.setup.model = name, o.setup.sizes = sizes, o.setup.batch = 4, o.data = "synthetic", o.weights = weights;
  o.calibration_batches = 2, o.eval_batches = 2;
  nn::save_weights(*models::make_model(name, sizes), weights);
  return o;
}

}  // namespace quantizing_test

using namespace quantizing_test;

TEST_CASE("quantize: a net of convolutions, its file and its bytes", "[quant]") {
  kernel_test::Settings settings;
  set_thread_count(1);
  const files_test::TemporaryFolder folder;
  const models::ModelOptions sizes{.image = 32, .channels = 3, .classes = 10, .width = 32};
  auto options = options_for("resnet18", sizes, folder / "f32");
  options.save = folder / "int8";
  const models::QuantizeReport report = models::quantize(options);
  CHECK(report.scheme == "int8");
  CHECK(report.predicted_peak_bytes >= (4 << 20));  // beyond the arena's first granules
  CHECK(report.predicted_peak_bytes == report.measured_peak_bytes);
  CHECK(static_cast<double>(report.f32_file_bytes) > 3.9 * static_cast<double>(report.int8_file_bytes));
  CHECK(static_cast<double>(report.f32_weight_bytes) > 3.8 * static_cast<double>(report.int8_weight_bytes));
  CHECK(report.layers.size() == 23);
  for (const auto& layer : report.layers) CHECK(layer.cosine > 0.98);
  CHECK(report.accuracy_int8.has_value());
  CHECK(report.ms_int8 > 0);
  const SafetensorsReader file(folder / "int8");
  CHECK(file.header().metadata.at("model") == "resnet18");

  models::RunOptions plan;
  plan.setup = options.setup, plan.setup.sizes = sizes;
  const models::PlanRequest in_codes{.is_inference = true, .is_int8 = true};
  CHECK(models::make_plan(plan, in_codes).plan.peak_bytes == report.predicted_peak_bytes);
  CHECK(models::make_plan(plan, {.is_inference = true}).plan.peak_bytes > 3 * report.predicted_peak_bytes);

  const auto refuses = [&](const std::function<void(models::Setup&)>& change, const std::string& text) {
    models::RunOptions other = plan;
    change(other.setup);
    CHECK_THROWS_WITH(models::make_plan(other, in_codes), "`is_int8`: not with " + text);
  };
  refuses([](auto& s) { s.model = "char-gpt", s.sizes = {.feed_forward = models::FeedForward::tiled}; },
          "`feed_forward` tiled, whose products have no codes; expected full");
  refuses([](auto& s) { s.precision.policy = "O2", s.precision.dtype = DType::f16; },
          "`precision` O2, because the codes are made of a net in f32; expected O0, or no `precision`");
  refuses([](auto& s) { s.precision.dtype = DType::bf16; },
          "`dtype` bf16, because the codes are made of a net in f32; expected f32");
}

TEST_CASE("quantize: a model over text gets blocks for its linear layers", "[quant]") {
  const files_test::TemporaryFolder folder;
  const models::ModelOptions sizes{.vocabulary = 55, .sequence = 16, .layers = 2, .heads = 2, .width = 64};
  auto options = options_for("gpt2", sizes, folder / "f32");
  options.save = folder / "q8";
  const models::QuantizeReport report = models::quantize(options);
  CHECK(report.scheme == "q8_0");
  REQUIRE(report.layers.size() == 2 * 4);
  CHECK(report.layers[0].name == "gpt.h.0.attn.c_attn");
  for (const auto& layer : report.layers) {
    CHECK(layer.signal_to_noise_db > 40);
    CHECK(layer.signal_to_noise_db < 55);
    CHECK(layer.cosine > 0.9999);
  }
  CHECK(report.loss_int8 == Approx(report.loss_f32).epsilon(0.01));
  // 12 x 64^2 numbers a layer; 32 of them take 34 bytes instead of 128.
  CHECK(report.int8_weight_bytes == report.f32_weight_bytes - 2 * 12 * 64 * 64 / 32 * 94);
  const SafetensorsReader file(folder / "q8");
  CHECK(file.header().find("h.0.attn.c_attn.weight_q8") != nullptr);
  CHECK(file.header().find("h.0.attn.c_attn.weight") == nullptr);
  const auto text_of = [&](const char* key) { return models::read_weight_facts(options.save).text(key); };
  CHECK((!text_of("characters").empty() && text_of("tokenizer").empty() && text_of("model") == "gpt2"));
  options =
      options_for("gpt2", {.vocabulary = 270, .sequence = 16, .layers = 1, .heads = 2, .width = 32}, folder / "f32");
  options.save = folder / "q8", options.setup.tokenizer = folder / "t.json";
  data::write_tokenizer(options.setup.tokenizer, tokenizer_test::letter_pairs(270));
  models::quantize(options);
  const auto tokenizer = std::make_shared<const data::Tokenizer>(data::read_tokenizer(options.setup.tokenizer));
  CHECK((text_of("characters").empty() && text_of("tokenizer") == models::TokenText(tokenizer).tokenizer_sum()));
}

TEST_CASE("quantize: every family over text, with heads that are tied and that are not", "[quant]") {
  const files_test::TemporaryFolder folder;
  const models::ModelOptions sizes{.vocabulary = 55, .sequence = 16, .layers = 2, .heads = 2, .width = 64};
  struct Row {
    const char* model;
    std::size_t layers;  // linear layers in 2 blocks and after them
  };
  const Row rows[] = {{"gpt2", 2 * 4},          {"llama-3.2-1b", 2 * 7},   {"qwen2.5-0.5b", 2 * 7},
                      {"bert-base", 2 * 6 + 1}, {"llama-2-7b", 2 * 7 + 1}, {"qwen2.5-7b", 2 * 7 + 1},
                      {"tiny-llama", 2 * 7}};
  for (const Row& row : rows) {
    INFO(row.model);
    models::ModelOptions own = sizes;
    if (models::model_family(row.model) == "llama") own.key_heads = 1, own.hidden = 96;
    if (models::model_family(row.model) == "bert") own.vocabulary = 56;  // with the mask token
    auto options = options_for(row.model, own, folder / "f32");
    options.save = folder / "q8";
    const models::QuantizeReport report = models::quantize(options);
    CHECK(report.layers.size() == row.layers);
    for (const auto& layer : report.layers) CHECK(layer.signal_to_noise_db > 40);
    CHECK(report.loss_int8 == Approx(report.loss_f32).epsilon(0.01));
    CHECK(report.loss_int8 != report.loss_f32);
    const SafetensorsReader file(folder / "q8");
    const auto& tensors = file.header().tensors;
    CHECK(static_cast<std::size_t>(std::count_if(tensors.begin(), tensors.end(), [](const SafetensorsEntry& t) {
            return t.name.ends_with(".weight_q8");
          })) == row.layers);
  }
}

TEST_CASE("quantize: what cannot be done is refused, and nothing is written", "[quant]") {
  const files_test::TemporaryFolder folder;
  const models::ModelOptions sizes{.image = 16, .channels = 3, .classes = 10, .width = 4};
  auto options = options_for("resnet18", sizes, folder / "f32");
  const std::size_t entries = folder.entries();
  options.save = folder / "int8", options.calibration.percent = 0;
  options.calibration.calibrator = nn::quant::Calibrator::percentile;
  CHECK_THROWS_AS(models::quantize(options), ValueError);
  options.calibration = {};
  options.setup.precision.dtype = DType::bf16;
  CHECK_THROWS_AS(models::quantize(options), ValueError);
  options.setup.precision.dtype = DType::f32;
  options.weights = folder / "none";
  CHECK_THROWS_AS(models::quantize(options), FileError);
  options.weights = folder / "f32";
  options.setup.model = "resnet34";
  CHECK_THROWS_AS(models::quantize(options), ValueError);
  CHECK(folder.entries() == entries);
  models::Setup text;
  text.model = "char-gpt";
  CHECK_THROWS_AS(nn::profile_training(dry(cpu), models::int8_inference_run(text)), ValueError);
}

TEST_CASE("program: quantize", "[quant]") {
  const files_test::TemporaryFolder folder;
  const models::ModelOptions sizes{.image = 16, .channels = 3, .classes = 10, .width = 8};
  options_for("resnet18", sizes, folder / "f32");
  const std::string start =
      "quantize resnet18 --image 16 --width 8 --batch 4 --eval-batches 1 --data synthetic --weights '";
  const std::string run = start + (folder / "f32") + "' ";
  const auto good =
      program_test::run(folder, run + "--calibrator entropy --symmetric --json --save '" + (folder / "i8") + "'");
  if (!good) return;  // tested above through the library
  INFO(good->error);
  REQUIRE(good->status == 0);
  const auto json = nlohmann::json::parse(good->out);
  CHECK(json["scheme"] == "int8");
  CHECK(json["calibrator"] == "entropy");
  CHECK(json["activations"] == "symmetric");
  CHECK(json["weights"] == "per_channel");
  CHECK(json["predicted_peak_bytes"] == json["measured_peak_bytes"]);
  CHECK(json["layers"].size() == 23);
  CHECK(json["int8_file_bytes"] < json["f32_file_bytes"]);
  CHECK(program_test::run(folder, "inspect '" + (folder / "i8") + "'")->status == 0);
  CHECK(program_test::run(folder, run)->out.find("times as fast") != std::string::npos);

  const std::pair<std::string, std::string> bad[] = {
      {run + "--calibrator median", "max, percentile, entropy, mse"},
      {run + "--percent 0", "--percent"},
      {run + "--calibration-batches 0", "--calibration-batches"},
      {start + "/no/such/file'", "/no/such/file"},
      {"plan resnet18 --int8", "--inference"},
      {"plan char-gpt --int8 --inference", "over text"},
  };
  for (const auto& [arguments, text] : bad) {
    INFO(arguments);
    const auto output = program_test::run(folder, arguments);
    CHECK(output->status == 2);
    CHECK(output->error.find(text) != std::string::npos);
    CHECK(output->out.empty());
  }
}
