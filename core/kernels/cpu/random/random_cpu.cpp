// Random fills on the CPU.

#include <thimble/core/kernels/cpu/random/random_cpu.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/shared/normal_quantile.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/threads/parallel.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thimble::kernels {

namespace random_detail {

constexpr std::int64_t chunk = 1024;
constexpr std::int64_t grain_chunks = 8;

// Words that make one number.
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

// One chunk of standard numbers; `values` has room for an even count.
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

// Chunks [first, last) of the site's numbers, as far as they are in the output.
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
      // A chunk's blocks are neighbours, whose numbers differ only in the low word.
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

namespace mask_bits_detail {

template <class T>
void pack_plain(const T* values, std::int64_t n, T zero, std::uint8_t* mask) {
  for (std::int64_t i = 0; i < n; i += 8) {
    unsigned bits = 0;
    for (std::int64_t bit = 0; bit < std::min<std::int64_t>(8, n - i); ++bit) {
      bits |= static_cast<unsigned>(values[i + bit] > zero) << bit;
    }
    mask[i / 8] = static_cast<std::uint8_t>(bits);
  }
}

template <class T>
void keep_plain(const std::uint8_t* mask, std::int64_t first, const T* from, T* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t bit = first + i;
    to[i] = ((mask[bit / 8] >> (bit % 8)) & 1) != 0 ? from[i] : T(0);
  }
}

#if defined(__x86_64__)
THIMBLE_TARGET_AVX2 void pack_avx2(const float* values, std::int64_t n, float zero, std::uint8_t* mask) {
  const __m256 limit = _mm256_set1_ps(zero);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 is_greater = _mm256_cmp_ps(_mm256_loadu_ps(values + i), limit, _CMP_GT_OQ);
    mask[i / 8] = static_cast<std::uint8_t>(_mm256_movemask_ps(is_greater));
  }
  pack_plain(values + i, n - i, zero, mask + i / 8);
}

THIMBLE_TARGET_AVX512 void pack_avx512(const float* values, std::int64_t n, float zero, std::uint8_t* mask) {
  const __m512 limit = _mm512_set1_ps(zero);
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const auto bits = static_cast<std::uint16_t>(_mm512_cmp_ps_mask(_mm512_loadu_ps(values + i), limit, _CMP_GT_OQ));
    std::memcpy(mask + i / 8, &bits, sizeof bits);
  }
  pack_plain(values + i, n - i, zero, mask + i / 8);
}

// The next two require `first` to be a multiple of 8.
THIMBLE_TARGET_AVX2 void keep_avx2(const std::uint8_t* mask, std::int64_t first, const float* from, float* to,
                                   std::int64_t n) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i byte = _mm256_set1_epi32(mask[(first + i) / 8]);
    const __m256i is_set = _mm256_cmpeq_epi32(_mm256_and_si256(byte, bit), bit);
    _mm256_storeu_ps(to + i, _mm256_and_ps(_mm256_castsi256_ps(is_set), _mm256_loadu_ps(from + i)));
  }
  keep_plain(mask, first + i, from + i, to + i, n - i);
}

THIMBLE_TARGET_AVX512 void keep_avx512(const std::uint8_t* mask, std::int64_t first, const float* from, float* to,
                                       std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    std::uint16_t bits;
    std::memcpy(&bits, mask + (first + i) / 8, sizeof bits);
    // Not a masked load, because processors do not prefetch masked loads.
    const __m512 is_set = _mm512_castsi512_ps(_mm512_movm_epi32(bits));
    _mm512_storeu_ps(to + i, _mm512_and_ps(is_set, _mm512_loadu_ps(from + i)));
  }
  keep_plain(mask, first + i, from + i, to + i, n - i);
}
#endif

}  // namespace mask_bits_detail

void pack_greater(const float* values, std::int64_t n, float zero, std::uint8_t* mask) {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return mask_bits_detail::pack_avx512(values, n, zero, mask);
  if (isa() == Isa::avx2) return mask_bits_detail::pack_avx2(values, n, zero, mask);
#endif
  mask_bits_detail::pack_plain(values, n, zero, mask);
}

void pack_greater(const double* values, std::int64_t n, double zero, std::uint8_t* mask) {
  mask_bits_detail::pack_plain(values, n, zero, mask);
}

void keep_masked(const std::uint8_t* mask, std::int64_t first, const float* from, float* to, std::int64_t n) {
#if defined(__x86_64__)
  if (first % 8 == 0) {
    if (isa() == Isa::avx512) return mask_bits_detail::keep_avx512(mask, first, from, to, n);
    if (isa() == Isa::avx2) return mask_bits_detail::keep_avx2(mask, first, from, to, n);
  }
#endif
  mask_bits_detail::keep_plain(mask, first, from, to, n);
}

void keep_masked(const std::uint8_t* mask, std::int64_t first, const double* from, double* to, std::int64_t n) {
  mask_bits_detail::keep_plain(mask, first, from, to, n);
}

// ---- Dropout on the CPU: the mask comes from counters, so forward and backward draw the same mask.

namespace dropout_detail {

constexpr std::int64_t chunk = 1024;  // a multiple of the four words of a block
constexpr std::int64_t grain_elements = 16 * chunk;

// Elements [begin, begin + n) of one sample; begin is a multiple of the chunk.
template <class T>
struct DropChunk {
  static void run(const DropoutArgs& args, std::int64_t sample, std::int64_t begin, std::int64_t n) {
    alignas(64) std::uint32_t words[chunk];
    alignas(64) T values[chunk];
    const std::int64_t element = sample * args.sample_elements + begin;
    const bool is_direct = args.dtype == dtype_of<T>;
    T* const out = is_direct ? static_cast<T*>(args.out) + element : values;
    for (std::int64_t i = 0; is_direct && i < n; i += 64 / sizeof(T)) {  // arrive while the words are drawn
      __builtin_prefetch(static_cast<const T*>(args.in) + element + i);
      __builtin_prefetch(out + i, 1);
    }
    sample_words(args.site, static_cast<std::uint32_t>(args.first_block + begin / 4),
                 static_cast<std::uint32_t>(args.site.first_sample + sample), (n + 3) / 4, words);
    const T* const in = read_elements(args.in, args.dtype, element, n, values);
    const T scale = static_cast<T>(args.scale);
    const std::uint32_t threshold = args.threshold;
    for (std::int64_t i = 0; i < n; ++i) out[i] = kept(words[i] >= threshold, in[i] * scale);
    if (!is_direct) store_elements(values, args.out, args.dtype, element, 1, n);
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
