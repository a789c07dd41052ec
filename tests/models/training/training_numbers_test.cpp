// The numbers of a training run: the rate of every step of every schedule by its words, and what the options of an
// optimizer do, beside loops that make the optimizer themselves.

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numbers>
#include <vector>

#include <thimble/autograd/tape.h>
#include <thimble/core/ops/copy.h>
#include <thimble/models/techniques/adapting.h>
#include <thimble/models/training/training.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/matrix/muon.h>
#include <thimble/optim/matrix/projected.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/trained.h"

using namespace thimble;
using models::TrainOptions;

namespace {

constexpr double base = 0.5;

// A third of the steps, rounded up, at each rate; the others by their words in docs/training.md.
double rate_by_words(const TrainOptions& o, std::int64_t step) {
  if (step < o.warmup) return base * static_cast<double>(step + 1) / static_cast<double>(o.warmup);
  if (o.schedule == "constant") return std::max(base, o.min_rate);
  if (o.schedule == "cosine") {
    const double done = static_cast<double>(step - o.warmup) / static_cast<double>(o.steps - o.warmup);
    return o.min_rate + (base - o.min_rate) * (1 + std::cos(std::numbers::pi * done)) / 2;
  }
  std::int64_t third = o.steps / 3;
  if (third * 3 < o.steps) ++third;
  double rate = base;
  for (std::int64_t end = third; end <= step; end += third) rate *= 0.1;
  return std::max(rate, o.min_rate);
}

using Made = std::unique_ptr<optim::Optimizer>;

struct OptimizerRow {
  const char* name;
  std::int64_t rank = 0;  // --optimizer-rank; 0: not given
  double beta2 = -1;
  std::function<Made(std::vector<optim::Named>, const optim::MatrixOptions&)> make;
};

}  // namespace

TEST_CASE("training numbers: items a second and the time that is left, of the milliseconds of the steps",
          "[training]") {
  TrainOptions o;
  o.setup.model = "char-gpt", o.setup.batch = 3;
  o.setup.sizes.layers = 1, o.setup.sizes.heads = 2, o.setup.sizes.width = 16, o.setup.sizes.sequence = 8;
  o.data = "synthetic", o.steps = 5, o.eval_batches = 1;
  constexpr double tokens = 3 * 8;
  double later_ms = 0, mean = 0;  // of all steps but the first, which also warms up
  int later = 0;
  const models::TrainReport report = trained_test::run(o, [&](const nn::Progress& p) {
                                       if (p.step > 1) later_ms += p.ms, ++later;
                                       mean = later > 0 ? later_ms / later : p.ms;
                                       CHECK(p.items_per_s == Approx(tokens / p.ms * 1000));
                                       const auto steps_left = static_cast<double>(o.steps - p.step);
                                       CHECK(p.seconds_left == Approx(steps_left * mean / 1000));
                                     }).report;
  CHECK(later == 4);
  CHECK(report.ms_per_step == Approx(mean));
  CHECK(report.items_per_s == Approx(tokens / mean * 1000));
}

TEST_CASE("training numbers: the rate of every step of schedules of 1 to 9 steps", "[training]") {
  for (const char* const schedule : {"constant", "cosine", "step"}) {
    for (std::int64_t steps = 1; steps <= 9; ++steps) {
      for (std::int64_t warmup = 0; warmup <= steps; ++warmup) {
        for (const double least : {0.0, 0.02}) {
          TrainOptions o;
          o.schedule = schedule, o.steps = steps, o.warmup = warmup, o.min_rate = least;
          for (std::int64_t step = 0; step < steps; ++step) {
            INFO(schedule << ", step " << step << " of " << steps << ", warm-up " << warmup << ", at least " << least);
            CHECK(std::abs(models::rate_at(o, base, step) - rate_by_words(o, step)) < 1e-15);
          }
        }
      }
    }
  }
}

TEST_CASE("training numbers: an option without the one that it needs is refused by name", "[training]") {
  const struct {
    const char* text;
    void (*set)(TrainOptions& options);
  } rows[] = {
      {"`measures`: needs `budget_bytes`", [](auto& o) { o.costs.measures = true; }},
      {"`times`: needs `budget_bytes`", [](auto& o) { o.costs.times = "times.json"; }},
      {"`is_strict`: needs steps that follow a plan", [](auto& o) { o.is_strict = true; }},
      {"`save_every`: needs `save`", [](auto& o) { o.save_every = 2; }},
      {"`keep`: needs `save`", [](auto& o) { o.keep = 2; }},
      {"`min_rate`: needs `schedule` cosine", [](auto& o) { o.min_rate = 0.001; }},
      {"`min_rate`: expected at most the `rate` 0.01, got 0.0101",
       [](auto& o) { o.schedule = "step", o.setup.rate = 0.01, o.min_rate = 0.0101; }},
  };
  for (const auto& row : rows) {
    TrainOptions o;
    o.setup.model = "char-gpt", o.data = "synthetic", o.steps = 2;
    row.set(o);
    CHECK_THROWS_WITH(models::open_training(o), Catch::StartsWith(row.text));
  }
}

