#pragma once
// The operands of convolution as a matmul. The matrix whose rows are pixels and whose columns are (tap, channel) is
// never stored: blocks of it are read straight from the image into the workspace.

#include <cstdint>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/narrow_float.h>
#include <thimble/core/kernels/cpu/matmul/gemm_operand.h>

namespace thimble::kernels::conv_detail {

using gemm_detail::LeftBlock;
using gemm_detail::LeftOperand;
using gemm_detail::RightOperand;

/// Along one image axis: pixel i of the grid and tap t meet at image position i * step + origin + t * tap_step.
struct WindowAxis {
  std::int64_t grid = 0;      ///< pixels of the grid
  std::int64_t size = 0;      ///< pixels of the image
  std::int64_t step = 1;      ///< image pixels from one grid pixel to the next
  std::int64_t origin = 0;    ///< position of the first tap of the first grid pixel
  std::int64_t tap_step = 1;  ///< image pixels from one tap to the next
  std::int64_t taps = 1;
};

/// A matrix with a row for every pixel (image, i, j) of a grid and a column for every (tap_h, tap_w, channel): the
/// values of a dense NHWC image there, zero outside it.
struct ConvWindow {
  const void* image = nullptr;
  DType dtype = DType::f32;
  std::int64_t all_channels = 0;  ///< from one pixel to the next
  std::int64_t channels = 0;      ///< of the group
  WindowAxis h;
  WindowAxis w;

  std::int64_t columns() const noexcept { return h.taps * w.taps * channels; }
  std::int64_t grid_pixels() const noexcept { return h.grid * w.grid; }
  /// The taps of one line are one run of memory.
  bool has_contiguous_lines() const noexcept { return w.tap_step == 1 && all_channels == channels; }
  /// The first element of a line of an image.
  std::int64_t line(std::int64_t image_index, std::int64_t y) const noexcept {
    return (image_index * h.size + y) * w.size * all_channels;
  }
};

/// Reads runs of a window's rows.
template <class T>
class WindowReader {
 public:
  explicit WindowReader(const ConvWindow& window) noexcept
      : window_(window), load_(is_narrow(window.dtype) ? narrow_float_loops(isa()).load(window.dtype) : nullptr) {}

  /// A position (image, i, j) that advances row by row.
  struct Place {
    std::int64_t image;
    std::int64_t i;
    std::int64_t j;
  };
  Place place(std::int64_t row) const noexcept {
    const std::int64_t pixels = window_.grid_pixels();
    if (pixels == 0) return {0, 0, 0};
    return {row / pixels, row % pixels / window_.w.grid, row % window_.w.grid};
  }
  void advance(Place& place) const noexcept {
    if (++place.j < window_.w.grid) return;
    place.j = 0;
    if (++place.i < window_.h.grid) return;
    place.i = 0;
    ++place.image;
  }

  /// out = columns [first, first + count) of the row at `place`, of the group whose channels begin at `offset`.
  void read(const Place& place, std::int64_t offset, std::int64_t first, std::int64_t count, T* out) const noexcept;
  /// out = the image's elements [first, first + count).
  void copy(std::int64_t first, std::int64_t count, T* out) const noexcept;

 private:
  void read_line(std::int64_t line, std::int64_t left, std::int64_t first, std::int64_t count, T* out) const noexcept;

  ConvWindow window_;
  NarrowFloatLoops::Load load_;  ///< null unless the dtype is narrow; looked up once, because runs may be short
};

/// The window as left operand: pixels x (tap, channel).
template <class T>
class LeftWindow final : public LeftOperand<T> {
 public:
  explicit LeftWindow(const ConvWindow& window) noexcept : reader_(window) {}
  std::int64_t scratch_elements(std::int64_t rows, int panel_rows) const noexcept override;
  LeftBlock<T> open(std::int64_t offset, std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t depth,
                    int panel_rows, T* scratch) const noexcept override;

 private:
  WindowReader<T> reader_;
};

/// The window as left operand without a copy: the rows of a microtile are read in place, through pointers to the runs
/// of memory of their taps (as in Dukhan 2019, "The Indirect Convolution Algorithm"); taps in the padding point to
/// zeros, and runs across the left or right border are assembled in scratch. For a narrow dtype scratch holds all rows;
/// neighbours in a line share their overlap.
template <class T>
class LeftWindowInPlace final : public LeftOperand<T> {
 public:
  /// Images of dtype T whose runs are not too short, and of dtypes converted to it, whose lines are one run.
  static bool can_read(const ConvWindow& window) noexcept {
    const bool is_converted = std::is_same_v<T, float> && is_narrow(window.dtype) && window.has_contiguous_lines();
    return (window.dtype == dtype_of<T> || is_converted) && piece_of(window) >= min_piece;
  }
  explicit LeftWindowInPlace(const ConvWindow& window) noexcept : window_(window), reader_(window) {}
  std::int64_t scratch_elements(std::int64_t rows, int panel_rows) const noexcept override;
  LeftBlock<T> open(std::int64_t offset, std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t depth,
                    int panel_rows, T* scratch) const noexcept override;
  void panel(const LeftBlock<T>& block, std::int64_t index, int rows,
             gemm_detail::RowPointers<T>& pointers) const noexcept override;

