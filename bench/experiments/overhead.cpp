// Experiment: what plans cost in time, predicted by a cost model and measured.

#include <algorithm>
#include <cmath>
#include <limits>

#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/report/text.h>
#include <thimble/bench/units.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/fit/measure.h>

namespace thimble::bench {
namespace overhead_detail {

struct Case {
  Setup setup;
  std::int64_t measured_batch;                  // that the cost model comes from
  std::vector<double> shares;                   // budgets, from the smallest plan's peak (0) to that of keeping all (1)
  std::vector<std::size_t> budgets_bytes = {};  // further ones
};

std::vector<Case> cases(bool is_quick) {
  Setup gpt;
  gpt.model = "char-gpt";
  gpt.sizes.layers = is_quick ? 3 : 12, gpt.sizes.heads = 4, gpt.sizes.width = is_quick ? 64 : 256;
  gpt.sizes.sequence = is_quick ? 64 : 256;
  gpt.batch = 8;
  Setup resnet;
  resnet.model = is_quick ? "resnet18" : "resnet50";
  resnet.batch = is_quick ? 2 : 8;
  std::vector<Case> list{{gpt, 4, {0.4, 0.15}}, {resnet, is_quick ? 2 : 4, {0.4, 0.15}}};
  if (is_quick) return list;
  resnet.batch = 184;
  const auto gib = [](double count) { return static_cast<std::size_t>(count * double{1 << 30}); };
  list.push_back({resnet, 8, {}, {gib(4.99), gib(6), gib(10.01)}});
  return list;
}

/// A step's fastest time in a run, the first step not counted.
double fastest_ms(Device device, const nn::MakeRun& make, const nn::Plan& plan, int steps, std::size_t& peak_bytes) {
  memory::Options options = nn::profile_options(device);
  options.plans = plan.placement;
  const memory::Stack stack = memory::make_resource(device, std::move(options));
  const ResourceScope scope(stack.top);
  const std::unique_ptr<nn::TrainingRun> run = make(device);
  plan.apply(run->options(), device);
  TapeTimes times;
  run->options().recording.times = &times;
  double fastest = std::numeric_limits<double>::infinity();
  for (int step = 0; step < steps; ++step) {
    if (stack.placed != nullptr) stack.placed->begin_step();
    run->step();
    if (stack.placed != nullptr) stack.placed->end_step();
    double seconds = 0;
    for (std::size_t n = 0; n < times.forward.size(); ++n) {
      seconds += times.forward[n] + times.rerun[n] + times.backward[n];
    }
    if (step > 0) fastest = std::min(fastest, 1e3 * seconds);
  }
  peak_bytes = stack.arena->statistics().peak_committed_bytes;
  return fastest;
}

void run_case(const ExperimentOptions& options, const Case& c, report::Experiment& experiment) {
  Setup small = c.setup;
  small.batch = c.measured_batch;
  const nn::MakeRun make = training_run(c.setup);
  const nn::CostModel costs = nn::measure_costs(training_run(small), options.device, nn::hardware("cpu"));
  nn::Planner planner(make, options.device, costs);
  std::vector<nn::Plan> plans{planner.keep_everything()};
  if (plans.front().peak_bytes > options.most_measured_bytes) return;
  const std::size_t least = planner.smallest().peak_bytes, most = plans.front().peak_bytes;
  for (const double share : c.shares) {
    plans.push_back(planner.fit(least + static_cast<std::size_t>(share * static_cast<double>(most - least))));
  }
  for (const std::size_t budget : c.budgets_bytes) plans.push_back(planner.fit(budget));
  // Two rounds: the first is also the one in which a virtual machine's host finds the pages.
  const int steps = c.setup.batch > 64 || options.is_quick ? 3 : 8, rounds = 2;
  std::vector<double> ms(plans.size(), std::numeric_limits<double>::infinity());
  std::vector<std::size_t> peaks(plans.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < plans.size(); ++i) {
      options.progress(c.setup.model + ", batch " + std::to_string(c.setup.batch) + ", plan " + std::to_string(i + 1) +
                       " of " + std::to_string(plans.size()));
      ms[i] = std::min(ms[i], fastest_ms(options.device, make, plans[i], steps, peaks[i]));
    }
  }
  for (std::size_t i = 0; i < plans.size(); ++i) {
    report::Row row;
    row.config = {{"model", c.setup.model},
                  {"batch", c.setup.batch},
                  {"plan", i == 0 ? std::string("keep everything")
                                  : "in " + format_bytes(static_cast<std::int64_t>(plans[i].peak_bytes))}};
    row.predicted_bytes = static_cast<std::int64_t>(plans[i].peak_bytes);
    row.measured_bytes = static_cast<std::int64_t>(peaks[i]);
    row.numbers = {{"predicted_overhead", plans[i].time_overhead},
                   {"measured_overhead", ms[i] / ms[0] - 1},
                   {"ms_per_step", ms[i]}};
    experiment.rows.push_back(std::move(row));
  }
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
      "by steps of a smaller batch";
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
                       " of a step that keeps everything apart. Times are the fastest of a few steps, and what else "
                       "the machine does is in them.";
  return experiment;
}

}  // namespace thimble::bench
