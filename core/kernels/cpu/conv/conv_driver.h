#pragma once
// The loops of a convolution whose pixels have many channels: a matmul that leaves padding out.
//
// Rows of the left operand are pixels in the order (line, pixel of the line, image), so the rows of a microtile are
// mostly one pixel of several images, which see the same taps: taps outside the image are not multiplied. Their
// products would be exact zeros, so results equal the matmul with padding.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/dot_unit.h>
#include <thimble/core/kernels/cpu/base/narrow_float.h>
#include <thimble/core/kernels/cpu/conv/winograd.h>
#include <thimble/core/kernels/cpu/matmul/gemm_driver.h>
#include <thimble/core/kernels/cpu/matmul/gemm_operand.h>

namespace thimble::kernels::conv_detail {

// ---- The operands of convolution as a matmul. The matrix whose rows are pixels and whose columns are (tap, channel)
// is never stored: blocks of it are read straight from the image into the workspace.

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
  /// The taps of one line are contiguous in memory.
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

/// The window as left operand without a copy: the rows of a microtile are read in place, through pointers to the memory
/// runs of their taps (as in Dukhan 2019, "The Indirect Convolution Algorithm"). Taps in the padding point to zeros,
/// and runs across the left or right border are assembled in scratch. For a narrow dtype scratch holds all rows, and
/// neighbours in a line share their overlap.
template <class T>
class LeftWindowInPlace final : public LeftOperand<T> {
 public:
  /// Images of dtype T, or of a dtype converted to it if lines are one run; runs must not be too short.
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
  /// Columns [column, column + count): part of the taps of line `tap_line`, from their column `in_line` on.
  struct Piece {
    std::int64_t column;
    std::int64_t count;
    std::int64_t tap_line;
    std::int64_t in_line;
  };
  const T* find(const typename WindowReader<T>::Place& place, std::int64_t offset, const Piece& piece,
                T* scratch) const noexcept;
  /// Converts a run of all rows, for neighbours at once if that is no more work than one by one.
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
/// of one line are a run of memory. A pixel with some tap outside is a run by itself; such taps point to zeros.
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
  /// Pixels [inner_begin, inner_end) of a line, whose taps all lie inside the image.
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
/// * step_h, first_w - b * step_w): the last tap comes first, as an input pixel meets taps in ascending order.
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

/// A window read in place or, for a narrow dtype, converted a microtile at a time; rows are in the order above.
struct PixelWindow {
  ConvWindow window;
  std::int64_t images = 0;

  std::int64_t rows() const noexcept { return images * window.grid_pixels(); }
  /// Images of dtype T, or of one that converts to it, with enough channels.
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

// ---- Shared by the three convolutions as matmuls: sizes of a group, costs, and the call itself.

using gemm_detail::Finish;
using gemm_detail::LeftMatrix;
using gemm_detail::Microkernels;
using gemm_detail::MicroShape;
using gemm_detail::Output;
using gemm_detail::OutputTile;
using gemm_detail::Panels;
using gemm_detail::Problem;
using gemm_detail::RightMatrix;
using gemm_detail::Tiling;

// Cycles to load an element into a microkernel or store it, as in matmul_cpu.cpp.
inline constexpr double in_place_cycles = 0.25;
inline constexpr double copy_cycles = 0.6;
inline constexpr double copy_left_cycles = 0.9;
inline constexpr double window_cycles = 0.6;
inline constexpr double convert_cycles = 0.4;  // in addition
inline constexpr double store_cycles = 0.2;
inline constexpr double store_turned_cycles = 1;

/// Either adds up the workspace that matmuls need, or runs them with it.
template <class T>
class Executor {
 public:
  explicit Executor(int threads) noexcept : threads_(threads) {}
  Executor(int threads, void* workspace) noexcept : threads_(threads), workspace_(workspace), is_running_(true) {}

