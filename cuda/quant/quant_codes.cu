// Tensors of 8-bit codes on CUDA devices: encoding, decoding, pools, means, sums, and Q8_0 blocks. A thread computes
// one result, in the arithmetic and with the bits of the CPU's kernels.

#include <thimble/core/kernels/quant_codes.h>
#include <thimble/core/kernels/shared/quant_rows.h>
#include <thimble/core/kernels/weight_codes.h>
#include <thimble/core/numbers/nf4.h>
#include <thimble/core/numbers/quant_code.h>
#include <thimble/cuda/kernel/element.h>

namespace thimble::kernels {

namespace quant_codes_cuda_detail {

using namespace cuda_kernels;
using quant_detail::quant_code;

struct Clear {
  std::int32_t* flag;
  THIMBLE_DEVICE void operator()(std::int64_t) const { *flag = 0; }
};

struct Quantize {
  const float* x;
  CodeScale to;
  std::uint8_t* y;
  std::int32_t* not_finite;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    if ((bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFu) >= 0x7F800000u) *not_finite = 1;
    y[i] = quant_detail::code_of(x[i], to);
  }
};

void quantize(const float* x, std::int64_t count, const CodeScale& to, std::uint8_t* y, std::int32_t* not_finite) {
  for_each_item(1, Clear{not_finite});
  for_each_item(count, Quantize{x, to, y, not_finite});
}

struct Dequantize {
  const std::uint8_t* x;
  CodeScale from;
  float* y;
  THIMBLE_DEVICE void operator()(std::int64_t i) const { y[i] = static_cast<float>(x[i] - from.zero) * from.scale; }
};

void dequantize(const std::uint8_t* x, std::int64_t count, const CodeScale& from, float* y) {
  for_each_item(count, Dequantize{x, from, y});
}

struct MaxPool {
  const std::uint8_t* x;
  std::int64_t channels, in_h, in_w, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h,
      dilation_w;
  std::uint8_t* y;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t c = i % channels, ow = i / channels % out_w, oh = i / channels / out_w % out_h;
    const std::int64_t image = i / channels / out_w / out_h;
    std::uint8_t most = 0;  // padding counts as the smallest code
    for (std::int64_t kh = 0; kh < kernel_h; ++kh) {
      const std::int64_t ih = oh * stride_h + kh * dilation_h - pad_h;
      if (ih < 0 || ih >= in_h) continue;
      for (std::int64_t kw = 0; kw < kernel_w; ++kw) {
        const std::int64_t iw = ow * stride_w + kw * dilation_w - pad_w;
        if (iw >= 0 && iw < in_w) most = larger_of(most, x[((image * in_h + ih) * in_w + iw) * channels + c]);
      }
    }
    y[i] = most;
  }
};

void max_pool(const std::uint8_t* x, const PoolWindows& w, std::uint8_t* y) {
  for_each_item(w.images * w.out[0] * w.out[1] * w.channels,
                MaxPool{x, w.channels, w.in[0], w.in[1], w.out[0], w.out[1], w.kernel[0], w.kernel[1], w.stride[0],
                        w.stride[1], w.padding[0], w.padding[1], w.dilation[0], w.dilation[1], y});
}

struct Mean {
  const std::uint8_t* x;
  std::int64_t pixels, channels;
  int zero;
  float scale;
  CodeScale to;
  std::uint8_t* y;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::uint8_t* const first = x + i / channels * pixels * channels + i % channels;
    std::int32_t sum = 0;
    for (std::int64_t p = 0; p < pixels; ++p) sum += first[p * channels] - zero;
    y[i] = quant_code(static_cast<float>(sum) * scale, to);
  }
};

void mean(const std::uint8_t* x, std::int64_t images, std::int64_t pixels, std::int64_t channels, const CodeScale& from,
          const CodeScale& to, std::uint8_t* y) {
  const float scale = from.scale / (to.scale * static_cast<float>(pixels));
  for_each_item(images * channels, Mean{x, pixels, channels, from.zero, scale, to, y});
}

struct Add {
  const std::uint8_t* a;
  const std::uint8_t* b;
  int zero_a, zero_b;
  float left, right;
  CodeScale to;
  std::uint8_t* y;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    y[i] = quant_code(static_cast<float>(a[i] - zero_a) * left + static_cast<float>(b[i] - zero_b) * right, to);
  }
};

void add(const std::uint8_t* a, const CodeScale& of_a, const std::uint8_t* b, const CodeScale& of_b, std::int64_t count,
         const CodeScale& to, std::uint8_t* y) {
  for_each_item(count, Add{a, b, of_a.zero, of_b.zero, of_a.scale / to.scale, of_b.scale / to.scale, to, y});
}

struct Relu {
  const std::uint8_t* x;
  std::uint8_t zero;
  std::uint8_t* y;
  THIMBLE_DEVICE void operator()(std::int64_t i) const { y[i] = larger_of(x[i], zero); }
};

