#pragma once
// Elementwise functions. core/kernels/functors/unary.h and core/kernels/functors/binary.h have the formulas and the
// tensors kept for backward. Binary functions broadcast (NumPy's rules); operands share a dtype and a device. A tensor
// of integers combines only with integers: `arange(4) * 0.5` is a DTypeError, `cast(arange(4), DType::f32) * 0.5` is
// not. Throw ShapeError, DTypeError, DeviceError.

#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

Tensor neg(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor square(const Tensor& x);
Tensor pow(const Tensor& x, double exponent);
/// Throws ValueError when low > high; for integers DTypeError for a fraction, or if they have no number in [low, high].
Tensor clamp(const Tensor& x, double low, double high);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor relu(const Tensor& x);
Tensor relu6(const Tensor& x);
Tensor leaky_relu(const Tensor& x, double slope = 0.01);  ///< throws ValueError unless the slope is finite
/// The tanh form is GPT-2's.
enum class GeluForm : std::uint8_t { tanh, erf };
Tensor gelu(const Tensor& x, GeluForm form = GeluForm::tanh);
Tensor silu(const Tensor& x);
Tensor reciprocal(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor softplus(const Tensor& x);
Tensor erf(const Tensor& x);

Tensor add(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, double value);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor sub(double value, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, double value);
Tensor div(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, double value);
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);
/// silu(gate) up, as one operator: keeps only its operands.
Tensor swiglu(const Tensor& gate, const Tensor& up);
/// x after a round trip through integer codes (core/kernels/functors/unary.h): `scale` broadcasts against x and gets no
/// gradient. Throws ValueError unless low <= zero <= high, all within +-2^20, and the scales (unless on a dry device)
/// are finite and above 0.
Tensor fake_quantize(const Tensor& x, const Tensor& scale, int zero, int low, int high);
/// condition ? a : b; the condition is bool.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
/// `value` where the mask (bool, broadcast) is true, else x.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);
/// x where column <= row + diagonal (tril) or column >= row + diagonal (triu) in the last two axes (R, C), else 0.
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
Tensor triu(const Tensor& x, std::int64_t diagonal = 0);

Tensor equal(const Tensor& a, const Tensor& b);
Tensor not_equal(const Tensor& a, const Tensor& b);
Tensor less(const Tensor& a, const Tensor& b);
Tensor less_equal(const Tensor& a, const Tensor& b);
Tensor greater(const Tensor& a, const Tensor& b);
Tensor greater_equal(const Tensor& a, const Tensor& b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& a, double value) { return add(a, value); }
inline Tensor operator+(double value, const Tensor& a) { return add(a, value); }
inline Tensor operator-(const Tensor& a, double value) { return add(a, -value); }
inline Tensor operator-(double value, const Tensor& a) { return sub(value, a); }
inline Tensor operator/(const Tensor& a, double value) { return div(a, value); }
inline Tensor operator*(const Tensor& a, double value) { return mul(a, value); }
inline Tensor operator*(double value, const Tensor& a) { return mul(a, value); }
inline Tensor operator-(const Tensor& x) { return neg(x); }

// ---- Dropout. Draws the mask from the current generator (core/tensor/context.h) at the next site of the current
// module path. In evaluation (core/tensor/context.h) both functions return x itself, and still take the site.

/// Drops each element of x with probability p and scales the others by 1 / (1 - p). Samples are along axis 0. Keeps
/// nothing: backward draws the mask again. p = 0 returns x itself. Throws ValueError for p outside [0, 1), DTypeError.
Tensor dropout(const Tensor& x, double p);

/// dropout that keeps the mask, one byte per element, for comparison.
Tensor dropout_textbook(const Tensor& x, double p);

}  // namespace thimble
