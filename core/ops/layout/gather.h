#pragma once
// Gathers elements by index. Indices are i32 or i64. An index out of range throws ValueError after the kernel, with the
// first bad position and its value (never on a dry device, which has no values).

#include <array>
#include <span>

#include <thimble/core/ops/op.h>

namespace thimble::ops {

/// y[..., :] = table[ids[...], :]. table: (V, C), ids: (...) in 0 .. V - 1, y: (..., C) in table's dtype.
///
/// For a shard of a table of `all` rows, from row `first` on: y[..., :] = table[ids[...] - first, :], or 0 if another
/// shard has the row, so that the sum over shards is the whole table's result.
///
/// Keeps ids. dtable[v] = sum of dy over the positions of v, ascending, in f32 (f64 for f64), rounded once.
struct Embedding {
  static constexpr const char* name = "embedding";
  static constexpr Cost cost = Cost::elementwise;
  static constexpr Needs differentiable{0b01};
  struct Saved {
    Tensor ids;
    std::int64_t rows = 0;
  };
  std::int64_t first = 0, all = 0;  ///< both are 0 for a whole table

  Tensor forward(const Tensor& table, const Tensor& ids, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// Gather: y[i, j, k] = x[i, index[i, j, k], k] for axis 1 of three: y has the shape of index, whose other axes are at
/// most x's. IndexSelect: y[i, j, k] = x[i, index[j], k]. Any dtype of x; gradients need a floating one.
///
/// Keeps index. dx = sum of dy over the places that read an element, ascending along the axis, in f32 (f64 for f64),
/// rounded once.
template <bool is_of_rows>
struct GatherAlong {
  static constexpr const char* name = is_of_rows ? "index_select" : "gather";
  static constexpr Cost cost = Cost::elementwise;
  static constexpr Needs differentiable{0b01};
  struct Saved {
    Tensor index;
    Shape shape;
  };
  int axis = 0;

  Tensor forward(const Tensor& x, const Tensor& index, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};
using Gather = GatherAlong<false>;
using IndexSelect = GatherAlong<true>;

/// ScatterAdd: y = x, then y[i, index[i, j, k], k] += source[i, j, k] for axis 1 of three: source has the shape of
/// index, whose other axes are at most x's. IndexAdd: y[i, index[j], k] += source[i, j, k], with x's other axes.
/// Sums ascend along the axis, in f32 (f64 for f64, i64 for integers), and are rounded once.
///
/// Keeps index, for source's gradient. dx = dy, dsource[i, j, k] = dy[i, index[i, j, k], k].
template <bool is_of_rows>
struct ScatterAddAlong {
  static constexpr const char* name = is_of_rows ? "index_add" : "scatter_add";
  static constexpr Cost cost = Cost::elementwise;
  static constexpr Needs differentiable{0b101};
  struct Saved {
    Tensor index;
    Shape shape;
  };
  int axis = 0;

  Tensor forward(const Tensor& x, const Tensor& index, const Tensor& source, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};
using ScatterAdd = ScatterAddAlong<false>;
using IndexAdd = ScatterAddAlong<true>;

// ---- Concatenation, padding, rolling and flipping keep only sizes. The gradients of the first two are windows on dy,
// which move no bytes.

/// Joins operands of one rank, dtype and device along `axis`; the other axes have the same sizes. At most 32 operands
/// may be recorded (Needs::max_operands); the function concat() takes any number.
///
/// The gradients share dy's storage, which lives until the last of them is used. A tape copies a gradient that has to
/// wait for more than `longest_wait` nodes (the skip of a U-Net), so that dy can be freed with the others.
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

/// y[i] = x[(i - shift) mod size] along `axis`: elements that leave at one end enter at the other. Any dtype and shift.
struct Roll {
  static constexpr const char* name = "roll";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  int axis = 0;
  std::int64_t shift = 0;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// Reverses the axes of a mask (bit i is axis i). Any dtype.
struct Flip {
  static constexpr const char* name = "flip";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  std::uint32_t axes = 0;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace thimble::ops
