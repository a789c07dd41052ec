#pragma once
// Launches recorded once and replayed by one call: a CUDA graph.
//
//   gpu::Graph forward(cuda(), {input, output}, [&] { copy_into(output, model(input)); });
//   forward.replay();      // the same kernels, with the same arguments, on what is in `input` now
//
// Policy
// - What is recorded are addresses and arguments. So everything that the work uses and that outlives it is named, and
//   pinned for as long as the graph lives; what the work allocates for itself must not be given to others meanwhile:
//   run it in a resource of its own (memory/stack.h), best with a plan, whose region is one block.
// - Arguments that change from step to step are recorded as they were: the step of Adam and of random numbers, rates,
//   scales. A training step is therefore not replayed; a forward, or a backward without dropout, can be.
// - While it is recorded nothing runs, nothing is read back (item, to_host) and nothing is uploaded: CUDA refuses, and
//   the constructor throws.

#include <functional>
#include <memory>
#include <vector>

#include <thimble/core/launch.h>
#include <thimble/core/tensor.h>

namespace thimble::gpu {

class Graph {
 public:
  /// Records `work` on the compute stream of `device`. Throws DeviceError (a call that cannot be recorded, named), and
  /// what the work throws; nothing is recorded then.
  Graph(Device device, const std::vector<Tensor>& uses, const std::function<void()>& work);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Puts all of it in the compute stream, behind what was launched before. Throws DeviceError.
  void replay();
  /// How many kernels and copies it has.
  std::size_t nodes() const noexcept { return nodes_; }

 private:
  struct Handles;
  Device device_;
  std::vector<std::unique_ptr<Pin>> pins_;
  std::unique_ptr<Handles> handles_;
  std::size_t nodes_ = 0;
};

}  // namespace thimble::gpu
