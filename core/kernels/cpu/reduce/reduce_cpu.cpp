// Sums over any axes on the CPU, in the fixed order of reduce.h.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/narrow_avx2.h>
#include <thimble/core/kernels/cpu/base/rows.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/functors/reduction_functors.h>
#include <thimble/core/kernels/reduce.h>
#include <thimble/core/kernels/shared/strided.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/numbers/math.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {

// ---- How the CPU's reductions are cut into jobs. A job is one range of the reduction of one output, or of a tile of
// neighbouring outputs if their elements are contiguous.

/// Outputs that are reduced together if the kept axis is the contiguous one.
inline constexpr std::int64_t reduce_tile = 64;

/// One job: elements [begin, end) of the reductions of outputs [output, output + count). base[n] is where operand n's
/// elements of the first output begin.
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

// ---- Largest and smallest elements, and their indices, on the CPU.

namespace extreme_detail {

constexpr std::int64_t room = 1024;

// True where b replaces a. Branch-free, so that loops over it become vectors.
template <class T, bool is_max>
inline bool beats(T b, T a) {
  return (is_max ? b > a : b < a) | ((b != b) & (a == a));
}

// The winner among x[0 .. n) and `best`, without its index.
template <class T, bool is_max>
inline T winner(const T* x, std::int64_t n, T best) {
  alignas(64) T lanes[row_lanes];
  const auto meet = [&](std::int64_t l, T b) { lanes[l] = beats<T, is_max>(b, lanes[l]) ? b : lanes[l]; };
  for (std::int64_t l = 0; l < row_lanes; ++l) lanes[l] = best;
  std::int64_t i = 0;
  for (; i + row_lanes <= n; i += row_lanes) {
    for (std::int64_t l = 0; l < row_lanes; ++l) meet(l, x[i + l]);
  }
  for (std::int64_t l = 0; l < n - i; ++l) meet(l, x[i + l]);
  for (std::int64_t half = row_lanes / 2; half > 0; half /= 2) {
    for (std::int64_t l = 0; l < half; ++l) meet(l, lanes[l + half]);
  }
  return lanes[0];
}

// The first index in x[0 .. n) of `top`, which is one of them.
template <class T>
inline std::int64_t place_of(const T* x, std::int64_t n, T top) {
  const auto is_top = [&](T value) { return (value == top) | ((value != value) & (top != top)); };
  std::int64_t i = 0;
  for (; i + row_lanes <= n; i += row_lanes) {
    int hits = 0;
    for (std::int64_t l = 0; l < row_lanes; ++l) hits |= is_top(x[i + l]) ? 1 : 0;
    if (hits != 0) break;
  }
  while (!is_top(x[i])) ++i;
  return i;
}

// Extremes so far of up to a tile of outputs.
template <class T>
struct Best {
  alignas(64) T value[reduce_tile];
  alignas(64) std::int64_t place[reduce_tile];
};

template <class T, bool is_max>
inline void find_one(const ExtremeArgs& args, const MergedStrides<1>& reduced, const ReduceJob<1>& job, Best<T>& best) {
  alignas(64) T values[room];
  const std::int64_t stride = reduced.stride(0, reduced.rank - 1);
  bool is_first = true;
  for (std::int64_t at = job.begin; at < job.end; at += room) {
    const std::int64_t n = std::min(room, job.end - at);
    T* to = values;
    reduced.for_each_run(at, at + n, [&](const std::array<std::int64_t, 1>& offset, std::int64_t run) {
      load_elements(args.in.data, args.in.dtype, job.base[0] + offset[0], stride, to, run);
      to += run;
    });
    const T top = winner<T, is_max>(values, n, is_first ? values[0] : best.value[0]);
    if (!is_first && !beats<T, is_max>(top, best.value[0])) continue;
    const std::int64_t i = place_of(values, n, top);
    best.value[0] = values[i];
    best.place[0] = at + i;
    is_first = false;
  }
}

template <class T, bool is_max>
inline void find_tile(const ExtremeArgs& args, const MergedStrides<1>& reduced, const ReduceJob<1>& job,
                      Best<T>& best) {
  alignas(64) T values[reduce_tile];
  const std::int64_t stride = reduced.stride(0, reduced.rank - 1);
  std::int64_t at = job.begin;
  reduced.for_each_run(job.begin, job.end, [&](const std::array<std::int64_t, 1>& offset, std::int64_t run) {
    for (std::int64_t r = 0; r < run; ++r, ++at) {
      load_elements(args.in.data, args.in.dtype, job.base[0] + offset[0] + r * stride, 1, values, job.count);
      if (at == job.begin) {
        std::copy(values, values + job.count, best.value);
        std::fill(best.place, best.place + job.count, at);
      }
      for (std::int64_t i = 0; i < job.count; ++i) {
        const bool wins = beats<T, is_max>(values[i], best.value[i]);
        best.value[i] = wins ? values[i] : best.value[i];
        best.place[i] = wins ? at : best.place[i];
      }
    }
  });
}

template <class T>
inline void finish(const ExtremeArgs& args, std::int64_t output, const Best<T>& best, std::int64_t n) {
  if (args.values) store_elements(best.value, args.values, args.values_dtype, output, 1, n);
  if (args.places) store_elements(best.place, args.places, args.places_dtype, output, 1, n);
}

// A range's result until the stages meet: 8 bytes of value (T is float, double or i64) and 8 of index.
template <class T>
struct Partial {
  alignas(8) T value;
  std::int64_t place;
};

template <class T, bool is_max>
struct FindExtremes {
  static void run(const ExtremeArgs& args, const ReduceJobs<1>& jobs, const MergedStrides<1>& reduced,
                  const ReduceJob<1>& job) {
    Best<T> best;
    if (jobs.is_tiled) {
      find_tile<T, is_max>(args, reduced, job, best);
    } else {
      find_one<T, is_max>(args, reduced, job, best);
    }
    if (jobs.stretches == 1) return finish(args, job.output, best, job.count);
    auto* const partial = reinterpret_cast<Partial<T>*>(args.partial) + job.stretch * jobs.outputs + job.output;
    for (std::int64_t i = 0; i < job.count; ++i) partial[i] = {best.value[i], best.place[i]};
  }
};

template <class T, bool is_max>
void extreme(const ExtremeArgs& args) {
  const ReduceJobs<1> jobs(args.kept, args.reduced, {&args.in.kept_strides});
  const MergedStrides<1> reduced(args.reduced, {&args.in.reduced_strides});
  jobs.for_each([&](const ReduceJob<1>& job) { run_variant<FindExtremes<T, is_max>>(args, jobs, reduced, job); });
  if (jobs.stretches == 1) return;
  static_assert(sizeof(Partial<T>) == 2 * sizeof(double));
  const auto* const partial = reinterpret_cast<const Partial<T>*>(args.partial);
  parallel_for(jobs.outputs, 1024, [&](std::int64_t first, std::int64_t last) {
    Best<T> best;
    for (std::int64_t output = first; output < last; ++output) {
      Partial<T> top = partial[output];
      for (std::int64_t stretch = 1; stretch < jobs.stretches; ++stretch) {
        const Partial<T>& next = partial[stretch * jobs.outputs + output];
        if (beats<T, is_max>(next.value, top.value)) top = next;
      }
      best.value[0] = top.value;
      best.place[0] = top.place;
      finish(args, output, best, 1);
    }
  });
}

template <class T>
void extreme_typed(const ExtremeArgs& args) {
  return args.is_max ? extreme<T, true>(args) : extreme<T, false>(args);
}

}  // namespace extreme_detail

