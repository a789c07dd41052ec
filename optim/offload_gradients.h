#pragma once
// Gradients that wait in a tier (memory/offload/tier.h) between backward and the update of their parameter.
//
// Policy
// - A gradient goes when backward has completed it; it is written while backward goes on, and its bytes are free when
//   the next one goes. At the update each comes back on its own, the next one being read meanwhile.
// - Its sum of squares is taken before it goes, so that clipping by the global norm needs no second visit: the bits
//   are those of clip_grad_norm().

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <thimble/memory/offload/offload.h>
#include <thimble/optim/optimizer.h>

namespace thimble::optim {

class OffloadedGradients {
 public:
  /// `clip_norm` 0: gradients are not clipped. Throws ValueError when there is no tier, when the norm is negative, or
  /// when a parameter is listed twice; OutOfMemory.
  OffloadedGradients(const std::vector<Named>& parameters, std::shared_ptr<Tier> tier, double clip_norm);

  /// Sends the leaf's gradient away. One that belongs to no parameter, or has no elements, stays. Throws FileError,
  /// DeviceError.
  void take(const std::shared_ptr<Leaf>& leaf);
  /// Begins to read the gradient of a parameter. Throws OutOfMemory, FileError.
  void prefetch(std::size_t index);
  /// Puts it back into the leaf, clipped. Does nothing where it did not go. Throws OutOfMemory, FileError.
  void give_back(std::size_t index);

  std::size_t size() const noexcept { return parameters_.size(); }

 private:
  std::vector<Named> parameters_;
  std::shared_ptr<Tier> tier_;
  double clip_norm_;
  std::vector<std::pair<const Leaf*, std::size_t>> by_leaf_;
  std::vector<memory::Offloaded> away_;  // per parameter
  std::size_t writing_;                  // the parameter whose gradient went last; size(): none
  Tensor square_sums_;                   // f64 (parameters); undefined without clipping
};

}  // namespace thimble::optim
