#include <thimble/core/ops/reduction/reduce.h>

#include <algorithm>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/unrecorded.h>
#include <thimble/core/tensor/view.h>

namespace thimble {
namespace reduce_detail {

kernels::ReduceOperand operand(const Tensor& t, AxisMask axes, const Addresses& at) {
  const AxisSplit strides = split_axes(t.strides(), axes);
  return {at(t), t.dtype(), strides.kept, strides.reduced};
}

// Room between the stages of a long reduction, `doubles` per output and range; undefined when one stage suffices.
Tensor partial_room(const Tensor& t, const AxisSplit& sizes, std::int64_t doubles) {
  const std::int64_t count = kernels::reduce_partial_elements(sizes.kept.elements(), sizes.reduced.elements());
  return count > 0 ? Tensor::empty({doubles * count}, DType::f64, t.device(), Category::workspace) : Tensor();
}

}  // namespace reduce_detail

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
  const Tensor partial = reduce_detail::partial_room(t, sizes, 1);
  launch(t.device(), [&](const Addresses& at) {
    kernels::ReduceArgs args;
    args.kept = sizes.kept;
    args.reduced = sizes.reduced;
    args.in = reduce_detail::operand(t, axes, at);
    args.map = map;
    if (other.defined()) args.other = reduce_detail::operand(view::expand(other, t.shape()), axes, at);
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
  const Tensor partial = reduce_detail::partial_room(t, sizes, 2);
  launch(t.device(), [&](const Addresses& at) {
    kernels::ExtremeArgs args;
    args.kept = sizes.kept;
    args.reduced = sizes.reduced;
    args.in = reduce_detail::operand(t, axes, at);
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
