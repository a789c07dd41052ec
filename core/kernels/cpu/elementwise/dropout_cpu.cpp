// Dropout on the CPU: the mask comes from counters, so forward and backward draw the same one.

#include <algorithm>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/random/random_cpu.h>
#include <thimble/core/kernels/random.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace dropout_detail {

constexpr std::int64_t chunk = 1024;  // a multiple of the four words of a block
constexpr std::int64_t grain_elements = 16 * chunk;

// Elements [begin, begin + n) of one sample; begin is a multiple of the chunk.
template <class T>
struct DropChunk {
  static void run(const DropoutArgs& args, std::int64_t sample, std::int64_t begin, std::int64_t n) {
    alignas(64) std::uint32_t words[chunk];
    alignas(64) T values[chunk];
    sample_words(args.site, static_cast<std::uint32_t>(args.first_block + begin / 4),
                 static_cast<std::uint32_t>(args.site.first_sample + sample), (n + 3) / 4, words);
    const std::int64_t element = sample * args.sample_elements + begin;
    load_elements(args.in, args.dtype, element, 1, values, n);
    const T scale = static_cast<T>(args.scale);
    const std::uint32_t threshold = args.threshold;
    for (std::int64_t i = 0; i < n; ++i) values[i] = kept(words[i] >= threshold, values[i] * scale);
    store_elements(values, args.out, args.dtype, element, 1, n);
    if (!args.mask) return;
    std::uint8_t* const mask = args.mask + element;
    for (std::int64_t i = 0; i < n; ++i) mask[i] = words[i] < threshold ? 0 : 1;
  }
};

template <class T>
void drop(const DropoutArgs& args) {
  const std::int64_t chunks = (args.sample_elements + chunk - 1) / chunk;
  const std::int64_t grain = std::max<std::int64_t>(1, grain_elements / std::min(chunk, args.sample_elements));
  parallel_for(args.samples * chunks, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t job = first; job < last; ++job) {
      const std::int64_t begin = job % chunks * chunk;
      run_variant<DropChunk<T>>(args, job / chunks, begin, std::min(chunk, args.sample_elements - begin));
    }
  });
}

template <class T>
struct MaskRange {
  static void run(const MaskArgs& args, std::int64_t first, std::int64_t last) {
    alignas(64) T values[chunk];
    const T scale = static_cast<T>(args.scale);
    for (std::int64_t at = first; at < last; at += chunk) {
      const std::int64_t n = std::min(chunk, last - at);
      load_elements(args.in, args.dtype, at, 1, values, n);
      for (std::int64_t i = 0; i < n; ++i) values[i] = kept(args.mask[at + i] != 0, values[i] * scale);
      store_elements(values, args.out, args.dtype, at, 1, n);
    }
  }
};

template <class T>
void mask(const MaskArgs& args) {
  parallel_for(args.elements, grain_elements,
               [&](std::int64_t first, std::int64_t last) { run_variant<MaskRange<T>>(args, first, last); });
}

}  // namespace dropout_detail

void dropout_on_cpu(const DropoutArgs& args) {
  if (args.samples == 0 || args.sample_elements == 0) return;
  return args.dtype == DType::f64 ? dropout_detail::drop<double>(args) : dropout_detail::drop<float>(args);
}

void apply_mask_on_cpu(const MaskArgs& args) {
  return args.dtype == DType::f64 ? dropout_detail::mask<double>(args) : dropout_detail::mask<float>(args);
}

}  // namespace thimble::kernels
