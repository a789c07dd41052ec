// A trainer's choices for a budget, and runs that end early: micro-batches, a budget for the process, the best
// checkpoint, patience.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <sys/resource.h>

#include <thimble/core/error.h>
#include <thimble/core/numbers/integers.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/memory/process/outside.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/units.h>
#include <thimble/nn/files/checkpoint_info.h>
#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/files/tensor_io.h>
#include <thimble/nn/fit/plan_file.h>
#include <thimble/nn/layers/weight_average.h>
#include <thimble/nn/trainer/checkpoint_keeper.h>
#include <thimble/optim/accumulate.h>

#include "nn/own_program.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/offload_data.h"
#include "support/sanitizer.h"

using namespace thimble;
using namespace own_program;
using files_test::TemporaryFolder;
using Own = nn::Trainer<Net, Batch>;

namespace {

Program budgets_program() {
  Sizes sizes;
  sizes.width = 96, sizes.depth = 4;
  sizes.samples = [](std::int64_t) { return std::int64_t{6400}; };
  Program own = program(sizes);
  own.micro_batch = [](const Batch& batch, std::int64_t index, std::int64_t count) {
    const std::int64_t n = batch.x.size(0), begin = n * index / count, end = n * (index + 1) / count;
    return Batch{slice(batch.x, 0, begin, end), slice(batch.y, 0, begin, end)};
  };
  return own;
}

/// The least budget that the trainer accepts, if it refuses the given budget; otherwise 0.
std::size_t refused_at(const Program& own, const nn::TrainerOptions& options) {
  try {
    const Own trainer(own, options);
  } catch (const nn::BudgetError& error) {
    return error.minimum_bytes();
  }
  return 0;
}

std::vector<double> budgets_losses(Own& trainer) {
  std::vector<double> losses;
  trainer.run([&](const nn::Progress& p) { losses.push_back(p.loss); });
  return losses;
}

}  // namespace

TEST_CASE("trainer: the number of micro-batches is chosen for the budget", "[trainer]") {
  Program own = budgets_program();
  own.evaluate = nullptr;  // it takes whole batches
  const auto smallest = [&](std::int64_t count) {
    nn::TrainerOptions options{.budget_bytes = 1, .seed = 2, .steps = 2};
    options.step.micro_batches = count;
    return refused_at(own, options);
  };
  const std::size_t of_two = smallest(2), of_eight = smallest(8);
  REQUIRE(of_eight < of_two);
  nn::TrainerOptions options{.seed = 2, .steps = 2};
  options.step.micro_batches = nn::auto_micro_batches;
  options.budget_bytes = of_two - 1;
  Own tight(own, options);
  CHECK(tight.plan().micro_batches > 2);
  CHECK(tight.plan().text().find(std::to_string(tight.plan().micro_batches) + " micro-batches") != std::string::npos);
  nn::TrainerOptions given = options;
  given.step.micro_batches = tight.plan().micro_batches;
  Own same(own, given);
  CHECK(budgets_losses(tight) == budgets_losses(same));
  CHECK(tight.peak_bytes() == tight.plan().peak_bytes);
  CHECK(tight.peak_bytes() <= options.budget_bytes);

  options.process_budget_bytes = std::size_t{1} << 40;  // the smaller of both budgets counts
  const Own bounded(own, options);
  CHECK(bounded.plan().micro_batches == tight.plan().micro_batches);
  options.process_budget_bytes = bounded.plan().outside.total() + of_two - (1 << 18);  // the heap may have grown since
  options.budget_bytes = std::size_t{1} << 40;
  if (!testing::has_sanitizer) CHECK(Own(own, options).plan().micro_batches > 2);
  options.process_budget_bytes = 0;
  CHECK(Own(own, options).plan().micro_batches == 1);
  options.budget_bytes = 0;
  CHECK_THROWS_AS(Own(own, options), ValueError);
  options.budget_bytes = std::size_t{1} << 40;
  Program whole = own;
  whole.micro_batch = nullptr;
  CHECK_THROWS_AS(Own(whole, options), ValueError);
}

