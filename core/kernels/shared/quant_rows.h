#pragma once
// Weights of 8-bit nets as CUDA kernels read them, and the kernels' workspaces: known in every build.
//
//   packed   (O, depth) i8, rows along the sum: (kh, kw, c) as in the dense weight, zeros from KH KW C on up to depth,
//            a multiple of 16; behind them (O) i32, 128 times the sum of each row
//
// IMMA multiplies i8 with i8. It gets x - 128 for u8 codes x, and the sums get 128 sum of w back.

#include <cstddef>
#include <cstdint>

#include <thimble/core/kernels/conv.h>

namespace thimble::kernels {

/// Limit of the workspace of a product by cuBLASLt.
inline constexpr std::int64_t max_quant_workspace_bytes = std::int64_t{32} << 20;

std::int64_t quant_rows_depth(const ConvShape& shape) noexcept;
std::size_t quant_rows_bytes(const ConvShape& shape) noexcept;
void pack_quant_rows(const ConvShape& shape, const std::int8_t* weight, void* packed) noexcept;
void unpack_quant_rows(const ConvShape& shape, const void* packed, std::int8_t* weight) noexcept;

/// True where the convolution is a matrix product that cuBLASLt supports for i8: one tap, every pixel, no padding,
/// channels and filters in multiples of 16 (TN, 4 bytes from row to row would do). Depends only on the shape.
bool is_library_quant_conv(const ConvShape& shape) noexcept;

/// Pixels that cuBLASLt multiplies at once: as many as fit in the workspace, 16 at least.
std::int64_t quant_window_rows(const ConvShape& shape) noexcept;

/// Their codes as i8 and their sums as i32, up to max_quant_workspace_bytes; 0 where the library is not used.
std::size_t cuda_quant_conv_bytes(const ConvShape& shape, int threads) noexcept;

}  // namespace thimble::kernels
