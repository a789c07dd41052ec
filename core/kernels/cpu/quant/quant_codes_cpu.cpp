#include <thimble/core/kernels/quant_codes.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/shared/quant_code_math.h>
#include <thimble/core/kernels/table_for.h>
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

/// One line of outputs.
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

}  // namespace thimble::kernels
