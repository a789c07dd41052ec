#pragma once
// Concatenation, padding, rolling and flipping: all keep nothing but sizes. The gradients of the first two are windows
// on dy, which move no bytes.

#include <array>
#include <span>

#include <thimble/core/ops/op.h>

namespace thimble::ops {

/// The operands one after the other along `axis`: same rank, dtype and device, same sizes of the other axes. At most 32
/// may be recorded (Needs::max_operands); the function concat() takes any number.
///
/// The gradients share dy's storage, which lives until the last of them is used. A tape copies one out that has to wait
/// for more than `longest_wait` nodes (the skip of a U-Net), so that dy goes with the others.
struct Concat {
  static constexpr std::uint32_t longest_wait = 16;
  static constexpr const char* name = "concat";
  static constexpr Cost cost = Cost::elementwise;
  struct Saved {
    std::array<std::int64_t, Needs::max_operands> sizes{};  ///< along the axis
    int count = 0;
  };
  int axis = 0;

  Tensor forward(std::span<const Tensor> parts, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// x with low[i] elements of `value` before axis i and high[i] after it. Any dtype.
struct Pad {
  static constexpr const char* name = "pad";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  std::array<std::int64_t, max_rank> low{}, high{};
  double value = 0;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// y[i] = x[(i - shift) mod size] along `axis`: elements that leave at one end enter at the other. Any dtype, any
/// shift.
struct Roll {
  static constexpr const char* name = "roll";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  int axis = 0;
  std::int64_t shift = 0;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// The elements in the opposite order along the axes of a mask (bit i: axis i). Any dtype.
struct Flip {
  static constexpr const char* name = "flip";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  std::uint32_t axes = 0;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace thimble::ops
