#pragma once
// Means and variances from blocks, shared by CPU and CUDA (norm.h defines the blocks).

#include <thimble/core/config.h>

namespace thimble::kernels {

/// Mean and sum of squared deviations of the elements seen so far.
struct Moments {
  double count = 0, mean = 0, m2 = 0;

  /// Merges the moments of other elements.
  THIMBLE_HD void merge(const Moments& other) {
    if (other.count != 0) merge(other, other.count / (count + other.count));
  }
  /// Merges, given the other elements' fraction of all elements.
  THIMBLE_HD void merge(const Moments& other, double share) {
    const double delta = other.mean - mean;
    mean += delta * share;
    m2 += other.m2 + delta * delta * (count * share);
    count += other.count;
  }
  /// NaN stays NaN.
  THIMBLE_HD double variance() const { return m2 < 0 ? 0 : m2 / count; }
};

/// Whether a sum of squares in f32 has left its range: it overflowed, or it is so small that squares have lost digits
/// and epsilon does not hide the loss. The caller recomputes it in f64, where no square of an f32 overflows.
THIMBLE_HD inline bool leaves_f32(double squares, double epsilon) {
  return !(squares <= 0x1p+200) || (squares < 0x1p-110 && epsilon < 0x1p-110);
}

/// Below this rstd, x - mean may overflow in f32; below it or above its reciprocal, rstd^2 may not be a normal number.
inline constexpr float far_rstd = 0x1p-60f;

/// (x - mean) scale, where a small scale means that x - mean may overflow. The powers of two change no other bit.
template <class T>
THIMBLE_HD inline T far_scaled(T x, T mean, T scale) {
  const bool is_small = scale < T(1) && scale > T(-1);
  return is_small ? (x * T(0.25) - mean * T(0.25)) * (scale * T(4)) : (x - mean) * scale;
}

/// The moments of n elements, given the sums of d and d^2, where d is an element minus `shift`.
THIMBLE_HD inline Moments shifted_moments(double n, double shift, double sum, double sum_of_squares) {
  return {n, shift + sum / n, sum_of_squares - sum * sum / n};
}

}  // namespace thimble::kernels
