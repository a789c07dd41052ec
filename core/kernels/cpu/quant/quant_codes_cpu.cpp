#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/quant/quant_loops.h>
#include <thimble/core/kernels/quant_codes.h>
#include <thimble/core/kernels/shared/quant_rows.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/kernels/weight_codes.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/numbers/integers.h>
#include <thimble/core/numbers/minifloat.h>
#include <thimble/core/numbers/nf4.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {

namespace quant_codes_detail {

using quant_detail::code_of;
using quant_detail::quant_code;

inline constexpr std::int64_t grain = 16 * 1024;  // elements that pay for another thread
inline constexpr std::int64_t chunk_channels = 256;

struct Quantize {
  static void run(const float* x, std::int64_t count, const CodeScale& to, std::uint8_t* y, bool* is_finite) noexcept {
    int good = 1;
    for (std::int64_t i = 0; i < count; ++i) {
      good &= static_cast<int>(std::fabs(x[i]) <= 3.4028234663852886e38F);
      y[i] = code_of(x[i], to);
    }
    *is_finite = good != 0;
  }
};

struct Dequantize {
  static void run(const std::uint8_t* x, std::int64_t count, const CodeScale& from, float* y) noexcept {
    for (std::int64_t i = 0; i < count; ++i) y[i] = static_cast<float>(x[i] - from.zero) * from.scale;
  }
};

struct AddCodes {
  static void run(const std::uint8_t* a, const CodeScale& of_a, const std::uint8_t* b, const CodeScale& of_b,
                  std::int64_t count, const CodeScale& to, std::uint8_t* y) noexcept {
    const float left = of_a.scale / to.scale, right = of_b.scale / to.scale;
    for (std::int64_t i = 0; i < count; ++i) {
      const float v = static_cast<float>(a[i] - of_a.zero) * left + static_cast<float>(b[i] - of_b.zero) * right;
      y[i] = quant_code(v, to.zero, to.low, to.high);
    }
  }
};

struct Largest {
  static void run(const std::uint8_t* x, std::int64_t count, std::uint8_t* y) noexcept {
    for (std::int64_t i = 0; i < count; ++i) y[i] = x[i] > y[i] ? x[i] : y[i];
  }
};

struct Floor {
  static void run(const std::uint8_t* x, std::int64_t count, std::uint8_t floor, std::uint8_t* y) noexcept {
    for (std::int64_t i = 0; i < count; ++i) y[i] = x[i] > floor ? x[i] : floor;
  }
};

/// One line of a pool's outputs.
struct PoolLine {
  static void run(const std::uint8_t* x, const PoolWindows& w, std::int64_t image, std::int64_t row,
                  std::uint8_t* y) noexcept {
    std::fill_n(y, w.out[1] * w.channels, std::uint8_t{0});  // the smallest code represents padding
    for (std::int64_t kh = 0; kh < w.kernel[0]; ++kh) {
      const std::int64_t ih = row * w.stride[0] + kh * w.dilation[0] - w.padding[0];
      if (ih < 0 || ih >= w.in[0]) continue;
      const std::uint8_t* const line = x + (image * w.in[0] + ih) * w.in[1] * w.channels;
      for (std::int64_t j = 0; j < w.out[1]; ++j) {
        for (std::int64_t kw = 0; kw < w.kernel[1]; ++kw) {
          const std::int64_t iw = j * w.stride[1] + kw * w.dilation[1] - w.padding[1];
          if (iw >= 0 && iw < w.in[1]) Largest::run(line + iw * w.channels, w.channels, y + j * w.channels);
        }
      }
    }
  }
};

struct Mean {
  static void run(const std::uint8_t* x, std::int64_t pixels, std::int64_t channels, const CodeScale& from,
                  const CodeScale& to, std::uint8_t* y) noexcept {
    const float scale = from.scale / (to.scale * static_cast<float>(pixels));
    for (std::int64_t first = 0; first < channels; first += chunk_channels) {
      const std::int64_t count = std::min(chunk_channels, channels - first);
      std::int32_t sums[chunk_channels] = {};
      for (std::int64_t p = 0; p < pixels; ++p) {
        for (std::int64_t c = 0; c < count; ++c) sums[c] += x[p * channels + first + c] - from.zero;
      }
      for (std::int64_t c = 0; c < count; ++c) {
        y[first + c] = quant_code(static_cast<float>(sums[c]) * scale, to.zero, to.low, to.high);
      }
    }
  }
};

template <class T>
bool quantize_weight(const T* weight, std::int64_t filters, std::int64_t elements, bool is_per_tensor,
                     const float* least, std::int8_t* codes, float* scales) noexcept {
  double all = 0;
  for (std::int64_t o = 0; o < filters; ++o) {
    double amax = 0;
    for (std::int64_t i = 0; i < elements; ++i) {
      const double x = std::fabs(static_cast<double>(weight[o * elements + i]));
      if (!std::isfinite(x)) return false;
      amax = std::max(amax, x);
    }
    scales[o] = static_cast<float>(amax / 127);
    if (least != nullptr) scales[o] = std::max(scales[o], least[o]);
    all = std::max(all, static_cast<double>(scales[o]));
  }
  for (std::int64_t o = 0; o < filters; ++o) {
    if (is_per_tensor) scales[o] = static_cast<float>(all);
    if (!(scales[o] > 0)) scales[o] = 1;
    for (std::int64_t i = 0; i < elements; ++i) {
      const double code = std::nearbyint(static_cast<double>(weight[o * elements + i]) / scales[o]);
      codes[o * elements + i] = static_cast<std::int8_t>(std::clamp(code, -127.0, 127.0));
    }
  }
  return true;
}

}  // namespace quant_codes_detail

