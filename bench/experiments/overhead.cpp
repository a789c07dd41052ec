// Experiment: what plans cost in time, predicted by a cost model and measured.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <thimble/bench/experiments/runs.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/units.h>
#include <thimble/models/training/costs.h>
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
  const std::int64_t width = is_quick ? 64 : 256;
  const models::Setup gpt =
      setup_of("char-gpt", 8, {.sequence = width, .layers = is_quick ? 3 : 12, .heads = 4, .width = width});
  models::Setup resnet = setup_of(is_quick ? "resnet18" : "resnet50", is_quick ? 2 : 8);
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
  Runner(memory::Device device, const nn::MakeRun& make, const nn::Plan& plan)
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
  static memory::Options options_of(memory::Device device, const nn::Plan& plan) {
    memory::Options options = nn::profile_options(device);
    options.plans = plan.placement;
    return options;
  }

  memory::Stack stack_;
  TapeTimes times_;
  std::unique_ptr<nn::TrainingRun> run_;
};

/// The fastest step of a run, and its processes behind their promises.
struct Timed {
  double ms = std::numeric_limits<double>::infinity();
  std::size_t peak_bytes = 0;
  std::vector<std::pair<Bytes, ProcessBytes>> processes = {};

  void add(double step_ms) { ms = std::min(ms, step_ms); }
};

struct Pair {
  Timed plan, base;
};

/// The fastest of `steps` steps of a plan, and of the base in the same minutes: they take turns, because the speed of a
/// machine drifts by more than a plan costs. Each one's first step is not counted. Where the machine has no place for
/// both, each runs two steps at a time, alone. Where both are there, the process holds both arenas. A step's recording
/// has so many `nodes`.
Pair time_beside(memory::Device device, const nn::MakeRun& make, const nn::Plan& plan, const nn::Plan& base, int steps,
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
      timed->processes.emplace_back(plan.peak_bytes + base.peak_bytes, process);
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
      timed.processes.emplace_back((is_base ? base : plan).peak_bytes, watch.bytes(run.arena(), nodes));
    }
  }
  return pair;
}

Figures figures_of(const nn::Plan& plan, const Timed& timed, double overhead) {
  return {.predicted = plan.peak_bytes,
          .measured = timed.peak_bytes,
          .numbers = {{"predicted_overhead", plan.time_overhead},
                      {"measured_overhead", overhead},
                      {"ms_per_step", timed.ms}},
          .processes = timed.processes};
}

void run_case(Rows& rows, const Case& c) {
  const memory::Device device = rows.options.device;
  models::Setup small = c.setup;
  small.batch = c.measured_batch;
  const nn::MakeRun make = zero_batch_run(c.setup);
  nn::Planner planner(make, device, nn::measure_costs(zero_batch_run(small), device, nn::hardware("cpu")));
  const nn::Plan base = planner.keep_everything();
  if (base.peak_bytes > rows.options.most_measured_bytes) return;
  const std::size_t least = planner.smallest().peak_bytes;
  std::vector<std::size_t> budgets = c.budgets_bytes;
  for (const double share : c.shares) {
    budgets.push_back(least + static_cast<std::size_t>(share * static_cast<double>(base.peak_bytes - least)));
  }
  const int steps = rows.options.is_quick ? 2 : c.setup.batch > 64 ? 4 : 12;
  const auto config = [&](const std::string& plan) {
    return Config{{"model", c.setup.model}, {"batch", c.setup.batch}, {"plan", plan}};
  };
  Timed fastest_base;
  std::vector<std::pair<Config, Figures>> plans;
  for (const std::size_t budget : budgets) {
    const nn::Plan plan = planner.fit(budget);
    const std::string name = "in " + format_bytes(plan.peak_bytes);
    rows.say(c.setup.model + ", batch " + std::to_string(c.setup.batch) + ", " + name +
             " and keeping everything, in turns");
    const Pair pair = time_beside(device, make, plan, base, steps, planner.graph().nodes.size());
    const double fastest_ms = std::min(fastest_base.ms, pair.base.ms);
    fastest_base = pair.base;
    fastest_base.ms = fastest_ms;
    plans.emplace_back(config(name), figures_of(plan, pair.plan, pair.plan.ms / pair.base.ms - 1));
  }
  rows.add(config("keep everything"), figures_of(base, fastest_base, 0));
  for (const auto& [of_plan, figures] : plans) rows.add(of_plan, figures);
}

}  // namespace overhead_detail

std::string run_overhead(Rows& rows) {
  using namespace overhead_detail;
  for (const Case& c : cases(rows.options.is_quick)) run_case(rows, c);
  double largest = 0;
  for (const report::Row& row : rows.experiment.rows) {
    largest = std::max(largest, std::fabs(number(row, "predicted_overhead") - number(row, "measured_overhead")));
  }
  return "Predicted and measured overheads are at most " + percent(largest) +
         " of a step that keeps everything apart. Each plan's steps took turns with those of keeping everything, and "
         "the fastest of a few count; what else the machine does is still in them.";
}

}  // namespace thimble::bench
