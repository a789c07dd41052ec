#pragma once
// What the CPU files of the normalisation family share.

#include <cstdint>

#include <thimble/core/kernels/norm.h>

namespace thimble::kernels {

void row_norm_forward_cpu(const RowNormArgs& args);
void row_norm_backward_cpu(const RowNormGradArgs& args);
void channel_norm_forward_cpu(const ChannelNormArgs& args);
void channel_norm_backward_cpu(const ChannelNormGradArgs& args);
void running_statistics_cpu(const RunningStatisticsArgs& args);

/// Mean and sum of squared deviations of the elements seen so far.
struct Moments {
  double count = 0, mean = 0, m2 = 0;

  /// Takes in other elements.
  void merge(const Moments& other) {
    if (other.count == 0) return;
    const double total = count + other.count, delta = other.mean - mean;
    mean += delta * (other.count / total);
    m2 += other.m2 + delta * delta * (count * (other.count / total));
    count = total;
  }
  /// NaN stays NaN.
  double variance() const { return m2 < 0 ? 0 : m2 / count; }
};

/// The moments of n elements, given the sums of d and d^2, where d is an element minus `shift`.
inline Moments shifted_moments(double n, double shift, double sum, double sum_of_squares) {
  return {n, shift + sum / n, sum_of_squares - sum * sum / n};
}

}  // namespace thimble::kernels
