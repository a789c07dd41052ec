#pragma once
// The innermost loops of quant_conv.h: a few pixels against a panel of filters, on each unit.

#include <cstdint>

#include <thimble/core/kernels/quant_conv.h>
#include <thimble/core/kernels/shared/quant_code_math.h>

namespace thimble::kernels::quant_detail {

inline constexpr int block_bytes = 64;
inline constexpr int most_rows = 12;      // pixels of a tile
inline constexpr int most_blocks = 4;     // of a panel
inline constexpr int narrow_filters = 8;  // at most this many filters make groups of 8 bytes

/// Pixels of a tile of `blocks` blocks: as many as leave the sums in 32 registers.
constexpr int rows_of(int blocks) noexcept { return blocks == most_blocks ? 6 : most_rows; }

struct QuantTile {
  const std::uint8_t* rows[most_rows];  ///< begins of the pixels' windows; entries from `count` on are readable
  int count;
  const std::int64_t* runs;  ///< from a window's begin to each of its runs
  std::int64_t run_count;
  std::int64_t run_bytes;  ///< whole groups
  const std::uint8_t* panel;
  int blocks;
  int filters;  ///< existing filters of the panel
  const std::int32_t* bias;
  const float* scale;
  const std::uint8_t* residual;  ///< of the tile's first pixel and filter; may be null
  void* y;
  std::int64_t stride;  ///< of y and residual, elements
};

using QuantKernel = void (*)(const QuantConvArgs& args, const QuantTile& tile);

/// The kernel of a unit; `is_narrow`: groups of 8 bytes.
QuantKernel quant_kernel(DotUnit unit, bool is_narrow) noexcept;

}  // namespace thimble::kernels::quant_detail
