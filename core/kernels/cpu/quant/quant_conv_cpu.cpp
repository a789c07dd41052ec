// Packing, bands and loops of quant_conv.h.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/kernels/quant_conv.h>
#include <thimble/core/kernels/shared/quant_rows.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/threads/parallel.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thimble::kernels::quant_detail {

// ---- The innermost loops of quant_conv.h: a few pixels against a panel of filters, on each unit.

inline constexpr int block_bytes = 64;
inline constexpr int most_rows = 12;      // pixels of a tile
inline constexpr int most_blocks = 4;     // of a panel
inline constexpr int narrow_filters = 8;  // at most this many filters make groups of 8 bytes

/// Pixels of a tile of `blocks` blocks: the most that leave the sums in 32 registers.
constexpr int rows_of(int blocks) noexcept { return blocks == most_blocks ? 6 : most_rows; }

struct QuantTile {
  const std::uint8_t* rows[most_rows];  ///< starts of the pixels' windows; entries from `count` on are readable too
  int count;
  const std::int64_t* runs;  ///< offsets of a window's runs from its start
  std::int64_t run_count;
  std::int64_t run_bytes;  ///< whole groups
  const std::uint8_t* panel;
  int blocks;
  int filters;  ///< filters of the panel that exist
  const std::int32_t* bias;
  const float* scale;
  const std::uint8_t* residual;  ///< at the tile's first pixel and filter; may be null
  void* y;
  std::int64_t stride;  ///< of y and residual, elements
};

using QuantKernel = void (*)(const QuantConvArgs& args, const QuantTile& tile);

namespace quant_kernel_detail {

inline constexpr int lanes = 16;  // of a block, 4 bytes each

/// y of one pixel from its sums, filter by filter.
void finish(const QuantConvArgs& args, const QuantTile& tile, int row, const std::int32_t* sums) noexcept {
  const std::int64_t at = row * tile.stride;
  for (int f = 0; f < tile.filters; ++f) {
    const auto sum = static_cast<std::uint32_t>(sums[f]) + static_cast<std::uint32_t>(tile.bias[f]);
    float v = static_cast<float>(static_cast<std::int32_t>(sum)) * tile.scale[f];
    if (tile.residual != nullptr) {
      v += static_cast<float>(tile.residual[at + f] - args.residual_zero) * args.residual_scale;
    }
    if (args.y_dtype == DType::f32) {
      static_cast<float*>(tile.y)[at + f] = v;
    } else {
      static_cast<std::uint8_t*>(tile.y)[at + f] = quant_code(v, args.zero, args.low, args.high);
    }
  }
}

/// Adds lanes up to filters: in a narrow block each filter has two lanes.
template <bool is_narrow>
void finish_lanes(const QuantConvArgs& args, const QuantTile& tile, int row, std::int32_t* sums) noexcept {
  if constexpr (is_narrow) {
    for (int f = 0; f < lanes / 2; ++f) sums[f] = sums[2 * f] + sums[2 * f + 1];
  }
  finish(args, tile, row, sums);
}

template <bool is_narrow>
void tile_generic(const QuantConvArgs& args, const QuantTile& tile) {
  constexpr int depth = is_narrow ? 8 : 4;
  for (int r = 0; r < tile.count; ++r) {
    std::int32_t sums[most_blocks * lanes] = {};
    const std::uint8_t* b = tile.panel;
    for (std::int64_t run = 0; run < tile.run_count; ++run) {
      const std::uint8_t* const a = tile.rows[r] + tile.runs[run];
      for (std::int64_t at = 0; at < tile.run_bytes; at += depth) {
        for (int block = 0; block < tile.blocks; ++block, b += block_bytes) {
          for (int i = 0; i < block_bytes; ++i) {
            sums[block * lanes + i / 4] += a[at + i % depth] * static_cast<std::int8_t>(b[i]);
          }
        }
      }
    }
    finish_lanes<is_narrow>(args, tile, r, sums);
  }
}

#if defined(__x86_64__)

#define THIMBLE_TARGET_QUANT __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

/// Bytes widened to 16 bits, whose products one instruction sums in pairs, four lanes at a time.
template <bool is_narrow>
THIMBLE_TARGET_AVX2 void tile_avx2(const QuantConvArgs& args, const QuantTile& tile) {
  constexpr int depth = is_narrow ? 8 : 4;
  for (int r = 0; r < tile.count; ++r) {
    alignas(32) std::int32_t sums[most_blocks * lanes];
    for (int block = 0; block < tile.blocks; ++block) {
      __m256i sum[4];
      for (__m256i& s : sum) s = _mm256_setzero_si256();
      const std::uint8_t* b = tile.panel + block * block_bytes;
      for (std::int64_t run = 0; run < tile.run_count; ++run) {
        const std::uint8_t* const a = tile.rows[r] + tile.runs[run];
        for (std::int64_t at = 0; at < tile.run_bytes; at += depth, b += tile.blocks * block_bytes) {
          std::int64_t bytes = 0;
          std::memcpy(&bytes, a + at, depth);
          const __m128i group = is_narrow ? _mm_set1_epi64x(bytes) : _mm_set1_epi32(static_cast<std::int32_t>(bytes));
          const __m256i value = _mm256_cvtepu8_epi16(group);
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            const __m256i weight = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 16 * i)));
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(value, weight));
          }
        }
      }
      for (int half = 0; half < 2; ++half) {
        const __m256i mixed = _mm256_hadd_epi32(sum[2 * half], sum[2 * half + 1]);  // lanes 0 1 4 5, 2 3 6 7
        _mm256_store_si256(reinterpret_cast<__m256i*>(sums + block * lanes + 8 * half),
                           _mm256_permute4x64_epi64(mixed, 0xD8));
      }
    }
    finish_lanes<is_narrow>(args, tile, r, sums);
  }
}

