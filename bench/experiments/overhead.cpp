// Experiment: the time that plans cost, predicted by a cost model and measured.

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/units.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/fit/measure.h>

namespace thimble::bench {
namespace {

struct Case {
  std::string net;
  std::int64_t batch, measured_batch;  // the cost model comes from the second
  std::function<nn::MakeRun(std::int64_t batch)> make;
  std::vector<double> shares;                   // budgets: 0 is the smallest plan's peak, 1 keeps everything
  std::vector<std::size_t> budgets_bytes = {};  // further ones
};

std::vector<Case> cases(bool is_quick) {
  const std::int64_t width = is_quick ? 64 : 256;
  const auto named = [](const char* name, const models::ModelOptions& sizes = {}) {
    return [name, sizes](std::int64_t batch) { return zero_batch_run(setup_of(name, batch, sizes)); };
  };
  const auto gpt = named("char-gpt", {.sequence = width, .layers = is_quick ? 3 : 12, .heads = 4, .width = width});
  if (is_quick) return {{"char-gpt", 8, 4, gpt, {0.4, 0.15}}, {"resnet18", 2, 2, named("resnet18"), {0.4, 0.15}}};
  const auto net = [](const char* name) { return [name](std::int64_t batch) { return run_of_net(name, batch); }; };
  const auto gib = [](double count) { return static_cast<std::size_t>(count * double{1 << 30}); };
  return {{"char-gpt", 8, 4, gpt, {0.5, 0.15}},
          {"gpt2", 2, 1, named("gpt2", {.sequence = 256}), {0.5}},
          {"bert-base", 4, 2, named("bert-base", {.sequence = 128}), {0.5}},
          {"vit-b16", 4, 2, named("vit-b16"), {0.5}},
          {"resnet50", 8, 4, named("resnet50"), {0.5, 0.15}},
          {"googlenet", 16, 8, named("googlenet"), {0.5}},
          {"U-Net", 2, 1, net("U-Net"), {0.5}},
          {"MobileNet-V2", 16, 8, net("MobileNet-V2"), {0.5}},
          {"DenseNet-121", 8, 4, net("DenseNet-121"), {0.5}},
          {"VGG-16", 8, 4, net("VGG-16"), {0.5}},
          {"resnet50", 184, 8, named("resnet50"), {}, {gib(4.99), gib(6), gib(10.01)}}};
}

/// A training run under a plan, in a separate arena.
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

  /// One step: its operators' times.
  const TapeTimes& step() {
    const ResourceScope scope(stack_.top);
    if (stack_.placed != nullptr) stack_.placed->begin_step();
    run_->step();
    if (stack_.placed != nullptr) stack_.placed->end_step();
    return times_;
  }
  const memory::Arena& arena() const noexcept { return *stack_.arena; }
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

/// Each operator's fastest forward, backward and re-run over some steps; processes with their predicted peaks.
struct Timed {
  TapeTimes least = {};
  std::size_t peak_bytes = 0;
  std::vector<std::pair<std::size_t, ProcessBytes>> processes = {};

  double ms() const {
    double seconds = 0;
    for (const auto* times : {&least.forward, &least.recompute, &least.backward}) {
      seconds = std::accumulate(times->begin(), times->end(), seconds);
    }
    return 1e3 * seconds;
  }
};

struct Pair {
  Timed plan, base;
};

/// Times `steps` steps of a plan and of the base. They take turns, because the speed of a machine drifts by more than a
/// plan costs. The first step of each does not count. The process holds both arenas; where memory is too small for
/// both, each runs two steps at a time. `nodes` is the length of a step's recording.
Pair time_beside(memory::Device device, const nn::MakeRun& make, const nn::Plan& plan, const nn::Plan& base, int steps,
                 std::size_t nodes) {
  Pair pair;
  constexpr std::size_t rest_bytes = std::size_t{1} << 30;
  if (plan.peak_bytes + base.peak_bytes + rest_bytes <= process::available_bytes()) {
    const PartWatch watch(device);
    Runner plan_run(device, make, plan), base_run(device, make, base);
    for (int step = 0; step <= steps; ++step) {
      const TapeTimes &of_base = base_run.step(), &of_plan = plan_run.step();
      if (step > 0) pair.base.least.keep_least(of_base), pair.plan.least.keep_least(of_plan);
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
      run.step();
      for (int step = 0; step < 2; ++step) timed.least.keep_least(run.step());
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
                      {"ms_per_step", timed.ms()}},
          .processes = timed.processes};
}

void run_case(Rows& rows, const Case& c) {
  const memory::Device device = rows.options.device;
  const nn::MakeRun make = c.make(c.batch);
  rows.say(c.net + ", a cost model from a batch of " + std::to_string(c.measured_batch));
  nn::Planner planner(make, device, nn::measure_costs(c.make(c.measured_batch), device, nn::hardware("cpu")));
  const nn::Plan base = planner.keep_everything();
  if (base.peak_bytes > rows.options.most_measured_bytes) return;
  const std::size_t least = planner.smallest().peak_bytes;
  std::vector<std::size_t> budgets = c.budgets_bytes;
  for (const double share : c.shares) {
    budgets.push_back(least + static_cast<std::size_t>(share * static_cast<double>(base.peak_bytes - least)));
  }
  const int steps = rows.options.is_quick ? 2 : c.batch > 64 ? 4 : 12;
  const auto config = [&](const std::string& plan) {
    return Config{{"model", c.net}, {"batch", c.batch}, {"plan", plan}};
  };
  Timed fastest_base;
  std::vector<std::pair<Config, Figures>> plans;
  for (const std::size_t budget : budgets) {
    const nn::Plan plan = planner.fit(budget);
    const std::string name = "in " + format_bytes(plan.peak_bytes);
    rows.say(c.net + ", batch " + std::to_string(c.batch) + ", " + name + " and keeping everything, in turns");
    const Pair pair = time_beside(device, make, plan, base, steps, planner.graph().nodes.size());
    const TapeTimes before = std::exchange(fastest_base, pair.base).least;
    if (!before.forward.empty()) fastest_base.least.keep_least(before);
    plans.emplace_back(config(name), figures_of(plan, pair.plan, pair.plan.ms() / pair.base.ms() - 1));
  }
  rows.add(config("keep everything"), figures_of(base, fastest_base, 0));
  for (const auto& [of_plan, figures] : plans) rows.add(of_plan, figures);
}

}  // namespace

std::string run_overhead(Rows& rows) {
  for (const Case& c : cases(rows.options.is_quick)) run_case(rows, c);
  double largest = 0;
  for (const report::Row& row : rows.experiment.rows) {
    largest = std::max(largest, std::fabs(number(row, "predicted_overhead") - number(row, "measured_overhead")));
  }
  return "Predicted and measured overheads are at most " + report::format_percent(largest) +
         " of a step that keeps everything apart. Each plan's steps took turns with those of keeping everything, and "
         "of each operator the fastest of a few counts; what else the machine does is still in them.";
}

}  // namespace thimble::bench
