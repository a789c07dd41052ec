// Convolutions of 8-bit codes on CUDA devices. Sums of integers are exact, so both ways give the CPU's bits:
//
//   one tap, every pixel   cuBLASLt multiplies codes - 128 by the weights, some pixels at a time; then the epilogue
//   all others             tiles of 64 pixels x 64 filters, four products per instruction (dp4a), epilogue included

#include <thimble/core/kernels/shared/quant_rows.h>
#include <thimble/cuda/kernel/kernel.h>
#include <thimble/cuda/runtime/library.h>

namespace thimble::kernels {
namespace quant_conv_cuda_detail {

using namespace cuda_kernels;

/// sum + the products of four u8 with four i8.
THIMBLE_DEVICE inline std::int32_t dot4(std::uint32_t codes, std::uint32_t weights, std::int32_t sum) {
#if defined(__CUDA_ARCH__)
  std::int32_t result;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(codes), "r"(weights), "r"(sum));
  return result;
#else
  for (int byte = 0; byte < 4; ++byte) {
    sum += static_cast<std::int32_t>((codes >> (8 * byte)) & 0xFFu) *
           static_cast<std::int8_t>(static_cast<std::uint8_t>(weights >> (8 * byte)));
  }
  return sum;
#endif
}

struct Tiles {
  static constexpr int threads = 256, tile = 64, words = 8, own = 4;  // a thread computes own x own of a tile
  static constexpr std::size_t shared_bytes = 2 * words * tile * sizeof(std::uint32_t);
  QuantConvArgs a;
  std::int64_t out_h, out_w, pixels, elements, depth;
  bool has_words;  // four neighbours of a pixel are four of its channels

  explicit Tiles(const QuantConvArgs& args)
      : a(args),
        out_h(args.shape.out_height()),
        out_w(args.shape.out_width()),
        pixels(args.shape.images * out_h * out_w),
        elements(args.shape.kernel_h * args.shape.kernel_w * args.shape.channels),
        depth(quant_rows_depth(args.shape)),
        has_words(args.shape.channels % 4 == 0 && reinterpret_cast<std::uintptr_t>(args.x) % 4 == 0) {}

  std::int64_t teams() const { return ((pixels + tile - 1) / tile) * ((a.shape.filters + tile - 1) / tile); }

  // Offset of element e of a pixel's window in x; negative outside the image.
  THIMBLE_DEVICE std::int64_t place(std::int64_t image, std::int64_t oh, std::int64_t ow, std::int64_t e) const {
    const ConvShape& s = a.shape;
    const std::int64_t tap = e / s.channels, c = e - tap * s.channels, kh = tap / s.kernel_w;
    const std::int64_t kw = tap - kh * s.kernel_w;
    const std::int64_t ih = oh * s.stride_h + kh * s.dilation_h - s.pad_top;
    const std::int64_t iw = ow * s.stride_w + kw * s.dilation_w - s.pad_left;
    if (ih < 0 || ih >= s.height || iw < 0 || iw >= s.width) return -1;
    return ((image * s.height + ih) * s.width + iw) * s.channels + c;
  }

