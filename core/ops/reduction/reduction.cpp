#include <thimble/core/ops/reduction/reduction.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/functors/elementwise_functors.h>
#include <thimble/core/kernels/lines.h>
#include <thimble/core/kernels/softmax.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/unrecorded.h>
#include <thimble/core/tensor/view.h>

namespace thimble {

namespace {

kernels::ReduceOperand operand(const Tensor& t, AxisMask axes, const Addresses& at) {
  const AxisSplit strides = split_axes(t.strides(), axes);
  return {at(t), t.dtype(), strides.kept, strides.reduced};
}

// Workspace between the stages of a long reduction, `doubles` per output and range; undefined if one stage suffices.
Tensor partial_room(const Tensor& t, const AxisSplit& sizes, std::int64_t doubles) {
  const std::int64_t count = kernels::reduce_partial_elements(sizes.kept.elements(), sizes.reduced.elements());
  return count > 0 ? Tensor::empty({doubles * count}, DType::f64, t.device(), memory::Category::workspace) : Tensor();
}

}  // namespace

Axes::Axes(std::span<const int> axes) : count_(axes.size()) {
  if (axes.size() > axes_.size()) {
    throw ShapeError("axes: " + std::to_string(axes.size()) + " axes, a tensor has at most " +
                     std::to_string(max_rank));
  }
  std::copy(axes.begin(), axes.end(), axes_.begin());
}

AxisMask axis_mask(const char* operation, std::span<const int> axes, int rank) {
  if (axes.empty()) return (AxisMask{1} << rank) - 1;
  AxisMask mask = 0;
  for (const int axis : axes) {
    const AxisMask bit = AxisMask{1} << normalize_axis(operation, axis, rank);
    if (mask & bit) throw ShapeError(std::string(operation) + ": axis " + std::to_string(axis) + " is named twice");
    mask |= bit;
  }
  return mask;
}

Shape reduced_shape(const Shape& shape, AxisMask axes, bool keep_axes) {
  Shape result;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const bool is_reduced = (axes >> axis) & 1u;
    if (!is_reduced || keep_axes) result.push_back(is_reduced ? 1 : shape[axis]);
  }
  return result;
}

AxisSplit split_axes(const Shape& sizes, AxisMask axes) {
  AxisSplit split;
  for (int axis = 0; axis < sizes.rank(); ++axis) {
    (((axes >> axis) & 1u) ? split.reduced : split.kept).push_back(sizes[axis]);
  }
  return split;
}

Tensor reduce_sum(const Tensor& t, AxisMask axes, bool keep_axes) {
  check_unrecorded("reduce_sum", t, "sum()");
  const DType dtype = is_floating(t.dtype()) ? t.dtype() : DType::i64;
  Tensor out = Tensor::empty(reduced_shape(t.shape(), axes, keep_axes), dtype, t.device());
  out.set_tape_ref({}, t.origin_unrecorded());
  reduce_into(out, t, axes);
  return out;
}

void reduce_into(const Tensor& out, const Tensor& t, AxisMask axes, kernels::ReduceMap map, const Tensor& other,
                 double divisor, double parameter) {
  if (out.elements() == 0) return;
  const AxisSplit sizes = split_axes(t.shape(), axes);
  const Tensor partial = partial_room(t, sizes, 1);
  launch(t.device(), [&](const Addresses& at) {
    kernels::ReduceArgs args;
    args.kept = sizes.kept;
    args.reduced = sizes.reduced;
    args.in = operand(t, axes, at);
    args.map = map;
    if (other.defined()) args.other = operand(view::expand(other, t.shape()), axes, at);
    args.parameter = parameter;
    args.divisor = divisor;
    args.out = at(out);
    args.out_dtype = out.dtype();
    args.partial = at.as<double>(partial);
    kernels::reduce_kernels(t.device()).sum(args);
  });
}

