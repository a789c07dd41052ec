#pragma once
// Unrecorded matrix products of tensors, for operators.

#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// c = act(alpha a b + bias): a (..., M, K), b (..., K, N), c (..., M, N), any strides; leading axes of a and b are
/// expanded to c's. bias (N) and pre_activation (as c) may be undefined. `accumulate` adds to c. The scales of a and b,
/// f32 (1), are factors of alpha that are read when the product runs, only on the CPU.
struct MatmulCall {
  const char* operation;  ///< for errors
  Tensor a, b, c;
  Tensor bias, pre_activation;
  double alpha = 1;
  bool accumulate = false;
  kernels::Activation activation = kernels::Activation::none;
  Tensor a_scale = {}, b_scale = {};
  Tensor workspace = {};  ///< u8, at least matmul_workspace_bytes(); by default the product allocates it
};

/// Bytes that a product needs besides its operands, with the current number of threads.
std::int64_t matmul_workspace_bytes(const MatmulCall& call);

/// Takes the workspace, then launches. Throws ShapeError, DTypeError (floating and integer mixed), DeviceError.
void matmul_into(const MatmulCall& call);

/// x (..., C) as rows (R, C); copies only if the layout forces it.
Tensor as_rows(const Tensor& x);

/// Sums x (R, C) over its rows -> (C), in the matmul kernels' order.
Tensor column_sum(const Tensor& x);

}  // namespace thimble
