// NF4 on CUDA devices, in the arithmetic and with the bits of the CPU's kernels: a thread for each encoded block and
// for each decoded number.

#include <thimble/core/kernels/nf4.h>
#include <thimble/core/numbers/nf4.h>
#include <thimble/core/numbers/quant_code.h>
#include <thimble/cuda/kernel/element.h>

namespace thimble::kernels {
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

/// By one thread: in the order of the CPU, and once per change of a weight.
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
