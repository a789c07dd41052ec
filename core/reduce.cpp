#include <thimble/core/reduce.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/reduce.h>
#include <thimble/core/launch.h>
#include <thimble/core/view.h>

namespace thimble {

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

Tensor reduce_sum(const Tensor& t, AxisMask axes, bool keep_axes) {
  kernels::ReduceArgs args;
  for (int axis = 0; axis < t.rank(); ++axis) {
    const bool is_reduced = (axes >> axis) & 1u;
    (is_reduced ? args.reduced : args.kept).push_back(t.shape()[axis]);
    (is_reduced ? args.reduced_strides : args.kept_strides).push_back(t.strides()[axis]);
  }
  const DType dtype = is_floating(t.dtype()) ? t.dtype() : DType::i64;
  const Tensor out = Tensor::empty(reduced_shape(t.shape(), axes, keep_axes), dtype, t.device());
  if (out.elements() == 0) return out;
  Tensor partial;
  const std::int64_t partial_elements = kernels::reduce_partial_elements(args.kept.elements(), args.reduced.elements());
  if (partial_elements > 0) partial = Tensor::empty({partial_elements}, DType::f64, t.device(), Category::workspace);
  launch(t.device(), [&](const Addresses& at) {
    args.in = at(t);
    args.in_dtype = t.dtype();
    args.out = at(out);
    args.out_dtype = dtype;
    args.partial = at.as<double>(partial);
    kernels::reduce_kernels(t.device()).sum(args);
  });
  return out;
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
