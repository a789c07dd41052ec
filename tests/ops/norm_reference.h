#pragma once
// References of the normalisations in f64, and helpers of their tests.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <thimble/core/ops/copy.h>

#include "support/operator_table.h"

namespace thimble::testing {

using NormValues = std::vector<double>;
using NormArrays = std::vector<HostArray>;

inline double weight_of(const NormArrays& in, std::size_t which, std::int64_t i) {
  return which < in.size() ? in[which][i] : which == 1 ? 1 : 0;
}

// (x - mean) / sqrt(variance + epsilon) weight + bias; element i has mean number `statistic(i)` and weight number
// `parameter(i)`.
template <class S, class P>
NormValues normalized(const NormArrays& in, S statistic, P parameter, bool is_centred, double epsilon) {
  const NormValues& x = in[0].values;
  std::vector<double> count, mean, variance;
  const auto n = static_cast<std::int64_t>(x.size());
  const auto at = [](std::vector<double>& v, std::int64_t i) -> double& {
    if (static_cast<std::size_t>(i) >= v.size()) v.resize(static_cast<std::size_t>(i) + 1);
    return v[static_cast<std::size_t>(i)];
  };
  for (std::int64_t i = 0; i < n; ++i) {
    at(count, statistic(i)) += 1;
    at(mean, statistic(i)) += in[0][i];
    at(variance, statistic(i)) += 0;
  }
  for (std::size_t s = 0; s < mean.size(); ++s) mean[s] = is_centred ? mean[s] / count[s] : 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double d = in[0][i] - at(mean, statistic(i));
    at(variance, statistic(i)) += d * d / at(count, statistic(i));
  }
  NormValues y;
  for (std::int64_t i = 0; i < n; ++i) {
    const double xhat = (in[0][i] - at(mean, statistic(i))) / std::sqrt(at(variance, statistic(i)) + epsilon);
    y.push_back(xhat * weight_of(in, 1, parameter(i)) + weight_of(in, 2, parameter(i)));
  }
  return y;
}

inline auto row_reference(std::int64_t length, bool is_centred, double epsilon) {
  return [=](const NormArrays& in) {
    return normalized(
        in, [=](std::int64_t i) { return i / length; }, [=](std::int64_t i) { return i % length; }, is_centred,
        epsilon);
  };
}

inline auto group_reference(std::int64_t rows, std::int64_t channels, std::int64_t groups) {
  return [=](const NormArrays& in) {
    const auto statistic = [=](std::int64_t i) {
      return i / (rows * channels) * groups + i % channels / (channels / groups);
    };
    return normalized(
        in, statistic, [=](std::int64_t i) { return i % channels; }, true, 1e-5);
  };
}

// Batch norm of (rows, channels) with operands x, [residual,] weight, bias.
inline auto batch_reference(std::int64_t channels, bool has_residual, bool has_relu, double most = INFINITY) {
  return [=](const NormArrays& in) {
    NormArrays plain = in;
    if (has_residual) plain.erase(plain.begin() + 1);
    const auto channel = [=](std::int64_t i) { return i % channels; };
    NormValues y = normalized(plain, channel, channel, true, 1e-5);
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (has_residual) y[i] += in[1].values[i];
      if (has_relu) y[i] = std::min(std::max(y[i], 0.0), most);
    }
    return y;
  };
}

// Equal bits, shape and dtype.
inline bool is_same(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const Tensor da = contiguous(a.detach()), db = contiguous(b.detach());
  return std::memcmp(memory::Pin(da).data(), memory::Pin(db).data(), da.bytes()) == 0;
}

// Values spread over [low, high] without a pattern.
inline Tensor spread(const Shape& shape, DType dtype, double low, double high, double start) {
  std::vector<double> values(static_cast<std::size_t>(shape.elements()));
  for (double& v : values) {
    start = std::fmod(start + 0.6180339887498949, 1.0);
    v = low + (high - low) * start;
  }
  return to_dtype(from_host(values, shape), dtype);
}

inline const std::string too_large =
    "larger than central differences are worth; the same code is checked by the smaller rows";

}  // namespace thimble::testing
