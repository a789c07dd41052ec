// A trainer's run interrupted and resumed: options that differ from the file's, skipped steps, averages that an
// observer keeps, and the order of events after a step.

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/trainer/trainer_run.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/matrix/muon.h>
#include <thimble/optim/matrix/projected.h>

#include "nn/own_program.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/model_runs.h"
#include "support/tensor_bytes.h"

using namespace thimble;
using files_test::TemporaryFolder;

namespace {

/// (N, 8) -> (N, 1), and an average of its weight.
struct Averaged final : nn::Module {
  explicit Averaged(memory::Device device)
      : linear(child<nn::Linear>("linear", 8, 1, nn::TensorOptions{device})),
        average(add_buffer("average", zeros({1, 8}, DType::f32, device))) {}
  void follow() { copy_into(average, average * 0.9 + linear.weight.detach() * 0.1); }
  nn::Linear& linear;
  nn::Buffer average;
};

using Made = std::function<std::unique_ptr<optim::Optimizer>(std::vector<optim::Named>)>;
using Own = nn::TrainedProgram<Averaged, Tensor>;
using Run = nn::Trainer<Averaged, Tensor>;

template <class O, class Options>
Made made(Options options) {
  return [options](std::vector<optim::Named> p) { return std::make_unique<O>(std::move(p), options); };
}

Own averaged(const Made& optimizer = made<optim::Adam>(optim::AdamOptions{})) {
  Own own;
  own.model = [](memory::Device device) { return std::make_unique<Averaged>(device); };
  own.optimizer = [optimizer](Averaged& net) { return optimizer(net.trainable()); };
  own.loss = [](Averaged& net, const Tensor& x) { return mean(square(net.linear(x) + -1.0)); };
  own.batch = [](std::int64_t step, memory::Device device) {
    return randn({8, 8}, DType::f32, device) * (1.0 + static_cast<double>(step));
  };
  own.micro_batch = [](const Tensor& x, std::int64_t i, std::int64_t n) {
    return slice(x, 0, x.size(0) * i / n, x.size(0) * (i + 1) / n);
  };
  return own;
}

std::string refusal(const Own& own, const nn::TrainerOptions& options) {
  try {
    Run refused(own, options);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "taken";
}

}  // namespace

TEST_CASE("trainer: a checkpoint is gone on from with the options that it was trained with", "[trainer]") {
  const testing::Threads alone;
  const TemporaryFolder folder;
  const nn::TrainerOptions base{.seed = 5, .steps = 2};
  using Change = std::function<void(Own&, nn::TrainerOptions&)>;
  const auto with = [](const Made& optimizer) -> Change {
    return [optimizer](Own& own, auto&) {
      own.optimizer = [optimizer](Averaged& net) { return optimizer(net.trainable()); };
    };
  };
  struct Row {
    Change before, after;
    std::string difference;
  };
  const Change as_it_was = [](Own&, auto&) {};
  using optim::Adam, optim::Sgd, optim::Adafactor, optim::AdamMini, optim::Muon, optim::ApolloMini, optim::Galore;
  const auto adam = [&](const std::function<void(optim::AdamOptions&)>& change) {
    optim::AdamOptions options;
    change(options);
    return with(made<Adam>(options));
  };
  const Change half = [](Own&, auto& o) { o.rate = [](std::int64_t step) { return step < 9 ? 0.5 : 0.25; }; };
  const Change other = [](Own&, auto& o) { o.rate = [](std::int64_t step) { return 0.5 - 0.125 * double(step); }; };
  const auto scaled_with = [](const std::function<void(optim::GradScalerOptions&)>& change) -> Change {
    return [change](Own&, auto& o) { change(o.loss_scale.emplace(optim::GradScalerOptions{.scale = 4})); };
  };
  const Change scaled = scaled_with([](auto&) {});
  const Change on_plateau = [](Own& own, auto& o) {
    own.evaluate = [](Averaged&, memory::Device) { return 1.0; };
    o.plateau = optim::PlateauOptions{.factor = 0.5}, o.evaluate_every = 1;
  };
  const std::vector<Row> rows = {
      {as_it_was, adam([](auto& o) { o.beta1 = 0.8; }), "optimizer.beta1 is 0.90000000000000002 in the file, 0.8"},
      {as_it_was, adam([](auto& o) { o.beta2 = 0.5; }), "optimizer.beta2 is"},
      {as_it_was, adam([](auto& o) { o.epsilon = 0.5; }), "optimizer.epsilon is"},
      {adam([](auto& o) { o.weight_decay = 0.5; }), as_it_was, "optimizer.weight_decay is 0.5 in the file, 0 here"},
      {as_it_was, adam([](auto& o) { o.smallest_decayed_rank = 2; }), "optimizer.smallest_decayed_rank is"},
      {as_it_was, adam([](auto& o) { o.rate = 0.05; }), "the optimizer's rate is 0.001 in the file, 0.05 here"},
      {with(made<Sgd>(optim::SgdOptions{.momentum = 0.5})), with(made<Sgd>(optim::SgdOptions{.momentum = 0.25})),
       "optimizer.momentum is 0.5 in the file, 0.25 here"},
      {with(made<Sgd>(optim::SgdOptions{.momentum = 0.5})),
       with(made<Sgd>(optim::SgdOptions{.momentum = 0.5, .nesterov = true})), "optimizer.nesterov is 0"},
      {with(made<Sgd>(optim::SgdOptions{})), with(made<Sgd>(optim::SgdOptions{.weight_decay = 0.5})),
       "weight_decay is"},
      {with(made<Adafactor>(optim::AdafactorOptions{})), with(made<Adafactor>(optim::AdafactorOptions{.clip = 2})),
       "optimizer.clip is 1"},
      {with(made<AdamMini>(optim::AdamMiniOptions{})), with(made<AdamMini>(optim::AdamMiniOptions{.beta2 = 0.5})),
       "optimizer.beta2 is"},
      {with(made<Muon>(optim::MuonOptions{})), with(made<Muon>(optim::MuonOptions{.iterations = 3})),
       "optimizer.iterations is 5"},
      {with(made<ApolloMini>(optim::ApolloOptions{})),
       with(made<ApolloMini>(optim::ApolloOptions{.matrix = {.beta1 = 0.5}})), "optimizer.beta1 is"},
      {with(made<Galore>(optim::GaloreOptions{})), with(made<Galore>(optim::GaloreOptions{.scale = 0.5})),
       "optimizer.scale is 0.25"},
      {as_it_was, [](Own&, auto& o) { o.step.clip_norm = 0.5; }, "clip_norm is 0 in the file, 0.5 here"},
      {[](Own&, auto& o) { o.step.micro_batches = 2; }, as_it_was, "micro_batches is 2 in the file, 1 here"},
      {as_it_was, half, "rate is the optimizer's in the file, a function of the step here"},
      {half, other, "the rate of step 1 is 0.5 in the file, 0.375 here"},
      {half, as_it_was, "the optimizer's rate is 0.5 in the file, 0.001 here"},
      {scaled, scaled_with([](auto& o) { o.interval = 7; }), "loss_scale.interval is 2000 in the file, 7 here"},
      {scaled, scaled_with([](auto& o) { o.is_dynamic = false; }), "loss_scale.is_dynamic is 1 in the file, 0 here"},
      {scaled, scaled_with([](auto& o) { o.growth = 3; }), "loss_scale.growth is 2 in the file, 3 here"},
      {scaled, scaled_with([](auto& o) { o.backoff = 0.25; }), "loss_scale.backoff is 0.5 in the file, 0.25 here"},
      {scaled, scaled_with([](auto& o) { o.most = 64; }), "loss_scale.most is 16777216 in the file, 64 here"},
      {scaled, scaled_with([](auto& o) { o.least = 0.5; }), "loss_scale.least is 1 in the file, 0.5 here"},
      {as_it_was, on_plateau, "plateau.factor is none in the file, 0.5 here"},
      {on_plateau, as_it_was, "plateau.factor is 0.5 in the file, none here"},
      {as_it_was,
       [](Own& own, auto&) {
         own.parts = {{"net", own.optimizer, own.loss}};
         own.optimizer = nullptr, own.loss = nullptr;
       },
       "part is none in the file, net here"},
  };
  for (const Row& row : rows) {
    INFO(row.difference);
    nn::TrainerOptions options = base;
    options.save = folder / "x";
    Own own = averaged();
    row.before(own, options);
    Run(own, options).run();
    options.resume = options.save, options.save.clear(), options.steps = 4;
    CHECK(refusal(own, options) == "taken");
    nn::TrainerOptions changed = base;
    changed.resume = options.resume, changed.steps = 4;
    Own changed_own = averaged();
    row.after(changed_own, changed);
    const std::string text = refusal(changed_own, changed);
    CHECK(text.find(row.difference) != std::string::npos);
    CHECK(text.find("changes_options = true") != std::string::npos);
    changed.changes_options = true;
    Run run(changed_own, changed);
    run.step();
    const double rate = changed.rate ? changed.rate(2) : Run(changed_own, base).optimizer().rate();
    CHECK(run.optimizer().rate() == rate);
  }
  // A file without these entries, as save_checkpoint writes it, still resumes; only the rate in it is checked.
  Run plain(averaged(), base);
  plain.run();
  RandomGenerator generator(base.seed);
  generator.set_step(2);
  nn::save_checkpoint(folder / "old", plain.model(), plain.optimizer(), generator);
  nn::TrainerOptions options = base;
  options.resume = folder / "old", options.steps = 4;
  Own own = averaged();
  adam([](auto& o) { o.beta1 = 0.8; })(own, options);
  CHECK(refusal(own, options) == "taken");
  adam([](auto& o) { o.rate = 0.05; })(own, options);
  CHECK(refusal(own, options).find("the optimizer's rate is 0.001 in the file") != std::string::npos);
}

TEST_CASE("optimizers: each option is a setting with its own number", "[optim]") {
  using namespace optim;
  const MatrixOptions matrix{
      .beta1 = 0.5, .beta2 = 0.25, .epsilon = 0.125, .weight_decay = 2, .smallest_decayed_rank = 3};
  const std::vector<Setting> adam{
      {"beta1", 0.5}, {"beta2", 0.25}, {"epsilon", 0.125}, {"weight_decay", 2}, {"smallest_decayed_rank", 3}};
  const auto with = [&](std::vector<Setting> own) {
    own.insert(own.begin(), adam.begin(), adam.end());
    return own;
  };
  const std::pair<Made, std::vector<Setting>> rows[] = {
      {made<Sgd>(SgdOptions{.momentum = 0.5, .weight_decay = 2, .nesterov = true}),
       {{"momentum", 0.5}, {"weight_decay", 2}, {"nesterov", 1}}},
      {made<Adam>(
           AdamOptions{.beta1 = 0.5, .beta2 = 0.25, .epsilon = 0.125, .weight_decay = 2, .smallest_decayed_rank = 3}),
       adam},
      {made<AdamMini>(AdamMiniOptions{
           .beta1 = 0.5, .beta2 = 0.25, .epsilon = 0.125, .weight_decay = 2, .smallest_decayed_rank = 3}),
       adam},
      {made<Adafactor>(AdafactorOptions{.has_relative_step = true,
                                        .scales_by_parameter = false,
                                        .beta1 = 0.5,
                                        .decay = 0.25,
                                        .epsilon1 = 0.125,
                                        .epsilon2 = 4,
                                        .clip = 5,
                                        .weight_decay = 2,
                                        .smallest_decayed_rank = 3}),
       {{"has_relative_step", 1},
        {"scales_by_parameter", 0},
        {"beta1", 0.5},
        {"decay", 0.25},
        {"epsilon1", 0.125},
        {"epsilon2", 4},
        {"clip", 5},
        {"weight_decay", 2},
        {"smallest_decayed_rank", 3}}},
      {made<Muon>(MuonOptions{.matrix = matrix, .momentum = 0.75, .nesterov = false, .iterations = 7}),
       with({{"momentum", 0.75}, {"nesterov", 0}, {"iterations", 7}})},
      {made<ApolloMini>(ApolloOptions{.matrix = matrix, .scale = 6, .period = 7, .growth = 8}),
       with({{"scale", 6}, {"period", 7}, {"growth", 8}})},
      {made<Galore>(GaloreOptions{.matrix = matrix, .rank = 5, .period = 7, .scale = 6}),
       with({{"rank", 5}, {"period", 7}, {"scale", 6}})}};
  for (const auto& [make, expected] : rows) {
    const std::unique_ptr<Optimizer> optimizer = make({{"w", zeros({2, 3}).require_grad()}});
    INFO(optimizer->name());
    const std::vector<Setting> all = optimizer->settings();
    REQUIRE(all.size() == expected.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      INFO(expected[i].name << " " << expected[i].value << ", got " << all[i].name << " " << all[i].value);
      CHECK((all[i] == expected[i]));
    }
  }
}

TEST_CASE("trainer: the options in a checkpoint, each with its number", "[trainer]") {
  nn::TrainerOptions options;
  options.step.clip_norm = 0.5, options.step.micro_batches = 3;
  options.plateau = optim::PlateauOptions{.factor = 0.75, .patience = 7, .threshold = 0.125, .least_factor = 0.25};
  options.loss_scale = optim::GradScalerOptions{
      .scale = 64, .is_dynamic = true, .growth = 4, .interval = 11, .backoff = 0.0625, .most = 1024, .least = 2};
  optim::Sgd sgd({{"w", zeros({2}).require_grad()}}, {.rate = 1, .momentum = 0.875, .weight_decay = 0.375});
  std::map<std::string, std::string> expected{{"trainer.part", "net"},
                                              {"trainer.clip_norm", "0.5"},
                                              {"trainer.micro_batches", "3"},
                                              {"trainer.rate", "the optimizer's"},
                                              {"trainer.plateau.factor", "0.75"},
                                              {"trainer.plateau.patience", "7"},
                                              {"trainer.plateau.threshold", "0.125"},
                                              {"trainer.plateau.least_factor", "0.25"},
                                              {"trainer.loss_scale.is_dynamic", "1"},
                                              {"trainer.loss_scale.growth", "4"},
                                              {"trainer.loss_scale.interval", "11"},
                                              {"trainer.loss_scale.backoff", "0.0625"},
                                              {"trainer.loss_scale.most", "1024"},
                                              {"trainer.loss_scale.least", "2"},
                                              {"trainer.optimizer.momentum", "0.875"},
                                              {"trainer.optimizer.weight_decay", "0.375"},
                                              {"trainer.optimizer.nesterov", "0"}};
  CHECK((nn::settings_of(options, "net", sgd, sgd.group_settings()) == expected));
  options.rate = [](std::int64_t) { return 1.0; };
  CHECK(nn::settings_of(options, "net", sgd, sgd.group_settings()).at("trainer.rate") == "a function of the step");
}

TEST_CASE("trainer: an average that the observer keeps is in the checkpoint of its step", "[trainer]") {
  const testing::Threads alone;
  const TemporaryFolder folder;
  const auto train = [&](nn::TrainerOptions options) {
    options.seed = 5;
    Run run(averaged(), options);
    run.run([&](const nn::Progress&) { run.model().follow(); });
    return testing::bytes_of(run.model().average);
  };
  const auto whole = train({.steps = 7});
  for (const std::int64_t save_every : {0, 1, 2}) {
    nn::TrainerOptions options{.steps = 4, .save = folder / "x", .save_every = save_every};
    train(options);
    options.resume = options.save, options.steps = 7;
    CHECK(train(options) == whole);
  }
  // A step fails after steps that were not saved, and the run resumes.
  int real_steps = 0;
  Own bad = averaged();
  bad.loss = [&](Averaged& net, const Tensor& x) {
    if (!x.device().is_dry && ++real_steps == 6) throw ValueError("no such batch");
    return averaged().loss(net, x);
  };
  nn::TrainerOptions options{.seed = 5, .steps = 7, .save = folder / "y", .save_every = 4};
  Run run(bad, options);
  CHECK_THROWS_AS(run.run([&](const nn::Progress&) { run.model().follow(); }), ValueError);
  options.resume = options.save;
  CHECK(train(options) == whole);
}

TEST_CASE("trainer: a run goes on after steps that the loss scaler skipped", "[trainer]") {
  const testing::Threads alone;
  const TemporaryFolder folder;
  // Gradients of an f16 net overflow at 2^24 and some smaller scales; the scale falls until they fit.
  Own own = averaged();
  own.model = [](memory::Device device) { return std::make_unique<Averaged>(device); };
  own.loss = [](Averaged& net, const Tensor& x) {
    const Tensor narrow = cast(net.linear(x), DType::f16);
    return mean(square(cast(narrow, DType::f32) + -1.0));
  };
  nn::TrainerOptions options{.seed = 5, .steps = 17};
  options.loss_scale = optim::GradScalerOptions{.scale = 0x1p24, .interval = 3};
  const auto train = [&](const nn::TrainerOptions& with) {
    Run run(own, with);
    std::vector<std::pair<std::int64_t, double>> steps;
    const nn::RunReport report = run.run([&](const nn::Progress& p) { steps.emplace_back(p.step, p.loss); });
    return std::tuple(steps, testing::bytes_of(run.model().linear.weight), report.skipped_steps);
  };
  const auto [expected, weight, all_skipped] = train(options);
  REQUIRE(expected.size() == 17);
  for (const std::int64_t first : {1, 3, 8, 13}) {
    INFO("resumed after " << first);
    nn::TrainerOptions begin = options;
    begin.save = folder / "x", begin.steps = first;
    train(begin);
    const nn::CheckpointInfo info = nn::parse_checkpoint_info(SafetensorsReader(begin.save).header(), begin.save);
    REQUIRE(info.scaler.has_value());
    CHECK(info.scaler->skipped_steps > 0);
    CHECK(info.step_count + info.scaler->skipped_steps == first);
    nn::TrainerOptions rest = options;
    rest.resume = begin.save;
    const auto [steps, end, skipped] = train(rest);
    CHECK(skipped == all_skipped - info.scaler->skipped_steps);
    CHECK(steps == std::vector(expected.begin() + static_cast<std::ptrdiff_t>(first), expected.end()));
    CHECK(end == weight);
  }
}

TEST_CASE("trainer: rates fall on a plateau, and go on falling after a checkpoint", "[trainer]") {
  const TemporaryFolder folder;
  Own own = averaged();
  std::int64_t evaluations = 0;
  own.evaluate = [&](Averaged&, memory::Device device) {
    if (device.is_dry) return 1.0;
    return ++evaluations <= 2 ? 1.0 / static_cast<double>(evaluations) : 1.0;
  };
  nn::TrainerOptions options{.seed = 3, .steps = 11, .evaluate_every = 1};
  options.plateau = optim::PlateauOptions{.factor = 0.5, .patience = 2};
  const auto rates = [&](Run& trainer) {
    std::vector<double> list;
    trainer.run([&](const nn::Progress& p) { list.push_back(p.rate); });
    return list;
  };
  for (const bool has_schedule : {false, true}) {
    INFO("a schedule as well: " << has_schedule);
    nn::TrainerOptions given = options;
    if (has_schedule) given.rate = [](std::int64_t step) { return 1e-3 * static_cast<double>(step + 1); };
    std::vector<double> expected;
    double factor = 1;
    for (int step = 0, worse = 0; step < 11; ++step) {
      expected.push_back((has_schedule ? 1e-3 * (step + 1) : 1e-3) * factor);
      if (step < 2) continue;  // evaluations: 1, 0.5, then 1 forever
      if (++worse > 2) factor *= 0.5, worse = 0;
    }
    evaluations = 0;
    Run whole(own, given);
    CHECK(rates(whole) == expected);
    evaluations = 0;
    given.steps = 6;
    given.save = folder / (has_schedule ? "b" : "a");
    Run first(own, given);
    rates(first);
    given.resume = given.save;
    given.steps = 11;
    Run second(own, given);
    CHECK(rates(second) == std::vector<double>(expected.begin() + 6, expected.end()));
    given.steps = 12;
    given.plateau->factor = 0.25;
    CHECK_THROWS_WITH(Run(own, given), Catch::Contains("plateau.factor"));
  }
  own.evaluate = nullptr;
  options.evaluate_every = 0;
  CHECK_THROWS_AS(Run(own, options), ValueError);
}

TEST_CASE("trainer: after a plateau the rates of all parts have fallen at once", "[trainer]") {
  auto own = own_program::rivals({});
  own.evaluate = [](own_program::Rivals&, memory::Device) { return 1.0; };
  nn::TrainerOptions options{.seed = 3, .steps = 3, .evaluate_every = 1};
  options.plateau = optim::PlateauOptions{.factor = 0.5, .patience = 0};
  nn::Trainer<own_program::Rivals, own_program::Batch> trainer(own, options);
  const double first = trainer.optimizer(0).rate(), second = trainer.optimizer(1).rate();
  trainer.run();
  CHECK(trainer.optimizer(0).rate() == first * 0.25);  // neither the second nor the third evaluation improves
  CHECK(trainer.optimizer(1).rate() == second * 0.25);
}

TEST_CASE("trainer: evaluations come where they are due, and at the end", "[trainer]") {
  const testing::Threads alone;
  Own own = averaged();
  own.evaluate = [](Averaged& net, memory::Device device) {
    return nn::read_value(mean(net.linear(full({1, 8}, 1, DType::f32, device))));
  };
  struct Row {
    std::int64_t steps, every;
    std::vector<std::int64_t> at;
  };
  const Row rows[] = {{5, 2, {2, 4, 5}}, {5, 0, {5}}, {6, 3, {3, 6}}, {7, 10, {7}}, {1, 1, {1}}};
  for (const Row& row : rows) {
    INFO(row.steps << " steps, every " << row.every);
    const auto train = [&](std::int64_t every, std::vector<std::int64_t>& at) {
      Run run(own, {.seed = 5, .steps = row.steps, .evaluate_every = every});
      return run.run([&](const nn::Progress& p) {
        if (p.evaluation) at.push_back(p.step);
      });
    };
    std::vector<std::int64_t> at, at_end;
    const nn::RunReport report = train(row.every, at), once = train(0, at_end);
    CHECK(at == row.at);
    REQUIRE(report.evaluation.has_value());
    CHECK(report.evaluation->loss == once.evaluation->loss);
    Run by_step(own, {.seed = 5, .steps = row.steps, .evaluate_every = row.every});
    std::vector<std::int64_t> in_steps;
    for (std::int64_t step = 1; step <= row.steps; ++step) {
      if (by_step.step().evaluation) in_steps.push_back(step);
    }
    CHECK(in_steps == row.at);
  }
}

TEST_CASE("trainer: an evaluation drops nothing, and modules then have the modes that they had", "[trainer]") {
  const testing::Threads alone;
  Own own = averaged();
  const auto mean_square = [](const Tensor& x) { return nn::read_value(mean(square(x))); };
  own.evaluate = [&](Averaged& net, memory::Device device) {
    const Tensor ones = full({16, 32}, 1, DType::f32, device), qkv = full({2, 8, 24}, 1, DType::f32, device);
    CHECK_FALSE(net.linear.is_training());
    double worst =
        std::abs(mean_square(dropout(ones, 0.5)) - 1) + std::abs(mean_square(dropout_textbook(ones, 0.5)) - 1);
    worst += std::abs(mean_square(attention(qkv, 2, {.dropout = 0.5})) - 1);
    worst += std::abs(mean_square(attention_textbook(qkv, 2, {.dropout = 0.5})) - 1);
    const Tensor q = full({2, 8, 2, 4}, 1, DType::f32, device);
    worst += std::abs(mean_square(attention(q, q, q, {.dropout = 0.5})) - 1);
    const Tensor zero = zeros({32}, DType::f32, device), one = full({32}, 1, DType::f32, device);
    worst += std::abs(mean_square(batch_norm(ones, one, zero, zero, one)) - 1);  // uses the running statistics
    CHECK(mean_square(zero) == 0);                                               // which stay unchanged
    if (device.is_dry) return 0.0;
    const EvaluationScope training(false);
    CHECK(mean_square(dropout(ones, 0.5)) > 1.5);
    return worst;
  };
  Run run(own, {.seed = 5});
  run.model().linear.eval();
  CHECK(run.evaluate() < 1e-4);
  CHECK(run.model().is_training());
  CHECK_FALSE(run.model().linear.is_training());
  CHECK_FALSE(is_evaluating());
}

namespace {

/// dropout() as a layer.
struct Dropping final : nn::Layer {
  Tensor forward(const Tensor& x) override { return dropout(x, 0.5); }
};

}  // namespace

TEST_CASE("dropout: the function follows the mode of the layer that calls it", "[dropout]") {
  Dropping layer;
  const Tensor ones = full({16, 32}, 1);
  const auto drops = [&] { return item(max(layer(ones))) == 2; };
  CHECK(drops());
  layer.eval();
  CHECK_FALSE(drops());
  {
    const EvaluationScope evaluating;
    layer.train();
    CHECK(drops());
    CHECK(item(max(dropout(ones, 0.5))) == 1);
    CHECK_THROWS_AS(dropout(ones, 1), ValueError);
    CHECK_THROWS_AS(dropout(ones, -0.5), ValueError);
  }
  CHECK(item(max(dropout(ones, 0.5))) == 2);
}