  /// `finish` stores a finished microtile; defaults to the matmul's.
  void operator()(const Problem& problem, const LeftOperand<T>& left, const RightOperand<T>& right,
                  const Output<T>& output, Finish<T> finish = nullptr) noexcept {
    if (problem.m == 0 || problem.n == 0) return;
    const Microkernels<T>& kernels = gemm_detail::microkernels<T>(isa());
    const MicroShape micro = micro_shape(kernels);
    const Tiling tiling = choose_tiling(problem, micro, threads_);
    if (is_running_) {
      if (finish == nullptr) finish = gemm_detail::finish<T>(isa());
      gemm_detail::run<T>(problem, tiling, kernels, left, right, output, finish, workspace_);
      return;
    }
    const std::int64_t left_elements = left.scratch_elements(std::min(tiling.left_rows, problem.m), kernels.rows);
    bytes_ = std::max(bytes_, gemm_detail::workspace_bytes(problem, tiling, micro, left_elements));
  }
  /// The same with pixels as rows, leaving padding out. The output's rows are pixel_rows().
  void operator()(const Problem& problem, const PixelWindow& left, const RightOperand<T>& right,
                  const Output<T>& output) noexcept {
    if (problem.m == 0 || problem.n == 0) return;
    const Microkernels<T>& kernels = gemm_detail::microkernels<T>(isa());
    const MicroShape micro = micro_shape(kernels);
    const Tiling tiling = choose_tiling(problem, micro, threads_);
    if (is_running_) {
      run_pixels<T>(problem, tiling, kernels, left, right, output, gemm_detail::finish<T>(isa()), workspace_);
      return;
    }
    bytes_ = std::max(bytes_, pixels_workspace_bytes(problem, tiling, micro));
  }
  /// A 3x3 correlation by Winograd's algorithm.
  void operator()(const Correlation& correlation, const Output<float>& output) noexcept {
    if (is_running_) return run_winograd(correlation, output, workspace_, threads_);
    bytes_ = std::max(bytes_, winograd_workspace_bytes(correlation, threads_));
  }
  void operator()(const ConvWeightGradArgs& args) noexcept {
    if (is_running_) return run_winograd(args, workspace_, threads_);
    bytes_ = std::max(bytes_, winograd_workspace_bytes(args, threads_));
  }
  bool is_running() const noexcept { return is_running_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  int threads_;
  void* workspace_ = nullptr;
  bool is_running_ = false;
  std::size_t bytes_ = 0;
};

/// Sizes of one group.
struct Group {
  std::int64_t channels;  // of x
  std::int64_t filters;
  std::int64_t filter_elements;  // KH * KW * channels

