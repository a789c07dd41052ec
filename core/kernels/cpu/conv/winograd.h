#pragma once
// The transforms of Winograd's minimal filtering F(2x2, 3x3) on NHWC images in f32: 2x2 outputs of a 3x3 correlation
// from a patch of 4x4 inputs, with 16 products per pair of channels instead of 36 (Lavin and Gray 2016, "Fast
// Algorithms for Convolutional Neural Networks", section 4.1):
//
//   y = A^T [(G w G^T) o (B^T x B)] A,   dw = G^T [(A dy A^T) o (B^T x B)] G
//
// with o element by element, summed over channels (y) or over tiles (dw). Each of the 16 elements, a component, is a
// separate matmul over channels or tiles. B and A hold 0 and +-1, G also +-1/2: transforms add and halve.

#include <cstddef>
#include <cstdint>

#include <thimble/core/dtype.h>
#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/cpu/matmul/gemm_epilogue.h>

namespace thimble::kernels::winograd {

inline constexpr std::int64_t components = 16;
inline constexpr std::int64_t tile_size = 2;   ///< outputs of a tile, along one axis
inline constexpr std::int64_t patch_size = 4;  ///< inputs of a tile, along one axis
inline constexpr std::int64_t kernel_size = 3;
/// Channels come in whole vectors of this length, for every instruction set.
inline constexpr std::int64_t vector_channels = 16;
inline constexpr std::int64_t most_channels = 512;

/// Layout of transformed values: element `channel` of component c of tile t is c * component + t * tile + channel.
struct Layout {
  std::int64_t tile = 0;
  std::int64_t component = 0;
};

/// A grid of tiles of 2x2 outputs over each image, in the order (image, line, column).
struct Tiles {
  std::int64_t lines = 0;    ///< of tiles in an image
  std::int64_t columns = 0;  ///< tiles of a line
  std::int64_t images = 0;

  std::int64_t per_image() const noexcept { return lines * columns; }
  std::int64_t count() const noexcept { return images * per_image(); }
};

/// Tiles that cover results of height x width.
inline Tiles tiles_over(std::int64_t height, std::int64_t width, std::int64_t images) noexcept {
  return {(height + tile_size - 1) / tile_size, (width + tile_size - 1) / tile_size, images};
}

struct Image {
  const void* data = nullptr;  ///< of floating dtype
  DType dtype = DType::f32;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;
};

/// A run of tiles, and the channels of interest.
struct Part {
  std::int64_t tile = 0;
  std::int64_t tiles = 0;
  std::int64_t channel = 0;
  std::int64_t channels = 0;  ///< whole vectors
};

/// out = B^T x B of every patch. Patch (i, j) of an image begins at its pixel (2 i + top, 2 j + left); it is zero
/// outside the image.
void transform_patches(const Image& x, std::int64_t top, std::int64_t left, const Tiles& tiles, const Part& part,
                       float* out, const Layout& layout) noexcept;

/// out = A dy A^T of every tile of 2x2 pixels; zero outside the image.
void transform_outputs(const Image& dy, const Tiles& tiles, const Part& part, float* out,
                       const Layout& layout) noexcept;

/// A weight (O, 3, 3, C) as the right operand of the 16 products: rows k, columns n.
struct Weights {
  const void* data = nullptr;  ///< of floating dtype
  DType dtype = DType::f32;
  std::int64_t filters = 0;   ///< O
  std::int64_t channels = 0;  ///< C
  bool is_turned = false;     ///< false: rows c, columns o. True: rows o, columns c, taps in reverse

  std::int64_t rows() const noexcept { return is_turned ? filters : channels; }
  std::int64_t columns() const noexcept { return is_turned ? channels : filters; }
};

/// out = G w G^T for columns [column, column + width), whole vectors: element (k, n) of component c is
/// out[c * component_stride + k * width + n].
void transform_weights(const Weights& weights, std::int64_t column, std::int64_t width, float* out,
                       std::int64_t component_stride) noexcept;

/// Destinations of a tile's four pixels, line by line; null discards the pixel.
struct TileOut {
  float* pixels[4];
};

/// A^T m A of `tiles` tiles, `columns` (whole vectors) of each; m is laid out as transform_patches leaves it, with
/// columns as channels.
void inverse_tiles(const float* m, const Layout& layout, std::int64_t tiles, std::int64_t columns,
                   const TileOut* out) noexcept;

/// G^T m G, `columns` (whole vectors) at a time: tap (kh, kw) goes to out + (3 kh + kw) * tap_stride, or is added
/// there.
void inverse_taps(const float* m, std::int64_t component_stride, std::int64_t columns, float* out,
                  std::int64_t tap_stride) noexcept;

}  // namespace thimble::kernels::winograd

namespace thimble::kernels::conv_detail {

// ---- Convolutions of 3x3 by Winograd's F(2x2, 3x3): sixteen matmuls over tiles, with transforms around them.

/// True where Winograd's form saves time: 3x3, stride 1, no dilation or groups; 32 to 512 channels and filters, in
/// vectors of 16; maps of at least 8x8, with a tile for every 4096 pairs of a channel and a filter. Depends only on one
/// image's sizes, so that results do not depend on the number of images.
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

/// output.rows describes a matrix with a row for every pixel.
void run_winograd(const Correlation& correlation, const gemm_detail::Output<float>& output, void* workspace,
                  int threads) noexcept;

/// The weight's gradient.
std::size_t winograd_workspace_bytes(const ConvWeightGradArgs& args, int threads) noexcept;
void run_winograd(const ConvWeightGradArgs& args, void* workspace, int threads) noexcept;

}  // namespace thimble::kernels::conv_detail
