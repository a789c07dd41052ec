#pragma once
// A linear layer with a low-rank adapter.

#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/ops/op.h>

namespace thimble::ops {

/// y = x W^T + bias + scale (z A^T) B^T (Hu et al. 2021, arXiv:2106.09685, section 4.1): x (..., I) -> (..., O); W (O,
/// I), or (I, O) with `weight_is_in_out`; bias (O) or undefined; A (r, I), B (O, r); z, shaped as x, is the adapter's
/// input if that is another tensor (x after dropout), else undefined. The adapter's product is added in y's buffer, so
/// no other tensor of its size exists in forward or backward.
///
/// Keeps u = z A^T (..., r), an extra, for B's gradient; z for A's; x for W's; W for x's; A for z's; B for z's and A's,
/// where without z x takes its place. With du = scale dy B: dA = du^T z, dB = scale dy^T u, dz = du A, dx = dy W, plus
/// du A without z. Throws ShapeError, DTypeError, DeviceError.
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
/// so 1.0625 bytes per number. Decodes W's rows to f32 a tile at a time, at most 1 MiB (32 MiB on CUDA) or one row,
/// booked as workspace; the result has the bits of ops::Linear with all of W in f32. For inference: throws
/// AutogradError if a gradient is needed; ShapeError, DTypeError, DeviceError.
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