void extreme_into(const char* operation, const Tensor& values, const Tensor& places, const Tensor& t, AxisMask axes,
                  bool is_max) {
  const AxisSplit sizes = split_axes(t.shape(), axes);
  if (sizes.kept.elements() == 0) return;
  if (sizes.reduced.elements() == 0) {
    throw ShapeError(std::string(operation) + ": there is nothing to choose from in " + describe(t));
  }
  const Tensor partial = partial_room(t, sizes, 2);
  launch(t.device(), [&](const Addresses& at) {
    kernels::ExtremeArgs args;
    args.kept = sizes.kept;
    args.reduced = sizes.reduced;
    args.in = operand(t, axes, at);
    args.is_max = is_max;
    if (values.defined()) {
      args.values = at(values);
      args.values_dtype = values.dtype();
    }
    if (places.defined()) {
      args.places = at(places);
      args.places_dtype = places.dtype();
    }
    args.partial = at.as<double>(partial);
    kernels::reduce_kernels(t.device()).extreme(args);
  });
}

Tensor sum_to(const Tensor& t, const Shape& shape) {
  if (t.shape() == shape) return t;
  const int lead = t.rank() - shape.rank();
  AxisMask axes = 0;
  for (int axis = 0; axis < t.rank(); ++axis) {
    const bool is_repeated = axis < lead || (shape[axis - lead] == 1 && t.shape()[axis] != 1);
    if (is_repeated) axes |= AxisMask{1} << axis;
  }
  return view::reshape(reduce_sum(t, axes, true), shape);
}

}  // namespace thimble

namespace thimble::ops {

namespace {

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

// The gradient of x by a functor of x, y and dy.
template <class Functor>
Gradients gradient_by(const char* name, Functor functor, const Tensor& x, const Tensor& y, const Tensor& dy,
                      AxisMask axes) {
  const Tensor with = with_axes(dy, x.shape(), axes), all_y = with_axes(y, x.shape(), axes);
  const Tensor dx = reused_or_new(x);
  elementwise_detail::run(name, functor, {&x, &all_y, &with}, dx);
  return {dx};
}

}  // namespace

Tensor Sum::forward(const Tensor& x, Needs, Saved& saved) const {
  saved.from = x.shape();
  return reduce_sum(x, axes, keep_axes);
}

Gradients Sum::backward(Saved saved, Tensor dy, Needs) const { return {repeated(dy, saved.from, axes)}; }

Tensor Mean::forward(const Tensor& x, Needs, Saved& saved) const {
  check_floating(name, x);
  saved.from = x.shape();
  const Tensor y = Tensor::empty_like(x, reduced_shape(x.shape(), axes, keep_axes));
  const auto count = static_cast<double>(reduced_elements(x.shape(), axes));
  reduce_into(y, x, axes, kernels::ReduceMap::value, Tensor(), count);
  return y;
}

Gradients Mean::backward(Saved saved, Tensor dy, Needs) const {
  const auto count = static_cast<double>(reduced_elements(saved.from, axes));
  const Tensor share = reused_or_new(dy);
  elementwise_detail::run(name, MulScalar{1 / count}, {&dy}, share);
  return {repeated(share, saved.from, axes)};
}

Tensor Variance::forward(const Tensor& x, Needs needs, Saved& saved) const {
  check_floating(name, x);
  if (correction != 0 && correction != 1) {
    throw ValueError(std::string(name) + ": correction " + std::to_string(correction) + " is neither 0 nor 1");
  }
  const auto count = static_cast<double>(reduced_elements(x.shape(), axes));
  const Tensor y = Tensor::empty_like(x, reduced_shape(x.shape(), axes, keep_axes));
  const Tensor mean = Tensor::empty(reduced_shape(x.shape(), axes, true), statistic_dtype(x.dtype()), x.device());
  // Products are summed in f64: f32 sums of numbers near the largest f32 overflow.
  reduce_into(mean, x, axes, kernels::ReduceMap::product, full({}, 1, x.dtype(), x.device()), count);
  reduce_into(y, x, axes, kernels::ReduceMap::squared_difference, mean, std::max(0.0, count - correction));
  if (needs[0]) saved.x = x, saved.mean = mean;
  return y;
}

Gradients Variance::backward(Saved saved, Tensor dy, Needs) const {
  const Tensor& x = saved.x;
  const auto count = static_cast<double>(reduced_elements(x.shape(), axes));
  const Tensor with = with_axes(dy, x.shape(), axes);
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
    const DType dtype = place_dtype(reduced_elements(x.shape(), axes));
    saved.places = Tensor::empty(shape, dtype, x.device());
  }
  extreme_into(name, y, saved.places, x, axes, is_max);
  return y;
}

