#pragma once
// Positions as rotations of pairs of numbers.

#include <cstdint>
#include <optional>

#include <thimble/core/ops/op.h>

namespace thimble {

/// Scaling for sequences longer than the training's (`original_length` L), named as `rope_type` in transformers. For a
/// frequency f, which makes a full turn in 2 pi / f positions, and s = factor:
///
///   linear    f / s
///   dynamic   for T > L positions theta becomes theta (s T / L - s + 1)^(D / (D - 2)), where T counts from position 0
///   llama3    t f + (1 - t) f / s with t = (L f / (2 pi) - low) / (high - low), clamped to [0, 1] (Grattafiori et al.
///             2024, arXiv:2407.21783, section 3.4.3)
///   yarn      r f / s + (1 - r) f with r = (i - first) / (last - first) for pair i, clamped to [0, 1], where first and
///             last are the pairs that turn `high` and `low` times in L positions; sines and cosines are multiplied by
///             `attention_factor` (Peng et al. 2023, arXiv:2309.00071, section 3.2)
enum class RotaryKind : std::uint8_t { llama3, linear, dynamic, yarn };
struct RotaryScaling {
  double factor = 8, low = 1, high = 4;  ///< low and high for llama3 and yarn
  std::int64_t original_length = 8192;   ///< for all but linear
  RotaryKind kind = RotaryKind::llama3;
  double attention_factor = 1;  ///< for yarn
  bool rounds_pairs = true;     ///< for yarn, rounds `first` down and `last` up to whole pairs
  friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

namespace ops {

/// Rotary position embedding (Su et al. 2021, arXiv:2104.09864, equation 34), in the layout of Llama's public files:
/// number i of the first half of a head and number i of its second half form a pair. With f_i = theta^(-2 i / D),
/// scaled by `scaling`, and the angle a = (first_position + t) f_i,
///
///   y_i = x_i cos a - x_(i + D/2) sin a,   y_(i + D/2) = x_(i + D/2) cos a + x_i sin a.
///
/// x (B, T, H, D) -> (B, T, H, D), D even and at most 512; floating. Angles, sines and cosines are computed in f64 and
/// rounded once to the compute type. Keeps nothing; backward turns dy by -a, in dy's buffer if dy has no other holder.
/// Throws ShapeError, DTypeError, ValueError (a theta or a scaling that is not finite and above 0, low >= high, a
/// position below 0 or above 2^31; with yarn a theta of 1).
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
