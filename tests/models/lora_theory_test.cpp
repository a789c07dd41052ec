// The memory of adapters in closed form against what the ledger books, as integers.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/models/lora_theory.h>
#include <thimble/nn/quant/weight_only.h>

#include "support/catch.h"
#include "support/model_runs.h"

using namespace thimble;
using namespace thimble::testing;

namespace lora_theory_test {

struct Case {
  const char* model;
  std::vector<std::string> targets;
  double dropout = 0;
};

models::ModelOptions sizes_of(const std::string& name) {
  models::ModelOptions sizes{.vocabulary = 40, .sequence = 24, .layers = 3, .heads = 4, .width = 64};
  if (name.find("gpt") == std::string::npos) sizes.key_heads = 2, sizes.hidden = 96;
  return sizes;
}

void check(const Case& c, DType dtype, std::optional<WeightCode> code) {
  INFO(c.model << " " << (c.targets.empty() ? "all" : c.targets.front()) << " " << to_string(dtype) << " "
               << (code ? to_string(*code) : "plain") << " " << c.dropout);
  constexpr std::int64_t samples = 3;
  const models::ModelOptions sizes = sizes_of(c.model);
  const nn::LoraOptions lora{{.rank = 5, .alpha = 5, .dropout = c.dropout}, c.targets};
  const models::LoraTheory theory = models::lora_theory(c.model, sizes, dtype, lora, code);
  const memory::Stack stack = memory::make_resource(dry(cpu));
  const ResourceScope scope(stack.top);
  const auto booked = [&](Category category, const std::string& path = "") {
    return static_cast<std::int64_t>(stack.ledger->bytes(category, path));
  };
  RandomGenerator generator(1);
  const GeneratorScope draws(generator);
  nn::TensorOptions on{dry(cpu), dtype};
  if (code) on.coded_weights = std::make_shared<nn::quant::CodedStore>(*code);
  const auto model = models::make_model(c.model, sizes, on);
  CHECK(model->parameter_count() == theory.base_elements);
  CHECK(booked(Category::parameter) == theory.base_bytes);
  nn::add_lora(*model, lora);
  CHECK(booked(Category::parameter) == theory.base_bytes + theory.adapter_bytes());
  CHECK(model->parameter_count() == theory.base_elements + theory.adapter_elements);
  const models::Batch batch = model->empty_batch(samples, dry(cpu));
  Tape tape;
  {
    const ParameterUse use;
    Tensor loss;
    {
      const Recording on_tape(tape);
      loss = model->loss(batch);
    }
    for (const models::LayerTheory& layer : theory.layers) {
      INFO(layer.path);
      CHECK(booked(Category::activation, layer.path) == models::bytes_of(layer.kept, Category::activation, samples));
    }
    CHECK(booked(Category::activation) == theory.kept_bytes(Category::activation, samples));
    CHECK(booked(Category::input) == theory.kept_bytes(Category::input, samples));
    CHECK(booked(Category::temporary) == static_cast<std::int64_t>(loss.bytes()));
    tape.backward(loss);
  }
  CHECK(booked(Category::activation) == 0);
  CHECK(booked(Category::parameter) == theory.base_bytes + theory.adapter_bytes());
  CHECK(booked(Category::gradient) == theory.gradient_bytes());
  const auto most = static_cast<std::int64_t>(stack.ledger->max_allocated(Category::parameter));
  CHECK(most == theory.base_bytes + theory.adapter_bytes() + theory.decoded_bytes);
  const optim::Adam adam(model->trainable(), {});
  CHECK(booked(Category::optimizer) == theory.optimizer_bytes(2));
}

}  // namespace lora_theory_test

TEST_CASE("lora theory: what is kept, frozen and trained, for all targets and codes", "[lora]") {
  using namespace lora_theory_test;
  const std::vector<Case> cases{{"llama-3.2-1b", {}},
                                {"llama-3.2-1b", {}, 0.1},
                                {"llama-2-7b", {"q_proj", "v_proj"}},
                                {"llama-2-7b", {"k_proj"}, 0.1},
                                {"qwen2.5-0.5b", {"o_proj"}},
                                {"qwen2.5-0.5b", {"mlp.*"}},
                                {"tiny-llama", {"up_proj"}},
                                {"tiny-llama", {"model.layers.1.mlp.down_proj"}},
                                {"gpt2", {}},
                                {"gpt2-xl", {"c_attn"}, 0.1},
                                {"char-gpt", {"c_proj"}},
                                {"char-gpt", {"mlp.c_fc"}}};
  for (const Case& c : cases) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      check(c, dtype, {});
      check(c, dtype, WeightCode::nf4);
    }
    check(c, DType::bf16, WeightCode::int8);
  }
}

TEST_CASE("lora theory: published sizes", "[lora]") {
  // Dettmers et al. 2023, arXiv:2305.14314: a 65B model's weights fit a card of 48 GB, a 7B one's take about 5 GB.
  const nn::LoraOptions lora{{.rank = 64, .alpha = 16}};
  const auto of = [&](const char* name) { return models::lora_theory(name, {}, DType::bf16, lora, WeightCode::nf4); };
  const models::LoraTheory small = of("llama-2-7b"), large = of("llama-3-70b");
  CHECK(small.base_elements == 6738415616);
  std::int64_t in_blocks = 0;
  for (const models::LinearTheory& l : small.linears) in_blocks += l.in * l.out;
  CHECK(in_blocks == std::int64_t{32} * (4 * 4096 * 4096 + 3 * 4096 * 11008));
  CHECK(small.base_bytes == 3'865'592'704);
  CHECK(large.base_bytes == 39'517'112'512);
  CHECK(small.adapter_elements == 64 * 32 * (4 * (4096 + 4096) + 3 * (4096 + 11008)));
}

TEST_CASE("lora theory: what has no closed form is refused", "[lora]") {
  const nn::LoraOptions lora;
  CHECK_THROWS_AS(models::lora_theory("bert-base", {}, DType::f32, lora), ValueError);
  CHECK_THROWS_AS(models::lora_theory("gpt2", {.build = models::Build::textbook}, DType::f32, lora), ValueError);
  CHECK_THROWS_AS(models::lora_theory("gpt2", {.head = models::Head::chunked}, DType::f32, lora), ValueError);
  CHECK_THROWS_AS(models::lora_theory("gpt2", {}, DType::f64, lora), ValueError);
  CHECK_THROWS_AS(models::lora_theory("gpt2", {}, DType::f32, {{}, {"q_proj"}}), ValueError);
}
