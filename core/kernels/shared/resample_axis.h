#pragma once
// One axis of an image that changes its size: the inputs that an output averages, and their weights. Positions are
// exact, in integers.

#include <cstdint>

#include <thimble/core/config.h>

namespace thimble::kernels {

enum class Resample : std::uint8_t {
  nearest,         ///< output o is input floor(o in / out)
  linear,          ///< between the two inputs around (o + 1/2) in / out - 1/2, at least 0: pixels are areas
  linear_aligned,  ///< between the two inputs around o (in - 1) / (out - 1): the corners stay
  area             ///< the mean of inputs floor(o in / out) to ceil((o + 1) in / out) - 1: adaptive average pooling
};

struct ResampleAxis {
  std::int64_t in = 1, out = 1;
  Resample mode = Resample::nearest;

  /// Indices from `first` to `last`, both included.
  struct Range {
    std::int64_t first, last;
  };

  /// The inputs of output o.
  THIMBLE_HD Range inputs_of(std::int64_t o) const {
    if (mode == Resample::nearest) return {o * in / out, o * in / out};
    if (mode == Resample::area) return {o * in / out, above((o + 1) * in, out) - 1};
    const std::int64_t first = position(o) / step();
    return {first, first + 1 < in ? first + 1 : in - 1};
  }

  /// The weight of input i, one of inputs_of(o), in output o.
  template <class T>
  THIMBLE_HD T weight(std::int64_t o, std::int64_t i) const {
    if (mode == Resample::nearest) return T(1);
    const Range of = inputs_of(o);
    if (mode == Resample::area) return T(1) / static_cast<T>(of.last - of.first + 1);
    const T rest = static_cast<T>(position(o) - of.first * step()) / static_cast<T>(step());
    return (i == of.first ? T(1) - rest : T(0)) + (i == of.last ? rest : T(0));
  }

  /// The outputs that have i among their inputs.
  THIMBLE_HD Range outputs_of(std::int64_t i) const {
    if (mode == Resample::nearest) return {above(i * out, in), above((i + 1) * out, in) - 1};
    if (mode == Resample::area) return {i * out / in, above((i + 1) * out, in) - 1};
    return {first_beyond(i - 1), first_beyond(i + 1) - 1};
  }

 private:
  /// a / b, rounded up, for b > 0 and a >= 0.
  THIMBLE_HD static std::int64_t above(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
  /// A linear output's position among the inputs, in units of 1 / step() of a pixel.
  THIMBLE_HD std::int64_t step() const { return mode == Resample::linear ? 2 * out : out > 1 ? out - 1 : 1; }
  THIMBLE_HD std::int64_t position(std::int64_t o) const {
    if (mode == Resample::linear_aligned) return out > 1 ? o * (in - 1) : 0;
    const std::int64_t at = (2 * o + 1) * in - out;
    return at > 0 ? at : 0;
  }
  /// The first linear output whose first input is at least k.
  THIMBLE_HD std::int64_t first_beyond(std::int64_t k) const {
    if (k <= 0) return 0;
    if (k >= in) return out;
    if (mode == Resample::linear_aligned) return out > 1 ? above(k * (out - 1), in - 1) : out;
    const std::int64_t distance = out * (2 * k + 1) - in;
    const std::int64_t first = distance > 0 ? above(distance, 2 * in) : 0;
    return first < out ? first : out;
  }
};

}  // namespace thimble::kernels
