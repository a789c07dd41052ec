#pragma once
// Views as operators: forward copies only if the layout forces it, backward undoes the view. All keep only shapes.

#include <array>

#include <thimble/core/ops/op.h>

namespace thimble::ops {

/// The same elements in row-major order under another shape; one size may be -1. Copies if x's strides force it.
struct Reshape {
  static constexpr const char* name = "reshape";
  static constexpr Cost cost = Cost::view;
  struct Saved {
    Shape from;
  };
  Shape shape;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// Axis i of the result is x's axis order[i].
struct Permute {
  static constexpr const char* name = "permute";
  static constexpr Cost cost = Cost::view;
  using Saved = SavesNothing;
  std::array<int, max_rank> order{};

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// Elements [begin, end) with `step` along an axis. Backward writes dy into zeros.
struct Slice {
  static constexpr const char* name = "slice";
  static constexpr Cost cost = Cost::view;
  struct Saved {
    Shape from;
  };
  int axis = 0;
  std::int64_t begin = 0, end = 0, step = 1;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// Repeats axes of size 1 and missing leading axes to `shape`. Backward sums over the repeats.
struct Expand {
  static constexpr const char* name = "expand";
  static constexpr Cost cost = Cost::view;
  struct Saved {
    Shape from;
  };
  Shape shape;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// A dense copy; x itself if it is dense.
struct Contiguous {
  static constexpr const char* name = "contiguous";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// A copy in another dtype; the gradient is converted back. Keeps nothing.
struct Cast {
  static constexpr const char* name = "cast";
  static constexpr Cost cost = Cost::elementwise;
  struct Saved {
    DType from = DType::f32;
  };
  DType dtype = DType::f32;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace thimble::ops