bool quantize_codes(const float* x, std::int64_t count, const CodeScale& to, std::uint8_t* y) noexcept {
  std::atomic<bool> is_good{true};
  parallel_for(count, quant_codes_detail::grain, [&](std::int64_t begin, std::int64_t end) {
    bool is_finite = true;
    run_variant<quant_codes_detail::Quantize>(x + begin, end - begin, to, y + begin, &is_finite);
    if (!is_finite) is_good = false;
  });
  return is_good;
}

void dequantize_codes(const std::uint8_t* x, std::int64_t count, const CodeScale& from, float* y) noexcept {
  parallel_for(count, quant_codes_detail::grain, [&](std::int64_t begin, std::int64_t end) {
    run_variant<quant_codes_detail::Dequantize>(x + begin, end - begin, from, y + begin);
  });
}

void max_pool_codes(const std::uint8_t* x, const PoolWindows& windows, std::uint8_t* y) noexcept {
  const std::int64_t line = windows.out[1] * windows.channels;
  const std::int64_t lines = std::max<std::int64_t>(1, quant_codes_detail::grain / std::max<std::int64_t>(line, 1));
  parallel_for(windows.images * windows.out[0], lines, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      run_variant<quant_codes_detail::PoolLine>(x, windows, i / windows.out[0], i % windows.out[0], y + i * line);
    }
  });
}

void mean_codes(const std::uint8_t* x, std::int64_t images, std::int64_t pixels, std::int64_t channels,
                const CodeScale& from, const CodeScale& to, std::uint8_t* y) noexcept {
  parallel_for(images, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      run_variant<quant_codes_detail::Mean>(x + n * pixels * channels, pixels, channels, from, to, y + n * channels);
    }
  });
}

void add_codes(const std::uint8_t* a, const CodeScale& of_a, const std::uint8_t* b, const CodeScale& of_b,
               std::int64_t count, const CodeScale& to, std::uint8_t* y) noexcept {
  parallel_for(count, quant_codes_detail::grain, [&](std::int64_t begin, std::int64_t end) {
    run_variant<quant_codes_detail::AddCodes>(a + begin, of_a, b + begin, of_b, end - begin, to, y + begin);
  });
}

void relu_codes(const std::uint8_t* x, std::int64_t count, int zero, std::uint8_t* y) noexcept {
  parallel_for(count, quant_codes_detail::grain, [&](std::int64_t begin, std::int64_t end) {
    run_variant<quant_codes_detail::Floor>(x + begin, end - begin, static_cast<std::uint8_t>(zero), y + begin);
  });
}

