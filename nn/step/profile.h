#pragma once
// Measures the bytes of a training run: the same program on a dry or a real device, in a separate arena.

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

/// The state of a run between steps, for comparison with another run.
struct RunView {
  std::vector<double> losses;                 ///< of the last step, one per update; 0 in a dry run
  std::vector<optim::Optimizer*> optimizers;  ///< with their parameters and state
  std::vector<NamedTensor> buffers;           ///< state that is not trained
  RandomGenerator* generator = nullptr;
  const optim::GradScaler* scaler = nullptr;  ///< null if the loss is not scaled
};

/// Makes model and optimizer in its constructor and frees them in its destructor.
class TrainingRun {
 public:
  virtual ~TrainingRun() = default;
  virtual void step() = 0;
  /// Options of the next steps.
  virtual StepOptions& options() = 0;
  /// Whether step() begins and ends the steps of a placed arena, as CapturedStep does.
  virtual bool begins_placed_steps() const { return false; }
  /// Does the program's work between and after its steps (evaluates, samples), which may need more bytes than steps do.
  /// Calls `step` for each further step.
  virtual void finish([[maybe_unused]] FunctionRef<void()> step) {}
  /// Number of elements.
  virtual std::int64_t parameters() const = 0;
  /// Empty for a run that cannot be compared.
  virtual RunView view() { return {}; }
  /// Bytes of the run's tiers, outside the device's memory.
  virtual std::size_t tier_bytes() const { return 0; }
};

/// Bytes in the tiers of a run's optimizer, parameters and steps.
std::size_t tier_bytes(const optim::Optimizer& optimizer, const StepOptions& options);

/// Runs a step in a stack; a placed step, if the stack has a placed arena.
void run_step(TrainingRun& run, const memory::Stack& stack);
/// Calls finish(). A placed arena frees its region before it and after each of its steps.
void finish_run(TrainingRun& run, const memory::Stack& stack);

/// Makes a run whose tensors live on `device`.
using MakeRun = std::function<std::unique_ptr<TrainingRun>(memory::Device device)>;

struct MemoryProfile {
  std::int64_t parameters = 0;
  std::size_t peak_bytes = 0;                ///< committed by the arena: its height in whole granules
  std::size_t peak_height_bytes = 0;         ///< end of the highest block so far
  std::size_t peak_live_bytes = 0;           ///< largest sum of requested bytes
  std::size_t lower_bound_bytes = 0;         ///< largest sum of allocated bytes: no placement needs less. With plans it
                                             ///< counts the region as one block
  memory::CategoryBytes peak_by_category{};  ///< at the moment of peak_live_bytes
  std::size_t tier_bytes = 0;    ///< in the run's tiers, outside the device's memory: a file's length, or the host's
                                 ///< pinned memory. Tiers only grow
  std::size_t steps = 0;         ///< steps that ran; more than requested if the arena had not settled
  bool is_steady = false;        ///< the last two steps left the arena in the same state, so later steps need no more
  std::size_t nodes = 0;         ///< that a step records; with several micro-batches, one of them
  double ms_per_step = 0;        ///< of the last step; 0 in a dry run
  std::size_t rss_bytes = 0;     ///< of the arena's mapping as the kernel counts it; 0 in a dry run
  memory::OutsideBytes outside;  ///< on the cpu: bound of the bytes outside the arena
  std::size_t process_peak_bytes = 0;        ///< on the cpu: resident since the run's set-up; 0 if unknown
  std::vector<memory::Trace::Event> events;  ///< of the whole run, if traced
  std::size_t setup_end = 0;                 ///< if traced: index of the first event of the first step
  std::vector<std::size_t> step_ends;        ///< if traced: index of the event after each step
  memory::PlacedArena::Statistics placed;    ///< with plans: whether the steps were replayed
};

/// Options of an arena for a run on `device`. A dry arena has more addresses than any machine, so that a run's need
/// does not depend on the machine's memory.
memory::Options profile_options(memory::Device device);

/// Runs `steps` training steps (by default the first and a steady one) in a fresh arena on `device` and reports its
/// committed bytes: predicted on a dry device, measured on a real one. With `plans` every step replays them. If the
/// last two steps leave the arena in different states (Arena::layout_digest), it runs more, up to eight, until two
/// agree; a trace has exactly the requested steps. Throws any error of the run.
MemoryProfile profile_training(memory::Device device, const MakeRun& make, std::size_t steps = 2,
                               bool wants_trace = false, std::vector<memory::StepPlacement> plans = {});

/// Records a run's first step on the dry twin of `device`. Then calls `look`, if any, with the run and the recording.
/// Throws any error of the run.
TapeGraph record_step(memory::Device device, const MakeRun& make,
                      const std::function<void(TrainingRun&, const TapeGraph&)>& look = nullptr);

/// Options for placing a step: the alignment of the device's arena as unit, and a limit of 20,000 nodes; steps of the
/// named models need at most 2,500. The limit of 60 seconds is for very busy machines: plans are the same everywhere
/// unless it is reached.
memory::PlacementOptions placement_options(memory::Device device);

/// Options for a quick plan of a step with `micro_batches`: without the exact search, and only greedy for more than
/// two, because the time of the improvement grows with the square of the blocks.
memory::PlacementOptions placement_options(memory::Device device, std::int64_t micro_batches);

/// Plans for the first step and the steady one: traces a dry run of two steps and places each. A dry run with these
/// plans predicts the bytes of a real run with them.
std::vector<memory::StepPlacement> plan_steps(memory::Device device, const MakeRun& make,
                                              const memory::PlacementOptions& options);
inline std::vector<memory::StepPlacement> plan_steps(memory::Device device, const MakeRun& make) {
  return plan_steps(device, make, placement_options(device));
}

/// Plans every step of a traced profile.
std::vector<memory::StepPlacement> plan_steps(const MemoryProfile& profile, const memory::PlacementOptions& options);

/// A dry run of two steps in their placement, or without one if that needs less.
struct PlacedProfile {
  MemoryProfile profile;
  std::vector<memory::StepPlacement> placement;
};
PlacedProfile profile_placed(memory::Device device, const MakeRun& make, std::int64_t micro_batches);

}  // namespace thimble::nn
