// Checkpoints name the recipe for FP8: tensors are the same under several, and training must not go on under another.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/models/model.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/layers/fp8.h>
#include <thimble/nn/precision/precision.h>
#include <thimble/optim/adam.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/tensor_files.h"

namespace fp8_recipe_file_test {

using namespace thimble;
using files_test::error_of;

struct Training {
  std::unique_ptr<models::Model> model;
  optim::Adam optimizer;
  RandomGenerator generator{3};

  explicit Training(const char* policy, const std::function<void(nn::Fp8Recipe&)>& change = {})
      : model(make(policy, change)), optimizer(model->trainable(), {.narrow = optim::NarrowUpdate::master}) {}
  static std::unique_ptr<models::Model> make(const char* policy, const std::function<void(nn::Fp8Recipe&)>& change) {
    nn::TensorOptions on = nn::precision(policy).on(cpu);
    if (change) change(*on.fp8);
    return models::make_model("char-gpt", {.vocabulary = 19, .sequence = 4, .layers = 1, .heads = 2, .width = 16}, on);
  }
  void save(const std::string& path) const { nn::save_checkpoint(path, *model, optimizer, generator); }
  std::string load(const std::string& path) {
    return error_of([&] { nn::load_checkpoint(path, *model, optimizer, generator); });
  }
};

}  // namespace fp8_recipe_file_test

using namespace fp8_recipe_file_test;

TEST_CASE("fp8 recipes: a checkpoint of another one is refused by name", "[fp8]") {
  const files_test::TemporaryFolder folder;
  std::vector<std::pair<std::string, std::unique_ptr<Training>>> same;  // those that have the same tensors
  const auto add = [&](const char* text, const char* policy, const std::function<void(nn::Fp8Recipe&)>& change = {}) {
    same.emplace_back(text, std::make_unique<Training>(policy, change));
    CHECK(nn::fp8_recipe_text(*same.back().second->model) == text);
  };
  add("none", "bf16");
  add("current, f8e4m3 forward, f8e5m2 gradients, margin 0", "fp8-current");
  add("current, f8e4m3 forward, f8e5m2 gradients, margin 2", "fp8-current", [](nn::Fp8Recipe& r) { r.margin = 2; });
  add("current, f8e4m3 forward, f8e4m3 gradients, margin 0", "fp8-current", [](nn::Fp8Recipe& r) { r.hybrid = false; });
  add("block, f8e4m3 forward, f8e4m3 gradients, margin 0", "fp8-block");
  for (const auto& [text, from] : same) {
    const std::string path = folder / "c";
    from->save(path);
    CHECK(SafetensorsReader(path).header().metadata.at("thimble.fp8") == text);
    for (const auto& [other, to] : same) {
      const std::string error = to->load(path);
      CHECK(error == (other == text ? "no error"
                                    : "ValueError load_checkpoint: " + path + ": the recipe for FP8 is '" + text +
                                          "' in the file; the model's is '" + other + "'"));
    }
  }
  Training hybrid("fp8"), plain("fp8", [](nn::Fp8Recipe&r) { r.hybrid = false; });
  hybrid.save(folder / "delayed");
  CHECK(hybrid.load(folder / "delayed") == "no error");
  CHECK(plain.load(folder / "delayed").find("'delayed, f8e4m3 forward, f8e5m2 gradients, margin 0' in the file") !=
        std::string::npos);
}

TEST_CASE("fp8 recipes: files from before they were named load", "[fp8]") {
  const files_test::TemporaryFolder folder;
  Training training("fp8-current");
  training.save(folder / "new");
  const auto rewrite = [&](const std::function<void(std::map<std::string, std::string>&)>& change) {
    const SafetensorsReader file(folder / "new");
    std::map<std::string, std::string> metadata = file.header().metadata;
    change(metadata);
    files_test::write_zeros(folder / "old", file.header().tensors, metadata);
  };
  rewrite([](auto& metadata) { CHECK(metadata.erase("thimble.fp8") == 1); });
  CHECK(training.load(folder / "old") == "no error");
  rewrite([](auto& metadata) { metadata["thimble.fp8"] = ""; });
  CHECK(training.load(folder / "old").ends_with("the metadata's thimble.fp8 is empty"));
}