template <bool is_max>
Gradients Extreme<is_max>::backward(Saved saved, Tensor dy, Needs) const {
  return {place(saved.places, saved.from, axes, dy)};
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
  check_floating(name, x);
  const Tensor squares = Tensor::empty(reduced_shape(x.shape(), axes, keep_axes), DType::f64, x.device());
  reduce_into(squares, x, axes, kernels::ReduceMap::product, x);
  elementwise_detail::run(name, Sqrt{}, {&squares}, squares);
  const Tensor y = to_dtype(squares, x.dtype());
  if (needs[0]) saved.x = x, saved.y = y;
  return y;
}

Gradients Norm::backward(Saved saved, Tensor dy, Needs) const {
  return gradient_by(name, NormGradient{}, saved.x, saved.y, dy, axes);
}

Tensor DotProduct::forward(const Tensor& a, const Tensor& b, Needs needs, Saved& saved) const {
  if (elementwise_detail::common_shape(name, {&a, &b}) != a.shape() || a.shape() != b.shape()) {
    throw ShapeError(std::string(name) + ": a " + describe(a) + " and b " + describe(b) + " must have one shape");
  }
  check_floating(name, a);
  const Tensor y = Tensor::empty(reduced_shape(a.shape(), axes, false), DType::f64, a.device());
  reduce_into(y, a, axes, kernels::ReduceMap::product, b);
  if (needs.any()) saved.a = a, saved.b = b;
  return y;
}

Gradients DotProduct::backward(Saved saved, Tensor dy, Needs needs) const {
  const Tensor with = with_axes(dy, saved.a.shape(), axes);
  const auto gradient = [&](bool is_needed, const Tensor& other) {
    if (!is_needed) return Tensor();
    const Tensor wide = to_dtype(other, DType::f64);
    const Tensor d = other.dtype() == DType::f64 ? Tensor::empty_like(wide, wide.shape()) : wide;
    elementwise_detail::run(name, Mul{}, {&with, &wide}, d);
    return to_dtype(d, other.dtype());
  };
  return {gradient(needs[0], saved.b), gradient(needs[1], saved.a)};
}

Tensor LogSumExp::forward(const Tensor& x, Needs needs, Saved& saved) const {
  check_floating(name, x);
  const Tensor exact = Tensor::empty(reduced_shape(x.shape(), axes, keep_axes), statistic_dtype(x.dtype()), x.device());
  if (reduced_elements(x.shape(), axes) == 0) {
    fill(exact, -std::numeric_limits<double>::infinity());
  } else {
    extreme_into(name, exact, Tensor(), x, axes, true);
    reduce_into(exact, x, axes, kernels::ReduceMap::exp_difference, with_axes(exact, x.shape(), axes));
  }
  const Tensor y = to_dtype(exact, x.dtype());
  if (needs[0]) saved.x = x, saved.y = exact;
  return y;
}

Gradients LogSumExp::backward(Saved saved, Tensor dy, Needs) const {
  return gradient_by(name, LogSumExpGradient{}, saved.x, saved.y, dy, axes);
}

