#pragma once
// Launches captured once and replayed by one call: a CUDA graph.
//
//   LaunchGraph forward(cuda(), {input, output}, [&] { copy_into(output, model(input)); });
//   forward.replay();      // the same kernels and arguments, on the present values of `input`
//
// Policy
// - A capture records addresses and arguments. So the caller names everything that the work uses and that outlives it;
//   the graph pins it. Memory that the work allocates must not be given to others meanwhile: run the work in a separate
//   resource (memory/stack.h), best with a plan, whose region is one block.
// - Arguments that change from step to step are captured with their values: the step of Adam and of random numbers,
//   rates, scales. nn::CapturedStep (nn/step/captured_step.h) replays a whole training step by keeping them in memory.
// - During capture nothing runs; reading back (item, to_host) and uploading throw.
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
  /// Called in the captured work: starts a new part, which can be replayed separately, and conditionally.
  class Cut {
   public:
    void operator()() const;

   private:
    friend class LaunchGraph;
    LaunchGraph* graph_ = nullptr;  // during capture
  };

  /// Captures `work` on the compute stream of a CUDA device, in one part, or more where it calls `cut`. Throws
  /// DeviceError (no such device, or a call that cannot be captured, named), and what the work throws; nothing is
  /// captured then.
  LaunchGraph(memory::Device device, const std::vector<Tensor>& uses, FunctionRef<void()> work, Cut* cut = nullptr);
  ~LaunchGraph();
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;

  /// Puts the graph in the compute stream, behind earlier launches. Throws DeviceError.
  void replay();
  /// The same with one part. Throws ValueError for an unknown part, DeviceError.
  void replay(std::size_t part);
  std::size_t parts() const noexcept { return captures_.size(); }
  /// Number of kernels and copies.
  std::size_t launches() const noexcept { return launches_; }

 private:
  void end_part();
  void forget() noexcept;

  memory::Device device_;
  std::vector<std::unique_ptr<Pin>> pins_;
  std::vector<void*> captures_;  // of the parts
  std::size_t launches_ = 0;
};

}  // namespace thimble