void relu(const std::uint8_t* x, std::int64_t count, int zero, std::uint8_t* y) {
  for_each_item(count, Relu{x, static_cast<std::uint8_t>(zero), y});
}

struct CopyRows {
  const std::uint8_t* x;
  std::int64_t columns;
  std::uint8_t* y;
  std::int64_t stride;
  THIMBLE_DEVICE void operator()(std::int64_t i) const { y[i / columns * stride + i % columns] = x[i]; }
};

void copy_rows(const std::uint8_t* x, std::int64_t rows, std::int64_t columns, std::uint8_t* y, std::int64_t stride) {
  for_each_item(rows * columns, CopyRows{x, columns, y, stride});
}

struct DequantizeQ8 {
  const std::uint8_t* in;
  float* out;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::uint8_t* const block = in + i / q8_block * q8_block_bytes;
    const auto bits = static_cast<std::uint16_t>(block[0] | block[1] << 8);
    out[i] =
        static_cast<float>(static_cast<std::int8_t>(block[2 + i % q8_block])) * static_cast<float>(bit_cast<f16>(bits));
  }
};

void dequantize_q8(const std::uint8_t* in, std::int64_t blocks, float* out) {
  for_each_item(blocks * q8_block, DequantizeQ8{in, out});
}

constexpr QuantCodeKernels table{quantize, dequantize, max_pool, mean, add, relu, copy_rows};
constexpr Q8Kernels q8_table{dequantize_q8};

}  // namespace quant_codes_cuda_detail

const QuantCodeKernels* const quant_codes_cuda = &quant_codes_cuda_detail::table;
const Q8Kernels* const q8_cuda = &quant_codes_cuda_detail::q8_table;

// ---- NF4 on CUDA devices, in the arithmetic and with the bits of the CPU's kernels: a thread for each encoded block
// and for each decoded number.

namespace nf4_cuda_detail {

using namespace cuda_kernels;

THIMBLE_DEVICE inline std::int64_t blocks_of(const Nf4Args& a) { return (a.elements + nf4_block - 1) / nf4_block; }

struct Encode {
  Nf4Args a;
  THIMBLE_DEVICE void operator()(std::int64_t block) const {
    const std::int64_t first = block * nf4_block;
    const std::int64_t n = nf4_block < a.elements - first ? nf4_block : a.elements - first;
    std::uint32_t most = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t magnitude =
          bit_cast<std::uint32_t>(load_any<float>(a.values, a.dtype, first + i)) & 0x7FFFFFFFu;
      most = most < magnitude ? magnitude : most;
    }
    const auto amax = bit_cast<float>(most);
    a.amax[block] = amax;
    const float inverse = amax >= quant::smallest_scale ? 1.0F / amax : 0.0F;
    const auto code = [&](std::int64_t i) {
      return i < n ? quant::nf4_encode(load_any<float>(a.values, a.dtype, first + i) * inverse) : std::uint8_t{0};
    };
    for (std::int64_t i = 0; i < n; i += 2) {
      a.codes[(first + i) / 2] = static_cast<std::uint8_t>(code(i) << 4 | code(i + 1));
    }
  }
};

/// One thread adds in the order of the CPU; it runs once per change of a weight.
struct Mean {
  Nf4Args a;
  THIMBLE_DEVICE void operator()(std::int64_t) const {
    const std::int64_t blocks = blocks_of(a);
    double sum = 0;
    for (std::int64_t b = 0; b < blocks; ++b) sum += static_cast<double>(a.amax[b]);
    *a.offset = static_cast<float>(sum / static_cast<double>(blocks > 0 ? blocks : 1));
  }
};

struct Subtract {
  Nf4Args a;
  THIMBLE_DEVICE void operator()(std::int64_t block) const { a.amax[block] -= *a.offset; }
};

struct Decode {
  Nf4Args a;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const int code = (a.codes[i / 2] >> (i % 2 == 0 ? 4 : 0)) & 15;
    store_any<float>(a.values, a.dtype, i, quant::nf4_level(code) * (a.amax[i / nf4_block] + *a.offset));
  }
};

std::int64_t count_blocks(const Nf4Args& a) { return (a.elements + nf4_block - 1) / nf4_block; }

void encode(const Nf4Args& a) { for_each_item(count_blocks(a), Encode{a}); }

void center(const Nf4Args& a) {
  for_each_item(1, Mean{a});
  for_each_item(count_blocks(a), Subtract{a});
}

void decode(const Nf4Args& a) { for_each_item(a.elements, Decode{a}); }

constexpr Nf4Kernels table{encode, center, decode};

}  // namespace nf4_cuda_detail

const Nf4Kernels* const nf4_cuda = &nf4_cuda_detail::table;

}  // namespace thimble::kernels
