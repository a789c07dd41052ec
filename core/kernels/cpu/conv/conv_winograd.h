#pragma once
// Convolutions of 3x3 by Winograd's F(2x2, 3x3): sixteen matmuls over tiles, with transforms around them.

#include <cstddef>
#include <cstdint>

#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/cpu/conv/winograd.h>
#include <thimble/core/kernels/cpu/matmul/gemm_epilogue.h>

namespace thimble::kernels::conv_detail {

/// True where it saves time: 3x3, stride 1, no dilation or groups; 32 to 512 channels and filters, in vectors of 16;
/// maps of at least 8x8, with a tile for every 4096 pairs of a channel and a filter. A function of one image's sizes,
/// so that results do not depend on the number of images.
bool winograd_pays(const ConvShape& shape) noexcept;

/// out[n, i, j, :] = sum over the nine taps of image[n, i + t_h + top, j + t_w + left, :] weights[t].
struct Correlation {
  winograd::Image image;
  winograd::Weights weights;
  std::int64_t images = 0;
  std::int64_t out_height = 0;
  std::int64_t out_width = 0;
  std::int64_t top = 0;
  std::int64_t left = 0;

  winograd::Tiles tiles() const noexcept { return winograd::tiles_over(out_height, out_width, images); }
};

std::size_t winograd_workspace_bytes(const Correlation& correlation, int threads) noexcept;

/// output.rows is a matrix with a row for every pixel.
void run_winograd(const Correlation& correlation, const gemm_detail::Output<float>& output, void* workspace,
                  int threads) noexcept;

/// The weight's gradient.
std::size_t winograd_workspace_bytes(const ConvWeightGradArgs& args, int threads) noexcept;
void run_winograd(const ConvWeightGradArgs& args, void* workspace, int threads) noexcept;

}  // namespace thimble::kernels::conv_detail
