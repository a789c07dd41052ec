#pragma once
// Techniques that make a training step need less memory, single and combined, as runs to predict and measure.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <thimble/autograd/graph.h>
#include <thimble/autograd/plan.h>
#include <thimble/bench/experiments/experiments.h>
#include <thimble/memory/remat/schedule.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/nn/step/profile.h>

namespace thimble::bench {

/// The part of the network that the program puts under checkpoint().
enum class Checkpoint : std::uint8_t {
  none,
  blocks,  ///< each block of a transformer; the whole network of other models
  nested,  ///< the whole network, and inside of it each block of a transformer
  costly   ///< the whole network; results of products, convolutions and attention are kept
};

/// A moving average of the weights, as many bytes as the parameters, which no operator reads during the step.
enum class Average : std::uint8_t {
  none,
  kept,      ///< it stays where it is
  offloaded  ///< it waits in the device's tier (memory/offload/tier.h) from the step's begin to its end
};

/// How a step is made. The Setup holds the batch and everything else.
struct StepForm {
  Checkpoint checkpoint = Checkpoint::none;
  std::int64_t micro_batches = 1;   ///< of equal size: they divide the batch
  bool fuses_optimizer = false;     ///< each parameter is updated in backward; gradients are then not clipped
  bool is_inference = false;        ///< a forward in evaluation mode, without a tape
  Average average = Average::none;  ///< of the weights, made and updated by the run
  std::shared_ptr<const TapePlan> tape = nullptr;     ///< replaces the program's segments, unless null
  std::vector<memory::StepPlacement> placement = {};  ///< of the steps' blocks; if empty, the arena decides
};

/// Makes runs of `setup` by `technique` on a batch of zeros. The runs throw ValueError when the micro-batches do not
/// divide the batch; FileError where an average is to be offloaded and no file can be (on the cpu).
nn::MakeRun technique_run(const models::Setup& setup, const StepForm& technique);

/// A schedule over a chain as the plan of a recording: stage i is the nodes [cuts[i], cuts[i + 1]), which keep
/// everything when recorded and nothing when their segment is dropped.
TapePlan tape_plan_of(const TapeGraph& graph, std::span<const std::uint32_t> cuts, const remat::ScheduleTree& schedule);

/// The same for the model of a run, cut where one tensor crosses (nn::cut_points): `schedule(n)` plans n stages.
std::shared_ptr<const TapePlan> scheduled_tape(memory::Device device, const nn::MakeRun& make,
                                               const std::function<remat::ScheduleTree(std::size_t n)>& schedule);

/// The nodes at which the blocks with paths `prefix` and a number ("gpt.h.") begin, and the end of the last one. Throws
/// ValueError when there is none.
std::vector<std::uint32_t> block_cuts(const TapeGraph& graph, const std::string& prefix);

/// Bytes of one forward and backward, without an update.
struct PassBytes {
  std::size_t kept = 0;         ///< activations when backward begins
  std::size_t kept_layers = 0;  ///< of these, at and below a path
  std::size_t peak = 0;         ///< activations and temporaries together, at most
  ProcessBytes process;         ///< of the pass
};
/// Of the first micro-batch of `technique`, in a separate arena; `layers` is the path for kept_layers.
PassBytes pass_bytes(memory::Device device, const models::Setup& setup, const StepForm& technique,
                     const std::string& layers = "");

/// The predicted and the measured bytes of a run.
struct Comparison {
  nn::MemoryProfile predicted, measured;

  /// Committed bytes, height, live bytes, load and the tiers' bytes are the same integers, and the kernel counts as
  /// many resident bytes as were committed (where it counts: on the cpu, at the end of the run).
  bool is_equal() const noexcept;
};

/// Two steps on the dry twin of `device`, then for real.
Comparison compare(memory::Device device, const nn::MakeRun& make,
                   const std::vector<memory::StepPlacement>& placement = {});

}  // namespace thimble::bench
