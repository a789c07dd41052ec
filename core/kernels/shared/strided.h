#pragma once
// Walking over strided operands in row-major order of a common shape, with neighbouring axes merged where every
// operand's strides allow it.

#include <algorithm>
#include <array>
#include <cstdint>

#include <thimble/core/shape.h>

namespace thimble::kernels {

/// A shape and the strides of N operands, without axes of size 1, merged as far as all operands allow. Rank >= 1.
template <int N>
struct MergedStrides {
  int rank = 0;
  std::array<std::int64_t, max_rank> sizes{};
  std::array<std::array<std::int64_t, max_rank>, N> strides{};

  MergedStrides(const Shape& shape, const std::array<const Shape*, N>& operands) {
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (shape[axis] == 1) continue;
      bool merges = rank > 0;
      for (int n = 0; n < N && merges; ++n) {
        merges = stride(n, rank - 1) == (*operands[static_cast<std::size_t>(n)])[axis] * shape[axis];
      }
      if (!merges) ++rank;
      const auto at = static_cast<std::size_t>(rank - 1);
      sizes[at] = merges ? sizes[at] * shape[axis] : shape[axis];
      for (int n = 0; n < N; ++n) {
        strides[static_cast<std::size_t>(n)][at] = (*operands[static_cast<std::size_t>(n)])[axis];
      }
    }
    if (rank == 0) {
      rank = 1;
      sizes[0] = 1;
    }
  }

  std::int64_t stride(int operand, int axis) const {
    return strides[static_cast<std::size_t>(operand)][static_cast<std::size_t>(axis)];
  }

  /// Calls run(offsets, n) for maximal runs along the innermost axis that cover elements [begin, end) in row-major
  /// order; `offsets[k]` is operand k's element offset of the run's first element.
  template <class F>
  void for_each_run(std::int64_t begin, std::int64_t end, F&& run) const {
    std::array<std::int64_t, max_rank> index{};
    std::array<std::int64_t, N> offsets{};
    std::int64_t rest = begin;
    for (int axis = rank - 1; axis >= 0; --axis) {
      const auto a = static_cast<std::size_t>(axis);
      index[a] = rest % sizes[a];
      rest /= sizes[a];
      for (int n = 0; n < N; ++n) offsets[static_cast<std::size_t>(n)] += index[a] * stride(n, axis);
    }
    const auto inner = static_cast<std::size_t>(rank - 1);
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t count = std::min(end - at, sizes[inner] - index[inner]);
      run(offsets, count);
      at += count;
      index[inner] += count;
      for (int n = 0; n < N; ++n) offsets[static_cast<std::size_t>(n)] += count * stride(n, rank - 1);
      for (std::size_t a = inner; a > 0 && index[a] == sizes[a]; --a) {
        for (int n = 0; n < N; ++n) {
          auto& of = strides[static_cast<std::size_t>(n)];
          offsets[static_cast<std::size_t>(n)] += of[a - 1] - sizes[a] * of[a];
        }
        index[a] = 0;
        ++index[a - 1];
      }
    }
  }
};

}  // namespace thimble::kernels