TEST_CASE("trainer: a plan of several shapes keeps as much as the one that needs most", "[trainer]") {
  std::vector<std::size_t> bytes;
  for (const std::int64_t less : {0, 900, -900}) {  // fewer samples in the second step
    Sizes sizes;
    sizes.samples = [less](std::int64_t step) { return 1500 - step % 2 * less; };
    Program own = program(sizes);
    own.evaluate = nullptr;
    nn::TrainerOptions options{.budget_bytes = std::size_t{1} << 40, .seed = 2, .steps = 2, .example_steps = {0, 1}};
    bytes.push_back(Own(own, options).plan().keep_everything_bytes);
  }
  CHECK(bytes[1] == bytes[0]);
  CHECK(bytes[2] > bytes[0]);
}

TEST_CASE("trainer: a budget for the process", "[trainer][process]") {
  if (testing::has_sanitizer) return;  // its heap keeps freed blocks for a while
  const Program own = budgets_program();
  const nn::TrainerOptions options{.seed = 2, .steps = 3};
  const std::size_t free_bytes = Own(own, options).plan().peak_bytes;
  nn::TrainerOptions bounded = options;
  bounded.process_budget_bytes = std::size_t{1} << 40;
  const std::size_t outside = Own(own, bounded).plan().outside.total();
  REQUIRE(outside > 0);
  bounded.process_budget_bytes = outside + free_bytes * 7 / 10 + (std::size_t{4} << 20);
  std::vector<double> losses;
  std::size_t peak = 0;
  {
    Own trainer(own, bounded);
    const nn::TrainerPlan& plan = trainer.plan();
    peak = plan.peak_bytes;
    CHECK(plan.peak_bytes + plan.outside.total() <= bounded.process_budget_bytes);
    CHECK(plan.peak_bytes < free_bytes);
    CHECK(plan.budget_bytes >= plan.peak_bytes);
    CHECK(plan.text().find("for the process") != std::string::npos);
    losses = budgets_losses(trainer);
    CHECK(trainer.peak_bytes() == plan.peak_bytes);
  }
  {
    Own plain(own, options);
    CHECK(losses == budgets_losses(plain));
  }
  bounded.process_budget_bytes += std::size_t{64} << 20;
  bounded.budget_bytes = peak;  // the smaller of both
  CHECK(Own(own, bounded).plan().budget_bytes == peak);
  bounded.budget_bytes = 0;
  bounded.process_budget_bytes = outside / 2;
  std::string text;
  try {
    const Own none(own, bounded);
  } catch (const nn::BudgetError& error) {
    text = error.what();
  }
  CHECK(text.find("outside of it the process takes") != std::string::npos);
}

TEST_CASE("trainer: the process's bytes have the threads of every tier, and the staging of files",
          "[trainer][process]") {
  const std::string at = offload_test::disk_folder();
  if (at.empty()) return;
  const TemporaryFolder folder;
  nn::TrainerOptions options{.process_budget_bytes = std::size_t{1} << 40, .steps = 2};
  auto own = rivals({});
  own.evaluate = [](Rivals&, memory::Device) { return 1.0; };  // `best` needs it
  const auto outside = [&] { return nn::Trainer<Rivals, Batch>(own, options).plan().outside; };
  const memory::OutsideBytes plain = outside();
  const auto of_threads = [](int tiers) {
    return memory::outside_bytes({}, {.tier_threads = tiers * memory::FileTier::Options().workers}).threads;
  };
  const std::pair<nn::OffloadOptions, int> rows[] = {{{.folder = at, .saved_tensors = true}, 1},
                                                     {{.folder = at, .optimizer = true}, 2},  // one for each part
                                                     {{.folder = at, .gradients = true}, 1},
                                                     {{.folder = at, .parameters = true}, 1},
                                                     {{at, true, true, true, true}, 5}};
  for (const auto& [away, tiers] : rows) {
    options.offload = away;
    CHECK(outside().threads - plain.threads == of_threads(tiers) - of_threads(0));
  }
  options.offload = {};
  CHECK(plain.staging == 0);
  using Files = nn::TrainerOptions;
  for (std::string Files::*const file : {&Files::save, &Files::best, &Files::resume}) {
    options.*file = folder / "file";
    CHECK(outside().staging == nn::file_staging_bytes);
    options.*file = "";
    nn::Trainer<Rivals, Batch>(rivals({}), {.steps = 1, .save = folder / "file"}).run();
  }
}

