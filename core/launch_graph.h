#pragma once
// Launches recorded once and replayed by one call: a CUDA graph.
//
//   LaunchGraph forward(cuda(), {input, output}, [&] { copy_into(output, model(input)); });
//   forward.replay();      // the same kernels, with the same arguments, on what is in `input` now
//
// Policy
// - What is recorded are addresses and arguments. So everything that the work uses and that outlives it is named, and
//   pinned for as long as the graph lives; what the work allocates for itself must not be given to others meanwhile:
//   run it in a resource of its own (memory/stack.h), best with a plan, whose region is one block.
// - Arguments that change from step to step are recorded as they were: the step of Adam and of random numbers, rates,
//   scales. A whole training step is replayed by nn::RecordedStep (nn/recorded_step.h), where they are in memory.
// - While it is recorded nothing runs, nothing is read back (item, to_host) and nothing is uploaded: that throws.

#include <cstddef>
#include <memory>
#include <vector>

#include <thimble/core/launch.h>
#include <thimble/core/parallel.h>
#include <thimble/core/tensor.h>

namespace thimble {

class LaunchGraph {
 public:
  /// Records `work` on the compute stream of a CUDA device. Throws DeviceError (no such device, or a call that cannot
  /// be recorded, named), and what the work throws; nothing is recorded then.
  LaunchGraph(Device device, const std::vector<Tensor>& uses, FunctionRef<void()> work);
  ~LaunchGraph();
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;

  /// Puts all of it in the compute stream, behind what was launched before. Throws DeviceError.
  void replay();
  /// How many kernels and copies it has.
  std::size_t launches() const noexcept { return launches_; }

 private:
  Device device_;
  std::vector<std::unique_ptr<Pin>> pins_;
  void* recording_ = nullptr;
  std::size_t launches_ = 0;
};

}  // namespace thimble
