// Experiment: what plans cost in time, predicted by a cost model and measured.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/experiments/process_row.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/units.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/fit/measure.h>

namespace thimble::bench {
namespace overhead_detail {

struct Case {
  models::Setup setup;
  std::int64_t measured_batch;                  // that the cost model comes from
  std::vector<double> shares;                   // budgets, from the smallest plan's peak (0) to that of keeping all (1)
  std::vector<std::size_t> budgets_bytes = {};  // further ones
};

std::vector<Case> cases(bool is_quick) {
  models::Setup gpt;
  gpt.model = "char-gpt";
  gpt.sizes.layers = is_quick ? 3 : 12, gpt.sizes.heads = 4, gpt.sizes.width = is_quick ? 64 : 256;
  gpt.sizes.sequence = is_quick ? 64 : 256;
  gpt.batch = 8;
  models::Setup resnet;
  resnet.model = is_quick ? "resnet18" : "resnet50";
  resnet.batch = is_quick ? 2 : 8;
  std::vector<Case> list{{gpt, 4, {0.4, 0.15}}, {resnet, is_quick ? 2 : 4, {0.4, 0.15}}};
  if (is_quick) return list;
  resnet.batch = 184;
  const auto gib = [](double count) { return static_cast<std::size_t>(count * double{1 << 30}); };
  list.push_back({resnet, 8, {}, {gib(4.99), gib(6), gib(10.01)}});
  return list;
}

/// A plan in training, in an arena of its own.
class Runner {
 public:
  Runner(Device device, const nn::MakeRun& make, const nn::Plan& plan)
      : stack_(memory::make_resource(device, options_of(device, plan))) {
    const ResourceScope scope(stack_.top);
    run_ = make(device);
    plan.apply(run_->options(), device);
    run_->options().recording.times = &times_;
  }
  ~Runner() {
    const ResourceScope scope(stack_.top);
    run_.reset();
  }

  /// One step; its forward, backward and re-runs, in ms.
  double step_ms() {
    const ResourceScope scope(stack_.top);
    if (stack_.placed != nullptr) stack_.placed->begin_step();
    run_->step();
    if (stack_.placed != nullptr) stack_.placed->end_step();
    double seconds = 0;
    for (std::size_t n = 0; n < times_.forward.size(); ++n) {
      seconds += times_.forward[n] + times_.recompute[n] + times_.backward[n];
    }
    return 1e3 * seconds;
  }
  const Arena& arena() const noexcept { return *stack_.arena; }
  std::size_t peak_bytes() const { return arena().statistics().peak_committed_bytes; }

 private:
  static memory::Options options_of(Device device, const nn::Plan& plan) {
    memory::Options options = nn::profile_options(device);
    options.plans = plan.placement;
    return options;
  }

  memory::Stack stack_;
  TapeTimes times_;
  std::unique_ptr<nn::TrainingRun> run_;
};

struct Timed {
  double ms = std::numeric_limits<double>::infinity();
  std::size_t peak_bytes = 0;
  report::Row process;  // that came nearest to its promise: nothing else of it is filled in