#if !defined(THIMBLE_TEST_HAS_SANITIZER)
TEST_CASE("trainer: a process's budget bounds planning, too, and nothing after it", "[trainer][process]") {
  const auto limit = [] {
    rlimit data{};
    getrlimit(RLIMIT_DATA, &data);
    return data.rlim_cur;
  };
  const rlim_t before = limit();
  rlim_t least = before;
  Program own = budgets_program();
  own.loss = [&, loss = own.loss](Net& net, const Batch& batch) {
    least = std::min(least, limit());
    return loss(net, batch);
  };
  nn::TrainerOptions options{.seed = 2, .steps = 3};
  const Own free(own, options);
  CHECK(least == before);
  options.process_budget_bytes = std::size_t{1} << 32;
  const Own bounded(own, options);
  CHECK(least < options.process_budget_bytes);
  CHECK(limit() == before);
}

TEST_CASE("trainer: a run that the machine has no room for is refused before its model is made", "[trainer][process]") {
  const Program own = budgets_program();
  Own trainer(own, {.seed = 2, .steps = 2});
  rlimit before{};
  getrlimit(RLIMIT_DATA, &before);
  const rlimit tight{std::min<rlim_t>(before.rlim_max, process::data_bytes() + (std::size_t{1} << 20)),
                     before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_DATA, &tight) == 0);
  std::string text;
  try {
    trainer.run();
  } catch (const OutOfMemory& error) {
    text = error.what();
  }
  setrlimit(RLIMIT_DATA, &before);
  CHECK(text.find("RLIMIT_DATA") != std::string::npos);
  CHECK(text.find("nothing was begun") != std::string::npos);
  CHECK(trainer.peak_bytes() == 0);
  CHECK(trainer.run().is_finite());  // with room it starts
}
#endif

TEST_CASE("trainer: a run reports the predicted bytes", "[trainer][process]") {
  const Program own = budgets_program();
  nn::TrainerOptions options{.seed = 2, .steps = 3};
  for (const bool has_budget : {false, true}) {
    INFO("budget " << has_budget);
    if (has_budget) options.budget_bytes = refused_at(own, {.budget_bytes = 1}) * 11 / 10;
    Own trainer(own, options);
    const nn::RunReport report = trainer.run();
    CHECK(report.differences() == "");
    CHECK(report.predicted_peak_bytes == trainer.plan().peak_bytes);
    CHECK(report.measured_peak_bytes == trainer.peak_bytes());
    CHECK(report.measured_peak_bytes == report.predicted_peak_bytes);
    CHECK(report.state_bytes == trainer.optimizer().state_bytes());
    CHECK(report.rss_peak_bytes >= report.measured_peak_bytes);
    CHECK(report.outside.total() > 0);
  }
}

TEST_CASE("trainer: the best checkpoint stays, and patience ends a run", "[trainer]") {
  struct Row {
    std::vector<double> evaluations;  // after steps 2, 4, 6, ...
    std::int64_t patience;
    nn::TrainEnd end;
    std::int64_t steps, best_step;
  };
  const Row rows[] = {
      {{5, 4, 4.5, 3, 3.5, 3.25, 9}, 0, nn::TrainEnd::complete, 13, 8},
      {{5, 4, 4.5, 3, 3.5, 3.25, 9}, 2, nn::TrainEnd::no_better, 12, 8},
      {{5, 4, 4.5, 4.25, 4.5, 4.5, 9}, 2, nn::TrainEnd::no_better, 8, 4},
      {{5, 6, 7, 1, 1, 1, 1}, 3, nn::TrainEnd::complete, 13, 8},
      {{5, 5, 4, 1, 1, 1, 1}, 1, nn::TrainEnd::no_better, 4, 2},
      {{7, 6, 5, 4, 3, 2, 1}, 1, nn::TrainEnd::complete, 13, 13},
  };
  for (std::size_t i = 0; i < 2 * std::size(rows); ++i) {
    const Row& row = rows[i / 2];
    const bool is_interrupted = i % 2 == 1;
    if (is_interrupted && row.steps <= 6) continue;
    INFO(row.best_step << ", patience " << row.patience << ", interrupted " << is_interrupted);
    const TemporaryFolder folder;
    Sizes sizes;
    sizes.width = 16, sizes.depth = 1;
    sizes.samples = [](std::int64_t) { return std::int64_t{20}; };
    Program own = program(sizes);
    std::size_t evaluated = 0;
    own.evaluate = [&](Net&, memory::Device device) { return device.is_dry ? 0 : row.evaluations.at(evaluated++); };
    nn::TrainerOptions options{.seed = 2, .steps = 13, .evaluate_every = 2};
    options.save = folder / "last", options.best = folder / "best", options.patience = row.patience;
    if (is_interrupted) {
      options.steps = 6;
      Own(own, options).run();
      options.steps = 13, options.resume = options.save;
    }
    Own trainer(own, options);
    const nn::RunReport report = trainer.run();
    CHECK(report.end == row.end);
    CHECK(report.steps == row.steps);
    CHECK(trainer.peak_bytes() == trainer.plan().peak_bytes);
    const auto step_of = [](const std::string& path) {
      return nn::steps_done(nn::parse_checkpoint_info(SafetensorsReader(path).header(), path));
    };
    CHECK(step_of(options.best) == row.best_step);
    CHECK(step_of(options.save) == row.steps);
    CHECK((report.end_text.find("without a new least loss") != std::string::npos) ==
          (row.end == nn::TrainEnd::no_better));
  }
  nn::TrainerOptions options{.patience = 2};
  Program own = budgets_program();
  own.evaluate = nullptr;
  CHECK_THROWS_AS(Own(own, options), ValueError);
}

