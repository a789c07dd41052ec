#include <algorithm>
#include <atomic>

#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/quant/fp8_avx512.h>
#include <thimble/core/kernels/cpu/quant/quant_loops.h>
#include <thimble/core/kernels/fp8.h>
#include <thimble/core/kernels/shared/fp8_code.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/numbers/quant_code.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace fp8_detail {

constexpr std::int64_t tile = quant_tile;
constexpr std::int64_t grain = 32 * tile;  // values of a thread

template <class F>
void with_code(DType dtype, F&& f) {
  dtype == DType::f8e4m3 ? f(quant::Float8Code<f8e4m3>{}) : f(quant::Float8Code<f8e5m2>{});
}

// Loops over n <= tile values, f32 and codes. AVX-512 has hand-written ones with the same bits.
template <class Code>
struct EncodeLoop {
  THIMBLE_ALWAYS_INLINE static void run(const float* values, float inverse, std::uint8_t* __restrict codes,
                                        std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) codes[i] = fp8_code<Code>(values[i], inverse);
  }
};
void encode(DType dtype, const float* values, float inverse, std::uint8_t* codes, std::int64_t n) {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return fp8_encode_avx512(dtype, values, inverse, codes, n);
#endif
  with_code(dtype, [&]<class Code>(const Code&) { run_variant<EncodeLoop<Code>>(values, inverse, codes, n); });
}

// Values as bits of bf16, times a factor.
template <class Code>
struct DecodeLoop {
  THIMBLE_ALWAYS_INLINE static void run(const std::uint8_t* codes, std::uint16_t* __restrict to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = fp8_value_bits<Code>(codes[i]);
  }
  THIMBLE_ALWAYS_INLINE static void run(const std::uint8_t* codes, float factor, std::uint16_t* __restrict to,
                                        std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = fp8_value_bits<Code>(codes[i], factor);
  }
};
template <class... Factor>
void decode(DType dtype, const std::uint8_t* codes, std::uint16_t* to, std::int64_t n, Factor... factor) {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return fp8_decode_avx512(dtype, codes, factor..., to, n);
#endif
  with_code(dtype, [&]<class Code>(const Code&) { run_variant<DecodeLoop<Code>>(codes, factor..., to, n); });
}

struct Largest {
  THIMBLE_ALWAYS_INLINE static void run(const float* values, std::uint32_t* most, std::int64_t n) {
    const std::uint32_t largest = largest_bits(values, n);
    *most = *most < largest ? largest : *most;
  }
};

/// f(first, values as f32, n) for tiles of a dense tensor, by threads.
template <class F>
void for_tiles(const void* values, DType dtype, std::int64_t count, F&& f) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) float buffer[tile];
    for (std::int64_t first = begin; first < end; first += tile) {
      const std::int64_t n = std::min(tile, end - first);
      const auto* const from = static_cast<const std::byte*>(values) + first * size;
      const float* loaded = buffer;
      if (dtype == DType::f32) {
        loaded = reinterpret_cast<const float*>(from);
      } else {
        load_f32(from, dtype, 1, buffer, n);
      }
      f(first, loaded, n);
    }
  });
}

std::uint32_t amax_bits(const void* values, DType dtype, std::int64_t count) {
  std::atomic<std::uint32_t> amax{0};
  for_tiles(values, dtype, count, [&](std::int64_t, const float* loaded, std::int64_t n) {
    std::uint32_t most = 0;
    run_variant<Largest>(loaded, &most, n);
    for (std::uint32_t now = amax.load(); now < most && !amax.compare_exchange_weak(now, most);) continue;
  });
  return amax.load();
}

void record(const Fp8ScaleArgs& a, float amax) {
  if (!fp8_is_finite(amax)) return;
  const Fp8Place place = fp8_place(a.steps, a.step, a.length);
  float& kept = a.history[place.index];
  kept = place.is_new ? amax : std::max(kept, amax);
  const float most = *std::max_element(a.history, a.history + a.length);
  *a.next_scale = most > 0 ? fp8_scale_from(most, a.code_dtype, a.margin) : 0.0f;
}

void scale(const Fp8ScaleArgs& a) {
  const bool is_known = a.known != nullptr && *a.known != 0;
  if (is_known) *a.scale = *a.known;
  if (is_known && a.history == nullptr) return;
  const float amax = bit_cast<float>(amax_bits(a.values, a.dtype, a.count));
  if (!is_known) *a.scale = fp8_scale_from(amax, a.code_dtype, a.margin);
  if (a.history != nullptr) record(a, amax);
}

void cast(const Fp8CastArgs& a) {
  const float inverse = 1.0f / *a.scale;
  for_tiles(a.values, a.dtype, a.count, [&](std::int64_t first, const float* values, std::int64_t n) {
    alignas(64) std::uint8_t buffer[tile];
    std::uint8_t* const codes = a.codes != nullptr ? a.codes + first : buffer;
    encode(a.code_dtype, values, inverse, codes, n);
    if (a.decoded != nullptr) decode(a.code_dtype, codes, reinterpret_cast<std::uint16_t*>(a.decoded + first), n);
  });
}

void decode(const Fp8DecodeArgs& a) {
  const std::int64_t across = (a.columns + tile - 1) / tile;
  parallel_for(a.rows * across, grain / tile, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      const std::int64_t r = part / across, c = part % across * tile, n = std::min(tile, a.columns - c);
      const std::uint8_t* const codes = a.codes + (a.row + r) * a.row_stride + a.column + c;
      auto* const to = reinterpret_cast<std::uint16_t*>(a.decoded + r * a.columns + c);
      if (a.scales == nullptr) {
        decode(a.code_dtype, codes, to, n);
        continue;
      }
      const std::int64_t first = (a.row + r) / a.block_rows * a.blocks_across;
      for (std::int64_t i = 0; i < n;) {
        const std::int64_t block = (a.column + c + i) / a.block_columns;
        const std::int64_t stop = std::min(n, (block + 1) * a.block_columns - a.column - c);
        decode(a.code_dtype, codes + i, to + i, stop - i, quant::load_scale(a.scales, DType::u8, first + block));
        i = stop;
      }
    }
  });
}

}  // namespace fp8_detail

const Fp8Kernels fp8_cpu{
    .scale = fp8_detail::scale,
    .cast = fp8_detail::cast,
    .decode = fp8_detail::decode,
};

const Fp8Kernels& fp8_kernels(memory::Device device) {
  return table_for(device, "fp8", fp8_cpu, fp8_cuda, fp8_cuda_sizes);
}

}  // namespace thimble::kernels
