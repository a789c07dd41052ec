#pragma once
// The bytes of a training run: the same program on a dry or a real device, in a separate arena.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <thimble/autograd/graph.h>
#include <thimble/memory/process/outside.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/layers/module.h>
#include <thimble/nn/step/step.h>

namespace thimble::nn {

/// The state of a run between steps, for comparison with another one.
struct RunView {
  std::vector<double> losses;                 ///< of the last step, one for each update; of a dry run 0
  std::vector<optim::Optimizer*> optimizers;  ///< their parameters and state
  std::vector<NamedTensor> buffers;           ///< state that is not trained
  RandomGenerator* generator = nullptr;
  const optim::GradScaler* scaler = nullptr;  ///< null: the loss is not scaled
};

/// One run: makes model and optimizer when called, then `step()` runs one training step. It frees what it owns.
class TrainingRun {
 public:
  virtual ~TrainingRun() = default;
  virtual void step() = 0;
  /// How the next steps are made.
  virtual StepOptions& options() = 0;
  /// Whether step() itself begins and ends the steps of a placed arena, as CapturedStep does.
  virtual bool begins_placed_steps() const { return false; }
  /// The program's work between and after its steps (evaluates, samples), which may need more than they do. `step` runs
  /// a further one like the others.
  virtual void finish([[maybe_unused]] FunctionRef<void()> step) {}
  /// Elements of all parameters.
  virtual std::int64_t parameters() const = 0;
  /// Empty for a run that cannot be compared.
  virtual RunView view() { return {}; }
  /// Bytes of the run's tiers, beside the device's memory.
  virtual std::size_t tier_bytes() const { return 0; }
};

/// Bytes that the tiers of a run's optimizer, parameters and steps occupy.
std::size_t tier_bytes(const optim::Optimizer& optimizer, const StepOptions& options);

/// Runs a step in a stack: a placed step, if it has a placed arena.
void run_step(TrainingRun& run, const memory::Stack& stack);
/// Calls finish(); between its steps a placed arena frees its region.
void finish_run(TrainingRun& run, const memory::Stack& stack);

/// Makes a run whose tensors live on `device`.
using MakeRun = std::function<std::unique_ptr<TrainingRun>(memory::Device device)>;

struct MemoryProfile {
  std::int64_t parameters = 0;
  std::size_t peak_bytes = 0;         ///< committed by the arena: its height, in whole granules
  std::size_t peak_height_bytes = 0;  ///< the same in bytes: end of the highest block so far
  std::size_t peak_live_bytes = 0;    ///< largest sum of requested bytes
  std::size_t lower_bound_bytes = 0;  ///< the load: largest sum of allocated bytes; no placement needs less. With plans
                                      ///< it counts the region as one block
  CategoryBytes peak_by_category{};   ///< of peak_live_bytes, at its moment
  std::size_t tier_bytes = 0;    ///< that the run's tiers occupied, beside the device's memory: a file's length, or
                                 ///< the host's pinned memory. Tiers only grow
  std::size_t steps = 0;         ///< that were run: more than were asked for where the arena had not settled by then
  bool is_steady = false;        ///< the last two steps left the arena in the same state, so further ones need no more
  std::size_t nodes = 0;         ///< of a step's recording, or of one of several micro-batches
  double ms_per_step = 0;        ///< of the last step; 0 for a dry run
  std::size_t rss_bytes = 0;     ///< of the arena's mapping as the kernel counts it; 0 for a dry run
  memory::OutsideBytes outside;  ///< of a run on the cpu: a bound of the bytes outside of the arena
  std::size_t process_peak_bytes = 0;        ///< of it: resident in the process since its set-up; 0: not known
  std::vector<memory::Trace::Event> events;  ///< of the whole run, when asked for
  std::size_t setup_end = 0;                 ///< with a trace: index of the first event of the first step
  std::vector<std::size_t> step_ends;        ///< with a trace: index of the event after each step
  PlacedArena::Statistics placed;            ///< with plans: whether the steps were replayed
};

/// Options of an arena for a run on `device`. A dry one has more addresses than any machine: a run's need must not
/// depend on the machine's memory.
memory::Options profile_options(memory::Device device);

/// Runs `steps` training steps (the first and a steady one by default) in a fresh arena on `device` and reports its
/// committed bytes. On a dry device this is a prediction; on a real one a measurement. With `plans` every step replays
/// them. If the last step left the arena in another state than the one before (Arena::layout_digest), further ones are
/// run, up to eight, until two agree; a trace has exactly the requested steps. Throws what the run throws.
MemoryProfile profile_training(memory::Device device, const MakeRun& make, std::size_t steps = 2,
                               bool wants_trace = false, std::vector<StepPlacement> plans = {});

/// The recording of a run's first step on the dry twin of `device`. `look`, if any, gets the run after it, and the
/// recording. Throws what the run throws.
TapeGraph record_step(memory::Device device, const MakeRun& make,
                      const std::function<void(TrainingRun&, const TapeGraph&)>& look = nullptr);

/// Options for placing a step: the alignment of the device's arena as unit, and a limit of 20,000 nodes, of which the
/// steps of our models need 2,500 at most. The limit of 60 seconds is for very busy machines: if it is not reached, the
/// plan is the same everywhere.
memory::PlacementOptions placement_options(memory::Device device);

/// The same for a quick plan of a step of so many micro-batches: without the exact search, and only greedy for more
/// than two, because the time of an improvement grows with the square of the blocks.
memory::PlacementOptions placement_options(memory::Device device, std::int64_t micro_batches);

/// The plans of the first step and of the steady one: from the trace of a dry run of two steps, each placed. A dry run
/// with them predicts the bytes of a run with these plans.
std::vector<StepPlacement> plan_steps(memory::Device device, const MakeRun& make,
                                      const memory::PlacementOptions& options);
inline std::vector<StepPlacement> plan_steps(memory::Device device, const MakeRun& make) {
  return plan_steps(device, make, placement_options(device));
}

/// The plan of every step of a traced profile.
std::vector<StepPlacement> plan_steps(const MemoryProfile& profile, const memory::PlacementOptions& options);

/// The dry run of two steps in their placement, or without one if that needs less.
struct PlacedProfile {
  MemoryProfile profile;
  std::vector<StepPlacement> placement;
};
PlacedProfile profile_placed(memory::Device device, const MakeRun& make, std::int64_t micro_batches);

}  // namespace thimble::nn
