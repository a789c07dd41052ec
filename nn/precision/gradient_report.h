#pragma once
// Measures the effect of rounding saved tensors on gradients: compares one batch under a lossy plan with the exact one.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <thimble/core/threads/parallel.h>
#include <thimble/optim/accumulate.h>
#include <thimble/optim/optimizer.h>

namespace thimble::nn {

/// The error of a parameter's gradient, or of all gradients as one vector.
struct GradientError {
  std::string name;           ///< empty for all
  double norm = 0;            ///< of the exact gradient
  double relative_error = 0;  ///< norm of the difference over `norm`; 0 if both are 0, infinite if only `norm` is
  double cosine = 1;          ///< of the angle between both gradients; 1 if both are 0, 0 if only one is
};

struct GradientReport {
  double exact_loss = 0, lossy_loss = 0;
  GradientError all;
  std::vector<GradientError> parameters;  ///< with a gradient
  /// The smallest cosine among parameters whose norm exceeds `share` of the whole; 1 if there are none.
  double smallest_cosine(double share = 1e-6) const;
};

/// Runs forward and backward of `count` micro-batches of `samples` samples each (or of `parts`) twice, with the same
/// random numbers, as optim::accumulate_gradients does with `exact` and with `lossy`. Undoes the forward's writes, and
/// restores earlier gradients. Needs the bytes of the earlier gradients in addition to a step's, and host memory for
/// two sets of gradients in f64. With a `loss_scale` backward starts from it, and gradients are divided by it. Throws
/// DeviceError on a dry device, which has no values.
GradientReport compare_gradients(const std::vector<optim::Named>& parameters, FunctionRef<Tensor(std::int64_t)> loss_of,
                                 const optim::RecordingOptions& exact, const optim::RecordingOptions& lossy,
                                 std::int64_t count = 1, std::int64_t samples = 0,
                                 std::optional<double> loss_scale = std::nullopt,
                                 std::span<const optim::MicroBatch> parts = {});

}  // namespace thimble::nn
