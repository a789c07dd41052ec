#pragma once
// Means and variances out of blocks, shared by CPU and CUDA (norm.h says how blocks are made).

#include <thimble/core/config.h>

namespace thimble::kernels {

/// Mean and sum of squared deviations of the elements seen so far.
struct Moments {
  double count = 0, mean = 0, m2 = 0;

  /// Takes in other elements.
  THIMBLE_HD void merge(const Moments& other) {
    if (other.count != 0) merge(other, other.count / (count + other.count));
  }
  /// The same, given their share of all elements.
  THIMBLE_HD void merge(const Moments& other, double share) {
    const double delta = other.mean - mean;
    mean += delta * share;
    m2 += other.m2 + delta * delta * (count * share);
    count += other.count;
  }
  /// NaN stays NaN.
  THIMBLE_HD double variance() const { return m2 < 0 ? 0 : m2 / count; }
};

/// The moments of n elements, given the sums of d and d^2, where d is an element minus `shift`.
THIMBLE_HD inline Moments shifted_moments(double n, double shift, double sum, double sum_of_squares) {
  return {n, shift + sum / n, sum_of_squares - sum * sum / n};
}

}  // namespace thimble::kernels
