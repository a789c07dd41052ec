#include <thimble/core/ops/elementwise/rotary.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/rotary.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/reuse.h>

namespace thimble::ops {
namespace {

void require_positive(const char* what, double value) {
  if (std::isfinite(value) && value > 0) return;
  throw ValueError(std::string(Rotary::name) + ": " + what + " " + std::to_string(value) +
                   "; expected a finite number above 0");
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
                     std::to_string(x.size(1)) + " tokens; expected 0 to 2^31");
  }
  if (!op.scaling) return;
  const RotaryScaling& s = *op.scaling;
  require_positive("factor", s.factor);
  if (s.kind != RotaryKind::linear) require_positive("original length", static_cast<double>(s.original_length));
  if (s.kind != RotaryKind::llama3 && s.kind != RotaryKind::yarn) return;
  require_positive("low", s.low);
  require_positive("high - low", s.high - s.low);
  if (s.kind != RotaryKind::yarn) return;
  require_positive("attention factor", s.attention_factor);
  require_positive("yarn: log theta", std::abs(std::log(op.theta)));
}

/// Dynamic scaling's theta for this number of positions and heads of `width` numbers.
double stretched_theta(const Rotary& op, std::int64_t positions, std::int64_t width) {
  if (!op.scaling || op.scaling->kind != RotaryKind::dynamic || positions <= op.scaling->original_length) {
    return op.theta;
  }
  const RotaryScaling& s = *op.scaling;
  const double more =
      s.factor * static_cast<double>(positions) / static_cast<double>(s.original_length) - (s.factor - 1);
  if (width == 2) return op.theta;  // its one frequency is 1
  return op.theta * std::pow(more, static_cast<double>(width) / static_cast<double>(width - 2));
}

/// The fraction of pair i's frequency that yarn divides.
double yarn_ramp(const Rotary& op, std::int64_t i, std::int64_t width) {
  const RotaryScaling& s = *op.scaling;
  const auto pair_that_turns = [&](double times) {
    const double length = static_cast<double>(s.original_length);
    return static_cast<double>(width) * std::log(length / (times * 2 * std::numbers::pi)) / (2 * std::log(op.theta));
  };
  double first = pair_that_turns(s.high), last = pair_that_turns(s.low);
  if (s.rounds_pairs) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0), last = std::min(last, static_cast<double>(width - 1));
  if (first == last) last += 0.001;
  return std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
}

double scaled_frequency(const Rotary& op, double frequency, std::int64_t i, std::int64_t width) {
  const RotaryScaling& s = *op.scaling;
  switch (s.kind) {
    case RotaryKind::linear:
      return frequency / s.factor;
    case RotaryKind::dynamic:
      return frequency;
    case RotaryKind::yarn: {
      const double divided = yarn_ramp(op, i, width);
      return divided * frequency / s.factor + (1 - divided) * frequency;
    }
    case RotaryKind::llama3:
      break;
  }
  const double turns = static_cast<double>(s.original_length) * frequency / (2 * std::numbers::pi);
  const double kept = std::clamp((turns - s.low) / (s.high - s.low), 0.0, 1.0);
  return kept * frequency + (1 - kept) * frequency / s.factor;
}

// y = x rotated by `direction` times its angles.
void turn(const Rotary& op, const Tensor& x, const Tensor& y, double direction) {
  kernels::RotaryArgs args;
  args.dtype = x.dtype();
  args.batch = x.size(0), args.length = x.size(1), args.heads = x.size(2), args.width = x.size(3);
  args.first_position = op.first_position;
  const double theta = stretched_theta(op, op.first_position + args.length, args.width);
  for (std::int64_t i = 0; i < args.width / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(args.width);
    const double frequency = std::pow(theta, exponent);
    args.frequencies[i] = direction * (op.scaling ? scaled_frequency(op, frequency, i, args.width) : frequency);
  }
  if (op.scaling && op.scaling->kind == RotaryKind::yarn) args.scale = op.scaling->attention_factor;
  launch(x.device(), [&](const Addresses& at) {
    args.x = at(x), args.y = at(y);
    kernels::rotary_kernels(x.device()).turn(args);
  });
}

}  // namespace

Tensor Rotary::forward(const Tensor& x, Needs, Saved&) const {
  check(*this, x);
  const Tensor dense = contiguous(x), y = Tensor::empty_like(dense);
  turn(*this, dense, y, 1);
  return y;
}

Gradients Rotary::backward(Saved, Tensor dy, Needs) const {
  dy = contiguous(dy);
  const Tensor dx = reused_or_new(dy);
  turn(*this, dy, dx, -1);
  return {dx};
}

}  // namespace thimble::ops
