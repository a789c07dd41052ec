#pragma once
// Positions as rotations of pairs of numbers.

#include <cstdint>
#include <optional>

#include <thimble/core/ops/op.h>

namespace thimble {

/// Llama 3.1's stretching of low frequencies, for sequences longer than those that were trained on (`original_length`).
/// A frequency f turns once in 2 pi / f positions; t = (original_length f / (2 pi) - low) / (high - low), held in
/// [0, 1], says how much of it stays: f becomes t f + (1 - t) f / factor. (Grattafiori et al. 2024, arXiv:2407.21783,
/// section 3.4.3; `rope_type` "llama3" of transformers.)
struct RotaryScaling {
  double factor = 8, low = 1, high = 4;
  std::int64_t original_length = 8192;
  friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

namespace ops {

/// Rotary position embedding (Su et al. 2021, arXiv:2104.09864, equation 34), in the layout of Llama's public files:
/// number i of the first half of a head and number i of its second half are one pair. With f_i = theta^(-2 i / D),
/// scaled where `scaling` says so, and the angle a = (first_position + t) f_i,
///
///   y_i = x_i cos a - x_(i + D/2) sin a,   y_(i + D/2) = x_(i + D/2) cos a + x_i sin a.
///
/// x (B, T, H, D) -> the same, D even and at most 512; floating. Angles, sines and cosines are in f64 and are rounded
/// once, to f32 (f64 for f64), the arithmetic's type. Backward turns dy by -a, in dy's place where nobody else holds
/// it, and keeps nothing. Throws ShapeError, DTypeError, ValueError (a theta or a scaling that is not finite and above
/// 0, low >= high, a position below 0 or above 2^31).
struct Rotary {
  static constexpr const char* name = "rotary";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  double theta = 10000;
  std::int64_t first_position = 0;
  std::optional<RotaryScaling> scaling = {};

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace ops
}  // namespace thimble
