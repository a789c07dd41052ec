// Random fills on the CPU.

#include <algorithm>
#include <cmath>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/random/random_cpu.h>
#include <thimble/core/kernels/random.h>
#include <thimble/core/kernels/shared/normal_quantile.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace random_detail {

constexpr std::int64_t chunk = 1024;
constexpr std::int64_t grain_chunks = 8;

// How many words make one number.
template <class T>
constexpr std::int64_t words_per_number = std::is_same_v<T, double> ? 2 : 1;

// Number i in [0, 1), with as many bits as the type holds.
template <class T>
inline T unit(const std::uint32_t* words, std::int64_t i) {
  if constexpr (std::is_same_v<T, double>) {
    return uniform_double(words[2 * i], words[2 * i + 1]);
  } else {
    return uniform_float(words[i]);
  }
}

// Box & Muller 1958: two uniform numbers make two normal ones.
inline void normal(const std::uint32_t* words, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 2) {
    const NormalPair pair = normal_pair(words[i], words[i + 1]);
    out[i] = pair.first;
    out[i + 1] = pair.second;
  }
}
inline void normal(const std::uint32_t* words, double* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 2) {
    const double radius = std::sqrt(-2 * std::log(1 - unit<double>(words, i)));
    const double angle = 6.283185307179586 * unit<double>(words, i + 1);
    out[i] = radius * std::cos(angle);
    out[i + 1] = radius * std::sin(angle);
  }
}

// By inversion, in double for every T; u is the middle of its interval.
template <class T>
inline T truncated_normal(const RandomFillArgs& args, const std::uint32_t* words, std::int64_t i) {
  const double u = std::is_same_v<T, double> ? unit<double>(words, i) + 0x1p-54 : (words[i] + 0.5) * 0x1p-32;
  const double p = std::min(args.cdf_low + u * (args.cdf_high - args.cdf_low), 1 - 0x1p-53);
  return static_cast<T>(std::min(std::max(normal_quantile(p), args.low), args.high));
}

// One chunk of standard numbers; room for an even count.
template <class T>
inline void draw_chunk(const RandomFillArgs& args, const std::uint32_t* words, T* values, std::int64_t n) {
  switch (args.distribution) {
    case Distribution::uniform:
      for (std::int64_t i = 0; i < n; ++i) values[i] = unit<T>(words, i);
      return;
    case Distribution::normal:
      return normal(words, values, n);
    case Distribution::truncated_normal:
      for (std::int64_t i = 0; i < n; ++i) values[i] = truncated_normal<T>(args, words, i);
      return;
    case Distribution::bernoulli:
      for (std::int64_t i = 0; i < n; ++i) values[i] = words[i] * 0x1p-32 < args.probability ? T(1) : T(0);
      return;
  }
}

// Chunks [first, last) of the site's numbers, limited to the output's.
template <class T>
struct FillChunks {
  static void run(const RandomFillArgs& args, std::int64_t first, std::int64_t last) {
    const bool is_bernoulli = args.distribution == Distribution::bernoulli;
    const std::int64_t words_per_element = is_bernoulli ? 1 : words_per_number<T>;
    alignas(64) std::uint32_t words[2 * chunk];
    alignas(64) T values[chunk];
    const T offset = static_cast<T>(args.offset), factor = static_cast<T>(args.factor);
    const std::int64_t first_number = args.first_element, end_number = args.first_element + args.elements;
    for (std::int64_t c = first; c < last; ++c) {
      const std::int64_t begin = c * chunk, n = std::min(chunk, end_number - begin);
      const std::int64_t skipped = std::max<std::int64_t>(0, first_number - begin);
      const auto block = static_cast<std::uint64_t>(begin * words_per_element / 4);
      // A chunk's blocks are neighbours whose numbers differ only in the low word.
      sample_words(args.site, static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                   (n * words_per_element + 3) / 4, words);
      draw_chunk(args, words, values, n);
      if (!is_bernoulli) {
        for (std::int64_t i = 0; i < n; ++i) values[i] = offset + factor * values[i];
      }
      store_elements(values + skipped, args.out, args.dtype, begin + skipped - first_number, 1, n - skipped);
    }
  }
};

template <class T>
void fill(const RandomFillArgs& args) {
  const std::int64_t skipped = args.first_element / chunk;  // whole chunks
  parallel_for((args.first_element + args.elements + chunk - 1) / chunk - skipped, grain_chunks,
               [&](std::int64_t first, std::int64_t last) {
                 run_variant<FillChunks<T>>(args, skipped + first, skipped + last);
               });
}

void fill_any(const RandomFillArgs& args) { return args.dtype == DType::f64 ? fill<double>(args) : fill<float>(args); }

}  // namespace random_detail

const RandomKernels random_cpu{
    .fill = random_detail::fill_any,
    .dropout = dropout_on_cpu,
    .apply_mask = apply_mask_on_cpu,
};

const RandomKernels& random_kernels(memory::Device device) {
  return table_for(device, "random", random_cpu, random_cuda);
}

}  // namespace thimble::kernels
