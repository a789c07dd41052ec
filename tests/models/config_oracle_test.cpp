// Folders as transformers writes them, with unusual values in every key: Thimble and transformers compute equal results
// from equal tokens or pixels, in models::load_model, in a training run at rate 0, and in generation. config_cases.json
// has transformers' numbers (tests/oracle/config_check.py, which also makes random cases where transformers is
// installed).

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/autograd/functions.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/models/generation/generating.h>
#include <thimble/models/training/training.h>
#include <thimble/models/weights/follow_weights.h>
#include <thimble/nn/files/weights.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/model_runs.h"
#include "support/skip.h"

using namespace thimble;
using namespace thimble::testing;
using files_test::TemporaryFolder;
using models::ModelOptions;
using Json = nlohmann::ordered_json;

namespace {

/// Writes a case's tensors, by config_check.py's formula, and its config.json.
void write_folder(const std::string& folder, const Json& row) {
  std::filesystem::create_directories(folder);
  files_test::write_text_file(folder + "/config.json", row.at("config").dump());
  std::vector<nn::NamedTensor> tensors;
  for (std::size_t t = 0; t < row.at("tensors").size(); ++t) {
    const Json& entry = row.at("tensors")[t];
    const std::string name = entry[0];
    const auto sizes = entry[1].get<std::vector<std::int64_t>>();
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) count *= size;
    std::vector<float> values;
    const double gain = sizes.size() == 1 && name.ends_with("weight") ? 1 : 0;
    for (std::int64_t k = 0; k < count; ++k) {
      const double angle = 1 + 0.37 * static_cast<double>(k) + 1.3 * static_cast<double>(t);
      values.push_back(static_cast<float>(0.15 * std::sin(angle) + gain));
    }
    const std::string in_file = entry.size() > 2 ? entry[2].get<std::string>() : name;
    tensors.push_back({in_file, from_host(values, Shape(std::span<const std::int64_t>(sizes)))});
  }
  nn::write_tensor_file(folder + "/model.safetensors", tensors, {{"format", "pt"}});
}

ModelOptions options_for(const Json& row) {
  ModelOptions options;
  const std::string type = row.at("config").at("model_type");
  if (type != "gpt2" && type != "bert" && type != "vit") {
    options.sequence = static_cast<std::int64_t>(row.at("ids").size()) - 1;
  }
  options.dropout = 0;
  return options;
}

/// The largest difference of two lists, relative to the largest number in the second.
double distance(const std::vector<float>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return most / largest;
}

/// Scores of the last token, or of the picture sin(0.11 k), whose index k counts channels first.
std::vector<float> scores_of(models::Model& model, const Json& row) {
  const NoGrad off;
  model.eval();
  if (!row.contains("ids")) {
    const std::int64_t side = model.options().image, channels = model.options().channels;
    std::vector<float> pixels(static_cast<std::size_t>(side * side * channels));
    for (std::int64_t c = 0, k = 0; c < channels; ++c) {
      for (std::int64_t p = 0; p < side * side; ++p, ++k) {
        pixels[static_cast<std::size_t>(p * channels + c)] =
            static_cast<float>(std::sin(0.11 * static_cast<double>(k)));
      }
    }
    return to_host<float>(model.forward(from_host(pixels, {1, side, side, channels})));
  }
  auto ids = row.at("ids").get<std::vector<std::int64_t>>();
  ids.pop_back();
  const auto count = static_cast<std::int64_t>(ids.size());
  const Tensor logits = model.forward(from_host(ids, {1, count})).detach();
  return to_host<float>(view::slice(logits, 1, count - 1, count));
}

/// A file of tokens in llm.c's format.
void write_tokens(const std::string& path, const std::vector<std::int64_t>& ids) {
  std::string bytes;
  const auto put = [&](std::uint32_t value, int count) {
    for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  };
  put(20240520, 4), put(1, 4), put(static_cast<std::uint32_t>(ids.size()), 4);
  bytes.resize(1024, '\0');
  for (const std::int64_t id : ids) put(static_cast<std::uint32_t>(id), 2);
  files_test::write_text_file(path, bytes);
}