namespace {

struct SoftmaxForm {
  const char* name;
  int axis;
  double scale = 1;
  bool is_log = false;
  bool is_causal = false;
};

Shape without_axis(Shape sizes, int axis) {
  sizes.erase(axis);
  return sizes;
}

int checked_axis(const SoftmaxForm& form, const Tensor& x) {
  if (!is_floating(x.dtype())) throw DTypeError(std::string(form.name) + ": " + describe(x) + " is not floating");
  const int axis = view::axis_of(form.name, form.axis, x);
  if (!form.is_causal) return axis;
  if (x.rank() < 2 || axis != x.rank() - 1 || x.shape()[axis] < x.shape()[axis - 1]) {
    throw ShapeError(std::string(form.name) +
                     ": causal scores must be (..., T, S) with S >= T and the last axis reduced, got " + describe(x) +
                     " and axis " + std::to_string(form.axis));
  }
  return axis;
}

Tensor softmax_of(const SoftmaxForm& form, const Tensor& x) {
  const int axis = checked_axis(form, x);
  const Tensor y = Tensor::empty_like(x);  // as x
  if (y.elements() == 0) return y;
  launch(x.device(), [&](const Addresses& at) {
    kernels::SoftmaxArgs args;
    args.outer = without_axis(x.shape(), axis);
    args.length = x.shape()[axis];
    args.x = {at(x), x.dtype(), without_axis(x.strides(), axis), x.strides()[axis]};
    args.y = {at(y), y.dtype(), without_axis(y.strides(), axis), y.strides()[axis]};
    args.scale = form.scale;
    args.is_log = form.is_log;
    args.causal_queries = form.is_causal ? x.shape()[axis - 1] : 0;
    kernels::softmax_kernels(x.device()).forward(args);
  });
  return y;
}

// Writes in the buffer of dy or y if one is reusable.
Tensor softmax_backward(const SoftmaxForm& form, const Tensor& y, const Tensor& dy) {
  const int axis = normalize_axis(form.name, form.axis, y.rank());
  const Tensor dx = is_reusable(dy) ? dy : reused_or_new(y);  // as x
  if (y.elements() == 0) return dx;
  launch(y.device(), [&](const Addresses& at) {
    kernels::SoftmaxBackwardArgs args;
    args.outer = without_axis(y.shape(), axis);
    args.length = y.shape()[axis];
    args.y = {at(y), y.dtype(), without_axis(y.strides(), axis), y.strides()[axis]};
    args.dy = {at(dy), dy.dtype(), without_axis(dy.strides(), axis), dy.strides()[axis]};
    args.dx = {at(dx), dx.dtype(), without_axis(dx.strides(), axis), dx.strides()[axis]};
    args.scale = form.scale;
    args.is_log = form.is_log;
    args.causal_queries = form.is_causal ? y.shape()[axis - 1] : 0;
    kernels::softmax_kernels(y.device()).backward(args);
  });
  return dx;
}

}  // namespace

Tensor Softmax::forward(const Tensor& x, Needs needs, Saved& saved) const {
  if (!std::isfinite(scale))
    throw ValueError(std::string(name) + ": scale " + std::to_string(scale) + " is not finite");
  const Tensor y = softmax_of({name, axis, scale, false, is_causal}, x);
  if (needs[0]) saved.y = y;
  return y;
}

Gradients Softmax::backward(Saved saved, Tensor dy, Needs) const {
  return {softmax_backward({name, axis, scale, false, is_causal}, saved.y, dy)};
}

Tensor LogSoftmax::forward(const Tensor& x, Needs needs, Saved& saved) const {
  const Tensor y = softmax_of({name, axis, 1, true, false}, x);
  if (needs[0]) saved.y = y;
  return y;
}

Gradients LogSoftmax::backward(Saved saved, Tensor dy, Needs) const {
  return {softmax_backward({name, axis, 1, true, false}, saved.y, dy)};
}

namespace {

kernels::LineShape lines_of(const Shape& shape, int axis) {
  kernels::LineShape lines{1, shape[axis], 1};
  for (int i = 0; i < shape.rank(); ++i) {
    if (i < axis) lines.outer *= shape[i];
    if (i > axis) lines.inner *= shape[i];
  }
  return lines;
}

DType wide(DType dtype) { return is_floating(dtype) ? dtype : DType::i64; }

// Running sums of dense `in` into `out`, which may be `in`.
void cumsum_into(const Tensor& out, const Tensor& in, int axis, bool is_reverse) {
  if (in.elements() == 0) return;
  launch(in.device(), [&](const Addresses& at) {
    kernels::CumSumArgs args;
    args.shape = lines_of(in.shape(), axis);
    args.dtype = in.dtype();
    args.in = at(in);
    args.out = at(out);
    args.is_reverse = is_reverse;
    kernels::line_kernels(in.device()).cumsum(args);
  });
}

// Throws for the first row that is no distribution.
void check_weights(const char* name, const Tensor& weights, const Tensor& sums) {
  std::int64_t bad = -1;
  launch(weights.device(), [&](const Addresses& at) {
    if (!weights.device().is_cpu()) return;
    const double *const w = at.as<double>(weights), *const s = at.as<double>(sums);
    const std::int64_t length = weights.shape().back();
    for (std::int64_t i = 0; i < weights.elements() && bad < 0; ++i) {
      const bool is_last = i % length == length - 1;
      if (!(w[i] >= 0) || (is_last && !(s[i] > 0 && std::isfinite(s[i])))) bad = i / length;
    }
  });
  if (bad < 0) return;
  throw ValueError(std::string(name) + ": the weights of row " + std::to_string(bad) +
                   ": expected finite ones, at least 0, with a sum above 0");
}

}  // namespace

