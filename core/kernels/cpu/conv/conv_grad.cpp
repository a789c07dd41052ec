#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <type_traits>

#include <thimble/core/kernels/cpu/conv/conv_driver.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels::conv_detail {

namespace weight_grad_detail {

Phase phase_of(std::int64_t phase, std::int64_t size, std::int64_t out_size, std::int64_t kernel, std::int64_t stride,
               std::int64_t pad, std::int64_t dilation) noexcept {
  Phase result;
  result.axis.grid = size > phase ? (size - phase - 1) / stride + 1 : 0;
  result.axis.size = out_size;
  result.axis.taps = 0;
  const std::int64_t divisor = std::gcd(stride, dilation);
  result.tap_stride = stride / divisor;
  for (std::int64_t tap = 0; tap < std::min(kernel, stride); ++tap) {
    if ((phase + pad - tap * dilation) % stride != 0) continue;
    result.axis.taps = (kernel - 1 - tap) / result.tap_stride + 1;
    result.last_tap = tap + (result.axis.taps - 1) * result.tap_stride;
    result.axis.origin = (phase + pad - result.last_tap * dilation) / stride;
    result.axis.tap_step = dilation / divisor;
    break;
  }
  return result;
}

// ---- The input's gradient: one matmul per phase of the stride, or one for all of them where an image has few
// channels.

/// (input pixels of the phase, taps and filters) x (taps and filters, channels). Every input pixel belongs to one
/// phase, so each is written once and no product with a hole of the stride is computed.
template <class T>
void multiply_phase(const ConvInputGradArgs& args, std::int64_t y, std::int64_t x, Executor<T>& execute) noexcept {
  const ConvShape& s = args.shape;
  const Group group(s);
  const Phase h = phase_h(s, y), w = phase_w(s, x);
  const double conversion = conversion_cycles<T>(args.dtype);
  Problem problem;
  problem.m = s.images * h.axis.grid * w.axis.grid;
  problem.n = group.channels;
  problem.k = h.axis.taps * w.axis.taps * group.filters;
  problem.right_cost = copy_cycles + conversion;
  problem.output_cost = store_cycles;
  add_groups(problem, s, group.filters, group.weights(), group.channels, 0);
  if (problem.k == 0) return;

  const std::int64_t first_pixel = (y * s.width + x) * s.channels;
  void* dx = args.dx == nullptr ? nullptr : element_at(args.dx, args.out_dtype, first_pixel);
  Output<T> output = output_to<T>(dx, args.out_dtype);
  output.accumulate = args.accumulate;
  output.rows.pixel = s.stride_w * s.channels;
  if (s.stride_h != 1 || s.stride_w != 1) {
    output.rows.width = w.axis.grid;
    output.rows.height = h.axis.grid;
    output.rows.line = s.stride_h * s.width * s.channels;
    output.rows.image = s.height * s.width * s.channels;
  }
  const RightTurnedTaps<T> right({args.weight, args.dtype, group.filters, group.filter_elements,
                                  s.kernel_w * group.channels, group.channels, h.last_tap, w.last_tap, h.tap_stride,
                                  w.tap_stride, w.axis.taps});
  if (is_pointwise(s)) {
    problem.sums_in_out = args.out_dtype == dtype_of<T> && !args.accumulate;
    problem.copies_left = conversion != 0;
    problem.left_cost = conversion == 0 ? in_place_cycles : copy_left_cycles + conversion;
    execute(problem, LeftMatrix<T>({args.dy, s.filters, 1, args.dtype}), right, output);
    return;
  }
  const ConvWindow window{args.dy, args.dtype, s.filters, group.filters, h.axis, w.axis};
  if (PixelWindow::can_read<T>(window)) {
    const PixelWindow pixels{window, s.images};
    const std::int64_t line = s.width * s.channels;
    output.rows = pixel_rows(pixels, s.stride_w * s.channels, s.stride_h * line, s.height * line);
    problem.left_cost = in_place_cycles + conversion;
    execute(problem, pixels, right, output);
  } else {
    multiply_window(problem, window, right, output, execute);
  }
}

/// All phases as the columns (phase_h, phase_w, channel) of one matmul, whose rows are cells of stride_h x stride_w
/// input pixels. Used for few channels, where a single phase would not fill a vector. Phases see different taps: a
/// cell's window covers them all, and weights are zero where a phase has none.
struct Fold {
  explicit Fold(const ConvShape& s) noexcept
      : h(cover(s.stride_h, [&](std::int64_t y) { return phase_h(s, y); })),
        w(cover(s.stride_w, [&](std::int64_t x) { return phase_w(s, x); })) {}

  WindowAxis h, w;

