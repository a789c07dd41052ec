#include <thimble/core/kernels/conv.h>

#include <algorithm>
#include <numeric>

#include <thimble/core/kernels/compute.h>
#include <thimble/core/kernels/conv_operand.h>
#include <thimble/core/kernels/gemm_driver.h>

namespace thimble::kernels {
namespace conv_cpu_detail {

using namespace conv_detail;
using namespace gemm_detail;

// Cycles to bring an element to a microkernel or home, as in gemm_cpu.cpp.
inline constexpr double in_place_cycles = 0.25;
inline constexpr double copy_cycles = 0.6;
inline constexpr double copy_left_cycles = 0.9;
inline constexpr double window_cycles = 0.6;
inline constexpr double convert_cycles = 0.4;  // on top
inline constexpr double store_cycles = 0.2;

/// Either adds up the workspace that matmuls need, or computes them with it.
template <class T>
class Executor {
 public:
  explicit Executor(int threads) noexcept : threads_(threads) {}
  Executor(int threads, void* workspace) noexcept : threads_(threads), workspace_(workspace), is_running_(true) {}

  void operator()(const Problem& problem, const LeftOperand<T>& left, const RightOperand<T>& right,
                  const Output<T>& output) noexcept {
    if (problem.m == 0 || problem.n == 0) return;
    const Microkernels<T>& kernels = microkernels<T>(isa());
    const MicroShape micro = micro_shape(kernels);
    const Tiling tiling = choose_tiling(problem, micro, threads_);
    if (is_running_) {
      run<T>(problem, tiling, kernels, left, right, output, finish<T>(isa()), workspace_);
      return;
    }
    const std::int64_t left_elements = left.scratch_elements(std::min(tiling.rows, problem.m), kernels.rows);
    bytes_ = std::max(bytes_, workspace_bytes(problem, tiling, micro, left_elements));
  }
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

/// One tap on every pixel: the image is the matrix.
bool is_pointwise(const ConvShape& s) noexcept {
  return s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 && s.stride_w == 1 && s.pad_top == 0 &&
         s.pad_bottom == 0 && s.pad_left == 0 && s.pad_right == 0;
}

Window input_window(const ConvShape& s, const void* x, DType dtype) noexcept {
  return {x,
          dtype,
          s.channels,
          s.channels / s.groups,
          {s.out_height(), s.height, s.stride_h, -s.pad_top, s.dilation_h, s.kernel_h},
          {s.out_width(), s.width, s.stride_w, -s.pad_left, s.dilation_w, s.kernel_w}};
}

std::int64_t out_pixels(const ConvShape& s) noexcept { return s.images * s.out_height() * s.out_width(); }

template <class T>
Output<T> output_to(void* c, DType dtype) noexcept {
  Output<T> output;
  output.c = c;
  output.dtype = dtype;
  return output;
}

void add_groups(Problem& problem, const ConvShape& s, std::int64_t left, std::int64_t right, std::int64_t out,
                std::int64_t bias) noexcept {
  if (s.groups == 1) return;
  problem.batch_rank = 1;
  problem.batch[0] = {s.groups, left, right, out, bias};
}

/// With a window as left operand, in place where that can be.
template <class T>
void multiply_window(Problem& problem, const Window& window, double conversion, const RightOperand<T>& right,
                     const Output<T>& output, Executor<T>& execute) noexcept {
  if (LeftWindowInPlace<T>::can_read(window)) {
    problem.left_cost = in_place_cycles;
    execute(problem, LeftWindowInPlace<T>(window), right, output);
  } else {
    problem.copies_left = true;
    problem.left_cost = window_cycles + conversion;
    execute(problem, LeftWindow<T>(window), right, output);
  }
}

/// (pixels, taps and channels) x (taps and channels, filters).
template <class T>
void multiply(const ConvForwardArgs& args, Executor<T>& execute) noexcept {
  const ConvShape& s = args.shape;
  const Group group(s);
  const double conversion = args.dtype == dtype_of<T> ? 0 : convert_cycles;
  Problem problem;
  problem.m = out_pixels(s);
  problem.n = group.filters;
  problem.k = group.filter_elements;
  problem.right_cost = copy_cycles + conversion;
  problem.output_cost = store_cycles;
  add_groups(problem, s, group.channels, group.weights(), group.filters, group.filters);

  Output<T> output = output_to<T>(args.y, args.out_dtype);
  output.pre_activation = args.pre_activation;
  output.bias = args.bias;
  output.activation = args.activation;
  output.rows.pixel = s.filters;
  const RightMatrix<T> right({args.weight, 1, group.filter_elements, args.dtype}, isa());
  if (is_pointwise(s)) {
    problem.copies_left = conversion != 0;
    problem.left_cost = conversion == 0 ? in_place_cycles : copy_left_cycles + conversion;
    execute(problem, LeftMatrix<T>({args.x, s.channels, 1, args.dtype}), right, output);
  } else {
    multiply_window(problem, input_window(s, args.x, args.dtype), conversion, right, output, execute);
  }
}

/// (filters, pixels) x (pixels, taps and channels).
template <class T>
void multiply(const ConvWeightGradArgs& args, Executor<T>& execute) noexcept {
  const ConvShape& s = args.shape;
  const Group group(s);
  const double conversion = args.dtype == dtype_of<T> ? 0 : convert_cycles;
  Problem problem;
  problem.m = group.filters;
  problem.n = group.filter_elements;
  problem.k = out_pixels(s);
  problem.copies_left = true;
  problem.left_cost = copy_left_cycles + conversion;
  problem.output_cost = store_cycles;
  add_groups(problem, s, group.filters, group.channels, group.weights(), 0);

  Output<T> output = output_to<T>(args.dweight, args.out_dtype);
  output.accumulate = args.accumulate;
  output.rows.pixel = group.filter_elements;
  const LeftMatrix<T> left({args.dy, 1, s.filters, args.dtype});
  if (is_pointwise(s)) {
    problem.right_cost = copy_cycles + conversion;
    execute(problem, left, RightMatrix<T>({args.x, s.channels, 1, args.dtype}, isa()), output);
  } else {
    problem.right_cost = window_cycles + conversion;
    execute(problem, left, RightWindow<T>(input_window(s, args.x, args.dtype)), output);
  }
}

/// Along one axis: input pixels phase, phase + stride, ... and the taps that reach them. From
/// out * stride = in + pad - tap * dilation follows that the taps are an arithmetic progression, and so is where in
/// the output each of them meets a pixel.
struct Phase {
  WindowAxis axis;              // over dy, the last tap first
  std::int64_t last_tap = 0;    // in the kernel
  std::int64_t tap_stride = 1;  // in the kernel
};

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

/// One matmul per phase of the stride: (input pixels, taps and filters) x (taps and filters, channels). Every input
/// pixel belongs to one phase, so nothing is added to twice and no product with a hole of the stride is computed.
template <class T>
void multiply(const ConvInputGradArgs& args, Executor<T>& execute) noexcept {
  const ConvShape& s = args.shape;
  const Group group(s);
  const double conversion = args.dtype == dtype_of<T> ? 0 : convert_cycles;
  for (std::int64_t y = 0; y < s.stride_h; ++y) {
    for (std::int64_t x = 0; x < s.stride_w; ++x) {
      const Phase h = phase_of(y, s.height, s.out_height(), s.kernel_h, s.stride_h, s.pad_top, s.dilation_h);
      const Phase w = phase_of(x, s.width, s.out_width(), s.kernel_w, s.stride_w, s.pad_left, s.dilation_w);
      Problem problem;
      problem.m = s.images * h.axis.grid * w.axis.grid;
      problem.n = group.channels;
      problem.k = h.axis.taps * w.axis.taps * group.filters;
      problem.right_cost = copy_cycles + conversion;
      problem.output_cost = store_cycles;
      add_groups(problem, s, group.filters, group.weights(), group.channels, 0);
      if (problem.k == 0 && args.accumulate) continue;

      const std::int64_t first_pixel = (y * s.width + x) * s.channels;
      void* dx = args.dx == nullptr ? nullptr
                                    : static_cast<std::byte*>(args.dx) +
                                          static_cast<std::size_t>(first_pixel) * size_of(args.out_dtype);
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
        problem.copies_left = conversion != 0;
        problem.left_cost = conversion == 0 ? in_place_cycles : copy_left_cycles + conversion;
        execute(problem, LeftMatrix<T>({args.dy, s.filters, 1, args.dtype}), right, output);
      } else {
        const Window window{args.dy, args.dtype, s.filters, group.filters, h.axis, w.axis};
        multiply_window(problem, window, conversion, right, output, execute);
      }
    }
  }
}

inline constexpr std::int64_t columns_at_once = 16;  // of a column sum; a cache line of floats

/// Sums of columns [begin, end), in the order of accumulation of a matmul.
template <class T>
void sum_columns(const ColumnSumArgs& args, std::int64_t begin, std::int64_t end) noexcept {
  constexpr std::int64_t chunk = 8 * columns_at_once;
  T total[chunk], block[chunk], row[chunk];
  for (std::int64_t column = begin; column < end; column += chunk) {
    const std::int64_t count = std::min(chunk, end - column);
    for (std::int64_t start = 0; start < args.rows; start += block_depth) {
      const std::int64_t stop = std::min(start + block_depth, args.rows);
      std::fill(block, block + count, T{0});
      for (std::int64_t i = start; i < stop; ++i) {
        load_elements(args.in, args.dtype, i * args.columns + column, 1, row, count);
        for (std::int64_t j = 0; j < count; ++j) block[j] += row[j];
      }
      for (std::int64_t j = 0; j < count; ++j) total[j] = start == 0 ? block[j] : total[j] + block[j];
    }
    if (args.rows == 0) std::fill(total, total + count, T{0});
    if (args.accumulate) {
      load_elements(args.out, args.out_dtype, column, 1, row, count);
      for (std::int64_t j = 0; j < count; ++j) total[j] += row[j];
    }
    store_elements(total, args.out, args.out_dtype, column, count);
  }
}

}  // namespace conv_cpu_detail

std::int64_t ConvShape::out_height() const noexcept {
  const std::int64_t room = height + pad_top + pad_bottom - dilation_h * (kernel_h - 1) - 1;
  return room < 0 ? 0 : room / stride_h + 1;
}

std::int64_t ConvShape::out_width() const noexcept {
  const std::int64_t room = width + pad_left + pad_right - dilation_w * (kernel_w - 1) - 1;
  return room < 0 ? 0 : room / stride_w + 1;
}

namespace conv_cpu_detail {

/// Calls f<T>() with the type that arithmetic is done in.
template <class F>
void with_compute_type(DType dtype, F&& f) noexcept {
  if (compute_type(dtype) == ComputeType::f64) {
    f.template operator()<double>();
  } else {
    f.template operator()<float>();
  }
}

template <class Args>
std::size_t bytes_of(const Args& args, int threads) noexcept {
  std::size_t bytes = 0;
  with_compute_type(args.dtype, [&]<class T> {
    Executor<T> execute(threads);
    multiply(args, execute);
    bytes = execute.bytes();
  });
  return bytes;
}

template <class Args>
void compute(const Args& args, void* workspace, int threads) noexcept {
  with_compute_type(args.dtype, [&]<class T> {
    Executor<T> execute(threads, workspace);
    multiply(args, execute);
  });
}

}  // namespace conv_cpu_detail

std::size_t conv_workspace_bytes(const ConvForwardArgs& args, int threads) noexcept {
  return conv_cpu_detail::bytes_of(args, threads);
}
std::size_t conv_workspace_bytes(const ConvInputGradArgs& args, int threads) noexcept {
  return conv_cpu_detail::bytes_of(args, threads);
}
std::size_t conv_workspace_bytes(const ConvWeightGradArgs& args, int threads) noexcept {
  return conv_cpu_detail::bytes_of(args, threads);
}

void conv_forward(const ConvForwardArgs& args, void* workspace, int threads) noexcept {
  conv_cpu_detail::compute(args, workspace, threads);
}
void conv_input_grad(const ConvInputGradArgs& args, void* workspace, int threads) noexcept {
  conv_cpu_detail::compute(args, workspace, threads);
}
void conv_weight_grad(const ConvWeightGradArgs& args, void* workspace, int threads) noexcept {
  conv_cpu_detail::compute(args, workspace, threads);
}

void column_sum(const ColumnSumArgs& args) noexcept {
  conv_cpu_detail::with_compute_type(args.dtype, [&]<class T> {
    parallel_for(args.columns, conv_cpu_detail::columns_at_once,
                 [&](std::int64_t begin, std::int64_t end) { conv_cpu_detail::sum_columns<T>(args, begin, end); });
  });
}

}  // namespace thimble::kernels
