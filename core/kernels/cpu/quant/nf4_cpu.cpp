// NF4 on the CPU. One thread processes a block, and its magnitude is a maximum, so threads change no bits.

#include <algorithm>

#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/quant/quant_loops.h>
#include <thimble/core/kernels/nf4.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/numbers/integers.h>
#include <thimble/core/numbers/nf4.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace nf4_detail {

constexpr std::int64_t grain = 64;  // blocks that pay for another thread

std::int64_t blocks_of(const Nf4Args& a) { return ceil_div(a.elements, nf4_block); }

struct Encode {
  THIMBLE_ALWAYS_INLINE static void run(const float* values, std::int64_t n, float* amax,
                                        std::uint8_t* __restrict codes) {
    *amax = bit_cast<float>(largest_bits(values, n));
    const float inverse = *amax >= quant::smallest_scale ? 1.0F / *amax : 0.0F;
    for (std::int64_t i = 0; i < n; ++i) codes[i] = quant::nf4_encode(values[i] * inverse);
  }
};

struct Decode {
  THIMBLE_ALWAYS_INLINE static void run(const std::uint8_t* codes, std::int64_t n, float amax,
                                        float* __restrict values) {
    alignas(64) float levels[quant::nf4_levels];
    for (int c = 0; c < quant::nf4_levels; ++c) levels[c] = quant::nf4_level(c) * amax;
    for (std::int64_t i = 0; i < n; ++i) values[i] = levels[(codes[i / 2] >> (i % 2 == 0 ? 4 : 0)) & 15];
  }
};

/// body(block, its first element, its number of elements).
template <class Body>
void each_block(const Nf4Args& a, const Body& body) {
  parallel_for(blocks_of(a), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      body(b, b * nf4_block, std::min(nf4_block, a.elements - b * nf4_block));
    }
  });
}

std::byte* at(const Nf4Args& a, std::int64_t element) {
  return static_cast<std::byte*>(a.values) + element * static_cast<std::int64_t>(size_of(a.dtype));
}

void encode(const Nf4Args& a) {
  each_block(a, [&](std::int64_t block, std::int64_t first, std::int64_t n) {
    alignas(64) float values[nf4_block];
    std::uint8_t codes[nf4_block + 1];
    load_f32(at(a, first), a.dtype, 1, values, n);
    run_variant<Encode>(static_cast<const float*>(values), n, a.amax + block, static_cast<std::uint8_t*>(codes));
    codes[n] = 0;
    std::uint8_t* const to = a.codes + first / 2;
    for (std::int64_t i = 0; i < n; i += 2) to[i / 2] = static_cast<std::uint8_t>(codes[i] << 4 | codes[i + 1]);
  });
}

void center(const Nf4Args& a) {
  const std::int64_t blocks = blocks_of(a);
  double sum = 0;
  for (std::int64_t b = 0; b < blocks; ++b) sum += static_cast<double>(a.amax[b]);
  *a.offset = static_cast<float>(sum / static_cast<double>(std::max<std::int64_t>(1, blocks)));
  for (std::int64_t b = 0; b < blocks; ++b) a.amax[b] -= *a.offset;
}

void decode(const Nf4Args& a) {
  each_block(a, [&](std::int64_t block, std::int64_t first, std::int64_t n) {
    alignas(64) float buffer[nf4_block];
    float* const values = a.dtype == DType::f32 ? static_cast<float*>(a.values) + first : buffer;
    run_variant<Decode>(static_cast<const std::uint8_t*>(a.codes + first / 2), n, a.amax[block] + *a.offset, values);
    if (values == buffer) store_f32(buffer, at(a, first), a.dtype, 1, n);
  });
}

}  // namespace nf4_detail

const Nf4Kernels nf4_cpu{.encode = nf4_detail::encode, .center = nf4_detail::center, .decode = nf4_detail::decode};

const Nf4Kernels& nf4_kernels(memory::Device device) { return table_for(device, "nf4", nf4_cpu, nf4_cuda); }

}  // namespace thimble::kernels
