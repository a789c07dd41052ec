#pragma once
// A linear layer with a low-rank adapter.

#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/ops/op.h>

namespace thimble::ops {

/// y = x W + bias + scale (z A^T) B^T (Hu et al. 2021, arXiv:2106.09685, section 4.1): x (..., I) -> (..., O); W (O,
/// I), or (I, O) with `weight_is_in_out`; bias (O) or undefined; A (r, I), B (O, r); z, shaped as x, is the adapter's
/// input where that is another tensor (x behind dropout), else undefined. The adapter's product is added to the layer's
/// buffer: no other tensor of that size exists, forward or backward.
///
/// Keeps u = z A^T (..., r), an extra, for B's gradient; z for A's and x for W's; W and A for x's; B for all but W's
/// and bias's. With du = scale dy B: dA = du^T z, dB = scale dy^T u, dx = dy W^T + du A (du A goes to z where there is
/// one). Throws ShapeError, DTypeError, DeviceError.
struct LoraLinear {
  static constexpr const char* name = "lora_linear";
  static constexpr Cost cost = Cost::matmul;
  struct Saved {
    Tensor x, weight, z, a, b, u;
    Shape x_shape;
    bool has_z = false;
  };
  double scale = 1;
  bool weight_is_in_out = false;

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& z, const Tensor& a,
                 const Tensor& b, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

// ---- A linear layer with a weight in blocks of 8-bit codes.

/// y = act(x W^T + bias): x (..., I) f32 -> (..., O). W is u8 (O, 34 I / 32): Q8_0 blocks (core/kernels/quant_codes.h),
/// so 1.0625 bytes for a number. Decodes W's rows to f32 a tile at a time, at most 1 MiB (or one row), booked as
/// workspace; the result has the bits of ops::Linear with the whole of W in f32. For inference: throws AutogradError
/// where a gradient is needed; ShapeError, DTypeError, DeviceError.
struct LinearQ8 {
  static constexpr const char* name = "linear_q8";
  static constexpr Cost cost = Cost::matmul;
  using Saved = SavesNothing;
  kernels::Activation activation = kernels::Activation::none;

  Tensor forward(const Tensor& x, const Tensor& blocks, const Tensor& bias, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

}  // namespace thimble::ops
