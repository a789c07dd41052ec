#pragma once
// How reductions are cut into teams, and the members of the table in separate files.

#include <algorithm>
#include <cstdint>

#include <thimble/core/kernels/reduce.h>
#include <thimble/cuda/kernel/kernel.h>

namespace thimble::cuda_kernels {

/// Outputs [output, output + count) and elements [begin, end) of their reductions.
struct ReduceJobPlace {
  std::int64_t output, count, stretch, begin, end;
};

/// A job is one range of one output, or of up to `columns` neighbours on the innermost kept axis where these are
/// contiguous in memory.
struct ReduceGrid {
  std::int64_t outputs, length, stretches, inner, groups;  ///< groups of columns in a row of `inner` outputs
  int columns;

  std::int64_t jobs() const { return outputs / inner * groups * stretches; }
  THIMBLE_DEVICE ReduceJobPlace place(std::int64_t job) const {
    const std::int64_t which = job / stretches, stretch = job % stretches;
    const std::int64_t row = which / groups, first = which % groups * columns;
    const std::int64_t begin = stretch * kernels::reduce_stretch, end = begin + kernels::reduce_stretch;
    return {row * inner + first, inner - first < columns ? inner - first : columns, stretch, begin,
            end < length ? end : length};
  }
};

/// `stride` and `inner` belong to the innermost kept axis.
inline ReduceGrid reduce_grid(const Shape& kept, const Shape& reduced, std::int64_t stride, std::int64_t inner) {
  ReduceGrid grid;
  grid.outputs = kept.elements();
  grid.length = reduced.elements();
  grid.stretches = std::max<std::int64_t>(1, (grid.length + kernels::reduce_stretch - 1) / kernels::reduce_stretch);
  grid.columns = stride == 1 && inner > 1 ? 32 : 1;
  grid.inner = grid.columns == 1 ? 1 : inner;
  grid.groups = (grid.inner + grid.columns - 1) / grid.columns;
  return grid;
}

void reduce_extreme(const kernels::ExtremeArgs& args);
void reduce_place(const kernels::PlaceArgs& args);

}  // namespace thimble::cuda_kernels