TEST_CASE("trainer: gradients are clipped by value between backward and the update", "[trainer][step]") {
  const Program own = budgets_program();
  const auto clip = [](const std::vector<optim::Named>& parameters) {
    for (const optim::Named& p : parameters) {
      if (p.tensor.grad().defined()) copy_into(p.tensor.grad(), clamp(p.tensor.grad(), -0.001, 0.001));
    }
  };
  nn::TrainerOptions options{.budget_bytes = std::size_t{1} << 40, .seed = 4, .steps = 3};
  options.step.on_gradients = clip;
  options.step.micro_batches = 2;
  options.is_strict = true;
  Own trainer(own, options);
  const std::vector<double> losses = budgets_losses(trainer);
  CHECK(trainer.peak_bytes() == trainer.plan().peak_bytes);
  // One step by hand: accumulate both halves' gradients of the mean, clip, then Adam.
  nn::TrainerOptions one_step = options;
  one_step.steps = 1;
  Own one(own, one_step);
  budgets_losses(one);
  RandomGenerator generator(4);
  const GeneratorScope scope(generator);
  Net net(96, 4, cpu);
  const std::unique_ptr<optim::Optimizer> adam = own.optimizer(net);
  const Batch batch = [&] {
    const PathScope path("batch");
    return own.batch(0, cpu);
  }();
  optim::accumulate_gradients(2, batch.x.size(0) / 2,
                              [&](std::int64_t i) { return own.loss(net, own.micro_batch(batch, i, 2)); });
  clip(adam->parameters());
  adam->step();
  const std::vector<nn::NamedTensor> trained = one.model().parameters(), by_hand = net.parameters();
  REQUIRE(trained.size() == by_hand.size());
  for (std::size_t i = 0; i < trained.size(); ++i) {
    INFO(trained[i].name);
    CHECK(to_host<float>(trained[i].tensor) == to_host<float>(by_hand[i].tensor));
  }
  Own unclipped(own, {.seed = 4, .steps = 3, .step = {.micro_batches = 2}});
  CHECK(budgets_losses(unclipped)[2] != losses[2]);

  options.step.micro_batches = 1;
  options.step.fuses_optimizer = nn::FusedUpdate::secured;
  CHECK_THROWS_AS(Own(own, options), PlanError);
  options.step.fuses_optimizer = nn::FusedUpdate::off;
  options.loss_scale = optim::GradScalerOptions{};
  CHECK_THROWS_AS(Own(own, options), PlanError);
  // Clipping by norm comes after on_gradients.
  double most = 0;
  nn::TrainerOptions with_norm{.seed = 4, .steps = 1, .step = {.clip_norm = 1e-7}};
  with_norm.step.on_gradients = [&](const std::vector<optim::Named>& parameters) {
    const Tensor& g = parameters.front().tensor.grad();
    if (!g.device().is_dry) most = nn::read_value(max(abs(g)));
  };
  Own(own, with_norm).run();
  CHECK(most > 1e-6);
}