  // Elements e .. e + 3 of a pixel's window. Beyond the last element weights are 0.
  THIMBLE_DEVICE std::uint32_t codes(std::int64_t pixel, std::int64_t e) const {
    if (pixel >= pixels || e >= elements) return 0;
    const std::int64_t line = pixel / out_w, image = line / out_h, oh = line - image * out_h, ow = pixel - line * out_w;
    const auto zero = static_cast<std::uint32_t>(a.x_zero);
    if (has_words) {
      const std::int64_t at = place(image, oh, ow, e);
      return at < 0 ? zero * 0x01010101u : *reinterpret_cast<const std::uint32_t*>(a.x + at);
    }
    std::uint32_t word = 0;
    for (int byte = 0; byte < 4 && e + byte < elements; ++byte) {
      const std::int64_t at = place(image, oh, ow, e + byte);
      word |= (at < 0 ? zero : a.x[at]) << (8 * byte);
    }
    return word;
  }

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    constexpr int side = tile / own;
    static_assert(Team::size == side * side);
    const std::int64_t across = (a.shape.filters + tile - 1) / tile;
    const std::int64_t p0 = job / across * tile, o0 = job % across * tile;
    const auto x = team.template shared<std::uint32_t>();  // (words, tile)
    const auto w = x + words * tile;                       // (words, tile)
    const auto* const weights = static_cast<const std::uint32_t*>(a.packed);
    const int first_p = team.rank() / side, first_o = team.rank() % side;
    std::int32_t sums[own][own] = {};
    for (std::int64_t e0 = 0; e0 < depth; e0 += 4 * words) {
      for (int i = team.rank(); i < words * tile; i += Team::size) {
        const int word = i / tile, place_in_tile = i % tile;
        const std::int64_t e = e0 + 4 * word, o = o0 + place_in_tile;
        x[i] = codes(p0 + place_in_tile, e);
        w[i] = o < a.shape.filters && e < depth ? weights[(o * depth + e) / 4] : 0u;
      }
      team.sync();
      for (int word = 0; word < words; ++word) {
        for (int i = 0; i < own; ++i) {
          for (int j = 0; j < own; ++j) {
            sums[i][j] = dot4(x[word * tile + first_p + i * side], w[word * tile + first_o + j * side], sums[i][j]);
          }
        }
      }
      team.sync();
    }
    for (int i = 0; i < own; ++i) {
      for (int j = 0; j < own; ++j) {
        const std::int64_t pixel = p0 + first_p + i * side, o = o0 + first_o + j * side;
        if (pixel >= pixels || o >= a.shape.filters) continue;
        quant_detail::store_quant_conv(a, pixel * a.shape.filters + o, o, sums[i][j] + a.bias[o]);
      }
    }
  }
};

// Four codes less 128 each.
struct Shift {
  const std::uint32_t* codes;
  std::uint32_t* shifted;
  THIMBLE_DEVICE void operator()(std::int64_t i) const { shifted[i] = codes[i] ^ 0x80808080u; }
};

// Turns the sums of a window of pixels into codes.
struct Epilogue {
  QuantConvArgs a;
  std::int64_t first;
  const std::int32_t* sums;
  const std::int32_t* back;  // 128 times the sum of a filter's weights
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t o = i % a.shape.filters;
    quant_detail::store_quant_conv(a, first * a.shape.filters + i, o, sums[i] + back[o] + a.bias[o]);
  }
};

bool by_library(const QuantConvArgs& a, void* workspace) {
  const ConvShape& s = a.shape;
  if (!is_library_quant_conv(s) || reinterpret_cast<std::uintptr_t>(a.x) % 4 != 0) return false;
  const std::int64_t pixels = s.images * s.height * s.width, most = quant_window_rows(s);
  auto* const shifted = static_cast<std::int8_t*>(workspace);
  auto* const sums = reinterpret_cast<std::int32_t*>(shifted + most * s.channels);
  const auto* const weights = static_cast<const std::int8_t*>(a.packed);
  for (std::int64_t first = 0; first < pixels; first += most) {
    const std::int64_t rows = pixels - first < most ? pixels - first : most;
    for_each_item(rows * s.channels / 4, Shift{reinterpret_cast<const std::uint32_t*>(a.x + first * s.channels),
                                               reinterpret_cast<std::uint32_t*>(shifted)});
    const gpu::Int8Gemm product{rows, s.filters, s.channels, shifted, weights, sums};
    if (!gpu::booked(&LibraryUse::cublaslt, product, gpu::library_int8_gemm(product))) return false;
    for_each_item(rows * s.filters,
                  Epilogue{a, first, sums, reinterpret_cast<const std::int32_t*>(weights + s.filters * s.channels)});
  }
  return true;
}

void conv(const QuantConvArgs& args, void* workspace, int) {
  if (by_library(args, workspace)) return;
  const Tiles body(args);
  for_each_team(body.teams(), body, Tiles::shared_bytes);
}

constexpr QuantConvKernels table{quant_rows_bytes, pack_quant_rows, unpack_quant_rows, cuda_quant_conv_bytes, conv};

}  // namespace quant_conv_cuda_detail

const QuantConvKernels* const quant_conv_cuda = &quant_conv_cuda_detail::table;

}  // namespace thimble::kernels