  explicit Group(const ConvShape& s) noexcept
      : channels(s.channels / s.groups),
        filters(s.filters / s.groups),
        filter_elements(s.kernel_h * s.kernel_w * channels) {}
  std::int64_t weights() const noexcept { return filters * filter_elements; }
};

/// One tap on every pixel: the image itself is the matrix.
inline bool is_pointwise(const ConvShape& s) noexcept {
  return s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 && s.stride_w == 1 && s.pad_top == 0 &&
         s.pad_bottom == 0 && s.pad_left == 0 && s.pad_right == 0;
}

inline ConvWindow input_window(const ConvShape& s, const void* x, DType dtype) noexcept {
  return {x,
          dtype,
          s.channels,
          s.channels / s.groups,
          {s.out_height(), s.height, s.stride_h, -s.pad_top, s.dilation_h, s.kernel_h},
          {s.out_width(), s.width, s.stride_w, -s.pad_left, s.dilation_w, s.kernel_w}};
}

inline std::int64_t out_pixels(const ConvShape& s) noexcept { return s.images * s.out_height() * s.out_width(); }

/// Extra cycles to convert an element of `dtype` to T.
template <class T>
double conversion_cycles(DType dtype) noexcept {
  return dtype == dtype_of<T> ? 0 : convert_cycles;
}

template <class T>
Output<T> output_to(void* c, DType dtype) noexcept {
  Output<T> output;
  output.c = c;
  output.dtype = dtype;
  return output;
}

inline void add_groups(Problem& problem, const ConvShape& s, std::int64_t left, std::int64_t right, std::int64_t out,
                       std::int64_t bias) noexcept {
  if (s.groups == 1) return;
  problem.batch_rank = 1;
  problem.batch[0] = {s.groups, left, right, out, bias};
}

/// With a window as left operand, in place if possible.
template <class T>
void multiply_window(Problem& problem, const ConvWindow& window, const RightOperand<T>& right, const Output<T>& output,
                     Executor<T>& execute, Finish<T> finish = nullptr) noexcept {
  if (LeftWindowInPlace<T>::can_read(window)) {
    problem.left_cost = in_place_cycles + conversion_cycles<T>(window.dtype);
    execute(problem, LeftWindowInPlace<T>(window), right, output, finish);
  } else {
    problem.copies_left = true;
    problem.left_cost = window_cycles + conversion_cycles<T>(window.dtype);
    execute(problem, LeftWindow<T>(window), right, output, finish);
  }
}

// The three computations; the executor decides whether they run.
template <class T>
void multiply(const ConvForwardArgs& args, Executor<T>& execute) noexcept;
template <class T>
void multiply(const ConvInputGradArgs& args, Executor<T>& execute) noexcept;
template <class T>
void multiply(const ConvWeightGradArgs& args, Executor<T>& execute) noexcept;

// ---- The input's gradient of a convolution with a stride, phase by phase: every input pixel belongs to one phase, and
// the same taps reach all pixels of a phase.

/// Along one axis: input pixels phase, phase + stride, ... and the taps that reach them. From out * stride = in + pad -
/// tap * dilation it follows that the taps are an arithmetic progression, as are the output pixels that each tap meets.
/// Without a stride, phase 0 is all pixels and all taps.
struct Phase {
  WindowAxis axis;              // over dy, the last tap first
  std::int64_t last_tap = 0;    // in the kernel
  std::int64_t tap_stride = 1;  // in the kernel
};
Phase phase_h(const ConvShape& s, std::int64_t phase) noexcept;
Phase phase_w(const ConvShape& s, std::int64_t phase) noexcept;

/// dx = 0 where no tap arrives.
void clear_unreached(const ConvInputGradArgs& args) noexcept;

/// Whether all phases are columns of one product instead, because a single phase has too few channels for a vector.
inline constexpr std::int64_t max_folded_columns = 16;
bool folds_phases(const ConvShape& s) noexcept;

// ---- Convolutions of bf16 on the processor's bf16 dot products (units.h chooses them), with the result dtypes and the
// epilogue of all others: a product of patches, copied a band at a time.

/// Whether a unit computes a convolution: operands are bf16. The input's gradient of a stride over few channels is
/// converted to f32 instead (folds_phases()), because a single phase would not fill a panel's columns.
bool is_for_bf16_unit(const ConvForwardArgs& args) noexcept;
bool is_for_bf16_unit(const ConvInputGradArgs& args) noexcept;
bool is_for_bf16_unit(const ConvWeightGradArgs& args) noexcept;

/// Workspaces, as from conv_workspace_bytes(), and the computations. Winograd's form is not used.
///
/// Order of accumulation: the reductions of conv.h, with the input's gradient over the taps that reach a pixel's phase,
/// the last one first (taps that miss the map are zeros), cut into blocks of 1024. The unit sums a block (gemm_bf16.h),
/// and blocks are added in ascending order in f32.
std::size_t bf16_workspace_bytes(const ConvForwardArgs& args, int threads) noexcept;
std::size_t bf16_workspace_bytes(const ConvInputGradArgs& args, int threads) noexcept;
std::size_t bf16_workspace_bytes(const ConvWeightGradArgs& args, int threads) noexcept;

void compute_bf16(const ConvForwardArgs& args, void* workspace, int threads, DotUnit unit) noexcept;
void compute_bf16(const ConvInputGradArgs& args, void* workspace, int threads, DotUnit unit) noexcept;
void compute_bf16(const ConvWeightGradArgs& args, void* workspace, int threads, DotUnit unit) noexcept;

}  // namespace thimble::kernels::conv_detail

namespace thimble::kernels::depthwise {

// ---- Convolutions whose groups are single channels, in f32: sums over taps, in vectors of neighbouring channels,
// straight from the images. The bits equal the products that conv.h describes: the same chains of multiply-adds.

/// Whether the functions below compute a convolution: one filter per channel, all in f32, no activation, at most 256
/// taps (a chain of sums) and, in the weight's gradient, rows of at most 8 taps.
bool computes(const ConvForwardArgs& args) noexcept;
bool computes(const ConvInputGradArgs& args) noexcept;
bool computes(const ConvWeightGradArgs& args) noexcept;

/// Forward and the input's gradient take room for the weights, transposed to (taps, channels); the weight's gradient
/// takes room for twice as many sums.
std::size_t workspace_bytes(const ConvForwardArgs& args) noexcept;
std::size_t workspace_bytes(const ConvInputGradArgs& args) noexcept;
std::size_t workspace_bytes(const ConvWeightGradArgs& args) noexcept;

void compute(const ConvForwardArgs& args, void* workspace) noexcept;
void compute(const ConvInputGradArgs& args, void* workspace) noexcept;
void compute(const ConvWeightGradArgs& args, void* workspace) noexcept;

}  // namespace thimble::kernels::depthwise
