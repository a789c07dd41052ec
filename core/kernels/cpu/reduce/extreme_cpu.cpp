// Largest and smallest elements, and their indices, on the CPU.

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/rows.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/reduce/reduce_cpu.h>
#include <thimble/core/kernels/cpu/reduce/reduce_jobs.h>

namespace thimble::kernels {
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

// The result of a range until the stages meet: 8 bytes of value (T is one of float, double, i64) and 8 of index.
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

}  // namespace thimble::kernels
