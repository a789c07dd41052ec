// A user's model within a budget: the trainer against hand-written loops, in bits and in bytes.

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/step/step.h>

#include "nn/own_program.h"
#include "support/catch.h"
#include "support/model_runs.h"
#include "support/tensor_bytes.h"

using namespace thimble;
using namespace own_program;

namespace {

constexpr std::uint64_t trainer_seed = 3;

/// The bytes of all parameters and buffers, concatenated.
std::vector<std::byte> state_of(const std::vector<nn::Module*>& modules) {
  std::vector<std::byte> all;
  for (nn::Module* const module : modules) {
    for (const auto& list : {module->parameters(), module->buffers()}) {
      for (const nn::NamedTensor& t : list) {
        const testing::Bytes bytes = testing::bytes_of(t.tensor);
        all.insert(all.end(), bytes.begin(), bytes.end());
      }
    }
  }
  return all;
}

struct Trained {
  std::vector<double> losses;
  std::vector<std::byte> state;
};

/// The loop a user would write without a trainer, in the current arena.
Trained by_hand(const Sizes& sizes, std::int64_t steps) {
  RandomGenerator generator(trainer_seed);
  const GeneratorScope scope(generator);
  const Program own = program(sizes);
  const std::unique_ptr<Net> net = own.model(cpu);
  const auto optimizer = own.optimizer(*net);
  Trained trained;
  for (std::int64_t step = 0; step < steps; ++step) {
    Batch batch;
    {
      const PathScope path("batch");
      batch = own.batch(step, cpu);
    }
    trained.losses.push_back(item(nn::training_step(*optimizer, [&](std::int64_t) { return own.loss(*net, batch); })));
  }
  trained.state = state_of({net.get()});
  return trained;
}

Trained by_trainer(nn::Trainer<Net, Batch>& trainer) {
  Trained trained;
  trainer.run([&](const nn::Progress& p) { trained.losses.push_back(p.loss); });
  trained.state = state_of({&trainer.model()});
  return trained;
}

/// Halfway between the smallest budget and the bytes that keeping everything needs.
std::size_t half_of(const Program& own, nn::TrainerOptions options) {
  options.budget_bytes = std::size_t{1} << 40;
  const std::size_t most = nn::Trainer<Net, Batch>(own, options).plan().keep_everything_bytes;
  options.budget_bytes = 1;
  try {
    nn::Trainer<Net, Batch>(own, options);
  } catch (const nn::BudgetError& error) {
    CHECK(error.budget_bytes() == 1);
    return (most + error.minimum_bytes()) / 2;
  }
  FAIL("a budget of one byte was taken");
  return 0;
}

void check_kept(const memory::PlacedArena::Statistics& placed, std::uint64_t steps) {
  CHECK(placed.steps == steps);
  CHECK(placed.deviations == 0);
  CHECK(placed.dynamic_steps == 0);
  CHECK_FALSE(placed.first_deviation.has_value());
  CHECK(placed.bytes_above_plan == 0);
}

}  // namespace

TEST_CASE("trainer: an own model in a budget has the bits of a loop by hand, and the bytes that were told",
          "[trainer]") {
  const testing::Threads alone;
  constexpr std::int64_t steps = 4;
  const Trained expected = by_hand({}, steps);
  nn::TrainerOptions options{.seed = trainer_seed, .steps = steps, .evaluate_every = 2};
  options.is_strict = true;
  const std::size_t budget = half_of(program(), options);
  options.budget_bytes = budget;
  nn::Trainer<Net, Batch> trainer(program(), options);
  CHECK(trainer.plan().peak_bytes <= budget);
  CHECK(trainer.plan().peak_bytes < trainer.plan().keep_everything_bytes);
  REQUIRE(trainer.plan().shapes.size() == 1);
  CHECK(trainer.plan().shapes[0].key == "f32 (800, 96), f32 (800, 1)");
  CHECK(trainer.plan().shapes[0].parts[0].time_overhead > 0);
  CHECK(trainer.peak_bytes() == 0);
  const Trained trained = by_trainer(trainer);
  CHECK(trained.losses == expected.losses);
  CHECK((trained.state == expected.state));
  CHECK(trainer.peak_bytes() == trainer.plan().peak_bytes);
  check_kept(trainer.placed(), steps);
  CHECK(trainer.evaluate() == trainer.evaluate());
}