 private:
  template <class PhaseOf>
  static WindowAxis cover(std::int64_t stride, PhaseOf&& phase_of) noexcept {
    WindowAxis axis = phase_of(0).axis;  // the largest grid
    std::int64_t end = axis.origin + axis.taps;
    for (std::int64_t i = 1; i < stride; ++i) {
      const WindowAxis other = phase_of(i).axis;
      if (other.taps == 0) continue;
      if (axis.taps == 0) axis.origin = end = other.origin;
      axis.origin = std::min(axis.origin, other.origin);
      end = std::max(end, other.origin + other.taps);
      axis.taps = end - axis.origin;
    }
    return axis;
  }
};

/// The weights of all phases: rows (tap_h, tap_w, o) of the cell's window, columns (phase_h, phase_w, channel).
template <class T>
class RightFoldedTaps final : public RightOperand<T> {
 public:
  RightFoldedTaps(const ConvInputGradArgs& args, const Fold& fold) noexcept : args_(args), fold_(fold) {}

  void pack(std::int64_t offset, std::int64_t column, std::int64_t columns, std::int64_t k, std::int64_t depth,
            const Panels<T>& panels) const noexcept override {
    const Group group(args_.shape);
    gemm_detail::pack_rows(columns, depth, panels, [&](std::int64_t p, std::int64_t j, std::int64_t count, T* row) {
      const std::int64_t tap = (k + p) / group.filters, filter = (k + p) % group.filters;
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t phase = (column + j + i) / group.channels, channel = (column + j + i) % group.channels;
        const std::int64_t at = weight_of(phase, tap);
        row[i] = T{0};
        if (at < 0) continue;
        const std::int64_t element = offset + filter * group.filter_elements + at * group.channels + channel;
        gemm_detail::read_row(args_.weight, args_.dtype, element, 1, 1, row + i);
      }
    });
  }

 private:
  /// The tap (kh * KW + kw) of the kernel that a phase sees at a tap of the window, or -1.
  std::int64_t weight_of(std::int64_t phase, std::int64_t tap) const noexcept {
    const ConvShape& s = args_.shape;
    const std::int64_t h = kernel_tap(phase_h(s, phase / s.stride_w), fold_.h, tap / fold_.w.taps);
    const std::int64_t w = kernel_tap(phase_w(s, phase % s.stride_w), fold_.w, tap % fold_.w.taps);
    return h < 0 || w < 0 ? -1 : h * s.kernel_w + w;
  }
  static std::int64_t kernel_tap(const Phase& phase, const WindowAxis& cell, std::int64_t tap) noexcept {
    const std::int64_t own = tap + cell.origin - phase.axis.origin;
    return own < 0 || own >= phase.axis.taps ? -1 : phase.last_tap - own * phase.tap_stride;
  }

  const ConvInputGradArgs& args_;
  const Fold& fold_;
};

/// The output of folded phases: every row of a microtile is a cell.
template <class T>
struct FoldedOutput : Output<T> {
  ConvShape shape;
};

/// Finishes a microtile of cells. At the lower and right border a cell may extend beyond the image.
template <class T>
void finish_fold(const Output<T>& output, const OutputTile& tile, T* accumulators, int stride) {
  const ConvShape& s = static_cast<const FoldedOutput<T>&>(output).shape;
  const std::int64_t channels = s.channels / s.groups;
  const std::int64_t width = output.rows.width, height = output.rows.height;
  T there[max_folded_columns];
  for (int r = 0; r < tile.rows; ++r) {
    const std::int64_t cell = tile.row + r;
    const std::int64_t top = cell / width % height * s.stride_h, left = cell % width * s.stride_w;
    const std::int64_t first_line = cell / width / height * s.height;
    T* const values = accumulators + r * stride;
    // A microtile's columns may begin and end within a phase.
    for (std::int64_t column = tile.column, count; column < tile.column + tile.columns; column += count) {
      const std::int64_t phase = column / channels, channel = column % channels;
      count = std::min(channels - channel, tile.column + tile.columns - column);
      T* const from = values + (column - tile.column);
      const std::int64_t y = top + phase / s.stride_w, x = left + phase % s.stride_w;
      if (y >= s.height || x >= s.width) continue;
      const std::int64_t first = tile.c_offset + ((first_line + y) * s.width + x) * s.channels + channel;
      if (output.accumulate) {
        load_elements(output.c, output.dtype, first, 1, there, count);
        for (std::int64_t c = 0; c < count; ++c) from[c] += there[c];
      }
      store_elements(from, output.c, output.dtype, first, count);
    }
  }
}

