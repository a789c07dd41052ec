// Theories of all models, found by name, against the ledger and the optimizers.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/dist/communicator.h>
#include <thimble/memory/stack.h>
#include <thimble/models/gpt/gpt.h>
#include <thimble/models/lora_theory.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/theory.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/quant/weight_only.h>
#include <thimble/nn/step/profile.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>

#include "support/catch.h"
#include "support/model_runs.h"

using namespace thimble;

TEST_CASE("models theory: the textbook build holds its closed form when backward begins", "[models]") {
  struct Row {
    const char* model;
    const char* optimizer;
    std::int64_t moments;
  };
  for (const Row& row : {Row{"resnet18", "momentum", 1}, Row{"resnet50", "sgd", 0}, Row{"sharedconv", "adam", 2},
                         Row{"googlenet", "momentum", 1}, Row{"char-gpt", "adamw", 2}, Row{"bert-base", "adamw", 2},
                         Row{"tiny-llama", "adamw", 2}, Row{"qwen2.5-0.5b", "sgd", 0}, Row{"vit-b16", "adamw", 2},
                         Row{"mlp", "momentum", 1}}) {
    INFO(row.model);
    models::Setup setup;
    setup.model = row.model;
    setup.optimizer.name = row.optimizer;
    setup.sizes.build = models::Build::textbook;
    const memory::Stack stack = memory::make_resource(dry(cpu));
    const ResourceScope scope(stack.top);
    RandomGenerator generator(1);
    const GeneratorScope random(generator);
    const auto model = models::make_model(setup.model, setup.sizes, {dry(cpu), DType::f32});
    const auto optimizer = models::make_optimizer(setup, *model);
    const models::Batch batch = model->empty_batch(3, dry(cpu));
    Tape tape;
    generator.start_pass();
    {
      const Recording on(tape);
      model->loss(batch);
    }
    std::size_t held = 0;
    for (const memory::Category c : {memory::Category::parameter, memory::Category::optimizer, memory::Category::input,
                                     memory::Category::activation}) {
      held += stack.ledger->bytes(c);
    }
    CHECK(models::make_theory(row.model, setup.sizes).held_bytes(row.moments, 3) == static_cast<std::int64_t>(held));
  }
}

TEST_CASE("models theory: blocks in parts, on one rank and on each of a group", "[models][theory]") {
  const std::string name = GENERATE("char-gpt", "bert-base", "tiny-llama", "vit-b16");
  const int parts = GENERATE(1, 2, 4, 8);
  const bool is_team = GENERATE(false, true);
  const models::Build build = GENERATE(models::Build::fused, models::Build::textbook);
  const std::string policy = GENERATE("O1", "bf16", "O0");
  const bool cuts_sequence = GENERATE(false, true);
  if (is_team && parts == 1) return;
  if (cuts_sequence && (parts == 1 || name == "vit-b16")) return;
  INFO(name << ", " << parts << " parts, " << (cuts_sequence ? "sequence as well, " : "")
            << (is_team ? "group" : "one rank") << ", " << (build == models::Build::fused ? "fused, " : "textbook, ")
            << policy);
  models::Setup setup;
  setup.model = name;
  models::ModelOptions& sizes = setup.sizes;
  sizes.layers = 2, sizes.width = 64, sizes.heads = 8, sizes.build = build;
  if (name == "vit-b16") {
    sizes.image = 32;
  } else {
    sizes.sequence = 32;
  }
  if (name == "tiny-llama") {
    sizes.key_heads = 8, sizes.hidden = 96;
  } else {
    sizes.dropout = 0.1;
  }
  set_precision(setup, policy);
  const auto ranks = dist::make_dry(parts - 1, parts);
  sizes.group = {parts, is_team ? ranks.get() : nullptr, cuts_sequence};
  const memory::Stack stack = memory::make_resource(dry(cpu));
  const ResourceScope scope(stack.top);
  RandomGenerator generator(1);
  const GeneratorScope random(generator);
  const nn::TensorOptions on = models::tensor_options(setup, dry(cpu));
  const auto model = models::make_model(name, sizes, on);
  const models::Batch batch = model->empty_batch(3, dry(cpu));
  Tape tape;
  generator.start_pass();
  {
    const Recording on_tape(tape);
    model->loss(batch);
  }
  const models::Theory theory = models::make_theory(name, sizes, nn::precision(policy));
  CHECK(theory.state(0).parameter_elements == model->parameter_count());
  CHECK(theory.held_bytes(0, 3) - theory.state(0).optimizer ==
        static_cast<std::int64_t>(stack.ledger->bytes(memory::Category::parameter) +
                                  stack.ledger->bytes(memory::Category::input) +
                                  stack.ledger->bytes(memory::Category::activation)));
}

