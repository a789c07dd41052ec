#pragma once
// Matrices in f64 by plain loops, and their singular values.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <thimble/core/ops/copy.h>

#include "support/catch.h"

namespace matrix_test {

using thimble::Tensor;
using thimble::to_host;

// Row-major, in f64.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<double> v;
  Matrix(std::int64_t r, std::int64_t c) : rows(r), columns(c), v(static_cast<std::size_t>(r * c)) {}
  static Matrix of(const Tensor& t) {
    const std::int64_t rows = t.shape()[0];
    Matrix m(rows, t.elements() / rows);
    m.v = to_host<double>(t);
    return m;
  }
  double& at(std::int64_t r, std::int64_t c) { return v[static_cast<std::size_t>(r * columns + c)]; }
  double at(std::int64_t r, std::int64_t c) const { return v[static_cast<std::size_t>(r * columns + c)]; }
  double norm() const {
    double sum = 0;
    for (const double x : v) sum += x * x;
    return std::sqrt(sum);
  }
};

inline Matrix transposed(const Matrix& a) {
  Matrix t(a.columns, a.rows);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t c = 0; c < a.columns; ++c) t.at(c, r) = a.at(r, c);
  }
  return t;
}

inline Matrix product(const Matrix& a, const Matrix& b) {
  REQUIRE(a.columns == b.rows);
  Matrix p(a.rows, b.columns);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t c = 0; c < b.columns; ++c) {
      for (std::int64_t k = 0; k < a.columns; ++k) p.at(r, c) += a.at(r, k) * b.at(k, c);
    }
  }
  return p;
}

inline Matrix scaled(Matrix a, double factor) {
  for (double& x : a.v) x *= factor;
  return a;
}

inline Matrix sum(Matrix a, const Matrix& b) {
  for (std::size_t i = 0; i < a.v.size(); ++i) a.v[i] += b.v[i];
  return a;
}

// Singular values, largest first, by one-sided Jacobi rotations of the columns of a or a^T, whichever is taller; the
// left singular vectors of a wide `a` go into `vectors` as columns.
inline std::vector<double> singular_values(const Matrix& a, Matrix* vectors = nullptr) {
  Matrix u = a.rows >= a.columns ? a : transposed(a);
  const std::int64_t n = u.columns;
  Matrix turned(n, n);
  for (std::int64_t i = 0; i < n; ++i) turned.at(i, i) = 1;
  for (int sweep = 0; sweep < 60; ++sweep) {
    for (std::int64_t p = 0; p < n; ++p) {
      for (std::int64_t q = p + 1; q < n; ++q) {
        double pp = 0, qq = 0, pq = 0;
        for (std::int64_t r = 0; r < u.rows; ++r) {
          pp += u.at(r, p) * u.at(r, p), qq += u.at(r, q) * u.at(r, q), pq += u.at(r, p) * u.at(r, q);
        }
        if (std::fabs(pq) < 1e-15 * std::sqrt(pp * qq) || pq == 0) continue;
        const double zeta = (qq - pp) / (2 * pq);
        const double t = (zeta >= 0 ? 1 : -1) / (std::fabs(zeta) + std::sqrt(1 + zeta * zeta));
        const double c = 1 / std::sqrt(1 + t * t), s = c * t;
        const auto turn = [&](Matrix& m) {
          for (std::int64_t r = 0; r < m.rows; ++r) {
            const double x = m.at(r, p), y = m.at(r, q);
            m.at(r, p) = c * x - s * y, m.at(r, q) = s * x + c * y;
          }
        };
        turn(u), turn(turned);
      }
    }
  }
  std::vector<std::pair<double, std::int64_t>> found;
  for (std::int64_t k = 0; k < n; ++k) {
    double square = 0;
    for (std::int64_t r = 0; r < u.rows; ++r) square += u.at(r, k) * u.at(r, k);
    found.emplace_back(std::sqrt(square), k);
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<double> values;
  if (vectors != nullptr) *vectors = Matrix(n, n);
  for (std::size_t i = 0; i < found.size(); ++i) {
    values.push_back(found[i].first);
    if (vectors == nullptr) continue;
    for (std::int64_t r = 0; r < n; ++r) {
      vectors->at(r, static_cast<std::int64_t>(i)) = turned.at(r, found[i].second);
    }
  }
  return values;
}

}  // namespace matrix_test
