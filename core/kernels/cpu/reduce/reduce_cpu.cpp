// Sums over any axes on the CPU, in the fixed order of reduce.h.

#include <algorithm>
#include <array>
#include <cmath>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/reduce/reduce_cpu.h>
#include <thimble/core/kernels/cpu/reduce/reduce_jobs.h>
#include <thimble/core/kernels/reduce.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/numbers/math.h>
#include <thimble/core/ops/reduction/reduction_functors.h>

namespace thimble::kernels {
namespace reduce_detail {

constexpr std::int64_t interleaved_blocks = 8;

// i64 sums must stay exact, so totals have a separate type.
template <class T>
using Total = std::conditional_t<std::is_same_v<T, std::int64_t>, std::int64_t, double>;

// A row's largest value, which exp_difference subtracts; 0 when no value is finite.
template <class T>
inline T finite_or_zero(T c) {
  return c - c == T(0) ? c : T(0);
}

template <class T, ReduceMap Map>
inline void map_values(double parameter, T* values, const T* others, std::int64_t n) {
  if constexpr (Map == ReduceMap::exp_difference) {
    for (std::int64_t i = 0; i < n; ++i) values[i] = math::exp(values[i] - finite_or_zero(others[i]));
  } else {
    const auto f = ops::pair_functor<Map>(parameter);
    for (std::int64_t i = 0; i < n; ++i) values[i] = f.fwd(values[i], others[i]);
  }
}

// The block sums of up to 8 blocks held in `values`, added to `total` in order.
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

// One output; job.begin is a multiple of the block.
template <class T, ReduceMap Map>
inline void sum_one(const ReduceArgs& args, const MergedStrides<2>& reduced, const ReduceJob<2>& job, Total<T>* total) {
  constexpr std::int64_t room = interleaved_blocks * reduce_block;
  alignas(64) T values[room];
  [[maybe_unused]] alignas(64) T others[Map == ReduceMap::value ? 1 : room];
  const std::int64_t stride = reduced.stride(0, reduced.rank - 1), other_stride = reduced.stride(1, reduced.rank - 1);
  *total = 0;
  for (std::int64_t at = job.begin; at < job.end; at += room) {
    const std::int64_t n = std::min(room, job.end - at);
    std::int64_t to = 0;
    reduced.for_each_run(at, at + n, [&](const std::array<std::int64_t, 2>& offset, std::int64_t run) {
      load_elements(args.in.data, args.in.dtype, job.base[0] + offset[0], stride, values + to, run);
      if constexpr (Map != ReduceMap::value) {
        const std::int64_t from = job.base[1] + offset[1];
        load_elements(args.other.data, args.other.dtype, from, other_stride, others + to, other_stride == 0 ? 1 : run);
        if (other_stride == 0) std::fill(others + to + 1, others + to + run, others[to]);
      }
      to += run;
    });
    if constexpr (Map != ReduceMap::value) map_values<T, Map>(args.parameter, values, others, n);
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

// Totals of outputs [output, output + n) become results.
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
  // Without another operand the input's strides take its place, so that axes merge as far as they can.
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
      return sum<T, ReduceMap::squared_difference>(args);
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