TEST_CASE("trainer: tensors wait in a tier between their uses, with the same bits", "[trainer][offload]") {
  const std::string at = offload_test::disk_folder();
  if (at.empty()) return;
  const nn::TrainerOptions plain{.seed = 2, .steps = 2};
  const auto own_of = [](std::int64_t samples) {
    Sizes sizes;
    sizes.width = 512, sizes.depth = 5;  // 21 MB of parameters, more than a tier's buffers hold
    sizes.samples = [samples](std::int64_t) { return samples; };
    return program(sizes);
  };
  struct Case {
    const char* name;
    nn::OffloadOptions away;
    std::int64_t samples;
  };
  const std::vector<Case> cases{{"saved tensors", {.folder = at, .saved_tensors = true}, 1100},
                                {"optimizer", {.folder = at, .optimizer = true}, 140},
                                {"gradients", {.folder = at, .gradients = true}, 140},
                                {"parameters", {.folder = at, .parameters = true, .read_ahead = 0}, 140},
                                {"all", {at, true, true, true, true, 2}, 1100}};
  for (const Case& one : cases) {
    INFO(one.name);
    const Program own = own_of(one.samples);
    Own kept(own, plain);
    const std::vector<double> expected = budgets_losses(kept);
    nn::TrainerOptions options = plain;
    options.offload = one.away;
    if (one.away.saved_tensors) options.budget_bytes = kept.plan().peak_bytes * 8 / 10;
    Own trainer(own, options);
    CHECK(budgets_losses(trainer) == expected);
    CHECK(trainer.peak_bytes() == trainer.plan().peak_bytes);
    CHECK(trainer.plan().peak_bytes < kept.plan().peak_bytes);
    if (!one.away.saved_tensors) CHECK(trainer.plan().tier_bytes > 0);
    CHECK(trainer.run().measured_tier_bytes == trainer.plan().tier_bytes);
    CHECK(trainer.certify(2).holds());
  }
  {  // two optimizers, whose parameters share a file
    Sizes sizes;
    sizes.width = 40, sizes.depth = 2;
    sizes.samples = [](std::int64_t) { return std::int64_t{9}; };
    nn::Trainer<Rivals, Batch> two(rivals(sizes), {.steps = 2, .offload = {.folder = at, .parameters = true}});
    const nn::RunReport report = two.run();
    std::size_t bytes = 0;
    for (nn::Module* const module : two.model().modules()) {
      for (const optim::Named& p : module->trainable()) bytes += round_up(p.tensor.bytes(), std::size_t{4096});
    }
    CHECK(report.measured_tier_bytes == bytes);
    CHECK(report.predicted_tier_bytes == bytes);
  }

  const Program own = own_of(1);
  nn::TrainerOptions options = plain;
  const auto refused = [&](const std::string& part) {
    INFO(part);
    CHECK_THROWS_WITH(Own(own, options), Catch::Contains(part));
  };
  options.offload = {.optimizer = true};
  refused("options.offload.folder: expected a folder on a disk, got none");
  options.offload = {.folder = at};
  refused("options.offload.folder: expected tensors to offload there, got none");
  options.offload = {.folder = at, .saved_tensors = true};
  refused("options.offload.saved_tensors: plans choose the tensors; expected a budget");
  options.offload = {.saved_tensors = true};  // without a folder, too
  refused("options.offload.saved_tensors: plans choose the tensors; expected a budget");
  options.offload = {.folder = at, .parameters = true, .read_ahead = -1};
  refused("options.offload.read_ahead: expected at least 0, got -1");
  options.offload = {.folder = at, .gradients = true};
  options.step.fuses_optimizer = nn::FusedUpdate::secured;
  CHECK_THROWS_AS(Own(own, options), PlanError);  // a gradient has one sink
}

