// Numbers of a training run: the rate of every step of every documented schedule, and the effects of optimizer options,
// against loops that make the optimizer themselves.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/process/process.h>
#include <thimble/models/datasets/dataset.h>
#include <thimble/models/techniques/adapting.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/step/profile.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/matrix/muon.h>
#include <thimble/optim/matrix/projected.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/trained.h"

using namespace thimble;
using models::RunOptions;

namespace {

constexpr double base = 0.5;

// A step schedule keeps each rate for a third of the steps, rounded up; the others as in docs/training.md.
double rate_by_words(const RunOptions& o, std::int64_t step) {
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
  std::int64_t rank = 0;  // --optimizer-rank; 0 omits it
  double beta2 = -1;
  std::function<Made(std::vector<optim::Named>, const optim::MatrixOptions&)> make;
};

}  // namespace

TEST_CASE("training numbers: items a second and the time that is left, of the milliseconds of the steps",
          "[training]") {
  RunOptions o;
  o.setup.model = "char-gpt", o.setup.batch = 3;
  o.setup.sizes.layers = 1, o.setup.sizes.heads = 2, o.setup.sizes.width = 16, o.setup.sizes.sequence = 8;
  o.data = "synthetic", o.steps = 5, o.eval_batches = 1;
  constexpr double tokens = 3 * 8;
  double later_ms = 0, mean = 0;  // over all steps but the first, which also warms up
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
          RunOptions o;
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
    void (*set)(RunOptions& options);
  } rows[] = {
      {"`measures`: needs `budget_bytes`", [](auto& o) { o.costs.measures = true; }},
      {"`times`: needs `budget_bytes`", [](auto& o) { o.costs.times = "times.json"; }},
      {"`hardware`: needs `budget_bytes`", [](auto& o) { o.costs.hardware = "cpu"; }},
      {"refusal_ms: needs `budget_bytes`", [](auto& o) { o.refusal_ms = 0; }},
      {"`overwrites`: needs a file", [](auto& o) { o.overwrites = true, o.log = "curves"; }},
      {"`is_strict`: needs steps that follow a plan", [](auto& o) { o.is_strict = true; }},
      {"`save_every`: needs `save`", [](auto& o) { o.save_every = 2; }},
      {"`keep`: needs `save`", [](auto& o) { o.keep = 2; }},
      {"`min_rate`: needs `schedule` cosine", [](auto& o) { o.min_rate = 0.001; }},
      {"`min_rate`: expected at most the `rate` 0.01, got 0.0101",
       [](auto& o) { o.schedule = "step", o.setup.optimizer.rate = 0.01, o.min_rate = 0.0101; }},
  };
  for (const auto& row : rows) {
    RunOptions o;
    o.setup.model = "char-gpt", o.data = "synthetic", o.steps = 2;
    row.set(o);
    CHECK_THROWS_WITH(models::Engine{o}, Catch::StartsWith(row.text));
  }
}

TEST_CASE("training numbers: each option is the trainer's of the same name", "[training]") {
  for (int on = 0; on < 4; ++on) {  // one switch at a time
    INFO("switch " << on);
    RunOptions o;
    o.setup.model = "char-gpt", o.setup.seed = 3, o.steps = 7, o.eval_every = 5, o.save_every = 6, o.keep = 4;
    o.process_budget_bytes = 8, o.save = "a", o.log = "b", o.resume = "c";
    o.is_strict = on == 0, o.captures_steps = on == 1, o.overwrites = on == 2;
    if (on == 3) o.setup.offload.gradients = true, o.setup.offload.to = "d";
    const nn::TrainerOptions t = models::trainer_options(o, dry(cpu));
    CHECK((t.is_strict == (on == 0) && t.captures_steps == (on == 1) && t.overwrites == (on == 2)));
    CHECK((t.offload.gradients == (on == 3) && t.device == dry(cpu) && t.process_budget_bytes == 8));
    CHECK((t.seed == 3 && t.steps == 7 && t.evaluate_every == 5 && t.save_every == 6 && t.keep == 4));
    CHECK((t.save == "a" && t.log == "b" && t.resume == "c"));
  }
}