/// All-ones masks: GCC 12 takes the unmasked forms of these instructions for reads of uninitialized values.
inline constexpr __mmask16 all = 0xFFFF;
inline constexpr __mmask8 all_pairs = 0xFF;

/// Constants of a tile's epilogue.
struct Constants {
  __m512 least, most, residual_scale;
  __m512i zero, residual_zero;
};

/// y of up to 16 filters of a pixel, selected by `mask`.
THIMBLE_TARGET_QUANT inline void store_vnni(const QuantConvArgs& args, const QuantTile& tile, const Constants& c,
                                            __m512i sum, __m512i bias, __m512 scale, std::int64_t at, __mmask16 mask) {
  __m512 v = _mm512_mul_ps(_mm512_maskz_cvtepi32_ps(all, _mm512_add_epi32(sum, bias)), scale);
  if (tile.residual != nullptr) {
    const __m512i codes = _mm512_maskz_cvtepu8_epi32(all, _mm_maskz_loadu_epi8(mask, tile.residual + at));
    const __m512 there = _mm512_maskz_cvtepi32_ps(all, _mm512_sub_epi32(codes, c.residual_zero));
    v = _mm512_add_ps(v, _mm512_mul_ps(there, c.residual_scale));
  }
  if (args.y_dtype == DType::f32) return _mm512_mask_storeu_ps(static_cast<float*>(tile.y) + at, mask, v);
  v = _mm512_maskz_min_ps(all, _mm512_maskz_max_ps(all, v, c.least), c.most);
  const __m512i codes = _mm512_add_epi32(_mm512_maskz_cvtps_epi32(all, v), c.zero);
  _mm_mask_storeu_epi8(static_cast<std::uint8_t*>(tile.y) + at, mask, _mm512_maskz_cvtepi32_epi8(all, codes));
}

