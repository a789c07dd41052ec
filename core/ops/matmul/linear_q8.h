#pragma once
// A linear layer with a weight in blocks of 8-bit codes.

#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/ops/op.h>

namespace thimble::ops {

/// y = act(x W^T + bias): x (..., I) f32 -> (..., O). W is u8 (O, 34 I / 32): Q8_0 blocks (core/kernels/q8_block.h), so
/// 1.0625 bytes for a number. Decodes W's rows to f32 a tile at a time, at most 1 MiB (or one row), booked as
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
