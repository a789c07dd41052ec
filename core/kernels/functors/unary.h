#pragma once
// Elementwise operators of one operand. The signature of `bwd` names the tensors that backward keeps
// (core/kernels/functors/functor.h).

#include <cmath>
#include <cstdint>

#include <thimble/core/kernels/functors/functor.h>
#include <thimble/core/numbers/math.h>

namespace thimble::ops {

using functor::In, functor::Lhs, functor::Out, functor::Rhs;

/// y = -x. Keeps nothing.
struct Neg {
  static constexpr const char* name = "neg";
  static constexpr bool integral = true;
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return -x;
  }
  template <class T>
  THIMBLE_HD T bwd(T dy) const {
    return -dy;
  }
};

/// y = |x|; the gradient at 0 is 0. Keeps x.
struct Abs {
  static constexpr const char* name = "abs";
  static constexpr bool integral = true;
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return x < T(0) ? -x : x;
  }
  template <class T>
  THIMBLE_HD T bwd(In<T> x, T dy) const {
    return x > T(0) ? dy : x < T(0) ? -dy : T(0);
  }
};

/// y = e^x. Keeps y.
struct Exp {
  static constexpr const char* name = "exp";
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return math::exp(x);
  }
  template <class T>
  THIMBLE_HD T bwd(Out<T> y, T dy) const {
    return dy * y;
  }
};

/// y = ln x. Keeps x.
struct Log {
  static constexpr const char* name = "log";
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return math::log(x);
  }
  template <class T>
  THIMBLE_HD T bwd(In<T> x, T dy) const {
    return dy / x;
  }
};

/// y = sqrt(x). Keeps y.
struct Sqrt {
  static constexpr const char* name = "sqrt";
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return std::sqrt(x);
  }
  template <class T>
  THIMBLE_HD T bwd(Out<T> y, T dy) const {
    return dy / (T(2) * y);
  }
};

/// y = 1 / sqrt(x). Keeps y.
struct Rsqrt {
  static constexpr const char* name = "rsqrt";
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return T(1) / std::sqrt(x);
  }
  template <class T>
  THIMBLE_HD T bwd(Out<T> y, T dy) const {
    return T(-0.5) * dy * y * y * y;
  }
};

/// y = x^2. Keeps x.
struct Square {
  static constexpr const char* name = "square";
  static constexpr bool integral = true;
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return x * x;
  }
  template <class T>
  THIMBLE_HD T bwd(In<T> x, T dy) const {
    return x * (T(2) * dy);  // 2 x may overflow where the gradient does not
  }
};

/// y = x^exponent, as std::pow. Keeps x.
struct Pow {
  static constexpr const char* name = "pow";
  double exponent = 2;
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return std::pow(x, static_cast<T>(exponent));
  }
  template <class T>
  THIMBLE_HD T bwd(In<T> x, T dy) const {
    return exponent == 0 ? T(0) : dy * static_cast<T>(exponent) * std::pow(x.value, static_cast<T>(exponent - 1));
  }
};

/// y = min(max(x, low), high); the gradient passes inside [low, high]. NaN stays NaN. Keeps x.
struct Clamp {
  static constexpr const char* name = "clamp";
  static constexpr bool integral = true;
  double low = 0, high = 1;
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    const T lo = static_cast<T>(low), hi = static_cast<T>(high);
    return x < lo ? lo : x > hi ? hi : x;
  }
  template <class T>
  THIMBLE_HD T bwd(In<T> x, T dy) const {
    return x < static_cast<T>(low) || x > static_cast<T>(high) ? T(0) : dy;
  }
};

/// y = tanh x. Keeps y.
struct Tanh {
  static constexpr const char* name = "tanh";
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return math::tanh(x);
  }
  template <class T>
  THIMBLE_HD T bwd(Out<T> y, T dy) const {
    return dy * (T(1) - y * y);
  }
};

/// y = 1 / (1 + e^-x). Keeps y.
struct Sigmoid {
  static constexpr const char* name = "sigmoid";
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return math::sigmoid(x);
  }
  template <class T>
  THIMBLE_HD T bwd(Out<T> y, T dy) const {
    return dy * y * (T(1) - y);
  }
};

/// y = max(x, 0). Keeps y.
struct Relu {
  static constexpr const char* name = "relu";
  static constexpr bool integral = true;
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return x < T(0) ? T(0) : x;
  }
  template <class T>
  THIMBLE_HD T bwd(Out<T> y, T dy) const {
    return y > T(0) ? dy : T(0);
  }
};

/// y = min(max(x, 0), 6); the gradient passes inside. Keeps y. (Krizhevsky 2010.)
struct Relu6 {
  static constexpr const char* name = "relu6";
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return x < T(0) ? T(0) : x > T(6) ? T(6) : x;
  }
  template <class T>
  THIMBLE_HD T bwd(Out<T> y, T dy) const {
    return y > T(0) && y < T(6) ? dy : T(0);
  }
};

/// y = x for x > 0, else slope x. Keeps x.
struct LeakyRelu {
  static constexpr const char* name = "leaky_relu";
  double slope = 0.01;
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return x > T(0) ? x : static_cast<T>(slope) * x;
  }
  template <class T>
  THIMBLE_HD T bwd(In<T> x, T dy) const {
    return x > T(0) ? dy : static_cast<T>(slope) * dy;
  }
};

