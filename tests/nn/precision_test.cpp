// Precision policies: dtypes of parameters and products, exact bytes against theory, predicted against measured.

#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/models/theory.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/layers/shared_conv.h>
#include <thimble/nn/precision/precision.h>

#include "support/catch.h"
#include "support/model_runs.h"

using namespace thimble;
using namespace thimble::testing;
using models::parameter_bytes;

namespace {

models::ModelOptions small_gpt(models::Build build = models::Build::fused, double dropout = 0.1) {
  models::ModelOptions options;
  options.layers = 2, options.heads = 2, options.width = 16, options.sequence = 8, options.vocabulary = 19;
  options.build = build;
  options.dropout = dropout;
  return options;
}

models::ModelOptions small_images(models::Build build, std::int64_t image) {
  models::ModelOptions options;
  options.image = image, options.width = 16;
  options.build = build;
  return options;
}

}  // namespace

TEST_CASE("precision: names", "[precision]") {
  CHECK(nn::precisions().size() == 10);
  for (const nn::Precision& p : nn::precisions()) CHECK(&nn::precision(p.name) == &p);
  CHECK_THROWS_WITH(nn::precision("O4"),
                    "precision: 'O4' is not one of O0, O1, O2, O3, bf16, bf16-stochastic, bf16-kahan, fp8, "
                    "fp8-current, fp8-block");
}

TEST_CASE("precision: bytes of a parameter with Adam", "[precision][theory]") {
  struct Row {
    const char* name;
    std::int64_t weight, norm;
  };
  for (const Row& row : {Row{"O0", 16, 16},
                         {"O1", 16, 16},
                         {"O2", 16, 16},
                         {"O3", 12, 12},
                         {"bf16", 16, 16},
                         {"bf16-stochastic", 12, 12},
                         {"bf16-kahan", 14, 14},
                         {"fp8", 16, 16},
                         {"fp8-current", 16, 16},
                         {"fp8-block", 16, 16}}) {
    INFO(row.name);
    CHECK(parameter_bytes(nn::precision(row.name), 2).total() == row.weight);
    CHECK(parameter_bytes(nn::precision(row.name), 2, true).total() == row.norm);
  }
  CHECK_THROWS_AS(parameter_bytes(nn::precision("O0"), -1), ValueError);
}

TEST_CASE("precision: bytes of models against the ledger, as integers", "[precision][theory]") {
  constexpr std::int64_t samples = 3;
  using models::Build;
  for (const nn::Precision& precision : nn::precisions()) {
    const auto check = [&](const char* model, const models::ModelOptions& sizes, std::int64_t fp8_products = 0) {
      INFO(precision.name << ", " << model << ", image " << sizes.image << ", build " << static_cast<int>(sizes.build)
                          << ", dropout " << sizes.dropout);
      const models::Theory theory = models::make_theory(model, sizes, precision);
      if (!theory.unknown.empty()) {
        CHECK_THROWS_AS(theory.kept_bytes(memory::Category::activation, samples), ValueError);
        CHECK((theory.layers.empty() && theory.outside.empty()));
        return false;
      }
      // Outside of a step, a product keeps its three initial scales.
      const bool is_delayed = precision.fp8 && precision.fp8->kind == Fp8Scaling::delayed;
      check_theory(theory, model, sizes, samples, false, is_delayed ? fp8_products * 12 : 0);
      if (precision.compute || precision.fp8) {
        CHECK_THROWS_AS(theory.kept_bytes(memory::Category::activation, samples, true), ValueError);
      }
      return true;
    };
    for (const Build build : {Build::fused, Build::textbook}) {
      for (const double dropout : {0.0, 0.1}) {
        CHECK(check("char-gpt", small_gpt(build, dropout), 4));
        CHECK(check("bert-base", small_gpt(build, dropout), 6));
        if (dropout == 0) {
          models::ModelOptions llama = small_gpt(build, 0);
          llama.width = 32, llama.key_heads = 1;
          CHECK(check("tiny-llama", llama, 7));
          llama.hidden = 40;  // not a multiple of 16: three of the products fall back
          CHECK(check("qwen2.5-7b", llama, 4));
        }
        models::ModelOptions vit = small_images(build, 32);
        vit.layers = 2, vit.heads = 2, vit.dropout = dropout;
        CHECK(check("vit-b16", vit, 4));
        models::ModelOptions googlenet = small_images(build, 72);
        googlenet.dropout = dropout;
        CHECK(check("googlenet", googlenet));
      }
      for (const std::int64_t image : {16, 72}) {
        CHECK(check("resnet18", small_images(build, image)) == (build == Build::textbook));
      }
      for (const bool shares_kernels : {true, false}) {
        models::ModelOptions sharedconv = small_images(build, 16);
        sharedconv.shares_kernels = shares_kernels;
        CHECK(check("sharedconv", sharedconv) == (build == Build::textbook));
      }
      CHECK(check("mlp", small_images(build, 16)) == !precision.fp8);
    }
  }
}