Tensor CumSum::forward(const Tensor& x, Needs, Saved&) const {
  const int along = view::axis_of(name, axis, x);
  const Tensor y = Tensor::empty(x.shape(), wide(x.dtype()), x.device());
  cumsum_into(y, contiguous(x), along, false);
  return y;
}

Gradients CumSum::backward(Saved, Tensor dy, Needs) const {
  const int along = normalize_axis(name, axis, dy.rank());
  const Tensor dx = reused_or_new(dy);
  cumsum_into(dx, contiguous(dy), along, true);
  return {dx};
}

Tensor Prod::forward(const Tensor& operand, Needs needs, Saved& saved) const {
  const int along = view::axis_of(name, axis, operand);
  Shape shape = operand.shape();
  shape[along] = 1;
  if (!keep_axis) shape.erase(along);
  const Tensor x = contiguous(operand);
  const Tensor y = Tensor::empty(shape, wide(x.dtype()), x.device());
  launch(x.device(), [&](const Addresses& at) {
    kernels::line_kernels(x.device()).prod({lines_of(x.shape(), along), x.dtype(), at(x), at(y)});
  });
  if (needs[0]) saved.x = operand;
  return y;
}

Gradients Prod::backward(Saved saved, Tensor dy, Needs) const {
  const int along = normalize_axis(name, axis, saved.x.rank());
  dy = contiguous(dy);
  const Tensor dx = reused_or_new(saved.x);
  const Tensor x = contiguous(saved.x);
  launch(x.device(), [&](const Addresses& at) {
    kernels::line_kernels(x.device()).prod_backward({lines_of(x.shape(), along), x.dtype(), at(x), at(dy), at(dx)});
  });
  return {dx};
}

Tensor ArgSort::forward(const Tensor& x, Needs, Saved&) const {
  const int along = view::axis_of(name, axis, x);
  const std::int64_t length = x.shape()[along];
  if (count < 0 || count > length || length > std::numeric_limits<std::int32_t>::max()) {
    throw ShapeError(std::string(function) + ": " + std::to_string(count) + " of axis " + std::to_string(along) +
                     " of " + describe(x) + ", expected 0 to its size, which is below 2^31");
  }
  const Tensor rows = contiguous(view::transpose(x, along, -1));
  Shape shape = rows.shape();
  shape[shape.rank() - 1] = count;
  const Tensor order = Tensor::empty(shape, DType::i32, x.device());
  const std::int64_t row_count = lines_of(x.shape(), along).lines();
  const std::int64_t room = kernels::sort_workspace_elements(x.device(), row_count, length);
  const Tensor workspace =
      room > 0 ? Tensor::empty({room}, DType::i32, x.device(), memory::Category::workspace) : Tensor();
  launch(x.device(), [&](const Addresses& at) {
    kernels::SortArgs args;
    args.rows = row_count;
    args.length = length;
    args.count = count;
    args.dtype = x.dtype();
    args.is_descending = is_descending;
    args.x = at(rows);
    args.order = at.as<std::int32_t>(order);
    args.workspace = at.as<std::int32_t>(workspace);
    kernels::line_kernels(x.device()).sort(args);
  });
  return view::transpose(order, along, -1);
}

Gradients ArgSort::backward(Saved, Tensor, Needs) const { return {Tensor()}; }

Tensor Choose::forward(const Tensor& weights, const Tensor& points, Needs, Saved&) const {
  const Tensor w = contiguous(to_dtype(weights, DType::f64)), u = contiguous(points);
  const Tensor sums = Tensor::empty(w.shape(), DType::f64, w.device(), memory::Category::workspace);
  cumsum_into(sums, w, w.rank() - 1, false);
  check_weights(name, w, sums);
  const Tensor places = Tensor::empty(u.shape(), DType::i64, u.device());
  launch(u.device(), [&](const Addresses& at) {
    const std::int64_t length = w.shape().back(), count = u.shape().back();
    kernels::line_kernels(u.device())
        .choose({u.elements() / std::max<std::int64_t>(1, count), length, count, at.as<double>(sums), at.as<double>(u),
                 at.as<std::int64_t>(places)});
  });
  return places;
}

Gradients Choose::backward(Saved, Tensor, Needs) const { return {Tensor(), Tensor()}; }

}  // namespace thimble::ops
