#pragma once
// What rounding of saved tensors does to gradients: those of one batch with a lossy plan beside the exact ones.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <thimble/core/threads/parallel.h>
#include <thimble/optim/accumulate.h>
#include <thimble/optim/optimizer.h>

namespace thimble::nn {

/// The gradient of a parameter, or of all of them as one vector.
struct GradientError {
  std::string name;           ///< empty: of all
  double norm = 0;            ///< of the exact one
  double relative_error = 0;  ///< norm of the difference over that; 0 where both are 0, infinite where only it is
  double cosine = 1;          ///< of the angle between them; 1 where both are 0, 0 where one of them is
};

struct GradientReport {
  double exact_loss = 0, lossy_loss = 0;
  GradientError all;
  std::vector<GradientError> parameters;  ///< of those that have a gradient
  /// The smallest cosine among parameters whose norm is more than `share` of the whole; 1 where there are none.
  double smallest_cosine(double share = 1e-6) const;
};

/// Two forwards and backwards of `count` micro-batches of `samples` samples each (or of `parts`), with the same random
/// numbers, as optim::accumulate_gradients makes them with `exact` and with `lossy`. Nothing changes: what the forward
/// writes is undone, and the earlier gradients are restored. Needs the bytes of two sets of gradients
/// besides those of a step, and the host's memory for one in f64. With a `loss_scale` backward starts from it, and
/// gradients are divided by it. Throws DeviceError on a dry device: it has no values.
GradientReport compare_gradients(const std::vector<optim::Named>& parameters, FunctionRef<Tensor(std::int64_t)> loss_of,
                                 const optim::RecordingOptions& exact, const optim::RecordingOptions& lossy,
                                 std::int64_t count = 1, std::int64_t samples = 0,
                                 std::optional<double> loss_scale = std::nullopt,
                                 std::span<const optim::MicroBatch> parts = {});

}  // namespace thimble::nn
