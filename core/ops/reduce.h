#pragma once
// Unrecorded reductions for operators. The differentiable ones are in autograd/functions/reduction.h.

#include <array>
#include <initializer_list>
#include <span>
#include <type_traits>

#include <thimble/core/kernels/reduce.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// Axes as a caller names them: one, a list, or all (an empty list). Negative axes count from the end.
class Axes {
 public:
  Axes() = default;
  Axes(int axis) : axes_{axis}, count_(1) {}  // NOLINT(google-explicit-constructor)
  /// `max(x, 0.0)` and `sum(x, true)` do not compile: these are not axes.
  template <class T>
  requires(std::is_floating_point_v<T> || std::is_same_v<T, bool>) Axes(T)
  = delete;
  Axes(std::initializer_list<int> axes) : Axes(std::span<const int>(axes.begin(), axes.size())) {}
  /// Throws ShapeError for more than max_rank axes.
  explicit Axes(std::span<const int> axes);

  std::span<const int> list() const noexcept { return {axes_.data(), count_}; }

 private:
  std::array<int, max_rank> axes_{};
  std::size_t count_ = 0;
};

/// A set of axes: bit i is axis i.
using AxisMask = std::uint32_t;

/// Axes as a mask; an empty list means all. Throws ShapeError for an axis out of range or named twice.
AxisMask axis_mask(const char* operation, std::span<const int> axes, int rank);

/// Shape without the masked axes, or with size 1 there.
Shape reduced_shape(const Shape& shape, AxisMask axes, bool keep_axes);

/// Sizes (or strides) of the axes outside and inside a mask.
struct AxisSplit {
  Shape kept, reduced;
};
AxisSplit split_axes(const Shape& sizes, AxisMask axes);

/// The sum over the masked axes, in the fixed order of core/kernels/reduce.h, in t's dtype (i64 for integers and bool).
Tensor reduce_sum(const Tensor& t, AxisMask axes, bool keep_axes);

/// out = (sum of map(t, other)) / divisor over the masked axes; `out` is dense, with or without the masked axes.
/// `other` broadcasts to t's shape; kernels::ReduceArgs has the maps and their conditions. `out` may be `other`.
void reduce_into(const Tensor& out, const Tensor& t, AxisMask axes, kernels::ReduceMap map = kernels::ReduceMap::value,
                 const Tensor& other = {}, double divisor = 1, double parameter = 0);

/// Writes the largest (or smallest) element of each reduction to `values`, and its index in row-major order of the
/// masked axes to `places` (an integer dtype); both are dense, either may be undefined. NaN wins, then the first of
/// equal values. Throws ShapeError for empty reductions.
void extreme_into(const char* operation, const Tensor& values, const Tensor& places, const Tensor& t, AxisMask axes,
                  bool is_max);

/// The gradient of a broadcast: sums t to `shape`; t itself if the shapes are equal.
Tensor sum_to(const Tensor& t, const Shape& shape);

}  // namespace thimble
