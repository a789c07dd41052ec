// Theories of all models, found by name, against the ledger and the optimizers.

#include <thimble/models/theory.h>

#include <algorithm>
#include <string>
#include <vector>

#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/dist/communicator.h>
#include <thimble/memory/stack.h>
#include <thimble/models/gpt/gpt.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>

#include "support/catch.h"

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
    setup.optimizer = row.optimizer;
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
    for (const Category c : {Category::parameter, Category::optimizer, Category::input, Category::activation}) {
      held += stack.ledger->bytes(c);
    }
    CHECK(models::make_theory(row.model, setup.sizes).held_bytes(row.moments, 3) == static_cast<std::int64_t>(held));
  }
}

TEST_CASE("models theory: blocks in parts, on one rank and on each of a team", "[models][theory]") {
  const std::string name = GENERATE("char-gpt", "bert-base", "tiny-llama", "vit-b16");
  const int parts = GENERATE(1, 2, 4, 8);
  const bool is_team = GENERATE(false, true);
  const models::Build build = GENERATE(models::Build::fused, models::Build::textbook);
  const std::string policy = GENERATE("O1", "bf16", "O0");
  const bool cuts_sequence = GENERATE(false, true);
  if (is_team && parts == 1) return;
  if (cuts_sequence && (parts == 1 || name == "vit-b16")) return;
  INFO(name << ", " << parts << " parts, " << (cuts_sequence ? "sequence as well, " : "")
            << (is_team ? "team" : "one rank") << ", " << (build == models::Build::fused ? "fused, " : "textbook, ")
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
  sizes.team = {parts, is_team ? ranks.get() : nullptr, cuts_sequence};
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
        static_cast<std::int64_t>(stack.ledger->bytes(Category::parameter) + stack.ledger->bytes(Category::input) +
                                  stack.ledger->bytes(Category::activation)));
}

TEST_CASE("models theory: a layer in parts keeps what the literature counts", "[models][theory]") {
  // Korthikanti et al. 2022, section 4.2: sbh (10 + 24 / t + 5 a s / (h t)) bytes at 2 bytes a number; with the
  // sequence in parts sbh (34 / t + 5 a s / (h t)).
  const bool cuts_sequence = GENERATE(false, true);
  for (const char* name : {"gpt-22b", "gpt-175b", "gpt-530b", "gpt-1t"}) {
    for (const int t : {1, 2, 4, 8}) {
      INFO(name << " in " << t << " parts");
      models::ModelOptions options;
      options.build = models::Build::textbook;
      const auto ranks = dist::make_dry(0, t);
      options.team = {t, t > 1 ? ranks.get() : nullptr, cuts_sequence && t > 1};
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
      CHECK(statistics == 4 * s * b * 4 / cut);  // which they leave out
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
      theory.kept_bytes(Category::activation, 1);
      FAIL(name << " has a figure for a chunked head");
    } catch (const ValueError& error) {
      CHECK(std::string(error.what()).ends_with("keeps with a chunked head"));
    }
    CHECK_THROWS_AS(theory.held_bytes(2, 1), ValueError);
  }
  CHECK_THROWS_AS(models::make_theory("resnet18").kept_bytes(Category::activation, 1), ValueError);
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
