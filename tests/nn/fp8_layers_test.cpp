// FP8 in models: which layers run in it, which fall back and why, strict recipes, checkpoints.

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/models/model.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/layers/fp8.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/layers/shared_conv.h>
#include <thimble/nn/precision/precision.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adam.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/refusal.h"

using namespace thimble;
using refusal_test::refusal;

namespace {

models::ModelOptions small(std::string_view model) {
  models::ModelOptions options;
  options.width = model == "resnet18" ? 8 : 16;
  if (model == "char-gpt" || model == "bert-base") {
    options.layers = 2, options.heads = 2, options.sequence = 4, options.vocabulary = 19;
  }
  if (model == "vit-b16") options.layers = 1, options.heads = 2;
  if (model != "char-gpt" && model != "bert-base") options.image = 32;
  return options;
}

nn::TensorOptions strict_fp8() {
  nn::TensorOptions on = nn::precision("fp8").on(dry(cpu));
  on.fp8->strict = true;
  return on;
}

}  // namespace

TEST_CASE("fp8 layers: which run, which fall back, which stay", "[fp8]") {
  struct Row {
    const char *model, *layers, *higher;
    std::size_t fallbacks;
  };
  for (const Row& row : {
           Row{"char-gpt",
               "gpt.h.*.attn.c_attn (2), gpt.h.*.attn.c_proj (2), gpt.h.*.mlp.c_fc (2), gpt.h.*.mlp.c_proj (2)",
               "gpt.wte, gpt.wpe, gpt.h.*.ln_* (4), gpt.ln_f", 0},
           {"vit-b16",
            "vit.encoder.layers.encoder_layer_*.self_attention, "
            "vit.encoder.layers.encoder_layer_*.self_attention.out_proj, vit.encoder.layers.encoder_layer_*.mlp.* (2)",
            "vit, vit.encoder, vit.conv_proj, vit.encoder.layers.encoder_layer_*.ln_* (2), vit.encoder.ln, "
            "vit.heads.head",
            0},
           {"mlp", "mlp.fc* (2)", "mlp.fc*", 0},
           {"resnet18", "", "resnet.bn*, resnet.layer*.*.bn* (16), resnet.layer*.*.downsample.* (3), resnet.fc", 20},
           {"sharedconv", "", "sharedconv.stem_norm", 0},
       }) {
    INFO(row.model);
    const auto model = models::make_model(row.model, small(row.model), nn::precision("fp8").on(dry(cpu)));
    const nn::Fp8Layers layers = nn::fp8_layers(*model);
    CHECK(nn::fp8_paths_text(layers.layers) == row.layers);
    if (row.fallbacks > 0 || *row.layers != '\0') {
      CHECK(nn::fp8_paths_text(layers.higher) == row.higher);
      CHECK(layers.fallbacks.size() == row.fallbacks);
    } else {
      CHECK_FALSE(layers.fallbacks.empty());
    }
    for (const nn::Fp8Fallback& fallback : layers.fallbacks) {
      CHECK(fallback.reason == "convolutions have no FP8 form");
    }
    CHECK(nn::fp8_fallbacks(*model).size() == layers.fallbacks.size());
    // The three lists together are the owners of parameters, each once.
    std::set<std::string> owners;
    for (const nn::NamedTensor& p : model->parameters()) {
      const std::string name = std::string(path_name(model->path())) + "." + p.name;
      owners.insert(name.substr(0, name.rfind('.')));
    }
    std::vector<std::string> listed = layers.layers;
    listed.insert(listed.end(), layers.higher.begin(), layers.higher.end());
    for (const nn::Fp8Fallback& fallback : layers.fallbacks) listed.push_back(fallback.path);
    std::sort(listed.begin(), listed.end());
    CHECK(listed == std::vector<std::string>(owners.begin(), owners.end()));
    // Without a recipe the lists are empty.
    const auto plain = models::make_model(row.model, small(row.model), nn::precision("bf16").on(dry(cpu)));
    CHECK(nn::fp8_layers(*plain).layers.empty());
    CHECK(nn::fp8_layers(*plain).fallbacks.empty());
  }
}

TEST_CASE("fp8 layers: sizes that are no multiples of 16 fall back, and say so", "[fp8]") {
  models::ModelOptions odd = small("char-gpt");
  odd.width = 24;
  const auto model = models::make_model("char-gpt", odd, nn::precision("fp8").on(dry(cpu)));
  const nn::Fp8Layers layers = nn::fp8_layers(*model);
  CHECK(layers.layers.empty());
  REQUIRE(layers.fallbacks.size() == 8);
  CHECK(layers.fallbacks[0].path == "gpt.h.0.attn.c_attn");
  CHECK(layers.fallbacks[0].reason == "24 to 72 features, and both must be multiples of 16");
  CHECK(model->buffers().empty());
  CHECK(nn::why_not_fp8(16, 48).empty());
  CHECK_FALSE(nn::why_not_fp8(16, 40).empty());
  CHECK_FALSE(nn::why_not_fp8(8, 16).empty());
  // A layer that falls back matches bf16 bit by bit.
  RandomGenerator generator(1);
  const auto made = [&](const char* policy) {
    RandomGenerator own(5);
    const GeneratorScope scope(own);
    const auto layer = std::make_unique<nn::Linear>(24, 16, nn::precision(policy).on(cpu));
    return to_host<float>(to_dtype((*layer)(full({3, 24}, 0.3, DType::bf16)), DType::f32));
  };
  CHECK(made("fp8") == made("bf16"));
}