TEST_CASE("training numbers: a policy's masters and a tier reach every optimizer", "[training]") {
  for (const char* const name :
       {"sgd", "momentum", "adam", "adamw", "adamw8", "adafactor", "muon", "apollo-mini", "galore", "adam-mini"}) {
    INFO(name);
    models::Setup setup;
    setup.model = "mlp", setup.optimizer.name = name;
    models::set_precision(setup, "O2");  // f16 parameters with masters in f32
    const auto model = models::make_model(setup, dry(cpu));
    const auto masters = models::make_optimizer(setup, *model);
    std::int64_t elements = 0;
    for (const optim::Named& s : masters->state()) elements += s.name.ends_with(".master") ? s.tensor.elements() : 0;
    CHECK(elements == model->parameter_count());
    CHECK_FALSE(masters->offloads_state());
    setup.offload.optimizer = true, setup.offload.to = "FOLDER";
    CHECK(models::make_optimizer(setup, *model)->offloads_state());
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
    RunOptions options;
    options.setup.model = "char-gpt";
    options.setup.batch = 3;
    options.setup.sizes.layers = 2, options.setup.sizes.heads = 2, options.setup.sizes.width = 16;
    options.setup.sizes.sequence = 8, options.setup.seed = 5, options.setup.optimizer.name = row.name;
    options.setup.optimizer.rank = row.rank, options.setup.optimizer.rate = 0.02;
    options.setup.optimizer.weight_decay = 0.3, options.setup.optimizer.beta2 = row.beta2;
    options.setup.optimizer.clip_norm = 0, options.data = "synthetic", options.steps = 5;
    const trained_test::Run told = trained_test::run(options);

    models::Engine engine(options);
    RandomGenerator generator(options.setup.seed);
    const GeneratorScope scope(generator);
    const auto model = models::make_model(options.setup.model, engine.options().setup.sizes);
    optim::MatrixOptions matrix{.rate = 0.02, .weight_decay = 0.3, .smallest_decayed_rank = 2};
    if (row.beta2 >= 0) matrix.beta2 = row.beta2;
    for (const optim::Named& p : model->trainable()) {  // embeddings, and an untied head
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
        loss = model->loss(engine.data().batch(step, cpu, DType::f32));
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
  setup.lora.rank = 8;
  CHECK(models::adapting_text(setup).starts_with("LoRA of rank 8, alpha 8, "));
  setup.precision.loss_scale_interval = 5;
  CHECK_THROWS_AS(models::loss_scaling(setup), ValueError);  // the loss is not scaled
  setup.precision.loss_scale = {.scale = 1024, .is_dynamic = false};
  CHECK_THROWS_AS(models::loss_scaling(setup), ValueError);
  setup.precision.loss_scale = optim::GradScalerOptions();
  CHECK(models::loss_scaling(setup)->interval == 5);
}

// ---- Training with every whole-tensor optimizer: predicted bytes, budgets, ranks, resumed runs.

using trained_test::Run;
using trained_test::train_as_predicted;

namespace {

models::RunOptions options_of(const std::string& optimizer, const std::string& model = "char-gpt") {
  models::RunOptions options;
  options.setup.model = model, options.setup.optimizer.name = optimizer, options.setup.batch = 8;
  if (optimizer == "galore") options.setup.optimizer.rank = 8;
  if (model == "char-gpt") {
    options.setup.sizes.layers = 3, options.setup.sizes.heads = 2, options.setup.sizes.width = 64;
    options.setup.sizes.sequence = 64, options.setup.sizes.dropout = 0.1;
  } else {
    options.setup.sizes.image = 32, options.setup.sizes.width = 8;
  }
  options.data = "synthetic", options.steps = 12, options.eval_every = 6, options.eval_batches = 1;
  return options;
}

const char* const names[] = {"muon", "apollo-mini", "galore", "adam-mini"};

}  // namespace

TEST_CASE("optimizers: of matrices train as predicted, in a budget and resumed", "[program]") {
  for (const std::string name : names) {
    INFO(name);
    const files_test::TemporaryFolder folder;
    const models::RunOptions options = options_of(name);
    const Run plain = train_as_predicted(options);
    CHECK(plain.losses.back() < plain.losses.front());

    models::RunOptions tight = options;
    tight.budget_bytes = plain.report.predicted_peak_bytes * 4 / 5;
    const Run planned = train_as_predicted(tight);
    CHECK(planned.losses == plain.losses);
    CHECK(planned.report.measured_peak_bytes <= tight.budget_bytes);

    models::RunOptions fused = options;
    fused.setup.fuses_optimizer = true, fused.setup.optimizer.clip_norm = 0;
    models::RunOptions apart = options;
    apart.setup.optimizer.clip_norm = 0;
    CHECK(train_as_predicted(fused).losses == train_as_predicted(apart).losses);

    models::RunOptions first = options, rest = options;
    first.save = folder / "state", first.steps = 5;
    trained_test::run(first);
    rest.resume = first.save;
    const Run resumed = train_as_predicted(rest);
    REQUIRE(resumed.losses.size() == 7);
    CHECK(resumed.losses == std::vector<double>(plain.losses.begin() + 5, plain.losses.end()));
  }
}

TEST_CASE("optimizers: GaLore's later directions are predicted, and a resumed run without any", "[program]") {
  const files_test::TemporaryFolder folder;
  models::RunOptions options;
  options.setup.model = "mlp", options.setup.optimizer.name = "galore", options.setup.optimizer.rank = 16;
  options.setup.batch = 8, options.data = "synthetic", options.eval_batches = 1, options.steps = 203;
  options.save = folder / "state", options.save_every = 67, options.keep = 4;
  const Run whole = train_as_predicted(options);
  REQUIRE(whole.report.placed);
  CHECK(whole.report.placed->deviations == 0);
  options.save.clear(), options.save_every = 0, options.keep = 1;
  for (const std::ptrdiff_t step : {134, 201}) {
    INFO(step);
    options.resume = folder / ("state.step-" + std::to_string(step));
    CHECK(train_as_predicted(options).losses == std::vector<double>(whole.losses.begin() + step, whole.losses.end()));
  }
}

TEST_CASE("optimizers: of matrices train images and narrow parameters as predicted", "[program][slow]") {
  for (const std::string name : names) {
    INFO(name);
    train_as_predicted(options_of(name, "resnet18"));
    models::RunOptions narrow = options_of(name);
    models::set_precision(narrow.setup, "O2");
    train_as_predicted(narrow);
  }
}

TEST_CASE("optimizers: what matrices are left to AdamW", "[program]") {
  // Recognises AdamW by its state: two moments in the parameter's shape.
  const auto elementwise = [](const char* model, const models::ModelOptions& sizes) {
    models::Setup setup;
    setup.model = model, setup.sizes = sizes, setup.optimizer.name = "muon";
    const memory::Stack stack = memory::make_resource(dry(cpu), nn::profile_options(dry(cpu)));
    const ResourceScope scope(stack.top);
    const auto net = models::make_model(model, sizes, {dry(cpu)});
    const auto optimizer = models::make_optimizer(setup, *net);
    std::vector<std::string> list;
    for (const optim::Named& s : optimizer->state()) {
      const std::string end = ".second_moment";
      if (s.tensor.rank() >= 2 && s.name.ends_with(end)) list.push_back(s.name.substr(0, s.name.size() - end.size()));
    }
    return list;
  };
  using Names = std::vector<std::string>;
  const models::ModelOptions text{.vocabulary = 64, .sequence = 16, .layers = 1, .heads = 2, .width = 16};
  CHECK(elementwise("char-gpt", text) == Names{"wte.weight", "wpe.weight"});
  CHECK(elementwise("tiny-llama", {}) == Names{"model.embed_tokens.weight"});
  CHECK(elementwise("mlp", {}) == Names{"fc3.weight"});
  CHECK(elementwise("resnet18", {.width = 8}) == Names{"fc.weight"});
  for (const std::string& name : elementwise("bert-base", text)) {
    CHECK((name.starts_with("bert.embeddings.") || name.starts_with("cls.")));
  }
  CHECK(elementwise("vit-b16", {.image = 32, .layers = 1, .heads = 2, .width = 16}).size() == 4);
}

// ---- With default rates every family of models trains: the loss falls below a limit at both seeds. 200 steps for the
// perceptron, fewer for the others to save time.

namespace {

struct Case {
  const char* model;
  const char* data;
  std::int64_t width, layers, steps;
  double loss;  ///< validation loss; chance is 2.30 for digits, 4.17 for characters
};

}  // namespace

TEST_CASE("default rates: every family trains with them", "[program][slow]") {
  const char* const folder = std::getenv("THIMBLE_DATA");
  if (folder == nullptr || !std::filesystem::exists(std::string(folder) + "/mnist")) {
    WARN("SKIPPED: THIMBLE_DATA names no folder with mnist and tinyshakespeare");
    return;
  }
  for (const Case& c :
       {Case{"mlp", "mnist", 0, 0, 200, 0.35}, Case{"resnet18", "mnist", 8, 0, 40, 2.1},
        Case{"sharedconv", "mnist", 8, 0, 40, 2.2}, Case{"char-gpt", "tinyshakespeare/input.txt", 64, 2, 60, 3.5},
        Case{"bert-base", "tinyshakespeare/input.txt", 64, 2, 60, 3.6}}) {
    for (const std::uint64_t seed : {1, 2}) {
      models::RunOptions options;
      options.setup.model = c.model;
      options.setup.seed = seed;
      options.setup.sizes.width = c.width, options.setup.sizes.layers = c.layers;
      if (c.layers > 0) options.setup.sizes.heads = 4, options.setup.sizes.sequence = 32;
      options.data = std::string(folder) + "/" + c.data;
      options.steps = c.steps, options.schedule = "cosine", options.warmup = c.steps / 10;  // the program's defaults
      const models::TrainReport report = trained_test::run(options).report;
      INFO(c.model << " with seed " << seed << ": " << report.loss_last << ", validation " << report.evaluation->loss);
      CHECK(report.end == nn::TrainEnd::complete);
      CHECK((std::isfinite(report.loss_last) && report.evaluation->loss < c.loss));
    }
  }
}

TEST_CASE("default rates: of every optimizer", "[program]") {
  const auto numbers = [](const char* model, const char* optimizer) {
    models::Setup setup;
    setup.model = model, setup.optimizer.name = optimizer;
    return models::optimizer_numbers(setup);
  };
  const auto rate = [&](const char* model, const char* optimizer) { return numbers(model, optimizer).rate; };
  for (const char* const name : {"adam", "adam8"}) {
    CHECK((numbers("mlp", name).beta2 == 0.999 && numbers("mlp", name).weight_decay == 0));
  }
  for (const char* const name : {"adamw", "adamw8", "adam-mini", "muon", "galore", "apollo-mini"}) {
    INFO(name);
    const models::OptimizerNumbers is = numbers("mlp", name);
    CHECK((is.beta2 == 0.99 && is.weight_decay == 0.1 && is.rate == 1e-3));
  }
  for (const char* const name : {"sgd", "momentum", "momentum8", "adafactor"}) {
    CHECK((!numbers("mlp", name).beta2 && numbers("mlp", name).weight_decay == 0));
  }
  CHECK(rate("mlp", "momentum") == 0.01);
  CHECK(rate("mlp", "momentum8") == 0.01);
  CHECK(rate("mlp", "sgd") == 0.1);
  CHECK(rate("vit-b16", "momentum") == 0.01);
  CHECK(rate("sharedconv", "momentum") == 0.03);
  CHECK(rate("resnet50", "") == 0.1);
  CHECK(rate("googlenet", "") == 0.1);
  CHECK(rate("mlp", "adamw") == 1e-3);
  CHECK(rate("mlp", "adafactor") == 0.03);
  for (const auto& [width, expected] : {std::pair{128, 3e-3}, {512, 1.0606602e-3}, {768, 7.8254e-4}}) {
    models::Setup setup;
    setup.model = "char-gpt", setup.optimizer.name = "adamw", setup.sizes.width = width, setup.sizes.heads = 4;
    const auto model = models::make_model(setup.model, setup.sizes, {dry(cpu)});
    CHECK(models::optimizer_numbers(setup).rate == Approx(expected).epsilon(1e-4));
    setup.optimizer.rate = 0, setup.optimizer.weight_decay = 0, setup.optimizer.beta2 = 0;  // no defaults
    const models::OptimizerNumbers zero = models::optimizer_numbers(setup);
    CHECK((zero.rate == 0 && zero.weight_decay == 0 && zero.beta2 == 0.0));
  }
}

TEST_CASE("training: right answers are counted in bytes that do not grow with the batch", "[models]") {
  constexpr std::int64_t rows = 1 << 20;
  const Tensor scores = rand({rows, 4}), target = argmax(scores, -1);
  fill(slice(target, 0, 0, rows / 2), 4);  // no class
  const bool is_reset = process::reset_peak_rss();
  const std::size_t before = process::peak_rss_bytes();
  CHECK(models::count_correct(scores, target) == rows / 2);
  if (is_reset) CHECK(process::peak_rss_bytes() < before + (std::size_t{2} << 20));
}
