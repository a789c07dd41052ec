#pragma once
// Matrix products.

#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/ops/op.h>

namespace thimble::ops {

/// y = alpha op(a) op(b): a (..., M, K), b (..., K, N) -> (..., M, N); the leading axes broadcast (NumPy's rules). With
/// transpose_a, a is (..., K, M); with transpose_b, b is (..., N, K); neither they nor permuted views are copied.
/// Integers compute in i64. Keeps b for a's gradient and a for b's. Workspace: core/kernels/cpu/matmul/gemm.h.
/// Gradients: da = alpha dy b^T, db = alpha a^T dy, summed over broadcast axes.
struct Matmul {
  static constexpr const char* name = "matmul";
  static constexpr Cost cost = Cost::matmul;
  struct Saved {
    Tensor a, b;
    Shape a_shape, b_shape;
  };
  bool transpose_a = false, transpose_b = false;
  double alpha = 1;

  Tensor forward(const Tensor& a, const Tensor& b, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

/// y = act(x W^T + bias): x (..., I) -> (..., O). The weight is (O, I), or (I, O) with `weight_is_in_out`; bias (O) or
/// undefined. Keeps x for the weight's gradient, the weight for x's, and for the activation's its output (relu) or its
/// input (gelu; written only if kept), from which one pass recomputes y in f32 and f64.
struct Linear {
  static constexpr const char* name = "linear";
  static constexpr Cost cost = Cost::matmul;
  struct Saved {
    Tensor x, weight, activation;
    Shape x_shape;
  };
  kernels::Activation activation = kernels::Activation::none;
  bool weight_is_in_out = false;

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  Tensor output_from_saved(Saved saved, std::span<const Tensor> inputs) const;
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

}  // namespace thimble::ops
