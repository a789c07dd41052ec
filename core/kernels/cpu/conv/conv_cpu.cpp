#include <thimble/core/kernels/conv.h>

#include <algorithm>
#include <optional>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/conv/conv_driver.h>

namespace thimble::kernels {
namespace conv_detail {

/// (pixels, taps and channels) x (taps and channels, filters).
template <class T>
void multiply(const ConvForwardArgs& args, Executor<T>& execute) noexcept {
  const ConvShape& s = args.shape;
  const Group group(s);
  const double conversion = conversion_cycles<T>(args.dtype);
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
    problem.sums_in_out = args.out_dtype == dtype_of<T>;
    problem.copies_left = conversion != 0;
    problem.left_cost = conversion == 0 ? in_place_cycles : copy_left_cycles + conversion;
    execute(problem, LeftMatrix<T>({args.x, s.channels, 1, args.dtype}), right, output);
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    if (winograd_pays(s)) {
      execute({{args.x, args.dtype, s.height, s.width, s.channels},
               {args.weight, args.dtype, s.filters, s.channels, false},
               s.images,
               s.out_height(),
               s.out_width(),
               -s.pad_top,
               -s.pad_left},
              output);
      return;
    }
  }
  const ConvWindow window = input_window(s, args.x, args.dtype);
  if (PixelWindow::can_read<T>(window)) {
    const PixelWindow pixels{window, s.images};
    const std::int64_t line = s.out_width() * s.filters;
    output.rows = pixel_rows(pixels, s.filters, line, s.out_height() * line);
    problem.left_cost = in_place_cycles + conversion;
    execute(problem, pixels, right, output);
  } else {
    multiply_window(problem, window, right, output, execute);
  }
}

}  // namespace conv_detail

namespace conv_cpu_detail {

inline constexpr std::int64_t columns_at_once = 16;  // columns that a sum takes at once; a cache line of floats
inline constexpr std::int64_t max_columns_together = 8 * columns_at_once;

/// sums[j] += element j of `count` in each of the rows, which lie `stride` elements apart.
template <class T, class From>
struct AddRows {
  static constexpr std::int64_t rows_ahead = 8;  // whose lines are prefetched, because rows are far apart

  static void run(const From* rows, std::int64_t stride, std::int64_t row_count, std::int64_t count,
                  T* __restrict sums) noexcept {
    for (std::int64_t i = 0; i < row_count; ++i) {
      const From* __restrict const row = rows + i * stride;
      const From* const later = row + rows_ahead * stride;
      for (std::int64_t j = 0; j < count; j += 64 / static_cast<std::int64_t>(sizeof(From))) {
        __builtin_prefetch(later + j);
      }
      for (std::int64_t j = 0; j < count; ++j) sums[j] += static_cast<T>(row[j]);
    }
  }
};

/// The same for elements of any dtype whose compute type is T, from element `first` of `data` on.
template <class T>
void add_rows(const void* data, DType dtype, std::int64_t first, std::int64_t stride, std::int64_t row_count,
              std::int64_t count, T* sums) noexcept {
  const auto add = [&](auto zero) {
    using From = decltype(zero);
    run_variant<AddRows<T, From>>(static_cast<const From*>(data) + first, stride, row_count, count, sums);
  };
  if (dtype == dtype_of<T>) return add(T{});
  if constexpr (std::is_same_v<T, float>) {
    if (dtype == DType::bf16) return add(bf16{});
  }
  constexpr std::int64_t most = 8;
  T rows[most * max_columns_together];
  for (std::int64_t i = 0; i < row_count; i += most) {
    const std::int64_t some = std::min(most, row_count - i);
    load_rows(data, dtype, first + i * stride, stride, some, count, rows, count);
    run_variant<AddRows<T, T>>(static_cast<const T*>(rows), count, some, count, sums);
  }
}

/// Sums of columns [begin, end), in the order of accumulation of a matmul.
template <class T>
void sum_columns(const ColumnSumArgs& args, std::int64_t begin, std::int64_t end) noexcept {
  constexpr std::int64_t chunk = max_columns_together;
  T total[chunk], block[chunk];
  for (std::int64_t column = begin; column < end; column += chunk) {
    const std::int64_t count = std::min(chunk, end - column);
    for (std::int64_t start = 0; start < args.rows; start += gemm_detail::block_depth) {
      const std::int64_t stop = std::min(start + gemm_detail::block_depth, args.rows);
      std::fill(block, block + count, T{0});
      add_rows(args.in, args.dtype, start * args.columns + column, args.columns, stop - start, count, block);
      for (std::int64_t j = 0; j < count; ++j) total[j] = start == 0 ? block[j] : total[j] + block[j];
    }
    if (args.rows == 0) std::fill(total, total + count, T{0});
    if (args.accumulate) {
      load_elements(args.out, args.out_dtype, column, 1, block, count);
      for (std::int64_t j = 0; j < count; ++j) total[j] += block[j];
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

template <class F>
void with_compute_type(DType dtype, F&& f) noexcept {
  if (compute_type(dtype) == ComputeType::f64) {
    f.template operator()<double>();
  } else {
    f.template operator()<float>();
  }
}

/// The bf16 unit that computes the convolution, if any.
template <class Args>
std::optional<DotUnit> unit_of(const Args& args) noexcept {
  constexpr bool is_forward = std::is_same_v<Args, ConvForwardArgs>;
  if (!conv_detail::is_for_bf16_unit(args)) return std::nullopt;
  return bf16_unit(is_forward ? Product::conv_forward : Product::conv_backward);
}

template <class Args>
std::size_t bytes_of(const Args& args, int threads) noexcept {
  if (unit_of(args)) return conv_detail::bf16_workspace_bytes(args, threads);
  if (depthwise::computes(args)) return depthwise::workspace_bytes(args);
  std::size_t bytes = 0;
  with_compute_type(args.dtype, [&]<class T> {
    conv_detail::Executor<T> execute(threads);
    multiply(args, execute);
    bytes = execute.bytes();
  });
  return bytes;
}

template <class Args>
void compute(const Args& args, void* workspace, int threads) noexcept {
  if (const std::optional<DotUnit> unit = unit_of(args)) {
    return conv_detail::compute_bf16(args, workspace, threads, *unit);
  }
  if (depthwise::computes(args)) return depthwise::compute(args, workspace);
  with_compute_type(args.dtype, [&]<class T> {
    conv_detail::Executor<T> execute(threads, workspace);
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
  using conv_cpu_detail::columns_at_once;
  constexpr std::int64_t worthwhile_elements = 1 << 14;
  const std::int64_t columns = worthwhile_elements / std::max<std::int64_t>(1, args.rows);
  conv_cpu_detail::with_compute_type(args.dtype, [&]<class T> {
    parallel_for(args.columns, std::max(columns_at_once, columns / columns_at_once * columns_at_once),
                 [&](std::int64_t begin, std::int64_t end) { conv_cpu_detail::sum_columns<T>(args, begin, end); });
  });
}

}  // namespace thimble::kernels
