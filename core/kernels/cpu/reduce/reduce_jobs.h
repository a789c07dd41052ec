#pragma once
// How the CPU's reductions are cut into jobs. A job is one output, or a tile of neighbouring outputs when their
// elements are contiguous, times one range of the reduction.

#include <algorithm>
#include <array>
#include <cstdint>

#include <thimble/core/kernels/reduce.h>
#include <thimble/core/kernels/shared/strided.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {

/// Outputs that are reduced together when the kept axis is the contiguous one.
inline constexpr std::int64_t reduce_tile = 64;

/// One job: outputs [output, output + count), elements [begin, end) of their reductions; `base` is the start of operand
/// n's elements of the first output.
template <int N>
struct ReduceJob {
  std::int64_t output = 0, count = 1;
  std::int64_t stretch = 0, begin = 0, end = 0;
  std::array<std::int64_t, N> base{};
};

template <int N>
struct ReduceJobs {
  MergedStrides<N> kept;
  std::int64_t outputs, length, stretches, inner, tiles_per_row;
  bool is_tiled;

  ReduceJobs(const Shape& kept_shape, const Shape& reduced_shape, const std::array<const Shape*, N>& kept_strides)
      : kept(kept_shape, kept_strides),
        outputs(kept_shape.elements()),
        length(reduced_shape.elements()),
        stretches(std::max<std::int64_t>(1, (length + reduce_stretch - 1) / reduce_stretch)),
        inner(kept.sizes[static_cast<std::size_t>(kept.rank - 1)]),
        tiles_per_row(1),
        is_tiled(kept.stride(0, kept.rank - 1) == 1 && inner > 1) {
    if (is_tiled)
      tiles_per_row = (inner + reduce_tile - 1) / reduce_tile;  // tiles do not cross the innermost kept axis
  }

  ReduceJob<N> job(std::int64_t number) const {
    ReduceJob<N> job;
    const std::int64_t which = number / stretches;
    job.stretch = number % stretches;
    job.begin = job.stretch * reduce_stretch;
    job.end = std::min(length, job.begin + reduce_stretch);
    job.output = is_tiled ? which / tiles_per_row * inner + which % tiles_per_row * reduce_tile : which;
    if (is_tiled) job.count = std::min(reduce_tile, inner - which % tiles_per_row * reduce_tile);
    kept.for_each_run(job.output, job.output + 1,
                      [&](const std::array<std::int64_t, N>& base, std::int64_t) { job.base = base; });
    return job;
  }

  /// body(job) for all jobs, in parallel.
  template <class F>
  void for_each(F&& body) const {
    const std::int64_t tiles = is_tiled ? outputs / inner * tiles_per_row : outputs;
    const std::int64_t job_elements = std::min(length, reduce_stretch) * (is_tiled ? reduce_tile : 1);
    const std::int64_t grain = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, job_elements));
    parallel_for(tiles * stretches, grain, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t number = first; number < last; ++number) body(job(number));
    });
  }
};

}  // namespace thimble::kernels
