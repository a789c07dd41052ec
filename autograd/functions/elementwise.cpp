#include <thimble/autograd/functions/elementwise.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <thimble/autograd/apply.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/functors/elementwise_functors.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/elementwise/dropout.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>

namespace thimble {
namespace {

void require_defined(const char* name, const Tensor& t, const char* which) {
  if (!t.defined()) throw ShapeError(std::string(name) + ": the " + which + " operand is undefined");
}

template <class F>
Tensor both(const Tensor& a, const Tensor& b) {
  require_defined(F::name, b, "second");
  return apply<F>(a, b);
}

}  // namespace

Tensor neg(const Tensor& x) { return apply<ops::Neg>(x); }
Tensor abs(const Tensor& x) { return apply<ops::Abs>(x); }
Tensor exp(const Tensor& x) { return apply<ops::Exp>(x); }
Tensor log(const Tensor& x) { return apply<ops::Log>(x); }
Tensor sqrt(const Tensor& x) { return apply<ops::Sqrt>(x); }
Tensor rsqrt(const Tensor& x) { return apply<ops::Rsqrt>(x); }
Tensor square(const Tensor& x) { return apply<ops::Square>(x); }
Tensor pow(const Tensor& x, double exponent) { return apply(ops::Pow{exponent}, x); }

Tensor clamp(const Tensor& x, double low, double high) {
  if (!(low <= high)) throw ValueError("clamp: low " + std::to_string(low) + " is above high " + std::to_string(high));
  if (!is_floating(x.dtype())) {
    const bool is_signed = x.dtype() != DType::u8 && x.dtype() != DType::boolean, is_i64 = x.dtype() == DType::i64;
    const double end = std::ldexp(1.0, 8 * static_cast<int>(size_of(x.dtype())) - is_signed),
                 least = is_signed ? -end : 0;
    const bool has_some = is_i64 ? low >= least && high < end : low < end && high >= least;
    if (!has_some || std::trunc(low) != low || std::trunc(high) != high || !std::isfinite(high - low)) {
      throw DTypeError("clamp: " + std::to_string(low) + " to " + std::to_string(high) + " of " + describe(x) +
                       "; expected integers, between which the dtype has some");
    }
    if (!is_i64) low = std::max(low, least), high = std::min(high, end - 1);  // as torch.clamp does
  }
  return apply(ops::Clamp{low, high}, x);
}

Tensor tanh(const Tensor& x) { return apply<ops::Tanh>(x); }
Tensor sigmoid(const Tensor& x) { return apply<ops::Sigmoid>(x); }
Tensor relu(const Tensor& x) { return apply<ops::Relu>(x); }

Tensor relu6(const Tensor& x) { return apply<ops::Relu6>(x); }
Tensor leaky_relu(const Tensor& x, double slope) {
  if (!std::isfinite(slope))
    throw ValueError("leaky_relu: slope " + std::to_string(slope) + ", expected a finite number");
  return apply(ops::LeakyRelu{slope}, x);
}

Tensor gelu(const Tensor& x, GeluForm form) {
  return form == GeluForm::tanh ? apply<ops::GeluTanh>(x) : apply<ops::GeluErf>(x);
}

Tensor silu(const Tensor& x) { return apply<ops::Silu>(x); }
Tensor reciprocal(const Tensor& x) { return apply<ops::Reciprocal>(x); }
Tensor sin(const Tensor& x) { return apply<ops::Sin>(x); }
Tensor cos(const Tensor& x) { return apply<ops::Cos>(x); }
Tensor softplus(const Tensor& x) { return apply<ops::Softplus>(x); }
Tensor erf(const Tensor& x) { return apply<ops::Erf>(x); }

Tensor add(const Tensor& a, const Tensor& b) { return both<ops::Add>(a, b); }
Tensor add(const Tensor& a, double value) {
  check_scalar("add", a, value);
  return apply(ops::AddScalar{value}, a);
}

Tensor sub(const Tensor& a, const Tensor& b) { return both<ops::Sub>(a, b); }
Tensor sub(double value, const Tensor& b) {
  check_scalar("sub", b, value);
  return apply(ops::ScalarSub{value}, b);
}

Tensor mul(const Tensor& a, const Tensor& b) { return both<ops::Mul>(a, b); }
Tensor swiglu(const Tensor& gate, const Tensor& up) { return both<ops::SwiGlu>(gate, up); }
Tensor mul(const Tensor& a, double value) {
  check_scalar("mul", a, value);
  return apply(ops::MulScalar{value}, a);
}

Tensor div(const Tensor& a, const Tensor& b) { return both<ops::Div>(a, b); }
Tensor div(const Tensor& a, double value) { return apply(ops::DivScalar{value}, a); }
Tensor minimum(const Tensor& a, const Tensor& b) { return both<ops::Minimum>(a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return both<ops::Maximum>(a, b); }

Tensor fake_quantize(const Tensor& x, const Tensor& scale, int zero, int low, int high) {
  constexpr int limit = 1 << 20;
  if (!(-limit <= low && low <= zero && zero <= high && high <= limit)) {
    throw ValueError("fake_quantize: codes " + std::to_string(low) + " to " + std::to_string(high) + ", zero point " +
                     std::to_string(zero) + "; expected low <= zero <= high within +-2^20");
  }
  require_defined("fake_quantize", scale, "second");
  const Tensor wide = to_dtype(contiguous(scale.detach()), DType::f64);  // allocated on a dry device too
  if (!scale.device().is_dry) {
    for (const double s : to_host<double>(wide)) {
      if (!(std::isfinite(s) && s > 0)) {
        throw ValueError("fake_quantize: a scale is " + std::to_string(s) + "; expected a finite number above 0");
      }
    }
  }
  return apply(ops::FakeQuantize{zero, low, high}, x, scale);
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  if (condition.dtype() != DType::boolean) {
    throw DTypeError("where: the condition is " + describe(condition) + ", it must be bool");
  }
  require_defined("where", b, "second");
  return apply<ops::Where>(a, b, condition);
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  if (mask.dtype() != DType::boolean)
    throw DTypeError("masked_fill: the mask is " + describe(mask) + ", it must be bool");
  require_defined("masked_fill", x, "first");
  broadcast("masked_fill", x.shape(), mask.shape());  // throws
  return apply<ops::Where>(full({}, value, x.dtype(), x.device()), x, mask);
}

namespace {

// Zeroes the elements where outside(column, row + diagonal) is true.
Tensor triangle(const char* name, const Tensor& x, std::int64_t diagonal,
                Tensor (*outside)(const Tensor&, const Tensor&)) {
  if (x.rank() < 2) throw ShapeError(std::string(name) + ": " + describe(x) + " has no rows and columns");
  Tensor mask;
  {
    const NoGrad off;
    diagonal = std::clamp(diagonal, -x.size(-2), x.size(-1));  // beyond these all or no elements are zeroed
    const Tensor rows = view::unsqueeze(arange(x.size(-2), DType::i64, x.device()), 1);  // (R, 1)
    mask = outside(arange(x.size(-1), DType::i64, x.device()), add(rows, static_cast<double>(diagonal)));
  }
  return masked_fill(x, mask, 0);
}

}  // namespace

Tensor tril(const Tensor& x, std::int64_t diagonal) { return triangle("tril", x, diagonal, greater); }

Tensor triu(const Tensor& x, std::int64_t diagonal) { return triangle("triu", x, diagonal, less); }

Tensor equal(const Tensor& a, const Tensor& b) { return both<ops::Equal>(a, b); }
Tensor not_equal(const Tensor& a, const Tensor& b) { return both<ops::NotEqual>(a, b); }
Tensor less(const Tensor& a, const Tensor& b) { return both<ops::Less>(a, b); }
Tensor less_equal(const Tensor& a, const Tensor& b) { return both<ops::LessEqual>(a, b); }
Tensor greater(const Tensor& a, const Tensor& b) { return both<ops::Greater>(a, b); }
Tensor greater_equal(const Tensor& a, const Tensor& b) { return both<ops::GreaterEqual>(a, b); }

namespace {

// True for a probability out of range, which the operator refuses even in evaluation.
bool drops(double p) { return p != 0 && !(is_evaluating() && p > 0 && p < 1); }

}  // namespace

// Takes a site even if the operator is skipped, so that later calls draw the same numbers.
Tensor dropout(const Tensor& x, double p) {
  require_defined("dropout", x, "first");
  const RandomSite site = next_random_site();
  return drops(p) ? apply(ops::Dropout{p, site}, x) : x;
}

Tensor dropout_textbook(const Tensor& x, double p) {
  require_defined("dropout_textbook", x, "first");
  const RandomSite site = next_random_site();
  return drops(p) ? apply(ops::DropoutTextbook{p, site}, x) : x;
}

}  // namespace thimble