TEST_CASE("trainer: an option without the one that it needs is refused by name", "[trainer]") {
  const struct {
    const char* text;
    void (*set)(nn::TrainerOptions& options);
  } rows[] = {
      {"options.hardware: needs options.budget_bytes", [](auto& o) { o.hardware = "h100-80gb"; }},
      {"options.skips_unfitting: needs a plan", [](auto& o) { o.skips_unfitting = true; }},
      {"options.is_strict: needs a plan", [](auto& o) { o.is_strict = true; }},
      {"options.refusal_ms: needs options.budget_bytes", [](auto& o) { o.refusal_ms = 0; }},
      {"options.planner.make_tier: needs tensors to offload",
       [](auto& o) { o.planner.make_tier = [](memory::Device on) { return memory::make_tier(on); }; }},
      {"options.overwrites: needs options.save or best", [](auto& o) { o.overwrites = true; }},
      {"options.planner.spilling: needs options.budget_bytes", [](auto& o) { o.planner.spilling.packs = true; }},
      {"options.planner.spilling: needs options.budget_bytes", [](auto& o) { o.planner.spilling.offloads = true; }},
      {"options.patience: needs options.evaluate_every", [](auto& o) { o.patience = 2; }},
      {"options.plateau: needs options.evaluate_every", [](auto& o) { o.plateau = optim::PlateauOptions{}; }},
      {"options.changes_options: needs options.resume", [](auto& o) { o.changes_options = true; }},
      {"options.keep: needs options.save", [](auto& o) { o.keep = 2; }},
      {"options.offload.read_ahead: needs options.offload.parameters", [](auto& o) { o.offload.read_ahead = 2; }},
      {"options.ranks.read_ahead: needs options.ranks.zero = 3", [](auto& o) { o.ranks.read_ahead = 0; }},
      {"options.ranks.bucket_bytes: needs options.ranks.ranks", [](auto& o) { o.ranks.bucket_bytes = 1; }},
  };
  for (const auto& row : rows) {
    nn::TrainerOptions options{.seed = 2, .steps = 2};
    row.set(options);
    CHECK_THROWS_WITH(Own(budgets_program(), options), Catch::Contains(std::string("trainer: ") + row.text));
  }
}

TEST_CASE("trainer: a refusal names options that would fit, with their bytes, and they do", "[trainer][offers]") {
  Program own = budgets_program();
  own.evaluate = nullptr;  // it takes whole batches
  nn::TrainerOptions options{.budget_bytes = 1, .seed = 2, .steps = 2};
  options.refusal_ms = 0;
  const std::size_t least = refused_at(own, options);
  REQUIRE(least > 0);
  options.budget_bytes = least * 6 / 10;
  std::string text;
  try {
    const Own trainer(own, options);
  } catch (const nn::BudgetError& error) {
    text = error.what();
  }
  INFO(text);
  CHECK(text.find("it fits with options.") != std::string::npos);
  const std::string eight = "options.step.micro_batches = 8, which needs ";
  REQUIRE(text.find(eight) != std::string::npos);
  CHECK(text.find(" % more time") != std::string::npos);
  nn::TrainerOptions follows = options;
  follows.step.micro_batches = 8;
  CHECK(Own(own, follows).plan().peak_bytes <= options.budget_bytes);
  follows.budget_bytes = 1;
  CHECK(text.find(eight + memory::exact_bytes(refused_at(own, follows))) != std::string::npos);
  // Options that need no fewer bytes than a faster one are left out.
  CHECK(text.find("options.step.micro_batches = 4,") == std::string::npos);
  CHECK(text.find("options.step.micro_batches = 64,") == std::string::npos);
  options.refusal_ms = 1e-3;
  CHECK_THROWS_WITH(Own(own, options), Catch::Contains("were not tried, for want of time or memory: "
                                                       "options.refusal_ms = 0 tries them all"));
  options.budget_bytes = 1;
  options.refusal_ms = 0;
  CHECK_THROWS_WITH(Own(own, options), Catch::Contains("none of 11 techniques fits"));
  options.step.micro_batches = 3;  // so 6, 12, 24 and 48, and the sets of tensors to offload
  CHECK_THROWS_WITH(Own(own, options), Catch::Contains("none of 7 techniques fits"));
}

TEST_CASE("trainer: an offer to offload has the time of its transfers", "[trainer][offers]") {
  const std::string at = offload_test::disk_folder();
  if (at.empty()) return;
  Sizes sizes;
  sizes.width = 512, sizes.depth = 2;
  sizes.samples = [](std::int64_t) { return std::int64_t{140}; };
  Program own = program(sizes);
  own.evaluate = nullptr;
  nn::TrainerOptions options{.budget_bytes = std::size_t{1} << 40, .seed = 2, .steps = 2};
  options.refusal_ms = 0;
  Own plain(own, options);
  const double plain_s = plain.step_plan().step_s, state = static_cast<double>(plain.optimizer().state_bytes());
  double weights = 0;
  for (const nn::NamedTensor& p : plain.model().parameters()) weights += static_cast<double>(p.tensor.bytes());
  // The state and the gradients are written and read; forward, backward and the update read parameters, and one writes.
  using Row = std::tuple<std::string, nn::OffloadOptions, double>;
  for (const auto& [name, away, moved] :
       {Row{", .optimizer", {at, true, true}, 2 * state},
        {", .optimizer, .gradients", {at, true, true, true}, 2 * state + 2 * weights},
        {", .optimizer, .gradients, .parameters", {at, true, true, true, true}, 2 * state + 6 * weights}}) {
    nn::TrainerOptions other = options;
    other.offload = away, other.budget_bytes = 1;
    other.budget_bytes = options.budget_bytes = refused_at(own, other);
    const double seconds = Own(own, other).step_plan().step_s + moved / nn::hardware("cpu").tier_bytes_per_s;
    const std::string text = "options.offload.saved_tensors" + name + " = true, which needs " +
                             memory::exact_bytes(other.budget_bytes) + ", at " +
                             std::to_string(std::llround(100 * (seconds / plain_s - 1))) + " % more time";
    CHECK_THROWS_WITH(Own(own, options), Catch::Contains(text));
  }
}