TEST_CASE("models theory: a layer in parts keeps what the literature counts", "[models][theory]") {
  // Korthikanti et al. 2022, section 4.2: sbh (10 + 24 / t + 5 a s / (h t)) bytes at 2 bytes a number; with a sharded
  // sequence sbh (34 / t + 5 a s / (h t)).
  const bool cuts_sequence = GENERATE(false, true);
  for (const char* name : {"gpt-22b", "gpt-175b", "gpt-530b", "gpt-1t"}) {
    for (const int t : {1, 2, 4, 8}) {
      INFO(name << " in " << t << " parts");
      models::ModelOptions options;
      options.build = models::Build::textbook;
      const auto ranks = dist::make_dry(0, t);
      options.group = {t, t > 1 ? ranks.get() : nullptr, cuts_sequence && t > 1};
      const models::ModelOptions sizes = models::gpt_options(name, options);
      const std::int64_t s = sizes.sequence, h = sizes.width, a = sizes.heads, b = 3;
      const models::Theory theory = models::make_theory(name, options, DType::bf16);
      std::int64_t bytes = 0, statistics = 0;
      for (const models::Term& term : theory.layers.at(0).kept) {
        (term.name == "norm statistics" ? statistics : bytes) += term.bytes(b);
      }
      const std::int64_t cut = cuts_sequence ? t : 1;
      CHECK(bytes == s * b * h * 10 / cut + s * b * h * 24 / t + 5 * a * s * s * b / t);
      if (cuts_sequence) CHECK(bytes == s * b * h * 34 / t + 5 * a * s * s * b / t);
      CHECK(statistics == 4 * s * b * 4 / cut);  // the paper omits them
    }
  }
}

TEST_CASE("models theory: what has no closed form is said, not guessed", "[models][theory]") {
  models::ModelOptions chunked;
  chunked.head = models::Head::chunked;
  for (const char* name : {"gpt2", "bert-base", "llama-3.2-1b"}) {
    const models::Theory theory = models::make_theory(name, chunked);
    CHECK(theory.state(2).total() == models::make_theory(name).state(2).total());
    CHECK((theory.layers.empty() && theory.outside.empty()));
    try {
      theory.kept_bytes(memory::Category::activation, 1);
      FAIL(name << " has a figure for a chunked head");
    } catch (const ValueError& error) {
      CHECK(std::string(error.what()).ends_with("keeps with a chunked head"));
    }
    CHECK_THROWS_AS(theory.held_bytes(2, 1), ValueError);
  }
  CHECK_THROWS_AS(models::make_theory("resnet18").kept_bytes(memory::Category::activation, 1), ValueError);
}

TEST_CASE("models theory: parameters of every model, and optimizers' state in every form", "[models][theory]") {
  for (const models::ModelInfo& info : models::model_list()) {
    INFO(info.name);
    const models::Theory theory = models::make_theory(info.name);
    const auto model = models::make_model(info.name, {}, {dry(cpu)});
    std::vector<std::int64_t> elements, of_model;
    for (const models::ParameterTheory& p : theory.parameters) {
      elements.insert(elements.end(), static_cast<std::size_t>(p.count), p.shape.elements());
    }
    for (const optim::Named& p : model->trainable()) of_model.push_back(p.tensor.elements());
    std::sort(elements.begin(), elements.end()), std::sort(of_model.begin(), of_model.end());
    CHECK(elements == of_model);
    CHECK(theory.state(0).parameter_elements == info.parameters);
    const auto bytes_of = [](const optim::Optimizer& optimizer) {
      return static_cast<std::int64_t>(optimizer.state_bytes());
    };
    for (const DType dtype : {DType::u8, DType::bf16}) {
      const optim::MomentFormat format{.dtype = dtype};
      CHECK(theory.state(2, format).optimizer == bytes_of(optim::Adam(model->trainable(), {.moments = format})));
    }
    CHECK(theory.factored_state().optimizer == bytes_of(optim::Adafactor(model->trainable(), {})));
  }
  CHECK_THROWS_AS(models::make_theory("resnet19"), ValueError);
}

