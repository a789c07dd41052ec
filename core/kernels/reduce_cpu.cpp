// Sums over any axes on the CPU, in the fixed order that reduce.h states.

#include <algorithm>
#include <array>

#include <thimble/core/convert.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/reduce.h>
#include <thimble/core/kernels/strided.h>
#include <thimble/core/parallel.h>

namespace thimble::kernels {
namespace reduce_detail {

// Outputs that are summed side by side when the kept axis is the contiguous one.
constexpr std::int64_t tile = 64;
constexpr std::int64_t interleaved_blocks = 8;

template <class T>
void load(const void* data, DType dtype, std::int64_t element, std::int64_t stride, T* to, std::int64_t n) {
  const std::byte* from = static_cast<const std::byte*>(data) + element * static_cast<std::int64_t>(size_of(dtype));
  if constexpr (std::is_same_v<T, float>) {
    load_f32(from, dtype, stride, to, n);
  } else if constexpr (std::is_same_v<T, double>) {
    load_f64(from, dtype, stride, to, n);
  } else {
    load_i64(from, dtype, stride, to, n);
  }
}

// i64 sums must stay exact, so totals have a type of their own.
template <class T>
using Total = std::conditional_t<std::is_same_v<T, std::int64_t>, std::int64_t, double>;

// The block sums of up to 8 blocks held in `values`, added to `total` in order.
template <class T>
void add_blocks(const T* values, std::int64_t n, Total<T>& total) {
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

// One output, elements [begin, end) of its reduction; begin is a multiple of the block.
template <class T>
Total<T> sum_one(const ReduceArgs& args, const MergedStrides<1>& reduced, std::int64_t base, std::int64_t begin,
                 std::int64_t end) {
  constexpr std::int64_t room = interleaved_blocks * reduce_block;
  alignas(64) T values[room];
  Total<T> total = 0;
  const std::int64_t stride = reduced.stride(0, reduced.rank - 1);
  for (std::int64_t at = begin; at < end; at += room) {
    const std::int64_t n = std::min(room, end - at);
    T* to = values;
    reduced.for_each_run(at, at + n, [&](const std::array<std::int64_t, 1>& offset, std::int64_t run) {
      load(args.in, args.in_dtype, base + offset[0], stride, to, run);
      to += run;
    });
    add_blocks(values, n, total);
  }
  return total;
}

// `count` neighbouring outputs whose elements lie side by side.
template <class T>
void sum_tile(const ReduceArgs& args, const MergedStrides<1>& reduced, std::int64_t base, std::int64_t count,
              std::int64_t begin, std::int64_t end, Total<T>* totals) {
  std::fill(totals, totals + count, Total<T>(0));
  alignas(64) T sums[tile], values[tile];
  const std::int64_t stride = reduced.stride(0, reduced.rank - 1);
  for (std::int64_t at = begin; at < end; at += reduce_block) {
    std::fill(sums, sums + tile, T(0));
    reduced.for_each_run(at, std::min(end, at + reduce_block),
                         [&](const std::array<std::int64_t, 1>& offset, std::int64_t run) {
                           for (std::int64_t r = 0; r < run; ++r) {
                             load(args.in, args.in_dtype, base + offset[0] + r * stride, 1, values, count);
                             for (std::int64_t i = 0; i < count; ++i) sums[i] += values[i];
                           }
                         });
    for (std::int64_t i = 0; i < count; ++i) totals[i] += static_cast<Total<T>>(sums[i]);
  }
}

template <class T>
void store(const ReduceArgs& args, std::int64_t output, const Total<T>* totals, std::int64_t n) {
  std::byte* to = static_cast<std::byte*>(args.out) + output * static_cast<std::int64_t>(size_of(args.out_dtype));
  if constexpr (std::is_same_v<T, std::int64_t>) {
    store_i64(totals, to, args.out_dtype, 1, n);
  } else {
    store_f64(totals, to, args.out_dtype, 1, n);
  }
}

template <class T>
void sum(const ReduceArgs& args) {
  const MergedStrides<1> kept(args.kept, {&args.kept_strides}), reduced(args.reduced, {&args.reduced_strides});
  const std::int64_t outputs = args.kept.elements(), length = args.reduced.elements();
  const std::int64_t stretches = std::max<std::int64_t>(1, (length + reduce_stretch - 1) / reduce_stretch);
  const std::int64_t inner = kept.sizes[static_cast<std::size_t>(kept.rank - 1)];
  const bool is_tiled = kept.stride(0, kept.rank - 1) == 1 && inner > 1;
  const std::int64_t width = is_tiled ? tile : 1;
  // Tiles do not cross the innermost kept axis.
  const std::int64_t tiles_per_row = (inner + width - 1) / width;
  const std::int64_t tiles = is_tiled ? outputs / inner * tiles_per_row : outputs;
  auto* partial = reinterpret_cast<Total<T>*>(args.partial);
  const std::int64_t grain =
      std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, std::min(length, reduce_stretch) * width));
  parallel_for(tiles * stretches, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t job = first; job < last; ++job) {
      const std::int64_t which = job / stretches, stretch = job % stretches;
      const std::int64_t output = is_tiled ? which / tiles_per_row * inner + which % tiles_per_row * width : which;
      const std::int64_t count = is_tiled ? std::min(width, inner - which % tiles_per_row * width) : 1;
      const std::int64_t begin = stretch * reduce_stretch, end = std::min(length, begin + reduce_stretch);
      std::array<Total<T>, tile> totals;
      kept.for_each_run(output, output + 1, [&](const std::array<std::int64_t, 1>& base, std::int64_t) {
        if (is_tiled) {
          sum_tile<T>(args, reduced, base[0], count, begin, end, totals.data());
        } else {
          totals[0] = sum_one<T>(args, reduced, base[0], begin, end);
        }
      });
      if (stretches == 1) {
        store<T>(args, output, totals.data(), count);
      } else {
        std::copy(totals.data(), totals.data() + count, partial + stretch * outputs + output);
      }
    }
  });
  if (stretches == 1) return;
  parallel_for(outputs, 1024, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t output = first; output < last; ++output) {
      Total<T> total = 0;
      for (std::int64_t stretch = 0; stretch < stretches; ++stretch) total += partial[stretch * outputs + output];
      store<T>(args, output, &total, 1);
    }
  });
}

void sum_any(const ReduceArgs& args) {
  switch (compute_type(args.in_dtype)) {
    case ComputeType::f32:
      return sum<float>(args);
    case ComputeType::f64:
      return sum<double>(args);
    case ComputeType::i64:
      return sum<std::int64_t>(args);
  }
}

}  // namespace reduce_detail

std::int64_t reduce_partial_elements(std::int64_t kept, std::int64_t reduced) noexcept {
  const std::int64_t stretches = (reduced + reduce_stretch - 1) / reduce_stretch;
  return stretches > 1 ? kept * stretches : 0;
}

const ReduceKernels reduce_cpu{reduce_detail::sum_any};

const ReduceKernels& reduce_kernels(Device device) {
  if (device.is_cpu()) return reduce_cpu;
  if (!reduce_cuda) throw DeviceError("reduce: " + to_string(device) + " is not in this build");
  return *reduce_cuda;
}

}  // namespace thimble::kernels