TEST_CASE("trainer: without a budget everything is kept, and the bytes are told all the same", "[trainer]") {
  const testing::Threads alone;
  nn::Trainer<Net, Batch> trainer(program(), {.seed = trainer_seed, .steps = 3});
  CHECK(trainer.plan().peak_bytes > 0);
  const Trained trained = by_trainer(trainer);
  CHECK(trained.losses == by_hand({}, 3).losses);
  CHECK(trainer.memory().find("block0.up") != std::string::npos);
  CHECK(trainer.peak_bytes() == trainer.plan().peak_bytes);
}

TEST_CASE("trainer: batches of several lengths have a plan each, in one budget", "[trainer]") {
  const testing::Threads alone;
  Sizes sizes;
  sizes.samples = [](std::int64_t step) { return std::int64_t{500} + 150 * (step % 3); };
  constexpr std::int64_t steps = 7;
  const Trained expected = by_hand(sizes, steps);
  nn::TrainerOptions options{.seed = trainer_seed, .steps = steps, .example_steps = {0, 1, 2}};
  options.is_strict = true;
  options.budget_bytes = half_of(program(sizes), options);
  SECTION("that are told") {
    nn::Trainer<Net, Batch> trainer(program(sizes), options);
    CHECK(trainer.plan().shapes.size() == 3);
    const Trained trained = by_trainer(trainer);
    CHECK(trained.losses == expected.losses);
    CHECK((trained.state == expected.state));
    CHECK(trainer.peak_bytes() == trainer.plan().peak_bytes);
    CHECK(trainer.peak_bytes() <= options.budget_bytes);
    check_kept(trainer.placed(), steps);
  }
  SECTION("that are met") {
    options.example_steps = {0};
    nn::Trainer<Net, Batch> trainer(program(sizes), options);
    CHECK(trainer.plan().shapes.size() == 1);
    const std::size_t first_peak = trainer.plan().peak_bytes;
    const Trained trained = by_trainer(trainer);
    CHECK(trainer.plan().shapes.size() == 3);
    CHECK(trainer.plan().peak_bytes >= first_peak);
    CHECK(trained.losses == expected.losses);
    CHECK((trained.state == expected.state));
    CHECK(trainer.peak_bytes() <= options.budget_bytes);
    check_kept(trainer.placed(), steps);
  }
  SECTION("of which one is too long: it is refused, and the others go on") {
    Sizes longer = sizes;
    longer.samples = [](std::int64_t step) { return step == 1 ? std::int64_t{40'000} : 500; };
    options.example_steps = {0};
    nn::Trainer<Net, Batch> trainer(program(longer), options);
    trainer.step();
    const std::vector<std::byte> before = state_of({&trainer.model()});
    CHECK_THROWS_AS(trainer.step(), nn::BudgetError);
    CHECK_THROWS_AS(trainer.step(), nn::BudgetError);
    CHECK((state_of({&trainer.model()}) == before));
    CHECK(trainer.plan().shapes.size() == 1);
    trainer.skip();
    for (std::int64_t step = 3; step <= 7; ++step) {
      const nn::Progress progress = trainer.step();
      CHECK(progress.step == step);
      CHECK(std::isfinite(progress.loss));
    }
    CHECK(trainer.peak_bytes() <= options.budget_bytes);
    check_kept(trainer.placed(), 6);
  }
}

TEST_CASE("trainer: two nets against each other, with an optimizer each", "[trainer]") {
  const testing::Threads alone;
  Sizes sizes;
  sizes.depth = 3;
  constexpr std::int64_t steps = 3;
  using TwoNets = nn::Trainer<Rivals, Batch>;
  std::vector<double> expected;
  std::vector<std::byte> state;
  {
    RandomGenerator generator(trainer_seed);
    const GeneratorScope scope(generator);
    const auto own = rivals(sizes);
    const std::unique_ptr<Rivals> nets = own.model(cpu);
    std::vector<std::unique_ptr<optim::Optimizer>> optimizers;
    for (const auto& part : own.parts) optimizers.push_back(part.optimizer(*nets));
    for (std::int64_t step = 0; step < steps; ++step) {
      Batch batch;
      {
        const PathScope path("batch");
        batch = own.batch(step, cpu);
      }
      for (std::size_t part = 0; part < 2; ++part) {
        expected.push_back(item(
            nn::training_step(*optimizers[part], [&](std::int64_t) { return own.parts[part].loss(*nets, batch); })));
      }
    }
    state = state_of(nets->modules());
  }
  nn::TrainerOptions options{.budget_bytes = std::size_t{1} << 40, .seed = trainer_seed, .steps = steps};
  const std::size_t most = TwoNets(rivals(sizes), options).plan().keep_everything_bytes;
  options.budget_bytes = most * 3 / 4;
  options.is_strict = true;
  TwoNets trainer(rivals(sizes), options);
  CHECK(trainer.plan().peak_bytes <= options.budget_bytes);
  REQUIRE(trainer.plan().shapes[0].parts.size() == 2);
  CHECK(trainer.plan().shapes[0].parts[1].name == "generator");
  std::vector<double> losses;
  trainer.run([&](const nn::Progress& p) { losses.insert(losses.end(), p.losses.begin(), p.losses.end()); });
  CHECK(losses == expected);
  CHECK((state_of(trainer.model().modules()) == state));
  CHECK(trainer.peak_bytes() == trainer.plan().peak_bytes);
  check_kept(trainer.placed(), steps);
}

TEST_CASE("trainer: micro-batches, clipping and a fused optimizer", "[trainer]") {
  const testing::Threads alone;
  Program own = program();
  own.micro_batch = [](const Batch& batch, std::int64_t i, std::int64_t count) {
    const std::int64_t n = batch.x.size(0) / count;
    return Batch{view::slice(batch.x, 0, i * n, (i + 1) * n), view::slice(batch.y, 0, i * n, (i + 1) * n)};
  };
  nn::TrainerOptions options{.seed = trainer_seed, .steps = 2};
  SECTION("micro-batches, clipped") {
    options.step.micro_batches = 2;
    options.step.micro_samples = 400;
    options.step.clip_norm = 0.5;
  }
  SECTION("fused") { options.step.fuses_optimizer = nn::FusedUpdate::secured; }
  const std::size_t budget = half_of(own, options);
  nn::Trainer<Net, Batch> plain(own, options);
  options.budget_bytes = budget;
  options.is_strict = true;
  nn::Trainer<Net, Batch> trainer(own, options);
  const Trained expected = by_trainer(plain), trained = by_trainer(trainer);
  CHECK(trained.losses == expected.losses);
  CHECK((trained.state == expected.state));
  CHECK(trainer.peak_bytes() == trainer.plan().peak_bytes);
  CHECK(trainer.peak_bytes() < plain.peak_bytes());
}

TEST_CASE("trainer: a step that leaves its plan is told, or refused", "[trainer]") {
  const testing::Threads alone;
  Program own = program();
  bool is_odd = false;  // makes the program depend on more than its arguments
  own.loss = [&](Net& net, const Batch& batch) {
    Tensor x = batch.x;
    if (is_odd && !x.device().is_dry) x = x * 1.0;
    return mse_loss(net(x), batch.y);
  };
  nn::TrainerOptions options{.seed = trainer_seed, .steps = 5};
  options.budget_bytes = std::size_t{1} << 30;  // keeps everything: only blocks, not the tape, follow a plan
  SECTION("told") {
    nn::Trainer<Net, Batch> trainer(own, options);
    trainer.step();
    is_odd = true;
    trainer.step();
    const memory::PlacedArena::Statistics placed = trainer.placed();
    CHECK(placed.deviations == 1);
    REQUIRE(placed.first_deviation.has_value());
    CHECK(placed.first_deviation->step == 1);
    CHECK(placed.first_deviation->done.bytes == 800 * 96 * 4);
    CHECK(placed.bytes_above_plan > 0);
  }
  SECTION("refused, and the step undone") {
    options.is_strict = true;
    nn::Trainer<Net, Batch> trainer(own, options);
    trainer.step();
    const std::vector<std::byte> before = state_of({&trainer.model()});
    is_odd = true;
    CHECK_THROWS_AS(trainer.step(), PlanError);
    CHECK((state_of({&trainer.model()}) == before));
    is_odd = false;
    CHECK_NOTHROW(trainer.step());
  }
}

TEST_CASE("trainer: what is refused", "[trainer]") {
  using Own = nn::Trainer<Net, Batch>;
  const nn::TrainerOptions good{.steps = 1};
  const auto with = [&](const std::function<void(Program&, nn::TrainerOptions&)>& change) {
    Program own = program();
    nn::TrainerOptions options = good;
    change(own, options);
    return Own(own, options);
  };
  CHECK_THROWS_AS(with([](Program& p, auto&) { p.loss = nullptr; }), ValueError);
  CHECK_THROWS_AS(with([](Program& p, auto&) { p.batch = nullptr; }), ValueError);
  CHECK_THROWS_AS(with([](Program& p, auto&) { p.model = [](memory::Device) { return std::unique_ptr<Net>(); }; }),
                  ValueError);
  CHECK_THROWS_AS(with([](Program& p, auto&) { p.optimizer = [](Net&) { return std::unique_ptr<optim::Sgd>(); }; }),
                  ValueError);
  CHECK_THROWS_AS(with([](Program&, auto& o) { o.step.micro_batches = 2; }), ValueError);
  CHECK_THROWS_AS(with([](Program&, auto& o) { o.device = dry(cpu); }), ValueError);
  CHECK_THROWS_AS(with([](Program& p, auto& o) { p.evaluate = nullptr, o.evaluate_every = 1; }), ValueError);
  CHECK_THROWS_AS(with([](Program&, auto& o) { o.refusal_ms = std::nan(""); }), ValueError);
  optim::GradScaler scaler(optim::GradScalerOptions{});
  CHECK_THROWS_AS(with([&](Program&, auto& o) { o.step.scaler = &scaler; }), ValueError);
  const testing::Threads one(1);
  nn::TrainerOptions options = good;
  options.budget_bytes = std::size_t{1} << 30;
  Own trainer(program(), options);
  const testing::Threads two(2);
  CHECK_THROWS_AS(trainer.step(), PlanError);  // planned for one thread
}

TEST_CASE("trainer: a call that trains inside of another is refused, and the run goes on", "[trainer]") {
  nn::Trainer<Net, Batch>* trainer = nullptr;
  std::map<std::string, std::string> told;  // first message by place and call
  const auto call_all = [&](const std::string& place) {
    const std::pair<const char*, std::function<void()>> calls[] = {{"step()", [&] { trainer->step(); }},
                                                                   {"run()", [&] { trainer->run(); }},
                                                                   {"skip()", [&] { trainer->skip(); }},
                                                                   {"evaluate()", [&] { trainer->evaluate(); }}};
    for (const auto& [name, call] : calls) {
      std::string& text = told[place + " " + name];
      if (trainer == nullptr || !text.empty()) continue;
      text = "accepted";
      try {
        call();
      } catch (const ValueError& error) {
        text = error.what();
      }
    }
  };
  const Program own = program();
  Program calling = own;
  calling.batch = [&](std::int64_t step, memory::Device device) { return call_all("batch"), own.batch(step, device); };
  calling.loss = [&](Net& net, const Batch& batch) { return call_all("loss"), own.loss(net, batch); };
  calling.after_update = [&](Net&) { call_all("after_update"); };
  calling.evaluate = [&](Net& net, memory::Device device) { return call_all("evaluate"), own.evaluate(net, device); };
  nn::Trainer<Net, Batch> made(calling, {.steps = 2});
  trainer = &made;
  CHECK(made.run([&](const nn::Progress&) { call_all("observer"); }).steps == 2);
  CHECK(told.size() == 20);
  for (const auto& [call, text] : told) {
    INFO(call << ": " << text);
    const std::string place = call.substr(0, call.find(' '));
    if (call == "observer evaluate()") {
      CHECK(text == "accepted");
    } else {
      CHECK(text == "trainer: " + call.substr(place.size() + 1) +
                        ": expected a call from outside, got one from inside of " +
                        (place == "observer"   ? "run()"
                         : place == "evaluate" ? "an evaluation"
                                               : "a step") +
                        "; the program's functions and an observer must not train");
    }
  }
}

TEST_CASE("trainer: refusals of a budget say who needs more, and what would fit", "[trainer][slow]") {
  const testing::Threads alone;
  Program own = program();
  own.evaluate = nullptr;
  const auto refusal = [&](std::size_t budget) -> std::string {
    try {
      nn::Trainer<Net, Batch>(own, {.budget_bytes = budget, .refusal_ms = 0});
    } catch (const nn::BudgetError& error) {
      return error.what();
    }
    return "taken";
  };
  CHECK(refusal(1).find("with TrainedProgram::micro_batch") != std::string::npos);
  // Without examples, a model that does not fit is not made, either.
  std::size_t least = 0;
  for (const std::size_t budget : {std::size_t{1}, std::size_t{1} << 20}) {  // below a granule
    nn::Trainer<Net, Batch> trainer(own, {.budget_bytes = budget, .example_steps = {}});
    try {
      trainer.step();
      FAIL("it fits");
    } catch (const nn::BudgetError& error) {
      CHECK(error.budget_bytes() == budget);
      least = error.minimum_bytes();
    }
    CHECK_THROWS_AS(trainer.model(), nn::BudgetError);
  }
  nn::Trainer<Net, Batch> fits(own, {.budget_bytes = least, .example_steps = {}});
  fits.step();
  CHECK(fits.peak_bytes() == fits.plan().peak_bytes);
  own.micro_batch = [](const Batch& batch, std::int64_t i, std::int64_t n) {
    const std::int64_t size = batch.x.size(0), from = size * i / n, to = size * (i + 1) / n;
    return Batch{slice(batch.x, 0, from, to), slice(batch.y, 0, from, to)};
  };
  const std::string text = refusal(std::size_t{4} << 20);
  CHECK(text.find("with options.step.micro_batches = ") != std::string::npos);
  own.evaluate = [](Net& net, memory::Device device) {
    return nn::read_value(mean(net(zeros({20'000, 96}, DType::f32, device))));
  };
  CHECK(refusal(std::size_t{16} << 20).find("trainer: the evaluation needs ") == 0);
}

TEST_CASE("trainer: a step that leaves its plan and finds no room says where it left", "[trainer]") {
  const testing::Threads alone;
  Program own = program();
  own.evaluate = nullptr;
  bool is_odd = false;  // makes the program depend on more than its arguments
  own.loss = [&](Net& net, const Batch& batch) {
    const Tensor x = is_odd && !batch.x.device().is_dry ? concat({batch.x, batch.x, batch.x, batch.x}, 0) : batch.x;
    return mean(square(net(x)));
  };
  nn::TrainerOptions options;
  options.budget_bytes = nn::Trainer<Net, Batch>(own, options).plan().peak_bytes;
  nn::Trainer<Net, Batch> trainer(own, options);
  trainer.step();
  is_odd = true;
  try {
    trainer.step();
    FAIL("four batches found room");
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    CHECK(text.find("trainer: step 2 left its plan (step 1, event ") == 0);
    CHECK(text.find("then ran out of memory") != std::string::npos);
    CHECK(error.facts().capacity_bytes == options.budget_bytes);
  } catch (const PlanError&) {  // a tape with a plan notices first
  }
  is_odd = false;
  CHECK_NOTHROW(trainer.step());
}

TEST_CASE("read: values in a program that is also run dry", "[trainer]") {
  const Tensor t = from_host<float>({1.5f, -2}, {2});
  CHECK(nn::read_values<double>(t) == std::vector<double>{1.5, -2});
  CHECK(nn::read_value(from_host<float>({0.25f}, {})) == 0.25);
  CHECK_THROWS_AS(nn::read_value(t), ShapeError);
  CHECK_THROWS_WITH(item(zeros({}, DType::f32, dry(cpu))), Catch::Contains("nn::read_value"));
  CHECK_THROWS_AS(nn::read_value(zeros({2}, DType::f32, dry(cpu))), ShapeError);
  CHECK(nn::read_values<float>(zeros({3}, DType::f32, dry(cpu))) == std::vector<float>(3));
  // Both devices see equal events.
  const auto events = [](memory::Device device) {
    const memory::Stack stack = memory::make_resource(device, {.trace = true});
    const ResourceScope scope(stack.top);
    nn::read_value(zeros({}, DType::f32, device));
    return stack.trace->events();
  };
  CHECK(events(cpu) == events(dry(cpu)));
  CHECK(events(cpu).size() == 4);
}
