// The weight's gradient: a matmul that sums over all pixels.

#include <thimble/core/kernels/conv_execute.h>

namespace thimble::kernels::conv_detail {
namespace weight_grad_detail {

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

/// The transpose, (taps and channels, pixels) x (pixels, filters): the same products in the same order, but the
/// window's overlapping taps are read where they lie instead of being packed one by one.
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
  if (!is_pointwise(s) && LeftTurnedWindow<T>::can_read(input_window(s, args.x, args.dtype))) {
    return multiply_turned(args, execute);
  }
  multiply_straight(args, execute);
}

template void multiply(const ConvWeightGradArgs& args, Executor<float>& execute) noexcept;
template void multiply(const ConvWeightGradArgs& args, Executor<double>& execute) noexcept;

}  // namespace thimble::kernels::conv_detail
