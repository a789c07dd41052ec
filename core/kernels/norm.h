#pragma once
// The normalisation kernel family, two shapes of one idea:
//
//   rows       x is (rows, length), statistics over each row                    layer norm, RMS norm
//   channels   x is (instances, rows, channels), statistics over the rows and    batch norm: 1 instance, C groups
//              over the channels of each group, for every instance               group norm: 1 instance per image
//
// "Compute type" is f64 for f64 and f32 for every other dtype of x; statistics, weight and bias are passed in it.
//
// Statistics are computed in fixed blocks: each by the corrected two-pass method in the compute type (d = x - shift,
// where shift is the block's rounded mean; mean = shift + sum d / n; M2 = sum d^2 - (sum d)^2 / n), blocks are merged
// in f64 in order (Chan, Golub, LeVeque: Algorithms for computing the sample variance, The American Statistician 37,
// 1983). Sums of squares that leave f32 (values above about 1e19, or tiny ones where epsilon is nearly 0) are
// recomputed in f64. On CUDA devices deviations must stay below 3.4e38, and where they exceed 1e19 batch and group norm
// drop the statistics' terms from dx. Sums over rows in backward use the same blocks: the compute type within a block,
// f64 across blocks.

#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>

namespace thimble::kernels {

/// Rows of one block of a sum over rows (row_norm).
inline constexpr std::int64_t row_norm_block = 128;
/// Rows of one block, and of one range (the unit of parallel work), of a channel's sums.
inline constexpr std::int64_t channel_norm_block = 64;
inline constexpr std::int64_t channel_norm_stretch = 2048;

/// y = (x - mean) rstd weight + bias for each row; without centring mean is 0 (RMS norm).
struct RowNormArgs {
  DType dtype = DType::f32;  ///< of x and y
  std::int64_t rows = 0, length = 0;
  bool is_centred = true;
  double epsilon = 0;
  const void* x = nullptr;
  const void* weight = nullptr;  ///< (length), compute type; defaults to 1
  const void* bias = nullptr;    ///< (length), compute type; defaults to 0
  void* y = nullptr;
  void* mean = nullptr;  ///< (rows), compute type; may be null
  void* rstd = nullptr;  ///< (rows), compute type; may be null
};

/// The gradients of RowNormArgs. `dx` may be `dy`.
struct RowNormGradArgs {
  DType dtype = DType::f32;  ///< of x, dy and dx
  std::int64_t rows = 0, length = 0;
  bool is_centred = true;
  const void* x = nullptr;  ///< read for dx and dweight
  const void* dy = nullptr;
  const void* weight = nullptr;  ///< (length), compute type; defaults to 1
  const void* mean = nullptr;    ///< (rows), compute type; null without centring; read with x
  const void* rstd = nullptr;    ///< (rows), compute type; read with x
  void* dx = nullptr;            ///< may be null
  DType parameter_dtype = DType::f32;
  void* dweight = nullptr;  ///< (length); may be null
  void* dbias = nullptr;    ///< (length); may be null
  void* partial = nullptr;  ///< row_norm_partial_elements(...) of the compute type, when dweight or dbias is set
};

/// Workspace of the gradients of weight and bias: one row of sums for each block.
constexpr std::int64_t row_norm_partial_elements(std::int64_t rows, std::int64_t length, bool wants_weight,
                                                 bool wants_bias) noexcept {
  const std::int64_t blocks = (rows + row_norm_block - 1) / row_norm_block;
  return blocks * length * ((wants_weight ? 1 : 0) + (wants_bias ? 1 : 0));
}

/// y = n, max(n, 0), min(max(n, 0), 6), max(n + residual, 0) of the normalised value n. n and n + residual are rounded
/// to x's dtype, so the bits match separate operators. Where reads_x() is true, backward computes n again from x.
enum class NormTail : std::uint8_t { none, relu, relu6, add_relu };
constexpr bool reads_x(NormTail tail) noexcept { return tail == NormTail::relu || tail == NormTail::relu6; }

/// y = tail((x - mean) rstd weight + bias).
struct ChannelNormArgs {
  DType dtype = DType::f32;  ///< of x, residual and y
  std::int64_t instances = 0, rows = 0, channels = 0;
  std::int64_t groups = 0;  ///< of neighbouring channels; divides channels
  NormTail tail = NormTail::none;
  double epsilon = 0;
  const void* x = nullptr;
  const void* residual = nullptr;  ///< add_relu only
  const void* weight = nullptr;    ///< (channels), compute type; defaults to 1
  const void* bias = nullptr;      ///< (channels), compute type; defaults to 0
  void* y = nullptr;
  std::uint8_t* mask = nullptr;  ///< bit i % 8 of byte i / 8: y[i] > 0; may be null
  /// (instances, groups), compute type: read if has_statistics, else written.
  void* mean = nullptr;
  void* rstd = nullptr;
  bool has_statistics = false;
  /// running = (1 - momentum) running + momentum new, the variance with the unbiased estimate; may be null.
  void* running_mean = nullptr;
  void* running_var = nullptr;
  DType running_dtype = DType::f32;
  double momentum = 0;
  double* moments = nullptr;     ///< workspace, channel_norm_partial_elements(...); unused with has_statistics
  void* coefficients = nullptr;  ///< workspace, 3 x instances x channels of the compute type
};

/// Gradients. `dresidual` may be `dy`; `dx` may be x, or dy when dresidual is another buffer.
struct ChannelNormGradArgs {
  DType dtype = DType::f32;  ///< of x, dy, dx and dresidual
  std::int64_t instances = 0, rows = 0, channels = 0, groups = 0;
  NormTail tail = NormTail::none;
  bool has_fixed_statistics = false;  ///< statistics do not depend on x
  const void* x = nullptr;            ///< for a tail that reads_x, for dweight, and for dx unless has_fixed_statistics
  const void* dy = nullptr;
  const void* weight = nullptr;        ///< (channels), compute type; defaults to 1
  const void* bias = nullptr;          ///< (channels), compute type; defaults to 0; for a tail that reads_x
  const void* mean = nullptr;          ///< (instances, groups), compute type; for a tail that reads_x, dweight and dx
  const void* rstd = nullptr;          ///< as mean
  const std::uint8_t* mask = nullptr;  ///< add_relu only
  void* dx = nullptr;                  ///< may be null
  void* dresidual = nullptr;           ///< may be null
  DType parameter_dtype = DType::f32;
  void* dweight = nullptr;       ///< (channels); may be null
  void* dbias = nullptr;         ///< (channels); may be null
  double* partial = nullptr;     ///< workspace, channel_norm_partial_elements(...)
  void* coefficients = nullptr;  ///< workspace, 5 x instances x channels of the compute type
};

/// Doubles of workspace: two sums for each channel of each range.
constexpr std::int64_t channel_norm_partial_elements(std::int64_t instances, std::int64_t rows,
                                                     std::int64_t channels) noexcept {
  const std::int64_t stretches = rows == 0 ? 1 : (rows + channel_norm_stretch - 1) / channel_norm_stretch;
  return 2 * instances * stretches * channels;
}

/// rstd = 1 / sqrt(variance + epsilon), and mean, of running statistics, in the compute type of `dtype`.
struct RunningStatisticsArgs {
  std::int64_t channels = 0;
  double epsilon = 0;
  const void* running_mean = nullptr;
  const void* running_var = nullptr;
  DType running_dtype = DType::f32;
  DType dtype = DType::f32;
  void* mean = nullptr;
  void* rstd = nullptr;
};

struct NormKernels {
  void (*row_forward)(const RowNormArgs&) = nullptr;
  void (*row_backward)(const RowNormGradArgs&) = nullptr;
  void (*channel_forward)(const ChannelNormArgs&) = nullptr;
  void (*channel_backward)(const ChannelNormGradArgs&) = nullptr;
  void (*running_statistics)(const RunningStatisticsArgs&) = nullptr;
};

extern const NormKernels norm_cpu;
extern const NormKernels* const norm_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const NormKernels& norm_kernels(memory::Device device);

}  // namespace thimble::kernels