template <int rows, int blocks, bool is_narrow>
THIMBLE_TARGET_QUANT void rows_vnni(const QuantConvArgs& args, const QuantTile& tile) {
  constexpr int depth = is_narrow ? 8 : 4;
  __m512i sum[rows][blocks];
  const std::uint8_t* a[rows];
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
    a[r] = tile.rows[r];
#pragma GCC unroll 4
    for (int i = 0; i < blocks; ++i) sum[r][i] = _mm512_setzero_si512();
  }
  const std::uint8_t* b = tile.panel;
  for (std::int64_t run = 0; run < tile.run_count; ++run) {
    const std::int64_t begin = tile.runs[run], end = begin + tile.run_bytes;
    for (std::int64_t at = begin; at < end; at += depth, b += blocks * block_bytes) {
      __m512i weight[blocks];
#pragma GCC unroll 4
      for (int i = 0; i < blocks; ++i) weight[i] = _mm512_load_si512(b + i * block_bytes);
#pragma GCC unroll 12
      for (int r = 0; r < rows; ++r) {
        __m512i value;
        if constexpr (is_narrow) {
          std::int64_t group;
          std::memcpy(&group, a[r] + at, sizeof(group));
          value = _mm512_set1_epi64(group);
        } else {
          std::int32_t group;
          std::memcpy(&group, a[r] + at, sizeof(group));
          value = _mm512_set1_epi32(group);
        }
#pragma GCC unroll 4
        for (int i = 0; i < blocks; ++i) sum[r][i] = _mm512_dpbusd_epi32(sum[r][i], value, weight[i]);
      }
    }
  }
  const Constants c{_mm512_set1_ps(static_cast<float>(args.low - args.zero)),
                    _mm512_set1_ps(static_cast<float>(args.high - args.zero)), _mm512_set1_ps(args.residual_scale),
                    _mm512_set1_epi32(args.zero), _mm512_set1_epi32(args.residual_zero)};
#pragma GCC unroll 4
  for (int i = 0; i < blocks; ++i) {
    const int left = tile.filters - i * lanes;
    const auto mask = static_cast<__mmask16>(left >= lanes ? 0xFFFF : (1U << (left > 0 ? left : 0)) - 1);
    const __m512i bias = _mm512_loadu_si512(tile.bias + i * lanes);
    const __m512 scale = _mm512_loadu_ps(tile.scale + i * lanes);
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
      if (r >= tile.count) break;
      __m512i s = sum[r][i];
      if constexpr (is_narrow) {
        s = _mm512_castsi256_si512(
            _mm512_maskz_cvtepi64_epi32(all_pairs, _mm512_add_epi32(s, _mm512_maskz_srli_epi64(all_pairs, s, 32))));
      }
      store_vnni(args, tile, c, s, bias, scale, r * tile.stride + i * lanes, mask);
    }
  }
}

template <int blocks, bool is_narrow>
void pick_vnni(const QuantConvArgs& args, const QuantTile& tile) {
  constexpr int rows = rows_of(blocks);
  if (tile.count > rows / 2) return rows_vnni<rows, blocks, is_narrow>(args, tile);
  if (tile.count > 1) return rows_vnni<rows / 2, blocks, is_narrow>(args, tile);
  rows_vnni<1, blocks, is_narrow>(args, tile);
}

void tile_vnni(const QuantConvArgs& args, const QuantTile& tile) {
  if (tile.blocks == 4) return pick_vnni<4, false>(args, tile);
  if (tile.blocks == 2) return pick_vnni<2, false>(args, tile);
  pick_vnni<1, false>(args, tile);
}

#undef THIMBLE_TARGET_QUANT
#endif

}  // namespace quant_kernel_detail

/// The kernel of a unit; `is_narrow`: groups of 8 bytes.
QuantKernel quant_kernel([[maybe_unused]] DotUnit unit, bool is_narrow) noexcept {
  using namespace quant_kernel_detail;
#if defined(__x86_64__)
  if (unit == DotUnit::avx512) return is_narrow ? pick_vnni<1, true> : tile_vnni;
  if (unit == DotUnit::avx2) return is_narrow ? tile_avx2<true> : tile_avx2<false>;
#endif
  return is_narrow ? tile_generic<true> : tile_generic<false>;
}

}  // namespace thimble::kernels::quant_detail