/// The loss over the case's tokens in a training run at rate 0.
double trained_loss(const std::string& folder, const Json& row) {
  const auto ids = row.at("ids").get<std::vector<std::int64_t>>();
  const std::string data = folder + "/data";
  std::filesystem::create_directories(data);
  write_tokens(data + "/x_train.bin", ids);
  write_tokens(data + "/x_val.bin", ids);
  models::RunOptions options;
  options.setup.model = row.at("model");
  options.setup.sizes = options_for(row);
  options.setup.batch = 1, options.setup.optimizer.rate = 0, options.setup.optimizer.weight_decay = 0;
  options.setup.weights = folder, options.data = data, options.steps = 1;
  return models::Engine(options).run().evaluation->loss;
}

void check_case(const Json& row) {
  const TemporaryFolder folder;
  const std::string path = folder / "model";
  CAPTURE(row.at("name").get<std::string>(), row.at("config").dump());
  write_folder(path, row);
  const auto model = models::load_model(row.at("model").get<std::string>(), path, {}, options_for(row));
  CHECK(distance(scores_of(*model, row), row.at("logits").get<std::vector<double>>()) < 2e-5);
  if (!row.contains("ids")) return;
  const auto ids = row.at("ids").get<std::vector<std::int64_t>>();
  const auto count = static_cast<std::int64_t>(ids.size()) - 1;
  const models::Batch batch{from_host(std::vector(ids.begin(), ids.end() - 1), {1, count}),
                            from_host(std::vector(ids.begin() + 1, ids.end()), {1, count})};
  {
    const NoGrad off;
    CHECK(item(model->loss(batch)) == Approx(row.at("loss").get<double>()).epsilon(2e-5));
  }
  if (model->is_masked()) return;
  const bool has_as_many = model->options().sequence == count;  // no more learned positions than tokens
  if (has_as_many) CHECK(trained_loss(path, row) == Approx(row.at("loss").get<double>()).epsilon(2e-5));
  // Generation uses the same model: compares its scores after a prompt of all tokens but one, and that token.
  models::GenerationShape shape;
  shape.setup.model = row.at("model");
  models::follow_weights(shape.setup.model, shape.setup.sizes, models::read_weight_facts(path),
                         models::WeightUse::writing);
  const auto writer = models::make_decoder(shape, cpu);
  if (writer->most_positions() < count) return;
  nn::load_weights(*writer, path);
  writer->eval();
  nn::KvCacheSizes sizes = writer->cache_sizes();
  sizes.batch = 1, sizes.context = count;
  nn::KvCache cache(sizes, cpu);
  const NoGrad off;
  writer->extend(from_host(std::vector(ids.begin(), ids.end() - 2), {1, count - 1}), cache);
  const Tensor last = writer->extend(from_host(std::vector<std::int64_t>{ids[ids.size() - 2]}, {1, 1}), cache);
  CHECK(distance(to_host<float>(last), row.at("logits").get<std::vector<double>>()) < 2e-5);
}

}  // namespace

TEST_CASE("config oracle: folders with unusual values are the models that transformers makes of them",
          "[models][config]") {
  const Threads alone;
  const std::string path = (files_test::tests_folder() / "models/config_cases.json").string();
  const Json cases = Json::parse(files_test::read_text_file(path));
  CHECK(cases.size() > 30);
  for (const Json& row : cases) check_case(row);
}

TEST_CASE("config oracle: random configurations", "[models][config][oracle]") {
  const Threads alone;
  const TemporaryFolder folder;
  for (const int seed : {1, 2}) {
    const std::string path = folder / "cases.json";
    const int status = files_test::run_oracle("config_check.py", "random '" + path + "' " + std::to_string(seed));
    if (status == 77) return thimble_test::skip("THIMBLE_PYTHON does not name a Python with transformers");
    REQUIRE(status == 0);
    for (const Json& row : Json::parse(files_test::read_text_file(path))) check_case(row);
  }
}
