#pragma once
// Launches captured once and replayed by one call: a CUDA graph.
//
//   LaunchGraph forward(cuda(), {input, output}, [&] { copy_into(output, model(input)); });
//   forward.replay();      // the same kernels, with the same arguments, on what is in `input` now
//
// Policy
// - What is captured are addresses and arguments. So everything that the work uses and that outlives it is named, and
//   pinned for as long as the graph lives; what the work allocates for itself must not be given to others meanwhile:
//   run it in a resource of its own (memory/stack.h), best with a plan, whose region is one block.
// - Arguments that change from step to step are captured as they were: the step of Adam and of random numbers, rates,
//   scales. A whole training step is replayed by nn::CapturedStep (nn/step/captured_step.h), where they are in memory.
// - While it is captured nothing runs, nothing is read back (item, to_host) and nothing is uploaded: that throws.
// - A library makes its handle for a device at its first use, which cannot be captured: do the work once before.

#include <cstddef>
#include <memory>
#include <vector>

#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/parallel.h>

namespace thimble {

class LaunchGraph {
 public:
  /// Called in the work that is captured: what follows is another part, which can be replayed for itself. It may find
  /// out in between whether to.
  class Cut {
   public:
    void operator()() const;

   private:
    friend class LaunchGraph;
    LaunchGraph* graph_ = nullptr;  // while it is captured
  };

  /// Records `work` on the compute stream of a CUDA device, in one part, or in several where it calls `cut`. Throws
  /// DeviceError (no such device, or a call that cannot be captured, named), and what the work throws; nothing is
  /// captured then.
  LaunchGraph(Device device, const std::vector<Tensor>& uses, FunctionRef<void()> work, Cut* cut = nullptr);
  ~LaunchGraph();
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;

  /// Puts the graph in the compute stream, behind earlier launches. Throws DeviceError.
  void replay();
  /// The same with one part. Throws ValueError for one that is not there, DeviceError.
  void replay(std::size_t part);
  std::size_t parts() const noexcept { return captures_.size(); }
  /// How many kernels and copies it has.
  std::size_t launches() const noexcept { return launches_; }

 private:
  void end_part();
  void forget() noexcept;

  Device device_;
  std::vector<std::unique_ptr<Pin>> pins_;
  std::vector<void*> captures_;  // of the parts
  std::size_t launches_ = 0;
};

}  // namespace thimble
