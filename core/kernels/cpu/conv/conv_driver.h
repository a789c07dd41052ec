#pragma once
// The loops of a convolution whose pixels have many channels: a matmul that leaves padding out.
//
// Rows of the left operand are pixels in the order (line, pixel of the line, image). The rows of a microtile are then
// mostly one pixel of several images, which see the same taps: taps outside the image are not multiplied. Such products
// are exact zeros, so results equal the matmul with padding.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <thimble/core/kernels/cpu/conv/conv_operand.h>
#include <thimble/core/kernels/cpu/matmul/gemm_driver.h>

namespace thimble::kernels::conv_detail {

/// A window read in place, or, for a narrow dtype, converted a microtile at a time; rows in the order above.
struct PixelWindow {
  ConvWindow window;
  std::int64_t images = 0;

  std::int64_t rows() const noexcept { return images * window.grid_pixels(); }
  /// Images of dtype T, or of one that is converted to it, with enough channels.
  template <class T>
  static bool can_read(const ConvWindow& window) noexcept {
    const bool is_converted = std::is_same_v<T, float> && is_narrow(window.dtype);
    return (window.dtype == dtype_of<T> || is_converted) && window.channels >= min_channels;
  }
  static constexpr std::int64_t min_channels = 64;
};

/// The offset of row (line i, pixel j, image) of C when the pixels of an image have these strides in elements.
gemm_detail::RowMap pixel_rows(const PixelWindow& left, std::int64_t pixel, std::int64_t line,
                               std::int64_t image) noexcept;

std::size_t pixels_workspace_bytes(const gemm_detail::Problem& problem, const gemm_detail::Tiling& tiling,
                                   const gemm_detail::MicroShape& micro) noexcept;

/// C = left right for every group, as gemm_detail::run computes it; output.rows is pixel_rows().
template <class T>
void run_pixels(const gemm_detail::Problem& problem, const gemm_detail::Tiling& tiling,
                const gemm_detail::Microkernels<T>& kernels, const PixelWindow& left, const RightOperand<T>& right,
                const gemm_detail::Output<T>& output, gemm_detail::Finish<T> finish, void* workspace) noexcept;

}  // namespace thimble::kernels::conv_detail
