#include <thimble/core/ops/reduction/reduction.h>

#include <algorithm>
#include <limits>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/ops/elementwise/elementwise_functors.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>

namespace thimble::ops {
namespace reduction_detail {

void check_floating(const char* name, const Tensor& x) {
  if (!is_floating(x.dtype())) throw DTypeError(std::string(name) + ": " + describe(x) + " is not floating");
}

DType statistic_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

// A reduction's result with its axes of size 1 restored, so that it broadcasts to the operand.
Tensor with_axes(const Tensor& t, const Shape& from, AxisMask axes) {
  const Shape shape = reduced_shape(from, axes, true);
  return view::reshape(view::can_reshape(t, shape) ? t : contiguous(t), shape);
}

Tensor repeated(const Tensor& dy, const Shape& from, AxisMask axes) {
  return view::expand(with_axes(dy, from, axes), from);
}

std::int64_t reduced_elements(const Shape& shape, AxisMask axes) { return split_axes(shape, axes).reduced.elements(); }

DType place_dtype(std::int64_t elements) {
  if (elements <= 256) return DType::u8;
  return elements <= std::numeric_limits<std::int32_t>::max() ? DType::i32 : DType::i64;
}

// dy at the kept indices, zeros elsewhere.
Tensor place(const Tensor& places, const Shape& from, AxisMask axes, const Tensor& dy) {
  const Tensor dx = zeros(from, dy.dtype(), dy.device());
  if (dx.elements() == 0) return dx;
  const Tensor with = with_axes(dy, from, axes);
  launch(dx.device(), [&](const Addresses& at) {
    const AxisSplit sizes = split_axes(from, axes), strides = split_axes(dx.strides(), axes);
    kernels::PlaceArgs args;
    args.kept = sizes.kept;
    args.reduced = sizes.reduced;
    args.dy = at(with);
    args.dy_strides = split_axes(with.strides(), axes).kept;
    args.places = at(places);
    args.places_dtype = places.dtype();
    args.out = at(dx);
    args.dtype = dx.dtype();
    args.out_kept_strides = strides.kept;
    args.out_reduced_strides = strides.reduced;
    kernels::reduce_kernels(dx.device()).place(args);
  });
  return dx;
}

}  // namespace reduction_detail

Tensor Sum::forward(const Tensor& x, Needs, Saved& saved) const {
  saved.from = x.shape();
  return reduce_sum(x, axes, keep_axes);
}

Gradients Sum::backward(Saved saved, Tensor dy, Needs) const {
  return {reduction_detail::repeated(dy, saved.from, axes)};
}

Tensor Mean::forward(const Tensor& x, Needs, Saved& saved) const {
  reduction_detail::check_floating(name, x);
  saved.from = x.shape();
  const Tensor y = Tensor::empty_like(x, reduced_shape(x.shape(), axes, keep_axes));
  const auto count = static_cast<double>(reduction_detail::reduced_elements(x.shape(), axes));
  reduce_into(y, x, axes, kernels::ReduceMap::value, Tensor(), count);
  return y;
}

Gradients Mean::backward(Saved saved, Tensor dy, Needs) const {
  const auto count = static_cast<double>(reduction_detail::reduced_elements(saved.from, axes));
  const Tensor share = reused_or_new(dy);
  elementwise_detail::run(name, MulScalar{1 / count}, {&dy}, share);
  return {reduction_detail::repeated(share, saved.from, axes)};
}

Tensor Variance::forward(const Tensor& x, Needs needs, Saved& saved) const {
  reduction_detail::check_floating(name, x);
  if (correction != 0 && correction != 1) {
    throw ValueError(std::string(name) + ": correction " + std::to_string(correction) + " is neither 0 nor 1");
  }
  const auto count = static_cast<double>(reduction_detail::reduced_elements(x.shape(), axes));
  const Tensor y = Tensor::empty_like(x, reduced_shape(x.shape(), axes, keep_axes));
  const Tensor mean =
      Tensor::empty(reduced_shape(x.shape(), axes, true), reduction_detail::statistic_dtype(x.dtype()), x.device());
  reduce_into(mean, x, axes, kernels::ReduceMap::value, Tensor(), count);
  reduce_into(y, x, axes, kernels::ReduceMap::squared_difference, mean, std::max(0.0, count - correction));
  if (needs[0]) {
    saved.x = x;
    saved.mean = mean;
  }
  return y;
}

Gradients Variance::backward(Saved saved, Tensor dy, Needs) const {
  const Tensor& x = saved.x;
  const auto count = static_cast<double>(reduction_detail::reduced_elements(x.shape(), axes));
  const Tensor with = reduction_detail::with_axes(dy, x.shape(), axes);
  const Tensor dx = reused_or_new(x);
  elementwise_detail::run(name, VarianceGradient{2 / std::max(0.0, count - correction)}, {&x, &saved.mean, &with}, dx);
  return {dx};
}

template <bool is_max>
Tensor Extreme<is_max>::forward(const Tensor& x, Needs needs, Saved& saved) const {
  saved.from = x.shape();
  const Shape shape = reduced_shape(x.shape(), axes, keep_axes);
  const Tensor y = Tensor::empty_like(x, shape);
  if (needs[0]) {
    const DType dtype = reduction_detail::place_dtype(reduction_detail::reduced_elements(x.shape(), axes));
    saved.places = Tensor::empty(shape, dtype, x.device());
  }
  extreme_into(name, y, saved.places, x, axes, is_max);
  return y;
}

template <bool is_max>
Gradients Extreme<is_max>::backward(Saved saved, Tensor dy, Needs) const {
  return {reduction_detail::place(saved.places, saved.from, axes, dy)};
}

template struct Extreme<true>;
template struct Extreme<false>;

template <bool is_max>
Tensor ArgExtreme<is_max>::forward(const Tensor& x, Needs, Saved&) const {
  const Tensor places = Tensor::empty(reduced_shape(x.shape(), axes, keep_axes), DType::i64, x.device());
  extreme_into(name, Tensor(), places, x, axes, is_max);
  return places;
}

template <bool is_max>
Gradients ArgExtreme<is_max>::backward(Saved, Tensor, Needs) const {
  return {Tensor()};
}

template struct ArgExtreme<true>;
template struct ArgExtreme<false>;

Tensor Norm::forward(const Tensor& x, Needs needs, Saved& saved) const {
  reduction_detail::check_floating(name, x);
  const DType dtype = reduction_detail::statistic_dtype(x.dtype());
  const Tensor squares = Tensor::empty(reduced_shape(x.shape(), axes, keep_axes), dtype, x.device());
  const Tensor zero = zeros({}, dtype, x.device(), Category::workspace);
  reduce_into(squares, x, axes, kernels::ReduceMap::squared_difference, zero);
  elementwise_detail::run(name, Sqrt{}, {&squares}, squares);
  const Tensor y = to_dtype(squares, x.dtype());
  if (needs[0]) {
    saved.x = x;
    saved.y = y;
  }
  return y;
}

Gradients Norm::backward(Saved saved, Tensor dy, Needs) const {
  const Tensor& x = saved.x;
  const Tensor with = reduction_detail::with_axes(dy, x.shape(), axes);
  const Tensor y = reduction_detail::with_axes(saved.y, x.shape(), axes);
  const Tensor dx = reused_or_new(x);
  elementwise_detail::run(name, NormGradient{}, {&x, &y, &with}, dx);
  return {dx};
}

Tensor LogSumExp::forward(const Tensor& x, Needs needs, Saved& saved) const {
  reduction_detail::check_floating(name, x);
  const Tensor exact = Tensor::empty(reduced_shape(x.shape(), axes, keep_axes),
                                     reduction_detail::statistic_dtype(x.dtype()), x.device());
  if (reduction_detail::reduced_elements(x.shape(), axes) == 0) {
    fill(exact, -std::numeric_limits<double>::infinity());
  } else {
    extreme_into(name, exact, Tensor(), x, axes, true);
    reduce_into(exact, x, axes, kernels::ReduceMap::exp_difference,
                reduction_detail::with_axes(exact, x.shape(), axes));
  }
  const Tensor y = to_dtype(exact, x.dtype());
  if (needs[0]) {
    saved.x = x;
    saved.y = exact;
  }
  return y;
}

Gradients LogSumExp::backward(Saved saved, Tensor dy, Needs) const {
  const Tensor& x = saved.x;
  const Tensor with = reduction_detail::with_axes(dy, x.shape(), axes);
  const Tensor y = reduction_detail::with_axes(saved.y, x.shape(), axes);
  const Tensor dx = reused_or_new(x);
  elementwise_detail::run(name, LogSumExpGradient{}, {&x, &y, &with}, dx);
  return {dx};
}

}  // namespace thimble::ops
