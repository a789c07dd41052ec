#pragma once

#include <thimble/core/ops/op.h>

namespace thimble::ops {

/// y = (x - mean) rstd weight + bias, with mean and rstd = 1 / sqrt(variance + epsilon) (biased variance) per sample
/// and per group of neighbouring channels, `groups` of them. Wu, He 2018 (arXiv:1803.08494), equations 1 to 3 and 7.
///
/// x: (N, ..., C), floating; groups divides C; weight, bias: (C), in x's dtype or f32, or undefined. Keeps x, mean and
/// rstd (N groups each, f32; f64 for f64) for x or weight, and weight for x; nothing for bias. Throws ShapeError,
/// DTypeError, DeviceError, ValueError.
struct GroupNorm {
  static constexpr const char* name = "group_norm";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor x, mean, rstd, weight;
    DType parameter_dtype = DType::f32;
  };
  std::int64_t groups = 1;
  double epsilon = 1e-5;

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace thimble::ops