TEST_CASE("trainer: a refusal names the largest result, which only the program can cut", "[trainer][offers]") {
  Program own = budgets_program();
  own.evaluate = nullptr;
  own.micro_batch = nullptr;
  own.loss = [](Net& net, const Batch& batch) {  // products of all pairs of samples
    const Tensor z = net(slice(batch.x, 0, 0, 1100));
    const PathScope path("pairs");
    return mean(square(matmul(z, transpose(z, 0, 1))));
  };
  nn::TrainerOptions options{.budget_bytes = std::size_t{6} << 20, .seed = 2, .steps = 2};
  CHECK_THROWS_WITH(Own(own, options), Catch::Contains("the largest result is 4.62 MiB (4840000 B), of ") &&
                                           Catch::Contains(" at 'pairs': computed in chunks of rows"));
}

TEST_CASE("trainer: a plan is written, followed without a search, and explained", "[trainer][plan_file]") {
  const Program own = budgets_program();
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/step.plan";
  nn::TrainerOptions options{.seed = 2, .steps = 3};
  const std::size_t free_bytes = Own(own, options).plan().peak_bytes;
  CHECK_THROWS_WITH(Own(own, options).step_plan(), Catch::Contains("expected a budget, one rank, one part"));
  options.budget_bytes = free_bytes * 7 / 10;
  Own planned(own, options);
  nn::write_plan(file, planned.step_plan());
  const std::string text = planned.explain();
  INFO(text);
  for (const char* const part : {"segments that backward runs again", "kept bytes",
                                 "plans, from the smallest to the fastest", "activation", "= committed"}) {
    CHECK(text.find(part) != std::string::npos);
  }
  CHECK(text.find(memory::exact_bytes(planned.plan().peak_bytes)) != std::string::npos);
  CHECK(planned.plan().lower_bound_bytes <= planned.plan().peak_bytes);
  CHECK(planned.plan().lower_bound_bytes > 0);
  const std::vector<double> expected = budgets_losses(planned);

  nn::TrainerOptions follows{.seed = 2, .steps = 3};
  follows.plan = nn::plan_file(file);
  Own follower(own, follows);
  CHECK(follower.plan().peak_bytes == planned.plan().peak_bytes);
  CHECK(budgets_losses(follower) == expected);
  CHECK(follower.peak_bytes() == planned.peak_bytes());
  follows.budget_bytes = planned.plan().peak_bytes / 2;
  CHECK_THROWS_WITH(Own(own, follows), Catch::Contains("options.plan needs "));
  Sizes other_sizes;
  other_sizes.width = 96, other_sizes.depth = 3;
  follows.budget_bytes = 0;
  CHECK_THROWS_AS(Own(program(other_sizes), follows), PlanError);
}

namespace {

constexpr double average_decay = 0.7;

/// The net of own_program.h with an average of its parameters.
struct AveragedNet final : nn::Module {
  AveragedNet(std::int64_t width, double decay, memory::Device device)
      : net(child<Net>("net", width, 2, device)),
        average(child<nn::WeightAverage>("average", net.trainable(), decay)) {}
  Net& net;
  nn::WeightAverage& average;
};

}  // namespace

