#pragma once
// Products of FP8 codes on the FP8 units of a CUDA device, where codes have a scale for the tensor. The tape does not
// see them.

#include <thimble/core/fp8.h>
#include <thimble/core/kernels/activation.h>

namespace thimble {

/// c = act(a_scale b_scale a b^T + bias), the codes a (M, K), b (N, K), c (M, N) with dense rows, in f32, f16 or bf16.
/// The longer of two K is padding, zeros. bias (N) and pre_activation (as c) may be undefined.
struct Fp8MatmulCall {
  const char* operation;  ///< for errors
  Fp8Operand a, b;
  Tensor c;
  Tensor bias, pre_activation;
  kernels::Activation activation = kernels::Activation::none;
};

/// Takes the workspace, then launches. The scales are read when the product runs. Throws ShapeError, DTypeError,
/// DeviceError (the CPU, which multiplies decoded values: core/matmul.h).
void fp8_matmul_into(const Fp8MatmulCall& call);

/// Columns [begin, end) of codes (R, C), turned: (end - begin, R rounded up to a multiple of fp8_multiple), zeros
/// beyond R, into `to`, dense. Throws ShapeError, DTypeError, DeviceError.
void fp8_turn_into(const Tensor& to, const Tensor& codes, std::int64_t begin, std::int64_t end);

}  // namespace thimble
