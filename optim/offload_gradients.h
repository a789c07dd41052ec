#pragma once
// Gradients that wait in a tier (memory/offload/tier.h) between backward and the update of their parameter.
//
// Policy
// - A gradient is sent as soon as backward completes it, and written while backward goes on; its bytes are freed when
//   the next one is sent. Updates fetch gradients one by one and read one ahead.
// - Its sum of squares is taken before it is sent, so that clipping by the global norm needs no second pass and has the
//   bits of clip_grad_norm().

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <thimble/memory/offload/offload.h>
#include <thimble/optim/optimizer.h>

namespace thimble::optim {

class OffloadedGradients {
 public:
  /// `clip_norm` 0 disables clipping. Throws ValueError without a tier, for a negative norm, or a parameter listed
  /// twice; OutOfMemory.
  OffloadedGradients(const std::vector<Named>& parameters, std::shared_ptr<memory::Tier> tier, double clip_norm);

  /// Sends the leaf's gradient to the tier, unless the leaf is no parameter or the gradient is empty. Throws FileError,
  /// DeviceError.
  void take(const std::shared_ptr<tape::Leaf>& leaf);
  /// Begins to read the gradient of a parameter. Throws OutOfMemory, FileError.
  void prefetch(std::size_t index);
  /// Restores it to the leaf, clipped. Does nothing if it was not sent. Throws OutOfMemory, FileError.
  void give_back(std::size_t index);

  std::size_t size() const noexcept { return parameters_.size(); }

 private:
  std::vector<Named> parameters_;
  std::shared_ptr<memory::Tier> tier_;
  double clip_norm_;
  std::vector<std::pair<const tape::Leaf*, std::size_t>> by_leaf_;
  std::vector<memory::Offloaded> away_;  // per parameter
  std::size_t writing_;                  // index of the gradient sent last; size() before the first
  Tensor square_sums_;                   // f64 (parameters); undefined without clipping
};

}  // namespace thimble::optim
