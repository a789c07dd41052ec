#pragma once
// The cross-entropy kernel family: losses of rows of class scores against class numbers. No log-probabilities are ever
// written down.

#include <thimble/core/kernels/cpu/base/rows.h>

namespace thimble::kernels {

enum class LossReduction : std::uint8_t { mean, sum, none };

/// Class numbers, one per row, dense; i32 or i64. A row whose number is `ignore_index` does not count.
struct ClassTargets {
  const void* data = nullptr;
  DType dtype = DType::i64;
  std::int64_t rows = 0, classes = 0;
  std::int64_t ignore_index = -100;
};

/// loss[r] = l - (1 - s) x[r, t] - s / C sum_c x[r, c], with t the row's target, s the label smoothing, C the classes,
/// and
///   scores are logits:             l = log sum_c e^x[r, c]
///   scores are log-probabilities:  l = 0
/// On the CPU exponentials are those of exp_below.h, as in softmax. An ignored row's loss is 0. mean: out[0] = (sum of
/// losses) / (rows that count), NaN when none does; sum: out[0] = sum of losses; none: out[r] = loss[r]. A row whose
/// target is no class gets the loss NaN, and the kernel reads nothing outside of the row.
struct CrossEntropyArgs {
  Shape outer;  ///< every axis but the classes
  RowOperand scores;
  bool are_logits = true;
  ClassTargets targets;
  double smoothing = 0;
  LossReduction reduction = LossReduction::mean;
  void* log_sums = nullptr;  ///< l of every row, in the type computed in; not written when null
  void* losses = nullptr;    ///< of every row, in the type computed in: workspace, or the result for `none`
  void* out = nullptr;       ///< one element of the type computed in; not used for `none`
};

/// Only its last step: computes out from the losses of all rows, which were computed before.
struct LossTotalArgs {
  ClassTargets targets;
  DType dtype = DType::f32;                       ///< of losses and out: the type computed in
  LossReduction reduction = LossReduction::mean;  ///< mean or sum
  const void* losses = nullptr;
  void* out = nullptr;
};

/// d scores[r, c] = g[r] (e^(x[r, c] - l[r]) - s / C - (1 - s) [c = t]), the exponential only for logits; g = dy /
/// (rows that count) for mean, dy for sum, dy[r] for none. 0 in ignored rows. The result may lie where the scores lie,
/// in the same layout.
struct CrossEntropyBackwardArgs {
  Shape outer;
  RowOperand scores;  ///< not read unless they are logits
  bool are_logits = true;
  ClassTargets targets;
  ClassTargets batch;  ///< all rows that the mean is over, where `targets` are some of them; no data: `targets`
  double smoothing = 0;
  LossReduction reduction = LossReduction::mean;
  const void* log_sums = nullptr;
  const void* dy = nullptr;  ///< dense, in the type computed in
  RowResult dx;
};

struct CrossEntropyKernels {
  /// The first row whose target is neither a class nor ignored; -1: there is none. Null where asking would stall the
  /// device.
  std::int64_t (*find_bad_target)(const ClassTargets&) = nullptr;
  void (*forward)(const CrossEntropyArgs&) = nullptr;
  void (*backward)(const CrossEntropyBackwardArgs&) = nullptr;
  void (*total)(const LossTotalArgs&) = nullptr;
};

extern const CrossEntropyKernels cross_entropy_cpu;
extern const CrossEntropyKernels* const cross_entropy_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const CrossEntropyKernels& cross_entropy_kernels(Device device);

}  // namespace thimble::kernels
