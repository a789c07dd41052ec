#pragma once
// Quantization as a future int8 net meets it during training.

#include <thimble/core/ops/elementwise/functor.h>

namespace thimble::ops {

/// y = (q - zero) s with the code q = clamp(round(x / s) + zero, low, high), rounded half to even: x after a round trip
/// through 8 bits. Operands (x, s); s > 0 broadcasts, one scale for a tensor or one for each channel.
///
/// The gradient passes x straight through where the code was not clipped, and is 0 elsewhere; s takes none (Jacob et
/// al. 2017, arXiv:1712.05877, section 3; Bengio et al. 2013, arXiv:1308.3432). Keeps x and s.
struct FakeQuantize {
  static constexpr const char* name = "fake_quantize";
  int zero = 0, low = -127, high = 127;

  template <class T>
  THIMBLE_HD T fwd(T x, T s) const {
    const T code = rounded(x / s);
    const T least = T(low - zero), most = T(high - zero);
    return (code < least ? least : code > most ? most : code) * s;
  }
  template <class T>
  THIMBLE_HD T bwd_lhs(Lhs<T> x, Rhs<T> s, T dy) const {
    const T code = rounded(x / s);
    return code >= T(low - zero) && code <= T(high - zero) ? dy : T(0);
  }

 private:
  /// x to the nearest whole number; values beyond all codes stay so, and NaN stays NaN. Adding 1.5 times the power of
  /// two from which on floats have no fraction rounds.
  template <class T>
  THIMBLE_HD T rounded(T x) const {
    constexpr T shift = sizeof(T) == 4 ? T(12582912) : T(6755399441055744);
    const T below = T(low - zero - 1), above = T(high - zero + 1);
    const T near = x < below ? below : x > above ? above : x;
    return (near + shift) - shift;
  }
};

}  // namespace thimble::ops
