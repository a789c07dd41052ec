#pragma once
// Launches captured once and replayed by one call: a CUDA graph.
//
//   LaunchGraph forward(cuda(), {input, output}, [&] { copy_into(output, model(input)); });
//   forward.replay();      // the same kernels and arguments, on the current values of `input`
//
// Policy
// - A capture records addresses and arguments. So the caller lists the tensors that the work uses and that outlive it,
//   and the graph pins them. No one else may use memory that the work allocates while the graph lives: run the work in
//   a separate resource (memory/stack.h), best with a plan, whose region is one block.
// - Arguments are captured with their values, also if they change from step to step: the step of Adam and of random
//   numbers, rates, scales. nn::CapturedStep (nn/step/captured_step.h) keeps these in memory to replay a training step.
// - During capture nothing runs; reading back (item, to_host) and uploading throw.
// - A library makes its handle for a device at first use, which cannot be captured: run the work once before.

#include <cstddef>
#include <memory>
#include <vector>

#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/parallel.h>

namespace thimble {

class LaunchGraph {
 public:
  /// Called in the captured work to start a new part, which can be replayed separately, and conditionally.
  class Cut {
   public:
    void operator()() const;

   private:
    friend class LaunchGraph;
    LaunchGraph* graph_ = nullptr;  // null outside capture
  };

  /// Captures `work` on the compute stream of a CUDA device, in parts that begin where it calls `cut`. Throws
  /// DeviceError (no such device, or a call that cannot be captured, which it names), and as the work throws.
  LaunchGraph(memory::Device device, const std::vector<Tensor>& uses, FunctionRef<void()> work, Cut* cut = nullptr);
  ~LaunchGraph();
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;

  /// Enqueues the graph on the compute stream. Throws DeviceError.
  void replay();
  /// Enqueues one part. Throws ValueError for an unknown part, DeviceError.
  void replay(std::size_t part);
  std::size_t parts() const noexcept { return captures_.size(); }
  /// Number of kernels and copies.
  std::size_t launches() const noexcept { return launches_; }

 private:
  void end_part();
  void forget() noexcept;

  memory::Device device_;
  std::vector<std::unique_ptr<memory::Pin>> pins_;
  std::vector<void*> captures_;  // one per part
  std::size_t launches_ = 0;
};

}  // namespace thimble
