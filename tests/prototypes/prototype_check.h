#pragma once
// Helpers of the prototypes' checks.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble::testing {

/// Numbers in [-1, 1] that depend only on `number`.
inline Tensor wave(const Shape& shape, double number, DType dtype = DType::f64) {
  std::vector<double> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(1.7 * static_cast<double>(i) + number);
  return to_dtype(from_host(values, shape), dtype);
}

/// A leaf of wave(), scaled.
inline Tensor leaf(const Shape& shape, double number, double scale = 1) {
  std::vector<double> values = to_host<double>(wave(shape, number));
  for (double& v : values) v *= scale;
  Tensor t = from_host(values, shape);
  return t.require_grad();
}

/// The largest difference of two tensors' elements; NaN if one is NaN or the counts differ.
inline double distance(const Tensor& a, const std::vector<double>& b) {
  const std::vector<double> values = to_host<double>(a);
  if (values.size() != b.size()) return std::nan("");
  double worst = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double d = std::abs(values[i] - b[i]);
    if (std::isnan(d)) return d;
    worst = std::max(worst, d);
  }
  return worst;
}
inline double distance(const Tensor& a, const Tensor& b) { return distance(a, to_host<double>(b)); }

}  // namespace thimble::testing
