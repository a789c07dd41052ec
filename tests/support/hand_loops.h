#pragma once
// Nets as hand-written loops in f64, and comparisons of tensors with them.

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/tensor.h>

#include "catch.h"

namespace hand_loops {

using thimble::Shape;
using thimble::Tensor;
using Values = std::vector<double>;

inline Tensor leaf(const Values& values, const Shape& shape) {
  Tensor t = thimble::from_host(values, shape, thimble::cpu, thimble::memory::Category::parameter);
  t.require_grad();
  return t;
}

inline Values values_of(const Tensor& t) { return thimble::to_host<double>(t); }

inline void check_close(const Tensor& t, const Values& expected) {
  const Values got = values_of(t);
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO(i << ": " << got[i] << ", by hand " << expected[i]);
    CHECK(std::abs(got[i] - expected[i]) <= 1e-12 * (1 + std::abs(expected[i])));
  }
}

/// a (n, k) times b (k, m).
inline Values product(const Values& a, const Values& b, std::size_t n, std::size_t k, std::size_t m) {
  Values c(n * m, 0);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < m; ++j) {
      for (std::size_t l = 0; l < k; ++l) c[i * m + j] += a[i * k + l] * b[l * m + j];
    }
  }
  return c;
}

inline Values transposed(const Values& a, std::size_t n, std::size_t m) {
  Values t(n * m);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < m; ++j) t[j * n + i] = a[i * m + j];
  }
  return t;
}

inline void descend(Values& w, const Values& gradient, double rate) {
  for (std::size_t i = 0; i < w.size(); ++i) w[i] -= rate * gradient[i];
}

/// A net of two layers, y = tanh(x a) b, its loss mean((y - t)^2), and its gradients.
struct TwoLayers {
  static constexpr std::size_t n = 5, in = 3, width = 4, out = 2;
  Values a, b;

  std::pair<Values, Values> gradients(const Values& x, const Values& target) const {
    Values h = product(x, a, n, in, width);
    for (double& v : h) v = std::tanh(v);
    Values dy = product(h, b, n, width, out);
    for (std::size_t i = 0; i < dy.size(); ++i) dy[i] = 2 * (dy[i] - target[i]) / static_cast<double>(n * out);
    const Values db = product(transposed(h, n, width), dy, width, n, out);
    Values dh = product(dy, transposed(b, width, out), n, out, width);
    for (std::size_t i = 0; i < dh.size(); ++i) dh[i] *= 1 - h[i] * h[i];
    return {product(transposed(x, n, in), dh, in, n, width), db};
  }
};

/// Numbers between -0.5 and 0.5 without a pattern.
inline Values spread(std::size_t count, double start) {
  Values values(count);
  for (double& v : values) v = std::sin(start += 1.7) * 0.5;
  return values;
}

}  // namespace hand_loops
