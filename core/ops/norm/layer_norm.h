#pragma once
// Normalisation over the last axes. mean and rstd are kept in f32 (f64 for f64), one per row.

#include <thimble/core/ops/op.h>

namespace thimble::ops {

/// y = (x - mean) rstd weight + bias, with mean and rstd = 1 / sqrt(variance + epsilon) (biased variance) over the last
/// `axes` axes. Ba, Kiros, Hinton 2016 (arXiv:1607.06450), equation 4.
///
/// x: (..., L), floating; weight, bias: x's last axes, or undefined; in x's dtype or f32. With g = dy weight and xhat =
/// (x - mean) rstd: dx = (g - mean(g) - xhat mean(g xhat)) rstd, dweight = sum of dy xhat, dbias = sum of dy over rows;
/// `groups` splits the rows into equal contiguous groups, sums each, and adds the groups from the last one on. Keeps x,
/// mean and rstd for x or weight, and weight for x; nothing for bias. Throws ShapeError, DTypeError, DeviceError,
/// ValueError.
struct LayerNorm {
  static constexpr const char* name = "layer_norm";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor x, mean, rstd, weight;
    DType parameter_dtype = DType::f32;
  };
  int axes = 1;
  double epsilon = 1e-5;
  std::int64_t groups = 1;

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// y = x rstd weight, where rstd = 1 / sqrt(mean(x^2) + epsilon) over the last `axes` axes. Zhang, Sennrich 2019
/// (arXiv:1910.07467), equation 4.
///
/// Shapes, dtypes and errors as LayerNorm. dx = (g - xhat mean(g xhat)) rstd. Keeps x and rstd, and weight for x.
struct RmsNorm {
  static constexpr const char* name = "rms_norm";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor x, rstd, weight;
    DType parameter_dtype = DType::f32;
  };
  int axes = 1;
  double epsilon = 1e-6;
  std::int64_t groups = 1;

  Tensor forward(const Tensor& x, const Tensor& weight, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace thimble::ops
