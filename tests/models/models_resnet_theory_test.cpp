// The bytes of a ResNet: theory against what the ledger books, as integers.

#include <string>

#include <thimble/autograd/tape.h>
#include <thimble/memory/stack.h>
#include <thimble/models/theory.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"

using namespace thimble;
using namespace thimble::models;

namespace {

ModelOptions sized(std::int64_t image, std::int64_t width) {
  ModelOptions options;
  options.image = image;
  options.width = width;
  options.classes = 10;
  return options;
}

std::int64_t booked(const memory::Stack& stack, Category category) {
  return static_cast<std::int64_t>(stack.ledger->bytes(category));
}

}  // namespace

TEST_CASE("models resnet theory: the literature's saved set of ResNet-50", "[models][resnet][theory][quick]") {
  std::int64_t saved_set = 0;
  ModelOptions textbook;
  textbook.build = Build::textbook;
  const Theory theory = make_theory("resnet50", textbook);
  for (const Term& term : theory.outside) {
    const std::int64_t elements = term.elements(1);
    if (term.name == "input") CHECK(elements == 150528);
    if (term.name == "conv outputs") CHECK(elements == 11113984);
    if (term.name == "relu outputs") CHECK(elements == 9608704);
    if (term.name == "pool output") CHECK(elements == 200704);
    if (term.name == "fc input") CHECK(elements == 2048);
    for (const char* name : {"input", "conv outputs", "relu outputs", "pool output", "fc input"}) {
      if (term.name == name) saved_set += elements;
    }
  }
  CHECK(saved_set == 21075968);
  const ModelState state = theory.state(1);  // SGD with momentum
  CHECK(state.parameters + state.gradients + state.optimizer == 12 * 25557032);
  CHECK(saved_set * 4 * 184 + 12 * 25557032 == 15818596832);  // 14.73 GiB at batch 184
}

TEST_CASE("models resnet theory: theory is what the ledger books, to the byte", "[models][resnet][theory][quick]") {
  const struct {
    const char* name;
    ModelOptions options;
    std::int64_t batch;
    DType dtype;
  } rows[] = {{"resnet18", {}, 1, DType::f32},
              {"resnet18", {}, 32, DType::f32},
              {"resnet18", sized(28, 8), 128, DType::f32},
              {"resnet34", {}, 7, DType::f32},
              {"resnet50", {}, 1, DType::f32},
              {"resnet50", {}, 3, DType::f32},
              {"resnet50", {}, 184, DType::f32},
              {"resnet50", {}, 16, DType::bf16},
              {"resnet50", sized(225, 64), 2, DType::f32},  // an odd size
              {"resnet101", {}, 2, DType::f32},
              {"resnet18", sized(32, 64), 2, DType::f64}};
  for (const auto& row : rows) {
    ModelOptions options = row.options;
    options.build = Build::textbook;
    CAPTURE(row.name, options.image, row.batch, to_string(row.dtype));
    const memory::Stack stack = memory::make_resource(dry(cpu));
    const ResourceScope resource(stack.top);
    const auto model = make_model(row.name, options, {dry(cpu), row.dtype});
    const Theory theory = make_theory(row.name, options, row.dtype);
    const ModelState state = theory.state(1);
    CHECK(booked(stack, Category::parameter) == state.parameters + state.buffers);
    optim::Sgd sgd(model->trainable(), {.rate = 0.1, .momentum = 0.9});
    CHECK(booked(stack, Category::optimizer) == state.optimizer);

    const Batch batch = model->empty_batch(row.batch, dry(cpu));
    Tape tape;
    Tensor loss;
    {
      const Recording on(tape);
      loss = model->loss(batch);
    }
    CHECK(booked(stack, Category::activation) == theory.kept_bytes(Category::activation, row.batch));
    CHECK(booked(stack, Category::input) == theory.kept_bytes(Category::input, row.batch));
    CHECK(booked(stack, Category::temporary) == static_cast<std::int64_t>(loss.bytes()));  // nothing else is left
    CHECK(booked(stack, Category::workspace) == 0);
    CHECK(booked(stack, Category::gradient) == 0);
    tape.backward(loss);
    CHECK(booked(stack, Category::gradient) == state.gradients);
    CHECK(booked(stack, Category::activation) == 0);
  }
}

TEST_CASE("models resnet theory: with products in fewer digits, too", "[models][resnet][theory][quick]") {
  ModelOptions options = sized(32, 64);
  options.build = Build::textbook;
  for (const char* name : {"O1", "O2"}) {
    INFO(name);
    const memory::Stack stack = memory::make_resource(dry(cpu));
    const ResourceScope resource(stack.top);
    const auto model = make_model("resnet18", options, nn::precision(name).on(dry(cpu)));
    const Batch batch = model->empty_batch(3, dry(cpu));
    Tape tape;
    Tensor loss;
    {
      const Recording on(tape);
      loss = model->loss(batch);
    }
    const Theory theory = make_theory("resnet18", options, nn::precision(name));
    CHECK(booked(stack, Category::activation) == theory.kept_bytes(Category::activation, 3));
  }
}

TEST_CASE("models resnet theory: the fused build keeps fewer bytes", "[models][resnet][quick]") {
  std::int64_t bytes[2];
  for (const Build build : {Build::fused, Build::textbook}) {
    const memory::Stack stack = memory::make_resource(dry(cpu));
    const ResourceScope resource(stack.top);
    ModelOptions options;
    options.build = build;
    const auto model = make_model("resnet50", options, {dry(cpu)});
    const Batch batch = model->empty_batch(1, dry(cpu));
    Tape tape;
    const Recording on(tape);
    const Tensor loss = model->loss(batch);
    bytes[static_cast<int>(build)] = booked(stack, Category::activation);
  }
  const std::int64_t stem_relu = 112 * 112 * 64 * 4, taps = 56 * 56 * 64;
  const std::int64_t block_outputs = (3 * 56 * 56 * 256 + 4 * 28 * 28 * 512 + 6 * 14 * 14 * 1024 + 3 * 7 * 7 * 2048);
  const std::int64_t masks = (block_outputs + 7) / 8;  // one bit instead of the last relu's result, which nobody reads
  const std::int64_t last_relu = 7 * 7 * 2048 * 4;
  CHECK(bytes[0] == bytes[1] - stem_relu + taps + masks - last_relu);
}