TEST_CASE("fp8 layers: strict", "[fp8]") {
  models::ModelOptions odd = small("char-gpt");
  odd.width = 24;
  CHECK(refusal<ValueError>([&] { models::make_model("char-gpt", odd, strict_fp8()); }) ==
        "fp8: gpt.h.0.attn.c_attn would fall back to a higher precision: 24 to 72 features, and both must be multiples "
        "of 16; a recipe that is not strict allows it");
  CHECK(refusal<ValueError>([&] { models::make_model("resnet18", small("resnet18"), strict_fp8()); }) ==
        "fp8: resnet.conv1 would fall back to a higher precision: convolutions have no FP8 form; a recipe that is not "
        "strict allows it");
  CHECK(refusal<ValueError>([&] { nn::SharedConv2d(8, 8, 3, 2, {}, strict_fp8()); }).find("convolutions") !=
        std::string::npos);
  for (const char* name : {"char-gpt", "bert-base", "vit-b16", "mlp"}) {
    INFO(name);
    CHECK(nn::fp8_fallbacks(*models::make_model(name, small(name), strict_fp8())).empty());
  }
}

TEST_CASE("fp8 layers: recipes out of range", "[fp8]") {
  const auto make = [](auto change) {
    nn::TensorOptions on = nn::precision("fp8").on(dry(cpu));
    change(*on.fp8);
    return refusal<ValueError>([&] { nn::Linear(16, 16, on); });
  };
  CHECK(make([](nn::Fp8Recipe&) {}).empty());
  CHECK(make([](nn::Fp8Recipe& r) { r.history = 1024; }).empty());
  CHECK(make([](nn::Fp8Recipe& r) { r.history = 0; }) == "fp8: a history of 0 steps; expected 1 to 1024");
  CHECK(make([](nn::Fp8Recipe& r) { r.margin = 17; }) == "fp8: margin 17; expected 0 to 16");
  CHECK(make([](nn::Fp8Recipe& r) { r.margin = -1; }) == "fp8: margin -1; expected 0 to 16");
  CHECK(make([](nn::Fp8Recipe& r) { r.kind = Fp8Scaling::block, r.margin = 1; }) ==
        "fp8: margin 1; expected 0 with scales of blocks");
}

TEST_CASE("fp8 layers: the state is in checkpoints, and one without it is refused", "[fp8]") {
  const files_test::TemporaryFolder folder;
  RandomGenerator generator(3);
  const GeneratorScope scope(generator);
  const auto make = [&](const char* policy) {
    return models::make_model("char-gpt", small("char-gpt"), nn::precision(policy).on(cpu));
  };
  const auto optimizer_of = [](models::Model& model) {
    return optim::Adam(model.trainable(), {.narrow = optim::NarrowUpdate::master});
  };
  const auto model = make("fp8");
  CHECK(model->buffers().size() == 8 * 3);
  optim::Adam adam = optimizer_of(*model);
  const models::Batch batch = model->empty_batch(2, cpu);
  nn::training_step(adam, [&](std::int64_t) { return model->loss(batch); });
  nn::save_checkpoint(folder / "fp8", *model, adam, generator);
  const auto other = make("fp8");
  optim::Adam again = optimizer_of(*other);
  RandomGenerator restored;
  nn::load_checkpoint(folder / "fp8", *other, again, restored);
  bool has_scale = false;
  for (std::size_t i = 0; i < model->buffers().size(); ++i) {
    const Tensor a = model->buffers()[i].tensor, b = other->buffers()[i].tensor;
    const memory::Pin left(a), right(b);
    CHECK(std::memcmp(left.data(), right.data(), a.bytes()) == 0);
    has_scale = has_scale || (a.dtype() == DType::f32 && to_host<float>(a)[0] != 0);
  }
  CHECK(has_scale);
  // bf16 and FP8 with other scaling have no such state.
  for (const char* policy : {"bf16", "fp8-current"}) {
    const auto without = make(policy);
    optim::Adam plain = optimizer_of(*without);
    nn::save_checkpoint(folder / "plain", *without, plain, generator);
    CHECK(refusal<ValueError>([&] {
            nn::load_checkpoint(folder / "plain", *other, again, restored);
          }).ends_with("the file lacks 'model.h.0.attn.c_attn.fp8_amax'"));
    CHECK(refusal<ValueError>([&] {
            nn::load_checkpoint(folder / "fp8", *without, plain, restored);
          }).find("neither model nor optimizer has 'model.h.0.attn.c_attn.fp8_") != std::string::npos);
  }
  // Bare weights load anywhere. A run without this state leaves it at its initial values, or is refused.
  nn::save_weights(*model, folder / "weights");
  const auto plain = make("bf16");
  CHECK_NOTHROW(nn::load_weights(*plain, folder / "weights"));
  nn::save_weights(*plain, folder / "plain");
  CHECK_THROWS_AS(nn::load_weights(*make("fp8"), folder / "plain"), ValueError);
  const nn::LoadedWeights loaded = nn::load_weights(*make("fp8"), folder / "plain", {.is_strict = false});
  CHECK(loaded.missing.size() == 24);
}

TEST_CASE("fp8 layers: an evaluation records nothing", "[fp8]") {
  RandomGenerator generator(3);
  const GeneratorScope scope(generator);
  for (const char* name : {"char-gpt", "vit-b16"}) {
    const auto model = models::make_model(name, small(name), nn::precision("fp8").on(cpu));
    const models::Batch batch = model->empty_batch(1, cpu);
    const auto recorded = [&] {
      std::int64_t steps = 0;
      for (const nn::NamedTensor& b : model->buffers()) {
        if (b.tensor.dtype() == DType::i64) steps += to_host<std::int64_t>(b.tensor)[0];
      }
      return steps;
    };
    const NoGrad off;
    model->eval();
    model->forward(batch.input);
    CHECK(recorded() == 0);
    model->train();
    model->forward(batch.input);
    CHECK(recorded() == static_cast<std::int64_t>(model->buffers().size() / 3));
  }
}