TEST_CASE("trainer: an average of the weights is planned, saved, and exchanged for an evaluation", "[trainer]") {
  const TemporaryFolder folder;
  Sizes sizes;
  sizes.width = 40;
  sizes.samples = [](std::int64_t) { return std::int64_t{333}; };
  nn::TrainedProgram<AveragedNet, Batch> own;
  own.model = [](memory::Device device) { return std::make_unique<AveragedNet>(40, average_decay, device); };
  own.optimizer = [](AveragedNet& net) {
    return std::make_unique<optim::Adam>(net.net.trainable(), optim::AdamOptions{});
  };
  own.loss = [](AveragedNet& net, const Batch& batch) { return mse_loss(net.net(batch.x), batch.y); };
  own.batch = [sizes](std::int64_t step, memory::Device device) { return make_batch(sizes, step, device); };
  own.after_update = [](AveragedNet& net) { net.average.update(); };
  own.evaluate = [sizes](AveragedNet& net, memory::Device device) {
    const nn::WeightAverage::Exchange averaged(net.average);
    const Batch batch = make_batch(sizes, 0, device);
    return nn::read_value(mse_loss(net.net(batch.x), batch.y));
  };
  using Averaging = nn::Trainer<AveragedNet, Batch>;
  const auto values_of = [](const Tensor& t) { return nn::read_values<float>(t.detach()); };
  nn::TrainerOptions options{.seed = 4, .steps = 5};
  options.budget_bytes = Averaging(own, options).plan().peak_bytes;
  Averaging trainer(own, options);
  std::vector<std::vector<double>> expected;  // by hand, in f64
  for (const nn::Named& p : trainer.model().net.trainable()) {
    const std::vector<float> values = values_of(p.tensor);
    expected.emplace_back(values.begin(), values.end());
  }
  const nn::RunReport report = trainer.run([&](const nn::Progress&) {
    std::size_t i = 0;
    for (const nn::Named& p : trainer.model().net.trainable()) {
      const std::vector<float> values = values_of(p.tensor);
      for (std::size_t j = 0; j < values.size(); ++j) {
        expected[i][j] = average_decay * expected[i][j] + (1 - average_decay) * static_cast<double>(values[j]);
      }
      ++i;
    }
  });
  CHECK(trainer.peak_bytes() == trainer.plan().peak_bytes);
  const std::vector<nn::NamedTensor> averages = trainer.model().average.buffers();
  REQUIRE(averages.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::vector<float> values = values_of(averages[i].tensor);
    double worst = 0;
    for (std::size_t j = 0; j < values.size(); ++j) {
      worst = std::max(worst, std::abs(static_cast<double>(values[j]) - expected[i][j]));
    }
    CHECK(worst < 1e-6);
  }
  // The evaluation used the averages, and the parameters are unchanged.
  double with_weights = 0;
  {
    nn::TrainedProgram<AveragedNet, Batch> plain = own;
    plain.evaluate = [sizes](AveragedNet& net, memory::Device device) {
      const Batch batch = make_batch(sizes, 0, device);
      return nn::read_value(mse_loss(net.net(batch.x), batch.y));
    };
    with_weights = nn::Trainer<AveragedNet, Batch>(plain, options).run().evaluation->loss;
  }
  CHECK(report.evaluation->loss != with_weights);

  options.save = folder / "x";
  options.steps = 3;
  Averaging(own, options).run();
  options.resume = options.save;
  options.steps = 5;
  Averaging second(own, options);
  CHECK(second.run().evaluation->loss == report.evaluation->loss);
  CHECK_THROWS_WITH(nn::WeightAverage({}, 1), Catch::Contains("0 <= decay < 1"));
}

TEST_CASE("trainer: a batch may come from the model", "[trainer]") {
  // Like a rollout, each step regresses on the net's results of the step before.
  Program own = budgets_program();
  own.evaluate = nullptr;
  own.batch = nullptr;
  own.batch_of_model = [](Net& net, std::int64_t step, memory::Device device) {
    const Tensor x = randn({64 + step % 2, 96}, DType::f32, device);
    return Batch{x, net(x) * 0.5 + 1.0};
  };
  nn::TrainerOptions options{.seed = 2, .steps = 4};
  options.example_steps = {0, 1};
  Own free_run(own, options);
  const std::vector<double> expected = budgets_losses(free_run);
  CHECK(free_run.peak_bytes() == free_run.plan().peak_bytes);
  options.budget_bytes = free_run.plan().peak_bytes;
  options.is_strict = true;
  Own bounded(own, options);
  CHECK(budgets_losses(bounded) == expected);
  CHECK(bounded.peak_bytes() == bounded.plan().peak_bytes);
  CHECK(expected[0] != expected[2]);  // other results, other batches
  own.batch = budgets_program().batch;
  CHECK_THROWS_WITH(Own(own, options), Catch::Contains("expected one of batch and batch_of_model"));
}
