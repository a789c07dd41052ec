// Rotary positions on the CPU: computes a position's sines and cosines once for all its heads and samples.

#include <algorithm>
#include <cmath>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/rotary.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace rotary_detail {

constexpr std::int64_t grain_elements = 1 << 14;

template <class T>
struct Turn {
  static void run(std::int64_t pairs, const T* __restrict cosines, const T* __restrict sines, T* __restrict first) {
    T* const __restrict second = first + pairs;
    for (std::int64_t i = 0; i < pairs; ++i) {
      const T a = first[i], b = second[i];
      first[i] = a * cosines[i] - b * sines[i];
      second[i] = b * cosines[i] + a * sines[i];
    }
  }
};

template <class T>
void turn_positions(const RotaryArgs& args, std::int64_t begin, std::int64_t end) {
  alignas(64) T cosines[rotary_pairs], sines[rotary_pairs], head[2 * rotary_pairs];
  const std::int64_t pairs = args.width / 2;
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(args.first_position + t) * args.frequencies[i];
      cosines[i] = static_cast<T>(args.scale * std::cos(angle));
      sines[i] = static_cast<T>(args.scale * std::sin(angle));
    }
    for (std::int64_t row = 0; row < args.batch * args.heads; ++row) {
      const std::int64_t b = row / args.heads, h = row % args.heads;
      const std::int64_t first = ((b * args.length + t) * args.heads + h) * args.width;
      load_elements(args.x, args.dtype, first, 1, head, args.width);
      run_variant<Turn<T>>(pairs, cosines, sines, static_cast<T*>(head));
      store_elements(head, args.y, args.dtype, first, args.width);
    }
  }
}

void turn(const RotaryArgs& args) {
  const std::int64_t of_position = std::max<std::int64_t>(1, args.batch * args.heads * args.width);
  parallel_for(args.length, std::max<std::int64_t>(1, grain_elements / of_position),
               [&](std::int64_t begin, std::int64_t end) {
                 if (args.dtype == DType::f64) return turn_positions<double>(args, begin, end);
                 turn_positions<float>(args, begin, end);
               });
}

}  // namespace rotary_detail

const RotaryKernels rotary_cpu{rotary_detail::turn};

const RotaryKernels& rotary_kernels(memory::Device device) {
  return table_for(device, "rotary", rotary_cpu, rotary_cuda);
}

}  // namespace thimble::kernels