 private:
  static constexpr std::int64_t min_piece = 16;
  static std::int64_t piece_of(const ConvWindow& window) noexcept {
    return window.has_contiguous_lines() ? window.w.taps * window.channels : window.channels;
  }
  /// Columns [column, column + count): part of the taps of line `tap_line`, `in_line` columns from their beginning.
  struct Piece {
    std::int64_t column;
    std::int64_t count;
    std::int64_t tap_line;
    std::int64_t in_line;
  };
  const T* find(const typename WindowReader<T>::Place& place, std::int64_t offset, const Piece& piece,
                T* scratch) const noexcept;
  /// A run of all rows, converted: of neighbours at once, where that is no more work than one by one.
  void convert(const typename WindowReader<T>::Place* places, int rows, std::int64_t offset, const Piece& piece,
               bool are_neighbours, T* scratch, const T** out) const noexcept;

  ConvWindow window_;
  WindowReader<T> reader_;
};

/// The window as right operand, summed over pixels: pixels x (tap, channel).
template <class T>
class RightWindow final : public RightOperand<T> {
 public:
  explicit RightWindow(const ConvWindow& window) noexcept : window_(window), reader_(window) {}
  void pack(std::int64_t offset, std::int64_t column, std::int64_t columns, std::int64_t k, std::int64_t depth,
            const gemm_detail::Panels<T>& panels) const noexcept override;

 private:
  static constexpr std::int64_t min_channels = 8;  // enough to pay for a loop over the pixels of a line
  void pack_panel(std::int64_t offset, std::int64_t column, std::int64_t columns, std::int64_t k, std::int64_t depth,
                  T* out, int width) const noexcept;

  ConvWindow window_;
  WindowReader<T> reader_;
};

/// The window transposed, summed over pixels: (tap, channel) x pixels, as left operand without a copy. A tap's pixels
/// of one line are a run of memory; pixels with some tap outside are runs of one pixel, and point to zeros there.
template <class T>
class LeftTurnedWindow final : public LeftOperand<T> {
 public:
  /// Images of dtype T whose lines are long enough.
  static bool can_read(const ConvWindow& window) noexcept;
  explicit LeftTurnedWindow(const ConvWindow& window) noexcept
      : window_(window), inner_begin_(inner_begin(window)), inner_end_(inner_end(window)) {}
  std::int64_t scratch_elements(std::int64_t, int) const noexcept override { return 0; }
  LeftBlock<T> open(std::int64_t offset, std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t depth,
                    int panel_rows, T* scratch) const noexcept override;
  void panel(const LeftBlock<T>& block, std::int64_t index, int rows,
             gemm_detail::RowPointers<T>& pointers) const noexcept override;

 private:
  static constexpr std::int64_t zero_elements = 1024;
  /// Pixels [inner_begin, inner_end) of a line see all their taps inside the image.
  static std::int64_t inner_begin(const ConvWindow& window) noexcept;
  static std::int64_t inner_end(const ConvWindow& window) noexcept;
  std::int64_t run_from(std::int64_t j) const noexcept {
    return j >= inner_begin_ && j < inner_end_ ? inner_end_ - j : 1;
  }

  ConvWindow window_;
  std::int64_t inner_begin_;
  std::int64_t inner_end_;
};

/// Some taps of a weight (O, KH, KW, C) as right operand: rows (tap_h, tap_w, o), columns c. Tap (a, b) is (first_h - a
/// * step_h, first_w - b * step_w): the last first, as an input pixel meets them in ascending order.
struct TurnedTaps {
  const void* weight = nullptr;
  DType dtype = DType::f32;
  std::int64_t filters = 0;        ///< of the group
  std::int64_t filter_stride = 0;  ///< KH * KW * C
  std::int64_t line_stride = 0;    ///< KW * C
  std::int64_t tap_stride = 0;     ///< C, of the group
  std::int64_t first_h = 0;
  std::int64_t first_w = 0;
  std::int64_t step_h = 1;
  std::int64_t step_w = 1;
  std::int64_t taps_w = 1;
};

template <class T>
class RightTurnedTaps final : public RightOperand<T> {
 public:
  explicit RightTurnedTaps(const TurnedTaps& taps) noexcept : taps_(taps) {}
  void pack(std::int64_t offset, std::int64_t column, std::int64_t columns, std::int64_t k, std::int64_t depth,
            const gemm_detail::Panels<T>& panels) const noexcept override;

 private:
  TurnedTaps taps_;
};

}  // namespace thimble::kernels::conv_detail
