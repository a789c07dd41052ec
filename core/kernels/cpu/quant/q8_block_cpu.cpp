#include <thimble/core/kernels/q8_block.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/numbers/half.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
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
    // The inverse of a subnormal scale is infinite, and 0 times that is no number: such a block is 0.
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
