// Transformers with feed-forward layers in tiles: bits beside the full ones, their memory against theory and between
// dry and real runs, and what they refuse.

#include <string>

#include <thimble/core/error.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/lora/lora.h>
#include <thimble/nn/step/profile.h>

#include "support/catch.h"
#include "support/model_runs.h"

using namespace thimble;
using namespace thimble::models;
using namespace thimble::testing;

namespace {

constexpr const char* names[] = {"char-gpt", "bert-base", "vit-b16", "tiny-llama", "qwen2.5-0.5b"};

ModelOptions small(const std::string& name, FeedForward feed_forward = FeedForward::tiled, double dropout = 0) {
  ModelOptions options;
  options.layers = 2, options.width = 32, options.heads = 4;
  if (name == "vit-b16") {
    options.image = 48;
  } else {
    options.sequence = 16, options.vocabulary = 17;
  }
  if (name == "tiny-llama" || name.starts_with("qwen")) options.key_heads = 2, options.hidden = 48;
  options.feed_forward = feed_forward, options.dropout = dropout;
  return options;
}

}  // namespace

TEST_CASE("models: feed-forward layers in tiles have the bits of full ones where one tile holds all rows",
          "[models][feed_forward]") {
  const Threads alone;
  for (const char* name : names) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      INFO(name << " " << to_string(dtype));
      const double dropout = name == std::string("char-gpt") || name == std::string("bert-base") ? 0.2 : 0.0;
      const auto full = make_seeded(name, small(name, FeedForward::full, dropout), {cpu, dtype});
      const auto tiled = make_seeded(name, small(name, FeedForward::tiled, dropout), {cpu, dtype});
      const Batch batch = make_batch(*full, 3);
      CHECK(run_pass(*tiled, batch) == run_pass(*full, batch));
    }
  }
}

TEST_CASE("models: what feed-forward layers in tiles keep is the theory's", "[models][feed_forward][theory]") {
  for (const char* name : names) {
    for (const char* policy : {"", "O1", "O2", "bf16-kahan"}) {
      INFO(name << " " << policy);
      const nn::Precision precision = *policy != 0 ? nn::precision(policy) : nn::Precision{};
      const Theory tiled = make_theory(name, small(name), precision);
      const Theory full = make_theory(name, small(name, FeedForward::full), precision);
      CHECK(tiled.kept_bytes(Category::activation, 3) < full.kept_bytes(Category::activation, 3));
      CHECK(tiled.state(2).total() == full.state(2).total());
      check_theory<Model>(tiled, name, small(name), 3);
    }
  }
}

TEST_CASE("models: dry runs of feed-forward layers in tiles are the real ones", "[models][feed_forward]") {
  for (const char* name : names) {
    INFO(name);
    check_dry_run(name, small(name), 3);
  }
}

TEST_CASE("models: what feed-forward layers in tiles refuse", "[models][feed_forward]") {
  const auto message = [](auto&& f) -> std::string {
    try {
      f();
      return "nothing was thrown";
    } catch (const ValueError& error) {
      return error.what();
    }
  };
  ModelOptions textbook = small("tiny-llama");
  textbook.build = Build::textbook;
  CHECK(message([&] { make_model("tiny-llama", textbook); }).find("the textbook build has only full feed-forward") !=
        std::string::npos);
  CHECK(message([&] {
          make_model("vit-b16", small("vit-b16", FeedForward::tiled, 0.1));
        }).find("feed-forward layers in tiles have no dropout inside") != std::string::npos);
  ModelOptions of_images;
  of_images.feed_forward = FeedForward::tiled;
  for (const char* name : {"resnet18", "mlp", "googlenet", "sharedconv"}) {
    INFO(name);
    CHECK(message([&] { make_model(name, of_images); }).find("`feed_forward` tiled") != std::string::npos);
  }
  const auto adapted = make_seeded("tiny-llama", small("tiny-llama"));
  nn::add_lora(*adapted, {{.rank = 2}, {}});
  CHECK(message([&] { adapted->loss(make_batch(*adapted, 1)); }) ==
        "feed-forward layer in tiles: expected plain linear layers, got llama.model.layers.0.mlp.up_proj, which has an "
        "adapter; `feed_forward` full, or `lora_targets` outside of feed-forward layers, runs it");
  const auto outside = make_seeded("tiny-llama", small("tiny-llama"));
  nn::add_lora(*outside, {{.rank = 2}, {"q_proj", "v_proj"}});
  CHECK(message([&] { outside->loss(make_batch(*outside, 1)); }) == "nothing was thrown");
  Setup fp8;
  fp8.model = "tiny-llama", fp8.sizes = small("tiny-llama"), fp8.batch = 2;
  set_precision(fp8, "fp8");
  CHECK(message([&] { nn::profile_training(dry(cpu), zero_batch_run(fp8)); }).find("runs in FP8") != std::string::npos);
}