/// Tanh form of the Gaussian error linear unit: y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Keeps x. Hendrycks &
/// Gimpel 2016, section 2. Computed as the equal x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)): one exponential, and no
/// cancellation for x < 0.
struct GeluTanh {
  static constexpr const char* name = "gelu_tanh";
  static constexpr double scale = 2 * 0.7978845608028654;  // 2 sqrt(2/pi)
  static constexpr double cubic = scale * 0.044715;
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return x * math::sigmoid(x * (T(scale) + T(cubic) * x * x));
  }
  // Beyond x^2 = 10^4 the sigmoid is 0 or 1; x^2 may be infinite there, and 0 times infinity is NaN.
  template <class T>
  THIMBLE_HD T bwd(In<T> in, T dy) const {
    const T x = in, all = x * x, square = math::select_if_near(all, T(1e4), all, T(1e4));
    const T s = math::sigmoid(x * (T(scale) + T(cubic) * square));
    return dy * (s + x * (s * (T(1) - s)) * (T(scale) + T(3 * cubic) * square));
  }
};

/// Exact form: y = x Phi(x) = x/2 (1 + erf(x / sqrt 2)). Keeps x. Hendrycks & Gimpel 2016, equation 1.
struct GeluErf {
  static constexpr const char* name = "gelu_erf";
  static constexpr double inverse_sqrt_2pi = 0.3989422804014327;
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return x * math::normal(x).cdf;
  }
  template <class T>
  THIMBLE_HD T bwd(In<T> in, T dy) const {
    const T x = in;
    const math::Normal<T> normal = math::normal(x);
    // Far out the bell stays at e^-87 in f32 and reaches 0 in f64: from x^2 = 1490 on, x phi(x) is 0.
    const T near = math::select_if_near(x * x, T(1490), x, T(0));
    return dy * (normal.cdf + near * T(inverse_sqrt_2pi) * normal.bell);
  }
};

/// y = x sigmoid(x). Keeps x. (Elfwing et al. 2017.)
struct Silu {
  static constexpr const char* name = "silu";
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return x * math::sigmoid(x);
  }
  template <class T>
  THIMBLE_HD T bwd(In<T> in, T dy) const {
    const T x = in;
    const T s = math::sigmoid(x);
    return dy * s * (T(1) + x * (T(1) - s));
  }
};

/// y = 1 / x. Keeps y.
struct Reciprocal {
  static constexpr const char* name = "reciprocal";
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return T(1) / x;
  }
  template <class T>
  THIMBLE_HD T bwd(Out<T> y, T dy) const {
    return -dy * y * y;
  }
};

/// y = sin x, x in radians. Keeps x.
struct Sin {
  static constexpr const char* name = "sin";
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return std::sin(x);
  }
  template <class T>
  THIMBLE_HD T bwd(In<T> x, T dy) const {
    return dy * std::cos(x.value);
  }
};

/// y = cos x, x in radians. Keeps x.
struct Cos {
  static constexpr const char* name = "cos";
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return std::cos(x);
  }
  template <class T>
  THIMBLE_HD T bwd(In<T> x, T dy) const {
    return -dy * std::sin(x.value);
  }
};

/// y = ln(1 + e^x), as max(x, 0) + ln(1 + e^-|x|), which does not overflow. Keeps x.
struct Softplus {
  static constexpr const char* name = "softplus";
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return (x > T(0) ? x : T(0)) + math::softplus_rest(x);
  }
  template <class T>
  THIMBLE_HD T bwd(In<T> x, T dy) const {
    return dy * math::sigmoid(x.value);
  }
};

/// y = 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x. Keeps x.
struct Erf {
  static constexpr const char* name = "erf";
  static constexpr double two_over_sqrt_pi = 1.1283791670955126;
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return math::erf(x);
  }
  template <class T>
  THIMBLE_HD T bwd(In<T> x, T dy) const {
    return dy * T(two_over_sqrt_pi) * math::exp(-x.value * x.value);
  }
};

/// y = x / value. Keeps nothing.
struct DivScalar {
  static constexpr const char* name = "div_scalar";
  double value = 1;
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return x / static_cast<T>(value);
  }
  template <class T>
  THIMBLE_HD T bwd(T dy) const {
    return dy / static_cast<T>(value);
  }
};

/// y = value - x. Keeps nothing.
struct ScalarSub {
  static constexpr const char* name = "scalar_sub";
  static constexpr bool integral = true;
  double value = 0;
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return static_cast<T>(value) - x;
  }
  template <class T>
  THIMBLE_HD T bwd(T dy) const {
    return -dy;
  }
};

/// y = x + value. Keeps nothing.
struct AddScalar {
  static constexpr const char* name = "add_scalar";
  static constexpr bool integral = true, passes_lhs = true;
  double value = 0;
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return x + static_cast<T>(value);
  }
  template <class T>
  THIMBLE_HD T bwd(T dy) const {
    return dy;
  }
};

/// y = value x. Keeps nothing.
struct MulScalar {
  static constexpr const char* name = "mul_scalar";
  static constexpr bool integral = true;
  double value = 1;
  template <class T>
  THIMBLE_HD T fwd(T x) const {
    return x * static_cast<T>(value);
  }
  template <class T>
  THIMBLE_HD T bwd(T dy) const {
    return dy * static_cast<T>(value);
  }
};

// ---- Quantization in training, as an int8 net made from the weights will apply it.

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
  /// x rounded to the nearest integer; values beyond all codes stay beyond them, and NaN stays NaN. Adding 1.5 times
  /// the power of two above which floats have no fraction does the rounding.
  template <class T>
  THIMBLE_HD T rounded(T x) const {
    constexpr T shift = sizeof(T) == 4 ? T(12582912) : T(6755399441055744);
    const T below = T(low - zero - 1), above = T(high - zero + 1);
    const T near = x < below ? below : x > above ? above : x;
    return (near + shift) - shift;
  }
};

}  // namespace thimble::ops