template <class T>
void multiply_folded(const ConvInputGradArgs& args, Executor<T>& execute) noexcept {
  const ConvShape& s = args.shape;
  const Group group(s);
  const Fold fold(s);
  Problem problem;
  problem.m = s.images * fold.h.grid * fold.w.grid;
  problem.n = s.stride_h * s.stride_w * group.channels;
  problem.k = fold.h.taps * fold.w.taps * group.filters;
  problem.right_cost = 4 * copy_cycles;
  problem.output_cost = 4 * store_cycles;
  add_groups(problem, s, group.filters, group.weights(), group.channels, 0);
  FoldedOutput<T> output{output_to<T>(args.dx, args.out_dtype), s};
  output.accumulate = args.accumulate;
  output.rows.width = fold.w.grid;
  output.rows.height = fold.h.grid;
  const RightFoldedTaps<T> right(args, fold);
  multiply_window<T>(problem, {args.dy, args.dtype, s.filters, group.filters, fold.h, fold.w}, right, output, execute,
                     finish_fold<T>);
}

// ---- The weight's gradient: a matmul that sums over all pixels.

/// (filters, pixels) x (pixels, channels) of one tap on every pixel, or its transpose, with the same products in the
/// same order. The left side is copied, so the smaller operand is on the left; the right one may be read in place.
template <class T>
void multiply_pointwise(const ConvWeightGradArgs& args, Executor<T>& execute) noexcept {
  const ConvShape& s = args.shape;
  const Group group(s);
  const double conversion = conversion_cycles<T>(args.dtype);
  const bool is_turned = group.filters > group.channels;
  const std::int64_t right_stride = is_turned ? s.filters : s.channels;
  Problem problem;
  problem.m = is_turned ? group.channels : group.filters;
  problem.n = is_turned ? group.filters : group.channels;
  problem.k = out_pixels(s);
  problem.copies_left = true;
  problem.left_cost = copy_left_cycles + conversion;
  problem.right_cost = copy_cycles + conversion;
  problem.has_right_rows = false;
  problem.output_cost = is_turned ? store_turned_cycles : store_cycles;
  problem.sums_in_out = !is_turned && args.out_dtype == dtype_of<T> && !args.accumulate;
  add_groups(problem, s, problem.m, problem.n, group.weights(), 0);

  Output<T> output = output_to<T>(args.dweight, args.out_dtype);
  output.accumulate = args.accumulate;
  output.rows.pixel = is_turned ? 1 : group.channels;
  output.column_stride = is_turned ? group.channels : 1;
  const void* const left = is_turned ? args.x : args.dy;
  const void* const right = is_turned ? args.dy : args.x;
  execute(problem, LeftMatrix<T>({left, 1, is_turned ? s.channels : s.filters, args.dtype}),
          RightMatrix<T>({right, right_stride, 1, args.dtype}, isa()), output);
}

/// (filters, pixels) x (pixels, taps and channels).
template <class T>
void multiply_straight(const ConvWeightGradArgs& args, Executor<T>& execute) noexcept {
  const ConvShape& s = args.shape;
  const Group group(s);
  const double conversion = conversion_cycles<T>(args.dtype);
  Problem problem;
  problem.m = group.filters;
  problem.n = group.filter_elements;
  problem.k = out_pixels(s);
  problem.copies_left = true;
  problem.left_cost = copy_left_cycles + conversion;
  problem.output_cost = store_cycles;
  problem.sums_in_out = args.out_dtype == dtype_of<T> && !args.accumulate;
  add_groups(problem, s, group.filters, group.channels, group.weights(), 0);

  Output<T> output = output_to<T>(args.dweight, args.out_dtype);
  output.accumulate = args.accumulate;
  output.rows.pixel = group.filter_elements;
  const LeftMatrix<T> left({args.dy, 1, s.filters, args.dtype});
  problem.right_cost = window_cycles + conversion;
  execute(problem, left, RightWindow<T>(input_window(s, args.x, args.dtype)), output);
}

/// The transpose, (taps and channels, pixels) x (pixels, filters): the same products in the same order, but the
/// window's overlapping taps are read in place instead of being packed one by one.
template <class T>
void multiply_turned(const ConvWeightGradArgs& args, Executor<T>& execute) noexcept {
  const ConvShape& s = args.shape;
  const Group group(s);
  Problem problem;
  problem.m = group.filter_elements;
  problem.n = group.filters;
  problem.k = out_pixels(s);
  problem.left_cost = in_place_cycles;
  problem.right_cost = copy_cycles;
  problem.output_cost = store_turned_cycles;
  add_groups(problem, s, group.channels, group.filters, group.weights(), 0);

  Output<T> output = output_to<T>(args.dweight, args.out_dtype);
  output.accumulate = args.accumulate;
  output.rows.pixel = 1;
  output.column_stride = group.filter_elements;
  const RightMatrix<T> right({args.dy, s.filters, 1, args.dtype}, isa());
  execute(problem, LeftTurnedWindow<T>(input_window(s, args.x, args.dtype)), right, output);
}

}  // namespace weight_grad_detail