  void add(double step_ms) { ms = std::min(ms, step_ms); }
};

struct Pair {
  Timed plan, base;
};

/// The fastest of `steps` steps of a plan, and of the base in the same minutes: they take turns, because the speed of a
/// machine drifts by more than a plan costs. Each one's first step is not counted. Where the machine has no place for
/// both, each runs two steps at a time, alone. Where both are there, the process holds both arenas. A step's recording
/// has so many `nodes`.
Pair time_beside(Device device, const nn::MakeRun& make, const nn::Plan& plan, const nn::Plan& base, int steps,
                 std::size_t nodes) {
  Pair pair;
  constexpr std::size_t rest_bytes = std::size_t{1} << 30;
  if (plan.peak_bytes + base.peak_bytes + rest_bytes <= process::available_bytes()) {
    const PartWatch watch(device);
    Runner plan_run(device, make, plan), base_run(device, make, base);
    for (int step = 0; step <= steps; ++step) {
      const double base_ms = base_run.step_ms(), plan_ms = plan_run.step_ms();
      if (step > 0) pair.base.add(base_ms), pair.plan.add(plan_ms);
    }
    pair.plan.peak_bytes = plan_run.peak_bytes(), pair.base.peak_bytes = base_run.peak_bytes();
    const ProcessBytes process = watch.bytes(plan_run.arena(), 2 * nodes);
    for (Timed* const timed : {&pair.plan, &pair.base}) {
      add_process(timed->process, plan.peak_bytes + base.peak_bytes, process);
    }
    return pair;
  }
  for (int done = 0; done < steps; done += 2) {
    for (const bool is_base : {true, false}) {
      Timed& timed = is_base ? pair.base : pair.plan;
      const PartWatch watch(device);
      Runner run(device, make, is_base ? base : plan);
      run.step_ms();
      for (int step = 0; step < 2; ++step) timed.add(run.step_ms());
      timed.peak_bytes = run.peak_bytes();
      add_process(timed.process, (is_base ? base : plan).peak_bytes, watch.bytes(run.arena(), nodes));
    }
  }
  return pair;
}

report::Row row_of(const models::Setup& setup, const std::string& name, const nn::Plan& plan, const Timed& timed,
                   double overhead) {
  report::Row row = timed.process;
  row.config = {{"model", setup.model}, {"batch", setup.batch}, {"plan", name}};
  row.predicted_bytes = static_cast<std::int64_t>(plan.peak_bytes);
  row.measured_bytes = static_cast<std::int64_t>(timed.peak_bytes);
  row.numbers = {
      {"predicted_overhead", plan.time_overhead}, {"measured_overhead", overhead}, {"ms_per_step", timed.ms}};
  return row;
}

void run_case(const ExperimentOptions& options, const Case& c, report::Experiment& experiment) {
  models::Setup small = c.setup;
  small.batch = c.measured_batch;
  const nn::MakeRun make = zero_batch_run(c.setup);
  const nn::CostModel costs = nn::measure_costs(zero_batch_run(small), options.device, nn::hardware("cpu"));
  nn::Planner planner(make, options.device, costs);
  const nn::Plan base = planner.keep_everything();
  if (base.peak_bytes > options.most_measured_bytes) return;
  const std::size_t least = planner.smallest().peak_bytes;
  std::vector<std::size_t> budgets = c.budgets_bytes;
  for (const double share : c.shares) {
    budgets.push_back(least + static_cast<std::size_t>(share * static_cast<double>(base.peak_bytes - least)));
  }
  const int steps = options.is_quick ? 2 : c.setup.batch > 64 ? 4 : 12;
  Timed fastest_base;
  std::vector<report::Row> rows;
  for (const std::size_t budget : budgets) {
    const nn::Plan plan = planner.fit(budget);
    const std::string name = "in " + format_bytes(plan.peak_bytes);
    options.progress(c.setup.model + ", batch " + std::to_string(c.setup.batch) + ", " + name +
                     " and keeping everything, in turns");
    const Pair pair = time_beside(options.device, make, plan, base, steps, planner.graph().nodes.size());
    fastest_base.add(pair.base.ms);
    fastest_base.peak_bytes = pair.base.peak_bytes;
    fastest_base.process = pair.base.process;
    rows.push_back(row_of(c.setup, name, plan, pair.plan, pair.plan.ms / pair.base.ms - 1));
  }
  experiment.rows.push_back(row_of(c.setup, "keep everything", base, fastest_base, 0));
  std::move(rows.begin(), rows.end(), std::back_inserter(experiment.rows));
}

}  // namespace overhead_detail

report::Experiment overhead_experiment(const ExperimentOptions& options) {
  using namespace overhead_detail;
  report::Experiment experiment;
  experiment.name = "overhead";
  experiment.title = "What a budget costs in time";
  experiment.question = "Do steps in a budget take as much longer as the planner says?";
  experiment.theory =
      "time of a plan: forward, backward and re-runs of all operators by a cost model, which is the roofline corrected "
      "by steps of a smaller batch. Where the machine has room, a plan and keeping everything take turns in one "
      "process: its promise is of both";
  experiment.columns = {{"predicted_overhead", "more time, predicted", report::Unit::percent, 1},
                        {"measured_overhead", "more time, measured", report::Unit::percent, 1},
                        {"ms_per_step", "forward and backward, ms", report::Unit::milliseconds, 1}};
  for (const Case& c : cases(options.is_quick)) run_case(options, c, experiment);
  double largest = 0;
  for (const report::Row& row : experiment.rows) {
    largest = std::max(largest, std::fabs(row.numbers[0].second - row.numbers[1].second));
  }
  experiment.verdict = "Predicted and measured overheads are at most " +
                       report::format_quantity(largest, report::Unit::percent, 1) +
                       " of a step that keeps everything apart. Each plan's steps took turns with those of keeping "
                       "everything, and the fastest of a few count; what else the machine does is still in them.";
  return experiment;
}

}  // namespace thimble::bench
