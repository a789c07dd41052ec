// The closed forms of all models as one figure, against the ledger.

#include <thimble/models/theory/textbook.h>

#include <thimble/autograd/tape.h>
#include <thimble/bench/runs/setup.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>

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
                         Row{"vit-b16", "adamw", 2}}) {
    INFO(row.model);
    bench::Setup setup;
    setup.model = row.model;
    setup.optimizer = row.optimizer;
    setup.sizes.build = models::Build::textbook;
    const memory::Stack stack = memory::make_resource(dry(cpu));
    const ResourceScope scope(stack.top);
    Generator generator(1);
    const GeneratorScope random(generator);
    const auto model = models::make_model(setup.model, setup.sizes, {dry(cpu), DType::f32});
    const auto optimizer = bench::make_optimizer(setup, *model);
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
    CHECK(models::theory::textbook_bytes(row.model, setup.sizes, row.moments, DType::f32, 3) ==
          static_cast<std::int64_t>(held));
  }
  CHECK_FALSE(models::theory::textbook_bytes("mlp", {}, 1, DType::f32, 3).has_value());
}