namespace thimble::kernels {

namespace quant_conv_detail {

using namespace quant_detail;

inline constexpr std::int64_t band_bytes = 64 * 1024;  // of input lines; twice the first-level cache at most
inline constexpr int lanes = 16;

std::int64_t quotient_up(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

/// How weights are packed.
struct Packing {
  bool is_narrow;
  std::int64_t runs, run_elements, run_groups, depth;

  explicit Packing(const ConvShape& s) noexcept
      : is_narrow(s.filters <= narrow_filters),
        runs(quant_runs(s)),
        run_elements(s.dilation_w == 1 ? s.kernel_w * s.channels : s.channels),
        run_groups(0),
        depth(is_narrow ? 8 : 4) {
    run_groups = quotient_up(run_elements, depth);
  }
  std::int64_t run_bytes() const noexcept { return run_groups * depth; }
  std::int64_t block_filters() const noexcept { return is_narrow ? lanes / 2 : lanes; }
  std::int64_t bytes_per_block() const noexcept { return runs * run_groups * block_bytes; }
};

/// Blocks of the panel that begins with `left` filters left.
int panel_blocks(std::int64_t left) noexcept { return left > 3 * lanes ? 4 : left > lanes ? 2 : 1; }

/// Calls f(byte in packed, element of the dense weight) for every element.
template <class F>
void for_each_weight(const ConvShape& s, F&& f) noexcept {
  const Packing packing(s);
  const std::int64_t filter_elements = packing.runs * packing.run_elements;
  std::int64_t panel = 0;
  for (std::int64_t first = 0; first < s.filters;) {
    const int blocks = packing.is_narrow ? 1 : panel_blocks(s.filters - first);
    const std::int64_t count = std::min<std::int64_t>(blocks * packing.block_filters(), s.filters - first);
    for (std::int64_t o = 0; o < count; ++o) {
      const std::int64_t block = o / packing.block_filters(), column = o % packing.block_filters();
      for (std::int64_t run = 0; run < packing.runs; ++run) {
        for (std::int64_t e = 0; e < packing.run_elements; ++e) {
          const std::int64_t group = run * packing.run_groups + e / packing.depth;
          const std::int64_t at =
              panel + (group * blocks + block) * block_bytes + column * packing.depth + e % packing.depth;
          f(at, (first + o) * filter_elements + run * packing.run_elements + e);
        }
      }
    }
    first += count;
    panel += blocks * packing.bytes_per_block();
  }
}

/// How outputs are cut into bands, and the layout of a band's input.
struct Bands {
  bool is_direct;      ///< lines are read in place
  std::int64_t line;   ///< bytes from one input line to the next
  std::int64_t image;  ///< bytes from one image to the next
  std::int64_t out_h, out_w;
  std::int64_t images, lines;  ///< of a band, outputs
  std::int64_t in_lines;       ///< of an image in a copied band
  std::int64_t bands_per_image, count;

  Bands(const ConvShape& s, int threads) noexcept : out_h(s.out_height()), out_w(s.out_width()) {
    const Packing packing(s);
    is_direct = s.pad_top == 0 && s.pad_bottom == 0 && s.pad_left == 0 && s.pad_right == 0 &&
                packing.run_elements % packing.depth == 0;
    line = (is_direct ? s.width : s.pad_left + s.width + s.pad_right) * s.channels;
    const std::int64_t whole = input_lines(s, out_h) * line;
    const std::int64_t share = std::max<std::int64_t>(1, quotient_up(s.images, std::max(threads, 1)));
    if (whole <= band_bytes) {
      images = std::clamp<std::int64_t>(band_bytes / std::max<std::int64_t>(whole, 1), 1, share);
      lines = out_h;
    } else {
      images = 1;
      lines = out_h;
      while (lines > 1 && input_lines(s, lines) * line > band_bytes) --lines;
    }
    // Threads share even a single image.
    if (images == 1 && s.images < threads) {
      lines = std::min(lines, std::max<std::int64_t>(1, quotient_up(out_h * s.images, threads)));
    }
    in_lines = input_lines(s, lines);
    image = is_direct ? s.height * line : in_lines * line;
    bands_per_image = quotient_up(out_h, std::max<std::int64_t>(lines, 1));
    count = quotient_up(s.images, images) * bands_per_image;
  }
  static std::int64_t input_lines(const ConvShape& s, std::int64_t lines) noexcept {
    return (lines - 1) * s.stride_h + (s.kernel_h - 1) * s.dilation_h + 1;
  }
  /// Includes the last group's bytes behind the last run.
  std::int64_t copied_bytes() const noexcept {
    return is_direct ? 0 : quotient_up(images * image + 2 * narrow_filters, 64) * 64;
  }
};

/// One thread's bands.
class Worker {
 public:
  Worker(const QuantConvArgs& args, const Bands& bands, QuantKernel kernel, std::uint8_t* copy) noexcept
      : args_(args), bands_(bands), packing_(args.shape), kernel_(kernel), copy_(copy) {
    const ConvShape& s = args.shape;
    const bool is_dilated = packing_.runs != s.kernel_h;
    for (std::int64_t run = 0; run < packing_.runs; ++run) {
      const std::int64_t h = is_dilated ? run / s.kernel_w : run, w = is_dilated ? run % s.kernel_w : 0;
      runs_[run] = h * s.dilation_h * bands.line + w * s.dilation_w * s.channels;
    }
    tile_.runs = runs_;
    tile_.run_count = packing_.runs;
    tile_.run_bytes = packing_.run_bytes();
    tile_.stride = s.filters;
  }

  void compute(std::int64_t band) noexcept {
    const ConvShape& s = args_.shape;
    const std::int64_t image = band / bands_.bands_per_image * bands_.images;
    const std::int64_t line = band % bands_.bands_per_image * bands_.lines;
    const std::int64_t images = std::min(bands_.images, s.images - image);
    lines_ = std::min(bands_.lines, bands_.out_h - line);
    if (bands_.is_direct) {
      input_ = args_.x + image * bands_.image + line * s.stride_h * bands_.line;
    } else {
      copy(image, images, line * s.stride_h - s.pad_top);
      input_ = copy_;
    }
    const std::int64_t first = (image * bands_.out_h + line) * bands_.out_w;
    pixels_ = images * lines_ * bands_.out_w;
    const auto* panel = static_cast<const std::uint8_t*>(args_.packed);
    for (std::int64_t o = 0; o < s.filters;) {
      tile_.blocks = packing_.is_narrow ? 1 : panel_blocks(s.filters - o);
      tile_.filters = static_cast<int>(std::min<std::int64_t>(tile_.blocks * packing_.block_filters(), s.filters - o));
      tile_.panel = panel;
      tile_.bias = args_.bias + o;
      tile_.scale = args_.scale + o;
      multiply(first * s.filters + o);
      panel += tile_.blocks * packing_.bytes_per_block();
      o += tile_.filters;
    }
  }

 private:
  /// Copies lines of `images` images from `top` on, with zero points around them.
  void copy(std::int64_t image, std::int64_t images, std::int64_t top) noexcept {
    const ConvShape& s = args_.shape;
    const std::int64_t left = s.pad_left * s.channels, inside = s.width * s.channels;
    std::uint8_t* to = copy_;
    for (std::int64_t n = 0; n < images; ++n) {
      for (std::int64_t i = 0; i < Bands::input_lines(s, lines_); ++i, to += bands_.line) {
        const std::int64_t y = top + i;
        if (y < 0 || y >= s.height) {
          std::memset(to, args_.x_zero, static_cast<std::size_t>(bands_.line));
          continue;
        }
        std::memset(to, args_.x_zero, static_cast<std::size_t>(left));
        std::memcpy(to + left, args_.x + ((image + n) * s.height + y) * inside, static_cast<std::size_t>(inside));
        std::memset(to + left + inside, args_.x_zero, static_cast<std::size_t>(s.pad_right * s.channels));
      }
    }
    std::memset(to, 0, 2 * narrow_filters);
  }

  void multiply(std::int64_t out) noexcept {
    const ConvShape& s = args_.shape;
    const int rows = rows_of(tile_.blocks);
    const std::int64_t step_w = s.stride_w * s.channels, step_h = s.stride_h * bands_.line;
    const std::int64_t image = bands_.is_direct ? bands_.image : Bands::input_lines(s, lines_) * bands_.line;
    const std::uint8_t* at_line = input_;
    const std::uint8_t* at_image = input_;
    const std::uint8_t* at = input_;
    std::int64_t left_in_line = bands_.out_w, left_lines = lines_;
    for (std::int64_t p = 0; p < pixels_; p += tile_.count) {
      tile_.count = static_cast<int>(std::min<std::int64_t>(rows, pixels_ - p));
      for (int r = 0; r < tile_.count; ++r) {
        tile_.rows[r] = at;
        at += step_w;
        if (--left_in_line > 0) continue;
        left_in_line = bands_.out_w;
        at = at_line += step_h;
        if (--left_lines > 0) continue;
        left_lines = lines_;
        at = at_line = at_image += image;
      }
      for (int r = tile_.count; r < rows; ++r) tile_.rows[r] = tile_.rows[0];
      const std::int64_t first = out + p * s.filters;
      tile_.y = args_.y_dtype == DType::f32 ? static_cast<void*>(static_cast<float*>(args_.y) + first)
                                            : static_cast<std::uint8_t*>(args_.y) + first;
      tile_.residual = args_.residual != nullptr ? args_.residual + first : nullptr;
      kernel_(args_, tile_);
    }
  }

  const QuantConvArgs& args_;
  const Bands& bands_;
  Packing packing_;
  QuantKernel kernel_;
  std::uint8_t* copy_;
  const std::uint8_t* input_ = nullptr;
  std::int64_t lines_ = 0, pixels_ = 0;
  std::int64_t runs_[quant_max_runs] = {};
  QuantTile tile_{};
};

}  // namespace quant_conv_detail

std::int64_t quant_runs(const ConvShape& shape) noexcept {
  return shape.dilation_w == 1 ? shape.kernel_h : shape.kernel_h * shape.kernel_w;
}

std::int64_t quant_padded_filters(const ConvShape& shape) noexcept {
  using namespace quant_conv_detail;
  std::int64_t filters = 0;
  while (filters < shape.filters) filters += panel_blocks(shape.filters - filters) * lanes;
  return filters;
}

std::size_t quant_packed_bytes(const ConvShape& shape) noexcept {
  using namespace quant_conv_detail;
  const Packing packing(shape);
  const std::int64_t blocks = packing.is_narrow ? 1 : quant_padded_filters(shape) / lanes;
  return static_cast<std::size_t>(blocks * packing.bytes_per_block());
}

void pack_quant_weight(const ConvShape& shape, const std::int8_t* weight, void* packed) noexcept {
  auto* const to = static_cast<std::int8_t*>(packed);
  std::memset(to, 0, quant_packed_bytes(shape));
  quant_conv_detail::for_each_weight(shape, [&](std::int64_t at, std::int64_t element) { to[at] = weight[element]; });
}

void unpack_quant_weight(const ConvShape& shape, const void* packed, std::int8_t* weight) noexcept {
  const auto* const from = static_cast<const std::int8_t*>(packed);
  quant_conv_detail::for_each_weight(shape, [&](std::int64_t at, std::int64_t element) { weight[element] = from[at]; });
}

std::size_t quant_conv_workspace_bytes(const ConvShape& shape, int threads) noexcept {
  const quant_conv_detail::Bands bands(shape, threads);
  return static_cast<std::size_t>(bands.copied_bytes() * std::clamp<std::int64_t>(bands.count, 1, threads));
}

void quant_conv(const QuantConvArgs& args, void* workspace, int threads, DotUnit unit) noexcept {
  using namespace quant_conv_detail;
  const Bands bands(args.shape, threads);
  const QuantKernel kernel = quant_kernel(unit, Packing(args.shape).is_narrow);
  const int used = static_cast<int>(std::clamp<std::int64_t>(bands.count, 1, threads));
  parallel_threads(used, [&](int thread) {
    Worker worker(args, bands, kernel, static_cast<std::uint8_t*>(workspace) + thread * bands.copied_bytes());
    const std::int64_t first = bands.count * thread / used, last = bands.count * (thread + 1) / used;
    for (std::int64_t band = first; band < last; ++band) worker.compute(band);
  });
}

namespace quant_conv_detail {

void conv(const QuantConvArgs& args, void* workspace, int threads) {
  quant_conv(args, workspace, threads, int8_unit());
}

}  // namespace quant_conv_detail

const QuantConvKernels quant_conv_cpu{
    .packed_bytes = quant_packed_bytes,
    .pack = pack_quant_weight,
    .unpack = unpack_quant_weight,
    .workspace_bytes = quant_conv_workspace_bytes,
    .conv = quant_conv_detail::conv,
};

const QuantConvKernels& quant_conv_kernels(memory::Device device) {
  return table_for(device, "conv of codes", quant_conv_cpu, quant_conv_cuda, quant_conv_cuda_sizes);
}

}  // namespace thimble::kernels