void extreme_on_cpu(const ExtremeArgs& args) {
  switch (compute_type(args.in.dtype)) {
    case ComputeType::f32:
      return extreme_detail::extreme_typed<float>(args);
    case ComputeType::f64:
      return extreme_detail::extreme_typed<double>(args);
    case ComputeType::i64:
      return extreme_detail::extreme_typed<std::int64_t>(args);
  }
}

void place_on_cpu(const PlaceArgs& args) {
  const MergedStrides<2> kept(args.kept, {&args.dy_strides, &args.out_kept_strides});
  const std::size_t size = size_of(args.dtype);
  const auto bytes = static_cast<std::int64_t>(size);
  parallel_for(args.kept.elements(), 1024, [&](std::int64_t first, std::int64_t last) {
    std::int64_t output = first;
    kept.for_each_run(first, last, [&](const std::array<std::int64_t, 2>& base, std::int64_t run) {
      for (std::int64_t i = 0; i < run; ++i, ++output) {
        std::int64_t rest = 0;
        load_elements(args.places, args.places_dtype, output, 1, &rest, 1);
        std::int64_t to = base[1] + i * kept.stride(1, kept.rank - 1);
        for (int axis = args.reduced.rank() - 1; axis >= 0; --axis) {
          to += rest % args.reduced[axis] * args.out_reduced_strides[axis];
          rest /= args.reduced[axis];
        }
        const std::int64_t from = base[0] + i * kept.stride(0, kept.rank - 1);
        std::memcpy(static_cast<std::byte*>(args.out) + to * bytes,
                    static_cast<const std::byte*>(args.dy) + from * bytes, size);
      }
    });
  });
}