TEST_CASE("precision: every model trains under every policy, in the bytes that were predicted", "[precision]") {
  struct Row {
    const char* model;
    models::ModelOptions sizes;
  };
  models::ModelOptions text = small_gpt(), image;
  image.image = 16, image.width = 8;
  models::ModelOptions vit, llama = small_gpt(models::Build::fused, 0);
  vit.image = 32, vit.layers = 1, vit.heads = 2, vit.width = 16;
  const Threads alone;
  for (const Row& row : {Row{"char-gpt", text},
                         {"bert-base", text},
                         {"tiny-llama", llama},
                         {"vit-b16", vit},
                         {"resnet18", image},
                         {"googlenet", image},
                         {"sharedconv", image},
                         {"mlp", image}}) {
    for (const nn::Precision& precision : nn::precisions()) {
      INFO(row.model << ", " << precision.name);
      models::Setup setup;
      setup.model = row.model;
      setup.sizes = row.sizes;
      if (setup.model == "bert-base") setup.sizes.dropout = 0.1;
      setup.batch = 4;
      models::set_precision(setup, std::string(precision.name));
      const nn::MakeRun make = models::zero_batch_run(setup);
      const nn::MemoryProfile predicted = nn::profile_training(dry(cpu), make, 2, true);
      const nn::MemoryProfile measured = nn::profile_training(cpu, make, 2, true);
      CHECK(predicted.peak_bytes == measured.peak_bytes);
      CHECK(predicted.peak_height_bytes == measured.peak_height_bytes);
      CHECK(predicted.peak_live_bytes == measured.peak_live_bytes);
      CHECK(predicted.peak_by_category == measured.peak_by_category);
    }
  }
}

TEST_CASE("precision: under O1 weights and gradients are f32, products f16", "[precision]") {
  const Threads alone;
  RandomGenerator generator(1);
  const GeneratorScope scope(generator);
  nn::Linear wide(8, 6, {}, {.activation = kernels::Activation::gelu_tanh});
  nn::Linear mixed(8, 6, nn::precision("O1").on(cpu), {.activation = kernels::Activation::gelu_tanh});
  copy_into(mixed.weight, wide.weight);
  copy_into(mixed.bias, wide.bias);
  Tensor x = randn({5, 8});
  x.require_grad();
  const auto gradients = [&](nn::Linear& layer, DType of_result) {
    Tape tape;
    Tensor y, loss;
    {
      const Recording on(tape);
      y = layer(x);
      loss = sum(cast(y, DType::f32));
    }
    CHECK(y.dtype() == of_result);
    x.grad() = Tensor();
    layer.weight.grad() = layer.bias.grad() = Tensor();
    tape.backward(loss);
    std::vector<std::vector<double>> all;
    for (const Tensor& t : {x.grad(), layer.weight.grad(), layer.bias.grad()}) {
      CHECK(t.dtype() == DType::f32);
      all.push_back(to_host<double>(t));
    }
    return all;
  };
  const auto in_f32 = gradients(wide, DType::f32), in_f16 = gradients(mixed, DType::f16);
  for (std::size_t i = 0; i < in_f32.size(); ++i) {
    CHECK(in_f16[i] != in_f32[i]);
    CHECK(distance(in_f16[i], in_f32[i]) < 4e-3);
  }
}

TEST_CASE("precision: norms have parameters of their own dtype", "[precision]") {
  for (const nn::Precision& precision : nn::precisions()) {
    INFO(precision.name);
    const nn::TensorOptions on = precision.on(dry(cpu));
    CHECK(nn::LayerNorm(4, on).weight.dtype() == precision.norms);
    CHECK(nn::RmsNorm(4, on).weight.dtype() == precision.norms);
    CHECK(nn::GroupNorm(2, 4, on).bias.dtype() == precision.norms);
    const nn::BatchNorm2d norm(4, on);
    CHECK(norm.bias.dtype() == precision.norms);
    CHECK(norm.running_var.dtype() == DType::f32);
    CHECK(nn::Linear(4, 4, on).bias.dtype() == precision.parameters);
    CHECK(nn::Conv2d(4, 4, 1, {}, false, on).weight.dtype() == precision.parameters);
    CHECK(nn::Embedding(4, 4, on).weight.dtype() == precision.parameters);
  }
}

TEST_CASE("precision: a sum of two dtypes is of the wider one", "[precision]") {
  const Tensor a = full({3}, 1, DType::f32), b = full({3}, 2, DType::f16);
  CHECK(nn::residual_sum(a, b).dtype() == DType::f32);
  CHECK(nn::residual_sum(b, a).dtype() == DType::f32);
  CHECK(nn::residual_sum(b, b).dtype() == DType::f16);
  CHECK(to_host<float>(nn::residual_sum(b, a)) == std::vector<float>{3, 3, 3});
}

TEST_CASE("precision: what contradicts a policy is refused", "[precision]") {
  const auto error_of = [](models::Setup setup) -> std::string {
    try {
      models::check_techniques(setup, true);
      models::tensor_options(setup, cpu);
    } catch (const ValueError& error) {
      return error.what();
    }
    return "";
  };
  models::Setup setup;
  setup.model = "char-gpt";
  models::set_precision(setup, "O2");
  CHECK(setup.precision.dtype == DType::f16);
  CHECK(error_of(setup).empty());
  setup.fuses_optimizer = true;
  CHECK(error_of(setup).starts_with("`fuses_optimizer`: not with `precision` O2"));
  setup.fuses_optimizer = false;
  setup.sizes.head = models::Head::chunked;
  CHECK(error_of(setup).starts_with("`head`: chunked is not for `precision` O2"));
  models::set_precision(setup, "bf16");
  setup.fuses_optimizer = true;
  setup.optimizer.clip_norm = 0;
  CHECK(error_of(setup).empty());
  setup.precision.dtype = DType::f32;
  CHECK(error_of(setup).starts_with("`dtype`: f32 contradicts `precision` bf16, whose parameters are bf16"));
  CHECK_THROWS_AS(models::set_precision(setup, "half"), ValueError);
  CHECK(setup.precision.policy == "bf16");
}
