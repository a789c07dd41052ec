#include <thimble/core/ops/elementwise/rotary.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/rotary.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/copy.h>

namespace thimble::ops {
namespace rotary_detail {

void require_positive(const char* what, double value) {
  if (std::isfinite(value) && value > 0) return;
  throw ValueError(std::string(Rotary::name) + ": " + what + " " + std::to_string(value) +
                   "; a finite number above 0 is allowed");
}

void check(const Rotary& op, const Tensor& x) {
  const std::string name = Rotary::name;
  if (!is_floating(x.dtype())) throw DTypeError(name + ": " + describe(x) + " is not floating");
  constexpr std::int64_t widest = 2 * kernels::rotary_pairs;
  if (x.rank() != 4 || x.size(3) < 2 || x.size(3) % 2 != 0 || x.size(3) > widest) {
    throw ShapeError(name + ": " + describe(x) + " is not (B, T, H, D) with an even D of at most " +
                     std::to_string(widest));
  }
  require_positive("theta", op.theta);
  constexpr std::int64_t last = std::int64_t{1} << 31;
  if (op.first_position < 0 || op.first_position > last - x.size(1)) {
    throw ValueError(name + ": positions from " + std::to_string(op.first_position) + " for " +
                     std::to_string(x.size(1)) + " tokens; 0 to 2^31 are allowed");
  }
  if (!op.scaling) return;
  require_positive("factor", op.scaling->factor);
  require_positive("low", op.scaling->low);
  require_positive("original length", static_cast<double>(op.scaling->original_length));
  require_positive("high - low", op.scaling->high - op.scaling->low);
}

// y = x turned by `direction` times its angles.
void turn(const Rotary& op, const Tensor& x, const Tensor& y, double direction) {
  kernels::RotaryArgs args;
  args.dtype = x.dtype();
  args.batch = x.size(0), args.length = x.size(1), args.heads = x.size(2), args.width = x.size(3);
  args.first_position = op.first_position;
  for (std::int64_t i = 0; i < args.width / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(args.width);
    double frequency = std::pow(op.theta, exponent);
    if (op.scaling) {
      const RotaryScaling& s = *op.scaling;
      const double turns = static_cast<double>(s.original_length) * frequency / (2 * std::numbers::pi);
      const double kept = std::clamp((turns - s.low) / (s.high - s.low), 0.0, 1.0);
      frequency = kept * frequency + (1 - kept) * frequency / s.factor;
    }
    args.frequencies[i] = direction * frequency;
  }
  launch(x.device(), [&](const Addresses& at) {
    args.x = at(x), args.y = at(y);
    kernels::rotary_kernels(x.device()).turn(args);
  });
}

}  // namespace rotary_detail

Tensor Rotary::forward(const Tensor& x, Needs, Saved&) const {
  rotary_detail::check(*this, x);
  const Tensor dense = contiguous(x), y = Tensor::empty_like(dense);
  rotary_detail::turn(*this, dense, y, 1);
  return y;
}

Gradients Rotary::backward(Saved, Tensor dy, Needs) const {
  dy = contiguous(dy);
  const Tensor dx = reused_or_new(dy);
  rotary_detail::turn(*this, dy, dx, -1);
  return {dx};
}

}  // namespace thimble::ops