namespace reduce_detail {

constexpr std::int64_t interleaved_blocks = 8;

// i64 sums must stay exact, so totals have a separate type.
template <class T>
using Total = std::conditional_t<std::is_same_v<T, std::int64_t>, std::int64_t, double>;

// The row's largest value, for exp_difference to subtract; 0 if it is not finite.
template <class T>
inline T finite_or_zero(T c) {
  return c - c == T(0) ? c : T(0);
}

template <class T, ReduceMap Map>
inline void map_values(double parameter, T* values, const T* others, std::int64_t n) {
  if constexpr (Map == ReduceMap::exp_difference) {
    for (std::int64_t i = 0; i < n; ++i) values[i] = math::exp(values[i] - finite_or_zero(others[i]));
  } else {
    const auto map = [&](const auto& f) {
      for (std::int64_t i = 0; i < n; ++i) values[i] = f.fwd(values[i], others[i]);
    };
    if (Map == ReduceMap::kl_divergence && parameter == 0) return map(ops::KlDivergence{});  // one branch per loop
    map(ops::pair_functor<Map>(parameter));
  }
}

// Adds the sums of the up to 8 blocks in `values` to `total`, in order.
template <class T>
inline void add_blocks(const T* values, std::int64_t n, Total<T>& total) {
  if (n == interleaved_blocks * reduce_block) {  // eight independent chains
    std::array<T, interleaved_blocks> sums{};
    for (std::int64_t i = 0; i < reduce_block; ++i) {
      for (std::int64_t b = 0; b < interleaved_blocks; ++b)
        sums[static_cast<std::size_t>(b)] += values[b * reduce_block + i];
    }
    for (const T sum : sums) total += static_cast<Total<T>>(sum);
    return;
  }
  for (std::int64_t begin = 0; begin < n; begin += reduce_block) {
    T sum = 0;
    for (std::int64_t i = begin; i < std::min(n, begin + reduce_block); ++i) sum += values[i];
    total += static_cast<Total<T>>(sum);
  }
}

#if defined(__x86_64__)
// The same for the squares of 8 blocks, whose sums are side by side in registers.
THIMBLE_TARGET_F16C void add_square_blocks(const float* x, double& total) {
  alignas(64) float columns[8 * interleaved_blocks];
  __m256d low = _mm256_setzero_pd(), high = low;
  for (std::int64_t i = 0; i < reduce_block; i += 8) {
    for (std::int64_t k = 0; k < 64; k += 16) __builtin_prefetch(x + interleaved_blocks * reduce_block + 8 * i + k);
    transpose_8x8(x + i, reduce_block, columns, interleaved_blocks);
    asm volatile("" ::: "memory");  // converts from memory: half of a register would need shuffles
#pragma GCC unroll 8
    for (std::int64_t k = 0; k < 8; ++k) {
      const __m256d a = _mm256_cvtps_pd(_mm_load_ps(columns + k * interleaved_blocks));
      const __m256d b = _mm256_cvtps_pd(_mm_load_ps(columns + k * interleaved_blocks + 4));
      low += a * a;
      high += b * b;
    }
  }
  for (int b = 0; b < 4; ++b) total += low[b];
  for (int b = 0; b < 4; ++b) total += high[b];
}
#endif

// One output; job.begin is a multiple of the block.
template <class T, ReduceMap Map>
inline void sum_one(const ReduceArgs& args, const MergedStrides<2>& reduced, const ReduceJob<2>& job, Total<T>* total) {
  constexpr std::int64_t room = interleaved_blocks * reduce_block;
  alignas(64) T values[room];
  [[maybe_unused]] alignas(64) T others[Map == ReduceMap::value ? 1 : room];
  const std::int64_t stride = reduced.stride(0, reduced.rank - 1), other_stride = reduced.stride(1, reduced.rank - 1);
  const bool is_square = Map == ReduceMap::product && args.other.data == args.in.data && job.base[0] == job.base[1] &&
                         args.other.reduced_strides == args.in.reduced_strides;
  *total = 0;
  for (std::int64_t at = job.begin; at < job.end; at += room) {
    const std::int64_t n = std::min(room, job.end - at);
#if defined(__x86_64__)
    if constexpr (Map == ReduceMap::product) {
      if (is_square && args.in.dtype == DType::f32 && isa() != Isa::generic && n == room && reduced.rank == 1 &&
          stride == 1) {
        add_square_blocks(static_cast<const float*>(args.in.data) + job.base[0] + at, *total);
        continue;
      }
    }
#endif
    std::int64_t to = 0;
    reduced.for_each_run(at, at + n, [&](const std::array<std::int64_t, 2>& offset, std::int64_t run) {
      load_elements(args.in.data, args.in.dtype, job.base[0] + offset[0], stride, values + to, run);
      if (Map != ReduceMap::value && !is_square) {
        const std::int64_t from = job.base[1] + offset[1];
        load_elements(args.other.data, args.other.dtype, from, other_stride, others + to, other_stride == 0 ? 1 : run);
        if (other_stride == 0) std::fill(others + to + 1, others + to + run, others[to]);
      }
      to += run;
    });
    if constexpr (Map != ReduceMap::value) map_values<T, Map>(args.parameter, values, is_square ? values : others, n);
    add_blocks(values, n, *total);
  }
}

// Neighbouring outputs with contiguous elements.
template <class T, ReduceMap Map>
inline void sum_tile(const ReduceArgs& args, const ReduceJobs<2>& jobs, const MergedStrides<2>& reduced,
                     const ReduceJob<2>& job, Total<T>* totals) {
  alignas(64) T sums[reduce_tile];
  alignas(64) T values[reduce_tile];
  [[maybe_unused]] alignas(64) T others[reduce_tile];
  std::fill(totals, totals + job.count, Total<T>(0));
  const std::int64_t stride = reduced.stride(0, reduced.rank - 1), other_stride = reduced.stride(1, reduced.rank - 1);
  const std::int64_t other_step = jobs.kept.stride(1, jobs.kept.rank - 1);
  for (std::int64_t at = job.begin; at < job.end; at += reduce_block) {
    std::fill(sums, sums + reduce_tile, T(0));
    reduced.for_each_run(
        at, std::min(job.end, at + reduce_block), [&](const std::array<std::int64_t, 2>& offset, std::int64_t run) {
          for (std::int64_t r = 0; r < run; ++r) {
            load_elements(args.in.data, args.in.dtype, job.base[0] + offset[0] + r * stride, 1, values, job.count);
            if constexpr (Map != ReduceMap::value) {
              load_elements(args.other.data, args.other.dtype, job.base[1] + offset[1] + r * other_stride, other_step,
                            others, job.count);
              map_values<T, Map>(args.parameter, values, others, job.count);
            }
            for (std::int64_t i = 0; i < job.count; ++i) sums[i] += values[i];
          }
        });
    for (std::int64_t i = 0; i < job.count; ++i) totals[i] += static_cast<Total<T>>(sums[i]);
  }
}

// Stores the totals of outputs [output, output + n) as results.
template <class T, ReduceMap Map>
inline void finish(const ReduceArgs& args, std::int64_t output, Total<T>* totals, std::int64_t n) {
  if constexpr (Map == ReduceMap::exp_difference) {
    const T* const other = static_cast<const T*>(args.other.data) + output;
    for (std::int64_t i = 0; i < n; ++i)
      totals[i] = static_cast<double>(finite_or_zero(other[i])) + std::log(totals[i]);
  } else if constexpr (!std::is_same_v<T, std::int64_t>) {
    for (std::int64_t i = 0; i < n; ++i) totals[i] /= args.divisor;
  }
  store_elements(totals, args.out, args.out_dtype, output, 1, n);
}

template <class T, ReduceMap Map>
struct SumJob {
  static void run(const ReduceArgs& args, const ReduceJobs<2>& jobs, const MergedStrides<2>& reduced,
                  const ReduceJob<2>& job) {
    alignas(64) Total<T> totals[reduce_tile];
    if (jobs.is_tiled) {
      sum_tile<T, Map>(args, jobs, reduced, job, totals);
    } else {
      sum_one<T, Map>(args, reduced, job, totals);
    }
    if (jobs.stretches == 1) {
      finish<T, Map>(args, job.output, totals, job.count);
    } else {
      auto* const partial = reinterpret_cast<Total<T>*>(args.partial);
      std::copy(totals, totals + job.count, partial + job.stretch * jobs.outputs + job.output);
    }
  }
};

template <class T, ReduceMap Map>
void sum(const ReduceArgs& args) {
  // If there is no other operand, the input's strides take its place, so that axes merge as far as they can.
  const ReduceOperand& other = Map == ReduceMap::value ? args.in : args.other;
  const ReduceJobs<2> jobs(args.kept, args.reduced, {&args.in.kept_strides, &other.kept_strides});
  const MergedStrides<2> reduced(args.reduced, {&args.in.reduced_strides, &other.reduced_strides});
  jobs.for_each([&](const ReduceJob<2>& job) { run_variant<SumJob<T, Map>>(args, jobs, reduced, job); });
  if (jobs.stretches == 1) return;
  const auto* const partial = reinterpret_cast<const Total<T>*>(args.partial);
  parallel_for(jobs.outputs, 1024, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t output = first; output < last; ++output) {
      Total<T> total = 0;
      for (std::int64_t stretch = 0; stretch < jobs.stretches; ++stretch)
        total += partial[stretch * jobs.outputs + output];
      finish<T, Map>(args, output, &total, 1);
    }
  });
}