TEST_CASE("training numbers: every optimizer's options reach it", "[training]") {
  const OptimizerRow rows[] = {
      {"sgd", 0, -1,
       [](auto list, const auto& m) {
         return std::make_unique<optim::Sgd>(list, optim::SgdOptions{.rate = m.rate, .weight_decay = m.weight_decay});
       }},
      {"momentum", 0, -1,
       [](auto list, const auto& m) {
         return std::make_unique<optim::Sgd>(
             list, optim::SgdOptions{.rate = m.rate, .momentum = 0.9, .weight_decay = m.weight_decay});
       }},
      {"adam", 0, 0.7,
       [](auto list, const auto& m) {
         return std::make_unique<optim::Adam>(
             list, optim::AdamOptions{
                       .rate = m.rate, .beta2 = m.beta2, .weight_decay = m.weight_decay, .is_decoupled = false});
       }},
      {"adamw", 0, 0.7,
       [](auto list, const auto& m) {
         return std::make_unique<optim::Adam>(
             list, optim::AdamOptions{
                       .rate = m.rate, .beta2 = m.beta2, .weight_decay = m.weight_decay, .smallest_decayed_rank = 2});
       }},
      {"adam-mini", 0, 0.7,
       [](auto list, const auto& m) {
         return std::make_unique<optim::AdamMini>(
             list, optim::AdamMiniOptions{
                       .rate = m.rate, .beta2 = m.beta2, .weight_decay = m.weight_decay, .smallest_decayed_rank = 2});
       }},
      {"adafactor", 0, -1,
       [](auto list, const auto& m) {
         return std::make_unique<optim::Adafactor>(
             list, optim::AdafactorOptions{.rate = m.rate, .weight_decay = m.weight_decay, .smallest_decayed_rank = 2});
       }},
      {"muon", 0, 0.7,
       [](auto list, const auto& m) { return std::make_unique<optim::Muon>(list, optim::MuonOptions{.matrix = m}); }},
      {"apollo-mini", 0, 0.7,
       [](auto list, const auto& m) {
         return std::make_unique<optim::ApolloMini>(list, optim::ApolloOptions{.matrix = m});
       }},
      {"galore", 0, 0.7,
       [](auto list, const auto& m) {
         return std::make_unique<optim::Galore>(list, optim::GaloreOptions{.matrix = m});
       }},
      {"galore", 3, 0.7, [](auto list, const auto& m) {
         return std::make_unique<optim::Galore>(list, optim::GaloreOptions{.matrix = m, .rank = 3});
       }}};
  for (const OptimizerRow& row : rows) {
    INFO(row.name << ", rank " << row.rank);
    TrainOptions options;
    options.setup.model = "char-gpt";
    options.setup.batch = 3;
    options.setup.sizes.layers = 2, options.setup.sizes.heads = 2, options.setup.sizes.width = 16;
    options.setup.sizes.sequence = 8;
    options.setup.seed = 5;
    options.setup.optimizer = row.name;
    options.setup.optimizer_rank = row.rank;
    options.setup.rate = 0.02;
    options.setup.weight_decay = 0.3;
    options.setup.beta2 = row.beta2;
    options.setup.clip_norm = 0;
    options.data = "synthetic";
    options.steps = 5;
    const trained_test::Run told = trained_test::run(options);

    const models::PreparedTraining prepared = models::prepare_training(options);
    RandomGenerator generator(options.setup.seed);
    const GeneratorScope scope(generator);
    const auto model = models::make_model(options.setup.model, prepared.options.setup.sizes);
    optim::MatrixOptions matrix{.rate = 0.02, .weight_decay = 0.3, .smallest_decayed_rank = 2};
    if (row.beta2 >= 0) matrix.beta2 = row.beta2;
    for (const optim::Named& p : model->trainable()) {  // embeddings, and the head where it is not tied
      if (p.tensor.rank() >= 2 && p.name.find("gpt.h.") != 0 && p.name.find("h.") != 0) {
        matrix.elementwise.push_back(p.name);
      }
    }
    const Made optimizer = row.make(model->trainable(), matrix);
    CHECK(told.report.state_bytes == optimizer->state_bytes());
    std::vector<double> losses;
    for (std::int64_t step = 0; step < options.steps; ++step) {
      Tape tape;
      Tensor loss;
      {
        const Recording on(tape);
        loss = model->loss(prepared.data->batch(step, cpu, DType::f32));
      }
      losses.push_back(static_cast<double>(item(loss)));
      tape.backward(loss);
      optimizer->step();
      optimizer->zero_grad();
    }
    REQUIRE(told.losses.size() == losses.size());
    for (std::size_t i = 0; i < losses.size(); ++i) {
      INFO("step " << i);
      CHECK(told.losses[i] == losses[i]);
    }
  }
}

TEST_CASE("training numbers: alpha is the rank, and an interval is for a dynamic scale", "[training]") {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.lora_rank = 8;
  CHECK(models::adapting_text(setup).starts_with("LoRA of rank 8, alpha 8, "));
  setup.loss_scale_interval = 5;
  CHECK_THROWS_AS(models::loss_scaling(setup), ValueError);  // the loss is not scaled
  setup.loss_scale = {.scale = 1024, .is_dynamic = false};
  CHECK_THROWS_AS(models::loss_scaling(setup), ValueError);
  setup.loss_scale = optim::GradScalerOptions();
  CHECK(models::loss_scaling(setup)->interval == 5);
}
