// The weight's gradient: a matmul that sums over all pixels.

#include <type_traits>

#include <thimble/core/kernels/cpu/conv/conv_execute.h>

namespace thimble::kernels::conv_detail {
namespace weight_grad_detail {

/// (filters, pixels) x (pixels, channels) of one tap on every pixel, or its transpose: the same products in the same
/// order. The left side is copied, so the smaller one is left; the right one may be read in place.
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
