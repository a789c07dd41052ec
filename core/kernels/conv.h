#pragma once
// Two-dimensional convolution of NHWC images on raw pointers: forward, and the gradients of input, weight and bias.

#include <cstddef>
#include <cstdint>

#include <thimble/core/dtype.h>
#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {

/// Sizes of a convolution of x (N, H, W, C) with weight (O, KH, KW, C / groups) to y (N, OH, OW, O), all dense. Output
/// channel o belongs to group o / (O / groups) and sees the C / groups input channels of that group:
///
///     y[n, oh, ow, o] = sum over kh, kw, c of weight[o, kh, kw, c] x[n, ih, iw, group * C / groups + c]
///     ih = oh * stride_h + kh * dilation_h - pad_top,   iw = ow * stride_w + kw * dilation_w - pad_left
///
/// where x is zero outside the image. `groups` divides C and O.
struct ConvShape {
  std::int64_t images = 0;    ///< N
  std::int64_t height = 0;    ///< H
  std::int64_t width = 0;     ///< W
  std::int64_t channels = 0;  ///< C
  std::int64_t filters = 0;   ///< O
  std::int64_t kernel_h = 1;
  std::int64_t kernel_w = 1;
  std::int64_t stride_h = 1;
  std::int64_t stride_w = 1;
  std::int64_t pad_top = 0;
  std::int64_t pad_bottom = 0;
  std::int64_t pad_left = 0;
  std::int64_t pad_right = 0;
  std::int64_t dilation_h = 1;
  std::int64_t dilation_w = 1;
  std::int64_t groups = 1;

  /// OH and OW; 0 when the kernel does not fit into the padded image.
  std::int64_t out_height() const noexcept;
  std::int64_t out_width() const noexcept;
};

/// Arguments of all four computations. The two operands are of floating dtype `dtype`, the result (and bias,
/// pre_activation) of floating `out_dtype`; arithmetic is in f32 (f64 for f64), one rounding at the store.
///
/// Order of accumulation, as in GemmArgs: the reduction is cut into blocks of 256, each one chain in ascending order,
/// and blocks are added in ascending order. Forward reduces over (kh, kw, c); the input's gradient over the taps that
/// reach the pixel, last first, and o; the gradients of weight and bias over (n, oh, ow). Where a stride meets few
/// channels (stride_h * stride_w * C / groups <= 16, no dilation), the input's gradient runs over all taps that reach
/// one of the stride_h x stride_w pixels of a cell. Products with padding, and with taps that miss, are exact zeros.
/// The order never depends on threads, addresses or tiles. In forward and in the input's gradient it does not depend on
/// the number of images either.
///
/// In f32 arithmetic, 3x3 convolutions of stride 1 with channels and filters in vectors of 16, on maps of a minimum
/// size (winograd.h), use Winograd's F(2x2, 3x3): each tile of 2x2 results takes sixteen such sums of transformed
/// values, over c (over o in the input's gradient); the weight's gradient sums over the tiles in chains of 48. All of
/// the above holds, except that padding is not exact: results that see only zeros may differ from zero by a rounding of
/// their tile's values, and a non-finite value spoils the whole tile.
///
/// In f32 a convolution with one filter per channel (groups = channels = filters) is computed without matrix products
/// (conv_driver.h), with the same bits.
///
/// bf16 operands use the processor's bf16 dot products where these measured faster, except in the input's gradient of a
/// stride over few channels. conv_driver.h defines their order of accumulation.

/// y = act(x * weight + bias), and pre_activation = x * weight + bias when not null.
struct ConvForwardArgs {
  ConvShape shape;
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;  ///< null or (O)
  void* y = nullptr;
  DType dtype = DType::f32;
  DType out_dtype = DType::f32;
  Activation activation = Activation::none;
  void* pre_activation = nullptr;  ///< null, or laid out as y
};

/// dx = (accumulate ? dx : 0) + sum over kh, kw, o of weight[o, kh, kw, c] dy[n, oh, ow, o].
struct ConvInputGradArgs {
  ConvShape shape;
  const void* dy = nullptr;
  const void* weight = nullptr;
  void* dx = nullptr;
  DType dtype = DType::f32;
  DType out_dtype = DType::f32;
  bool accumulate = false;
};

/// dweight = (accumulate ? dweight : 0) + sum over n, oh, ow of dy[n, oh, ow, o] x[n, ih, iw, c].
struct ConvWeightGradArgs {
  ConvShape shape;
  const void* x = nullptr;
  const void* dy = nullptr;
  void* dweight = nullptr;
  DType dtype = DType::f32;
  DType out_dtype = DType::f32;
  bool accumulate = false;
};

/// Sums over rows: out[j] = (accumulate ? out[j] : 0) + sum over i of in[i, j], with in (rows, columns) dense. Computes
/// the bias's gradient, with rows = N * OH * OW and columns = O.
struct ColumnSumArgs {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  const void* in = nullptr;
  void* out = nullptr;
  DType dtype = DType::f32;
  DType out_dtype = DType::f32;
  bool accumulate = false;
  void* partial = nullptr;  ///< on CUDA devices column_sum_partial_elements(...) of the compute type; null on the CPU
};

/// Rows of one block of a column's sum; blocks are added in ascending order.
inline constexpr std::int64_t column_sum_block = 256;
/// Elements of the blocks' sums, for all columns.
constexpr std::int64_t column_sum_partial_elements(std::int64_t rows, std::int64_t columns) noexcept {
  return (rows + column_sum_block - 1) / column_sum_block * columns;
}

/// Bytes of workspace: a pure function of shape, dtypes, thread count and isa(), not of pointers. At most 2 MiB + 64
/// KiB per thread; the weight's gradient takes up to 3 MiB more, which the threads share.
std::size_t conv_workspace_bytes(const ConvForwardArgs& args, int threads = thread_count()) noexcept;
std::size_t conv_workspace_bytes(const ConvInputGradArgs& args, int threads = thread_count()) noexcept;
std::size_t conv_workspace_bytes(const ConvWeightGradArgs& args, int threads = thread_count()) noexcept;

/// Compute on up to `threads` threads with a workspace of that many bytes, aligned to 64. They allocate nothing and
/// throw nothing; the caller has validated sizes.
void conv_forward(const ConvForwardArgs& args, void* workspace, int threads = thread_count()) noexcept;
void conv_input_grad(const ConvInputGradArgs& args, void* workspace, int threads = thread_count()) noexcept;
void conv_weight_grad(const ConvWeightGradArgs& args, void* workspace, int threads = thread_count()) noexcept;
void column_sum(const ColumnSumArgs& args) noexcept;

}  // namespace thimble::kernels
