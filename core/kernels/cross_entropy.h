#pragma once
// The cross-entropy kernel family: losses of rows of class scores against class numbers, without storing
// log-probabilities.

#include <thimble/core/kernels/cpu/base/rows.h>

namespace thimble::kernels {

enum class LossReduction : std::uint8_t { mean, sum, none };

/// Class numbers, one per row, dense; i32 or i64. A row whose number is `ignore_index` does not count.
struct ClassTargets {
  const void* data = nullptr;
  DType dtype = DType::i64;
  std::int64_t rows = 0, classes = 0;
  std::int64_t ignore_index = -100;
  std::int64_t first = 0;  ///< the class of a row's first score, if rows hold a shard of the classes
};

/// With target t of the row, label smoothing s and C classes,
/// loss[r] = l - (1 - s) x[r, t] - s / C sum_c x[r, c], where
///   scores are logits:             l = log sum_c e^x[r, c]
///   scores are log-probabilities:  l = 0
/// On the CPU exponentials are exp_below.h's, as in softmax. An ignored row's loss is 0. out[0] = (sum of losses) /
/// (rows that count) for mean, NaN when no row counts; out[0] = sum of losses for sum; out[r] = loss[r] for none. A row
/// whose target is no class gets the loss NaN, and the kernel reads nothing outside the row.
struct CrossEntropyArgs {
  Shape outer;  ///< every axis but the classes
  RowOperand scores;
  bool are_logits = true;
  ClassTargets targets;
  double smoothing = 0;
  LossReduction reduction = LossReduction::mean;
  void* log_sums = nullptr;  ///< l of every row, in the compute type; may be null
  void* losses = nullptr;    ///< of every row, in the compute type: workspace, or the result for `none`
  void* out = nullptr;       ///< one element of the compute type; not used for `none`
};

/// Only the last step: computes `out` from the losses of all rows, which are inputs.
struct LossTotalArgs {
  ClassTargets targets;
  DType dtype = DType::f32;                       ///< of losses and out: the compute type
  LossReduction reduction = LossReduction::mean;  ///< mean or sum
  const void* losses = nullptr;
  void* out = nullptr;
};

/// d scores[r, c] = g[r] (e^(x[r, c] - l[r]) - s / C - (1 - s) [c = t]), the exponential only for logits; g = dy /
/// (rows that count) for mean, dy for sum, dy[r] for none. Ignored rows get 0. The result may alias the scores, in the
/// same layout. Without log_sums l is 0. Scores may be a shard of the classes: a target outside the shard subtracts
/// nothing, and `batch` counts all classes. Where l is too large to keep its digits, a whole row's exponentials are
/// divided by their sum, which is then not 1.
struct CrossEntropyBackwardArgs {
  Shape outer;
  RowOperand scores;  ///< read only for logits
  bool are_logits = true;
  ClassTargets targets;
  ClassTargets batch;  ///< all rows of the mean, if `targets` holds only some; defaults to `targets`
  double smoothing = 0;
  LossReduction reduction = LossReduction::mean;
  const void* log_sums = nullptr;
  const void* dy = nullptr;  ///< dense, in the compute type
  RowResult dx;
};

/// The terms of the loss from a shard of the classes, in f64, of row r with scores x and target t:
///   out[0][r] = max_c x[r, c]    out[1][r] = sum_c e^(x[r, c] - out[0][r])    out[2][r] = x[r, t], or 0 in other
///   shards
struct ClassPartArgs {
  Shape outer;
  RowOperand scores;      ///< of the shard
  ClassTargets targets;   ///< `classes` counts the shard's
  double* out = nullptr;  ///< (3, rows)
};

/// Merges the shards' terms, in order, with m, s, x of each as above and M the largest m:
///   log_sums[r] = M + log sum_p s[p, r] e^(m[p, r] - M)
///   losses[r] = log_sums[r] - sum_p x[p, r], in f64; 0 in ignored rows, NaN where the target is no class
struct ClassPartsArgs {
  ClassTargets targets;  ///< `classes` counts all
  std::int64_t parts = 1;
  DType dtype = DType::f32;    ///< of log_sums and losses
  const double* in = nullptr;  ///< (shards, 3, rows)
  void* log_sums = nullptr;
  void* losses = nullptr;
};

/// out[r, c] = x[r, c] - log_sums[r], for a shard of the classes or all.
struct LogProbabilityArgs {
  Shape outer;
  RowOperand scores;
  std::int64_t rows = 0, classes = 0;
  const void* log_sums = nullptr;  ///< in the compute type
  RowResult out;                   ///< of the scores' dtype
};

struct CrossEntropyKernels {
  /// The first row whose target is neither a class nor ignored, or -1. Null where the check would stall the
  /// device.
  std::int64_t (*find_bad_target)(const ClassTargets&) = nullptr;
  void (*forward)(const CrossEntropyArgs&) = nullptr;
  void (*backward)(const CrossEntropyBackwardArgs&) = nullptr;
  void (*total)(const LossTotalArgs&) = nullptr;
  void (*class_part)(const ClassPartArgs&) = nullptr;
  void (*class_parts)(const ClassPartsArgs&) = nullptr;
  void (*log_probabilities)(const LogProbabilityArgs&) = nullptr;
};

extern const CrossEntropyKernels cross_entropy_cpu;
extern const CrossEntropyKernels* const cross_entropy_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const CrossEntropyKernels& cross_entropy_kernels(memory::Device device);

}  // namespace thimble::kernels