namespace quant_codes_detail {

void quantize(const float* x, std::int64_t count, const CodeScale& to, std::uint8_t* y, std::int32_t* not_finite) {
  *not_finite = quantize_codes(x, count, to, y) ? 0 : 1;
}

void copy_rows(const std::uint8_t* x, std::int64_t rows, std::int64_t columns, std::uint8_t* y, std::int64_t stride) {
  parallel_for(rows, 1024, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::memcpy(y + i * stride, x + i * columns, static_cast<std::size_t>(columns));
    }
  });
}

}  // namespace quant_codes_detail

const QuantCodeKernels quant_codes_cpu{
    .quantize = quant_codes_detail::quantize,
    .dequantize = dequantize_codes,
    .max_pool = max_pool_codes,
    .mean = mean_codes,
    .add = add_codes,
    .relu = relu_codes,
    .copy_rows = quant_codes_detail::copy_rows,
};

const QuantCodeKernels& quant_code_kernels(memory::Device device) {
  return table_for(device, "codes", quant_codes_cpu, quant_codes_cuda);
}

bool quantize_weight_codes(const void* weight, DType dtype, std::int64_t filters, std::int64_t elements,
                           bool is_per_tensor, const float* least, std::int8_t* codes, float* scales) noexcept {
  using quant_codes_detail::quantize_weight;
  if (dtype == DType::f64) {
    return quantize_weight(static_cast<const double*>(weight), filters, elements, is_per_tensor, least, codes, scales);
  }
  return quantize_weight(static_cast<const float*>(weight), filters, elements, is_per_tensor, least, codes, scales);
}

// ---- NF4 on the CPU. One thread processes a block, and a block's magnitude is a maximum, so threads change no bits.

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

/// body(block, its first element, its number of elements) for every block.
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

namespace q8_detail {

inline constexpr std::int64_t grain = 64;  // blocks that pay for another thread

bool quantize_block(const float* in, std::int64_t stride, std::uint8_t* out) noexcept {
  float amax = 0;
  for (std::int64_t i = 0; i < q8_block; ++i) {
    const float x = in[i * stride];
    if (!std::isfinite(x)) return false;
    amax = std::max(amax, std::fabs(x));
  }
  const float scale = amax / 127.0F, inverse = scale > 0 ? 1.0F / scale : 0.0F;
  const f16 stored(scale);
  if (!std::isfinite(static_cast<float>(stored))) return false;
  std::memcpy(out, &stored, 2);
  for (std::int64_t i = 0; i < q8_block; ++i) {
    const float code = std::nearbyint(in[i * stride] * inverse);
    // The inverse of a subnormal scale is infinite, and 0 times infinity is NaN: such a block is 0.
    out[2 + i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(std::isfinite(inverse) ? code : 0));
  }
  return true;
}

struct Dequantize {
  static void run(const std::uint8_t* in, std::int64_t blocks, float* out) noexcept {
    for (std::int64_t b = 0; b < blocks; ++b, in += q8_block_bytes, out += q8_block) {
      f16 stored;
      std::memcpy(&stored, in, 2);
      const auto scale = static_cast<float>(stored);
      const auto* const codes = reinterpret_cast<const std::int8_t*>(in + 2);
      for (std::int64_t i = 0; i < q8_block; ++i) out[i] = static_cast<float>(codes[i]) * scale;
    }
  }
};

}  // namespace q8_detail

bool quantize_q8_rows(const float* in, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
                      std::int64_t column_stride, std::uint8_t* out) noexcept {
  const std::int64_t in_row = columns / q8_block;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t b = 0; b < in_row; ++b, out += q8_block_bytes) {
      const float* const block = in + i * row_stride + b * q8_block * column_stride;
      if (!q8_detail::quantize_block(block, column_stride, out)) return false;
    }
  }
  return true;
}

void dequantize_q8_blocks(const std::uint8_t* in, std::int64_t blocks, float* out) noexcept {
  parallel_for(blocks, q8_detail::grain, [&](std::int64_t begin, std::int64_t end) {
    run_variant<q8_detail::Dequantize>(in + begin * q8_block_bytes, end - begin, out + begin * q8_block);
  });
}

const Q8Kernels q8_cpu{.dequantize = dequantize_q8_blocks};

const Q8Kernels& q8_kernels(memory::Device device) { return table_for(device, "q8 blocks", q8_cpu, q8_cuda); }

}  // namespace thimble::kernels
