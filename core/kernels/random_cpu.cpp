// Random fills on the CPU.

#include <algorithm>
#include <cmath>

#include <thimble/core/error.h>
#include <thimble/core/kernels/isa_variants.h>
#include <thimble/core/kernels/normal_quantile.h>
#include <thimble/core/kernels/random.h>
#include <thimble/core/kernels/random_bits.h>
#include <thimble/core/kernels/random_cpu.h>
#include <thimble/core/kernels/typed_load.h>
#include <thimble/core/math.h>
#include <thimble/core/parallel.h>

namespace thimble::kernels {
namespace random_detail {

constexpr std::int64_t chunk = 1024;
constexpr std::int64_t grain_chunks = 8;

// A word and a pair of words as numbers in (0, 1): the middle of their interval.
inline float open_unit(std::uint32_t word) { return static_cast<float>(word) * 0x1p-32f + 0x1p-33f; }
inline double open_unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53 + 0x1p-54; }
// In [0, 1), with as many bits as the type has.
inline float unit(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }
inline double unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

// Random bits per number, and how they are had from words.
template <class T>
struct BitsOf {
  using Type = std::uint32_t;
  static Type get(const std::uint32_t* words, std::int64_t i) { return words[i]; }
};
template <>
struct BitsOf<double> {
  using Type = std::uint64_t;
  static Type get(const std::uint32_t* words, std::int64_t i) {
    return std::uint64_t{words[2 * i]} << 32 | words[2 * i + 1];
  }
};
template <class T>
constexpr std::int64_t words_per_number = sizeof(typename BitsOf<T>::Type) / 4;

// sin and cos of the angle whose fraction of a full turn is the bits' fraction of their range. The nearest quarter turn
// is taken off in integers, which is exact; the rest, within an eighth of a turn, goes into Taylor polynomials: degree
// 9 and 8 for float, 17 and 16 for double, whose first omitted terms are below 2^-25 and 2^-58.
template <class T>
inline void sin_cos(typename BitsOf<T>::Type bits, T& sine, T& cosine) {
  using Bits = typename BitsOf<T>::Type;
  constexpr int width = 8 * sizeof(Bits);
  const Bits quarter = (bits + (Bits{1} << (width - 3))) >> (width - 2);
  const auto rest = static_cast<std::make_signed_t<Bits>>(bits - (quarter << (width - 2)));
  const T x =
      static_cast<T>(rest) * static_cast<T>(width == 32 ? 0x1p-32 * 6.283185307179586 : 0x1p-64 * 6.283185307179586);
  const T square = x * x;
  T s = 0, c = 0;
  if constexpr (sizeof(T) == 8) {
    s = (square * T(1.0 / 355687428096000) - T(1.0 / 1307674368000)) * square + T(1.0 / 6227020800);
    s = s * square - T(1.0 / 39916800);
    c = (square * T(1.0 / 20922789888000) - T(1.0 / 87178291200)) * square + T(1.0 / 479001600);
    c = c * square - T(1.0 / 3628800);
  }
  s = ((s * square + T(1.0 / 362880)) * square - T(1.0 / 5040)) * square + T(1.0 / 120);
  s = x + x * square * (s * square - T(1.0 / 6));
  c = ((c * square + T(1.0 / 40320)) * square - T(1.0 / 720)) * square + T(1.0 / 24);
  c = T(1) + square * (c * square - T(0.5));
  const bool is_odd = (quarter & 1u) != 0;
  const T ss = is_odd ? c : s, cc = is_odd ? s : c;
  sine = (quarter & 2u) != 0 ? -ss : ss;
  cosine = ((quarter + 1) & 2u) != 0 ? -cc : cc;
}

// Box & Muller 1958: two uniform numbers make two normal ones.
template <class T>
inline void normal(const std::uint32_t* words, T* out, std::int64_t n) {
  const std::int64_t pairs = (n + 1) / 2;
  alignas(64) T radius[chunk / 2];
  for (std::int64_t i = 0; i < pairs; ++i) radius[i] = T(-2) * math::log(open_unit(BitsOf<T>::get(words, 2 * i)));
  for (std::int64_t i = 0; i < pairs; ++i) radius[i] = std::sqrt(radius[i]);
  for (std::int64_t i = 0; i < pairs; ++i) {
    T sine, cosine;
    sin_cos(BitsOf<T>::get(words, 2 * i + 1), sine, cosine);
    out[2 * i] = radius[i] * cosine;
    out[2 * i + 1] = radius[i] * sine;
  }
}

// By inversion; the bits are the middle of their interval, in double for every T.
template <class Bits>
inline double truncated_normal(const RandomFillArgs& args, Bits bits) {
  const double u = sizeof(Bits) == 4 ? (static_cast<double>(bits) + 0.5) * 0x1p-32 : open_unit(std::uint64_t{bits});
  const double p = std::min(args.cdf_low + u * (args.cdf_high - args.cdf_low), 1 - 0x1p-53);
  return std::min(std::max(normal_quantile(p), args.low), args.high);
}

// One chunk of standard numbers; room for an even count.
template <class T>
inline void draw_chunk(const RandomFillArgs& args, const std::uint32_t* words, T* values, std::int64_t n) {
  switch (args.distribution) {
    case Distribution::uniform:
      for (std::int64_t i = 0; i < n; ++i) values[i] = unit(BitsOf<T>::get(words, i));
      return;
    case Distribution::normal:
      return normal(words, values, n);
    case Distribution::truncated_normal:
      for (std::int64_t i = 0; i < n; ++i) {
        values[i] = static_cast<T>(truncated_normal(args, BitsOf<T>::get(words, i)));
      }
      return;
    case Distribution::bernoulli:
      for (std::int64_t i = 0; i < n; ++i) values[i] = words[i] * 0x1p-32 < args.probability ? T(1) : T(0);
      return;
  }
}

// Chunks [first, last) of the output.
template <class T>
inline void fill_chunks(const RandomFillArgs& args, std::int64_t first, std::int64_t last) {
  const bool is_bernoulli = args.distribution == Distribution::bernoulli;
  const std::int64_t words_per_element = is_bernoulli ? 1 : words_per_number<T>;
  alignas(64) std::uint32_t words[2 * chunk];
  alignas(64) T values[chunk];
  const T offset = static_cast<T>(args.offset), factor = static_cast<T>(args.factor);
  for (std::int64_t c = first; c < last; ++c) {
    const std::int64_t begin = c * chunk, n = std::min(chunk, args.elements - begin);
    const auto block = static_cast<std::uint64_t>(begin * words_per_element / 4);
    // A chunk's blocks are neighbours whose numbers differ in the low word alone.
    sample_words(args.site, static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                 (n * words_per_element + 3) / 4, words);
    draw_chunk(args, words, values, n);
    if (!is_bernoulli) {
      for (std::int64_t i = 0; i < n; ++i) values[i] = offset + factor * values[i];
    }
    store(values, args.out, args.dtype, begin, 1, n);
  }
}

template <class T>
void fill(const RandomFillArgs& args) {
  parallel_for((args.elements + chunk - 1) / chunk, grain_chunks,
               [&](std::int64_t first, std::int64_t last) { run_variant<fill_chunks<T>>(args, first, last); });
}

void fill_any(const RandomFillArgs& args) { return args.dtype == DType::f64 ? fill<double>(args) : fill<float>(args); }

}  // namespace random_detail

const RandomKernels random_cpu{random_detail::fill_any, dropout_on_cpu, apply_mask_on_cpu};

const RandomKernels& random_kernels(Device device) {
  if (device.is_cpu()) return random_cpu;
  if (!random_cuda) throw DeviceError("random: " + to_string(device) + " is not in this build");
  return *random_cuda;
}

}  // namespace thimble::kernels