Phase phase_h(const ConvShape& s, std::int64_t phase) noexcept {
  return weight_grad_detail::phase_of(phase, s.height, s.out_height(), s.kernel_h, s.stride_h, s.pad_top, s.dilation_h);
}
Phase phase_w(const ConvShape& s, std::int64_t phase) noexcept {
  return weight_grad_detail::phase_of(phase, s.width, s.out_width(), s.kernel_w, s.stride_w, s.pad_left, s.dilation_w);
}

void clear_unreached(const ConvInputGradArgs& args) noexcept {
  const ConvShape& s = args.shape;
  const auto is_reached = [&](const Phase& phase) { return s.filters > 0 && phase.axis.taps > 0; };
  const std::int64_t pixel_bytes = s.channels * static_cast<std::int64_t>(size_of(args.out_dtype));
  bool reaches_all = true;
  for (std::int64_t y = 0; y < s.stride_h; ++y) reaches_all = reaches_all && is_reached(phase_h(s, y));
  for (std::int64_t x = 0; x < s.stride_w; ++x) reaches_all = reaches_all && is_reached(phase_w(s, x));
  if (reaches_all || pixel_bytes == 0) return;
  const auto clear = [&](std::int64_t line, std::int64_t pixel, std::int64_t pixels) {
    std::byte* const first = static_cast<std::byte*>(args.dx) + (line * s.width + pixel) * pixel_bytes;
    std::memset(first, 0, static_cast<std::size_t>(pixels * pixel_bytes));
  };
  parallel_for(s.images * s.height, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t line = begin; line < end; ++line) {
      if (!is_reached(phase_h(s, line % s.height % s.stride_h))) {
        clear(line, 0, s.width);
        continue;
      }
      for (std::int64_t x = 0; x < s.stride_w; ++x) {
        if (is_reached(phase_w(s, x))) continue;
        for (std::int64_t pixel = x; pixel < s.width; pixel += s.stride_w) clear(line, pixel, 1);
      }
    }
  });
}

bool folds_phases(const ConvShape& s) noexcept {
  return s.stride_h * s.stride_w > 1 && s.dilation_h == 1 && s.dilation_w == 1 &&
         s.stride_h * s.stride_w * (s.channels / s.groups) <= max_folded_columns && s.filters > 0;
}

template <class T>
void multiply(const ConvInputGradArgs& args, Executor<T>& execute) noexcept {
  using namespace weight_grad_detail;
  const ConvShape& s = args.shape;
  if (folds_phases(s)) return multiply_folded(args, execute);
  if constexpr (std::is_same_v<T, float>) {
    if (winograd_pays(s)) {
      Output<float> output = output_to<float>(args.dx, args.out_dtype);
      output.accumulate = args.accumulate;
      output.rows.pixel = s.channels;
      execute({{args.dy, args.dtype, s.out_height(), s.out_width(), s.filters},
               {args.weight, args.dtype, s.filters, s.channels, true},
               s.images,
               s.height,
               s.width,
               s.pad_top - 2,
               s.pad_left - 2},
              output);
      return;
    }
  }
  if (execute.is_running() && !args.accumulate) clear_unreached(args);
  for (std::int64_t y = 0; y < s.stride_h; ++y) {
    for (std::int64_t x = 0; x < s.stride_w; ++x) multiply_phase(args, y, x, execute);
  }
}

template void multiply(const ConvInputGradArgs& args, Executor<float>& execute) noexcept;
template void multiply(const ConvInputGradArgs& args, Executor<double>& execute) noexcept;

template <class T>
void multiply(const ConvWeightGradArgs& args, Executor<T>& execute) noexcept {
  using namespace weight_grad_detail;
  const ConvShape& s = args.shape;
  if (is_pointwise(s)) return multiply_pointwise(args, execute);
  if constexpr (std::is_same_v<T, float>) {
    if (winograd_pays(s)) return execute(args);
  }
  if (LeftTurnedWindow<T>::can_read(input_window(s, args.x, args.dtype))) {
    return multiply_turned(args, execute);
  }
  multiply_straight(args, execute);
}

template void multiply(const ConvWeightGradArgs& args, Executor<float>& execute) noexcept;
template void multiply(const ConvWeightGradArgs& args, Executor<double>& execute) noexcept;

}  // namespace thimble::kernels::conv_detail