// ---- The memory of adapters in closed form against the ledger, as integers.

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
  const auto booked = [&](memory::Category category, const std::string& path = "") {
    return static_cast<std::int64_t>(stack.ledger->bytes(category, path));
  };
  RandomGenerator generator(1);
  const GeneratorScope draws(generator);
  nn::TensorOptions on{dry(cpu), dtype};
  if (code) on.coded_weights = std::make_shared<nn::quant::CodedStore>(*code);
  const auto model = models::make_model(c.model, sizes, on);
  CHECK(model->parameter_count() == theory.base_elements);
  CHECK(booked(memory::Category::parameter) == theory.base_bytes);
  nn::add_lora(*model, lora);
  CHECK(booked(memory::Category::parameter) == theory.base_bytes + theory.adapter_bytes());
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
      CHECK(booked(memory::Category::activation, layer.path) ==
            models::bytes_of(layer.kept, memory::Category::activation, samples));
    }
    CHECK(booked(memory::Category::activation) == theory.kept_bytes(memory::Category::activation, samples));
    CHECK(booked(memory::Category::input) == theory.kept_bytes(memory::Category::input, samples));
    CHECK(booked(memory::Category::temporary) == static_cast<std::int64_t>(loss.bytes()));
    tape.backward(loss);
  }
  CHECK(booked(memory::Category::activation) == 0);
  CHECK(booked(memory::Category::parameter) == theory.base_bytes + theory.adapter_bytes());
  CHECK(booked(memory::Category::gradient) == theory.gradient_bytes());
  const auto most = static_cast<std::int64_t>(stack.ledger->max_allocated(memory::Category::parameter));
  CHECK(most == theory.base_bytes + theory.adapter_bytes() + theory.decoded_bytes);
  const optim::Adam adam(model->trainable(), {});
  CHECK(booked(memory::Category::optimizer) == theory.optimizer_bytes(2));
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
  // Dettmers et al. 2023, arXiv:2305.14314: a 65B model's weights fit a card of 48 GB, a 7B model's take about 5 GB.
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

// ---- A step's bytes grow linearly: attention's memory with the sequence, everything per batch with the batch.

namespace {

std::size_t activations_at_peak(std::int64_t sequence, std::int64_t batch) {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.sizes.layers = 2, setup.sizes.heads = 2, setup.sizes.width = 32;
  setup.sizes.sequence = sequence;
  setup.batch = batch;
  const nn::MemoryProfile profile = nn::profile_training(dry(cpu), models::zero_batch_run(setup));
  return profile.peak_by_category[static_cast<std::size_t>(memory::Category::activation)];
}

}  // namespace

TEST_CASE("models: activations are linear in sequence and batch", "[models][theory]") {
  const std::size_t at_8k = activations_at_peak(8192, 1), at_16k = activations_at_peak(16'384, 1),
                    at_32k = activations_at_peak(32'768, 1);
  CHECK(at_16k > at_8k);
  CHECK(at_32k - at_16k == 2 * (at_16k - at_8k));
  // Scores for every pair of query and key would take 4 GiB per head.
  CHECK(at_32k < std::size_t{1} << 30);
  // From 8192 tokens on, as above; below, the bytes kept at the peak are not quite linear.
  const std::size_t of_32 = activations_at_peak(256, 32), of_64 = activations_at_peak(256, 64);
  const std::size_t of_128 = activations_at_peak(256, 128);
  CHECK(of_64 > of_32);
  CHECK(of_128 - of_64 == 2 * (of_64 - of_32));
}
