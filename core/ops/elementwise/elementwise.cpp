#include <thimble/core/ops/elementwise/elementwise.h>

#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/elementwise/elementwise_dense.h>
#include <thimble/core/launch/launch.h>

namespace thimble::elementwise_detail {
namespace {

// Strides of `t` over the broadcast shape: 0 along repeated axes.
Shape broadcast_strides(const Tensor& t, const Shape& shape) {
  Shape strides = shape;
  const int lead = shape.rank() - t.rank();
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const bool is_repeated = axis < lead || t.shape()[axis - lead] != shape[axis];
    strides[axis] = is_repeated ? 0 : t.strides()[axis - lead];
  }
  return strides;
}

// Nothing to broadcast, gather or convert.
bool is_dense(const Shape& shape, std::initializer_list<const Tensor*> in, const Tensor& out) {
  const DType dtype = out.dtype();
  if (!out.device().is_cpu() || (dtype != DType::f32 && dtype != DType::f64 && dtype != DType::i64)) return false;
  for (const Tensor* t : in) {
    if (t->defined() && (t->dtype() != dtype || t->shape() != shape || !t->is_contiguous())) return false;
  }
  return true;
}

}  // namespace

Shape common_shape(const char* name, std::initializer_list<const Tensor*> operands) {
  const Tensor* first = nullptr;
  Shape shape;
  for (const Tensor* t : operands) {
    if (!t->defined()) {
      if (first) break;
      throw ShapeError(std::string(name) + ": the first operand is undefined");
    }
    if (!first) {
      first = t;
      shape = t->shape();
      continue;
    }
    if (t->shape() != shape) shape = broadcast(name, shape, t->shape());
    check_one_device(name, *first, *t);
    if (t->dtype() != first->dtype() && t->dtype() != DType::boolean) {
      throw DTypeError(std::string(name) + ": dtypes differ, " + describe(*first) + " and " + describe(*t));
    }
  }
  return shape;
}

void check_dtype(const char* name, DType dtype, bool allows_integers) {
  if (!is_floating(dtype) && !allows_integers) {
    throw DTypeError(std::string(name) + ": " + std::string(to_string(dtype)) + " is not a floating dtype");
  }
}

void run(const char* name, const kernels::ElementwiseFunction& function, int index, int operand, const void* functor,
         const Shape& shape, std::initializer_list<const Tensor*> in, const Tensor& out) {
  if (out.elements() == 0) return;
  if (out.device().is_cuda() && (!kernels::elementwise_cuda || index < 0) && !out.device().is_dry) {
    throw DeviceError(std::string(name) + ": no kernel for " + to_string(out.device()));
  }
  if (is_dense(shape, in, out)) {
    return launch(out.device(), [&](const Addresses& at) {
      kernels::DenseElementwise args;
      for (const Tensor* t : in) {
        if (t->defined()) args.in[static_cast<std::size_t>(args.inputs++)] = at(*t);
      }
      args.out = at(out);
      args.elements = out.elements();
      args.dtype = out.dtype();
      kernels::elementwise_dense_cpu(function, functor, args);
    });
  }
  launch(out.device(), [&](const Addresses& at) {
    kernels::ElementwiseArgs args;
    args.shape = shape;
    for (const Tensor* t : in) {
      if (!t->defined()) continue;
      auto& operand_args = args.in[static_cast<std::size_t>(args.inputs++)];
      operand_args = {at(*t), t->dtype(), broadcast_strides(*t, shape)};
    }
    args.out = at(out);
    args.out_dtype = out.dtype();
    // A condition may be bool, so the compute type comes from the first operand, in backward from dy, the last one.
    const int typed = operand < 0 ? 0 : args.inputs - 1;
    args.compute = compute_type(args.in[static_cast<std::size_t>(typed)].dtype);
    if (out.device().is_cuda()) {
      kernels::elementwise_cuda(index, operand, functor, args);
    } else {
      kernels::elementwise_cpu(function, functor, args);
    }
  });
}

}  // namespace thimble::elementwise_detail