template <class T>
void sum_floating(const ReduceArgs& args) {
  switch (args.map) {
    case ReduceMap::value:
      return sum<T, ReduceMap::value>(args);
    case ReduceMap::squared_difference:
      return sum<double, ReduceMap::squared_difference>(args);
    case ReduceMap::product:
      return sum<double, ReduceMap::product>(args);
    case ReduceMap::exp_difference:
      return sum<T, ReduceMap::exp_difference>(args);
    case ReduceMap::absolute_difference:
      return sum<T, ReduceMap::absolute_difference>(args);
    case ReduceMap::huber:
      return sum<T, ReduceMap::huber>(args);
    case ReduceMap::bce_with_logits:
      return sum<T, ReduceMap::bce_with_logits>(args);
    case ReduceMap::kl_divergence:
      return sum<T, ReduceMap::kl_divergence>(args);
  }
}

void sum_any(const ReduceArgs& args) {
  switch (compute_type(args.in.dtype)) {
    case ComputeType::f32:
      return sum_floating<float>(args);
    case ComputeType::f64:
      return sum_floating<double>(args);
    case ComputeType::i64:
      return sum<std::int64_t, ReduceMap::value>(args);
  }
}

}  // namespace reduce_detail

std::int64_t reduce_partial_elements(std::int64_t kept, std::int64_t reduced) noexcept {
  const std::int64_t stretches = (reduced + reduce_stretch - 1) / reduce_stretch;
  return stretches > 1 ? kept * stretches : 0;
}

const ReduceKernels reduce_cpu{
    .sum = reduce_detail::sum_any,
    .extreme = extreme_on_cpu,
    .place = place_on_cpu,
};

const ReduceKernels& reduce_kernels(memory::Device device) {
  return table_for(device, "reduce", reduce_cpu, reduce_cuda);
}

}  // namespace thimble::kernels
