#include <thimble/models/training/costs.h>

#include <algorithm>

#include <thimble/core/error.h>
#include <thimble/core/files/file.h>
#include <thimble/memory/units.h>
#include <thimble/nn/fit/cost_file.h>
#include <thimble/nn/fit/fit.h>

namespace thimble::models {
namespace {

constexpr double step_s = 1;  // the rough length of a measured step

/// Seconds of a step, only by the machine's numbers.
double roofline_seconds(const Setup& setup, const nn::Hardware& machine) {
  return nn::step_seconds(nn::node_times(nn::record_step(cpu, zero_batch_run(setup)), machine));
}

/// The setup with the batch to measure.
Setup small_setup(Setup setup, const nn::Hardware& machine, std::size_t budget_bytes) {
  const std::int64_t most = setup.batch, least = setup.micro_batches;
  setup.batch = least;
  const double one = roofline_seconds(setup, machine);  // with one sample per micro-batch
  while (setup.batch * 2 <= most && one * static_cast<double>(setup.batch) * 2 <= step_s) setup.batch *= 2;
  if (budget_bytes == 0) return setup;
  for (;; setup.batch /= 2) {
    const std::size_t peak = nn::profile_training(dry(cpu), zero_batch_run(setup)).peak_bytes;
    if (peak <= budget_bytes) return setup;
    if (setup.batch > least) continue;
    throw nn::BudgetError("`measures`: a step with " + std::to_string(least) + " samples that keeps everything needs " +
                              memory::exact_bytes(peak) + ", the budget is " + memory::exact_bytes(budget_bytes) +
                              "; expected `times` with a file that was measured elsewhere",
                          budget_bytes, peak);
  }
}

}  // namespace

void check_tf32(bool allows_tf32, memory::Device device) {
  if (!allows_tf32 || device.is_cuda()) return;
  throw ValueError("`allows_tf32`: products on the " + to_string(device) +
                   " are computed in the dtype of their operands; expected `device` cuda");
}

nn::Hardware hardware_for(const CostOptions& options, memory::Device device) {
  if (!options.hardware.empty()) return nn::hardware(options.hardware);
  if (!options.gpu.empty()) return nn::hardware_of_gpu(options.gpu);
  return nn::hardware(device.is_cuda() ? "h100-80gb" : "cpu");
}

nn::CostModel plan_costs(const Setup& setup, const CostOptions& options, std::size_t budget_bytes,
                         memory::Device device) {
  const nn::Hardware machine = hardware_for(options, device);
  if (!options.measures) {
    if (options.times.empty()) return nn::CostModel(machine);
    nn::CostModel costs = nn::read_cost_model(options.times);
    if (costs.hardware.name == machine.name) return costs;
    throw ValueError("`times`: expected times of " + machine.name + ", got '" + options.times + "' with times of " +
                     costs.hardware.name);
  }
  if (machine.name != nn::hardware_list().front().name) {
    throw ValueError("`measures`: operators are timed on the cpu, and the times of " + machine.name +
                     " are asked for; expected a run on the cpu, with the hardware " +
                     nn::hardware_list().front().name);
  }
  if (setup.layout.ranks > 1) {
    throw ValueError("`measures`: not with `ranks` " + std::to_string(setup.layout.ranks) +
                     ", which would measure other times and follow other plans; expected `times`");
  }
  if (setup.micro_batches == auto_micro_batches) {
    throw ValueError("`measures`: not with `micro_batches` auto, which compares several programs; expected a number");
  }
  if (!options.times.empty()) AtomicFile(options.times);  // throws if it cannot be written, and writes nothing yet
  const Setup small = small_setup(setup, machine, budget_bytes);
  nn::CostModel costs = nn::measure_costs(zero_batch_run(small), cpu, machine);
  costs.source = machine.name + ": " + setup.model + " with a batch of " + std::to_string(small.batch) +
                 ", every operator as measured";
  if (!options.times.empty()) nn::write_cost_model(options.times, costs);
  return costs;
}

}  // namespace thimble::models
