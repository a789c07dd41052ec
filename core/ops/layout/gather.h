#pragma once
// Gathers elements by index. Indices are i32 or i64; an index out of range throws ValueError, after the kernel, with
// the first bad position and its value (never on a dry device, which has no values).

#include <thimble/core/ops/op.h>

namespace thimble::ops {

/// y[..., :] = table[ids[...], :]. table: (V, C), ids: (...) in 0 .. V - 1, y: (..., C) in table's dtype.
///
/// For a shard of a table of `all` rows, from row `first` on: y[..., :] = table[ids[...] - first, :], and 0 where
/// another shard has the row, so that the sum over shards is the whole table's result.
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
  std::int64_t first = 0, all = 0;  ///< both 0 for a whole table

  Tensor forward(const Tensor& table, const Tensor& ids, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// Gather: y[i, j, k] = x[i, index[i, j, k], k] for axis 1 of three: y has the shape of index, whose other axes are at
/// most x's. IndexSelect: y[i, j, k] = x[i, index[j], k]. Any dtype of x (gradients: floating).
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
/// index, whose other axes are at most x's. IndexAdd: y[i, index[j], k] += source[i, j, k], the other axes being x's.
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

}  // namespace thimble::ops
