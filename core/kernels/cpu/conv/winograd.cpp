#include <thimble/core/kernels/cpu/conv/winograd.h>

#include <algorithm>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/matmul/gemm_pack.h>

namespace thimble::kernels::winograd {
namespace transform_detail {

/// Sixteen floats, in as many registers as necessary.
typedef float Lanes __attribute__((vector_size(64), may_alias, aligned(4)));

inline constexpr std::int64_t lanes = vector_channels;
static_assert(sizeof(Lanes) == lanes * sizeof(float));

THIMBLE_ALWAYS_INLINE const Lanes& lanes_at(const float* p) { return *reinterpret_cast<const Lanes*>(p); }
THIMBLE_ALWAYS_INLINE Lanes& lanes_at(float* p) { return *reinterpret_cast<Lanes*>(p); }

alignas(64) inline constexpr float zeros[most_channels] = {};

/// The work of one call of an inner loop: one tile, `count` channels. Pixels may be `zeros`.
struct PatchTile {
  const float* pixels[16];
  float* out;
  std::int64_t component;
  std::int64_t count;
};

/// B^T x B.
struct PatchInner {
  static THIMBLE_ALWAYS_INLINE void run(const PatchTile& tile) {
    float* out = tile.out;
    for (std::int64_t c = 0; c < tile.count; c += lanes, out += lanes) {
      Lanes t[4][4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const Lanes d0 = lanes_at(tile.pixels[j] + c), d1 = lanes_at(tile.pixels[4 + j] + c);
        const Lanes d2 = lanes_at(tile.pixels[8 + j] + c), d3 = lanes_at(tile.pixels[12 + j] + c);
        t[0][j] = d0 - d2;
        t[1][j] = d1 + d2;
        t[2][j] = d2 - d1;
        t[3][j] = d1 - d3;
      }
      float* to = out;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i, to += 4 * tile.component) {
        lanes_at(to) = t[i][0] - t[i][2];
        lanes_at(to + tile.component) = t[i][1] + t[i][2];
        lanes_at(to + 2 * tile.component) = t[i][2] - t[i][1];
        lanes_at(to + 3 * tile.component) = t[i][1] - t[i][3];
      }
    }
  }
};

/// A dy A^T.
struct OutputInner {
  static THIMBLE_ALWAYS_INLINE void run(const PatchTile& tile) {
    float* out = tile.out;
    for (std::int64_t c = 0; c < tile.count; c += lanes, out += lanes) {
      Lanes t[4][2];
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const Lanes d0 = lanes_at(tile.pixels[j] + c), d1 = lanes_at(tile.pixels[2 + j] + c);
        t[0][j] = d0;
        t[1][j] = d0 + d1;
        t[2][j] = d0 - d1;
        t[3][j] = -d1;
      }
      float* to = out;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i, to += 4 * tile.component) {
        lanes_at(to) = t[i][0];
        lanes_at(to + tile.component) = t[i][0] + t[i][1];
        lanes_at(to + 2 * tile.component) = t[i][0] - t[i][1];
        lanes_at(to + 3 * tile.component) = -t[i][1];
      }
    }
  }
};

/// Taps of some filters: tap t of channel c of filter f is taps[f * filter + t * stride + c].
struct WeightTaps {
  const float* taps;
  std::int64_t filters, filter, stride;
  std::int64_t channels;
  float* out;  ///< component i of channel c of filter f: out[i * component + f * out_filter + c]
  std::int64_t component, out_filter;
};

/// G w G^T.
struct WeightInner {
  static THIMBLE_ALWAYS_INLINE void run(const WeightTaps& job) {
    for (std::int64_t filter = 0; filter < job.filters; ++filter) {
      for (std::int64_t c = 0; c < job.channels; c += lanes) {
        const float* const taps = job.taps + filter * job.filter + c;
        Lanes t[4][3];
#pragma GCC unroll 3
        for (int j = 0; j < 3; ++j) {
          const Lanes g0 = lanes_at(taps + j * job.stride), g1 = lanes_at(taps + (3 + j) * job.stride);
          const Lanes g2 = lanes_at(taps + (6 + j) * job.stride);
          const Lanes even = 0.5F * (g0 + g2), odd = 0.5F * g1;
          t[0][j] = g0;
          t[1][j] = even + odd;
          t[2][j] = even - odd;
          t[3][j] = g2;
        }
        float* to = job.out + filter * job.out_filter + c;
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i, to += 4 * job.component) {
          const Lanes even = 0.5F * (t[i][0] + t[i][2]), odd = 0.5F * t[i][1];
          lanes_at(to) = t[i][0];
          lanes_at(to + job.component) = even + odd;
          lanes_at(to + 2 * job.component) = even - odd;
          lanes_at(to + 3 * job.component) = t[i][2];
        }
      }
    }
  }
};

/// Up to 64 channels of some filters, optionally with taps in reverse.
void transform_taps(const Weights& weights, std::int64_t filter, std::int64_t filters, std::int64_t channel,
                    std::int64_t channels, bool is_reversed, float* out, std::int64_t component,
                    std::int64_t out_filter) noexcept {
  const std::int64_t stride = weights.channels, first = filter * 9 * stride + channel;
  if (weights.dtype == DType::f32) {
    const float* const taps = static_cast<const float*>(weights.data) + first;
    run_variant<WeightInner>(WeightTaps{is_reversed ? taps + 8 * stride : taps, filters, 9 * stride,
                                        is_reversed ? -stride : stride, channels, out, component, out_filter});
    return;
  }
  constexpr std::int64_t most = 64, ahead = 2;  // filters ahead, whose lines are prefetched
  alignas(64) float taps[9 * most];
  const NarrowFloatLoops::Load load = narrow_float_loops(isa()).load(weights.dtype);
  for (std::int64_t f = 0; f < filters; ++f) {
    for (std::int64_t tap = 0; tap < 9; ++tap) {
      const std::int64_t element = first + (f * 9 + (is_reversed ? 8 - tap : tap)) * stride;
      __builtin_prefetch(element_at(weights.data, weights.dtype, element + ahead * 9 * stride));
      load(element_at(weights.data, weights.dtype, element), taps + tap * most, channels);
    }
    run_variant<WeightInner>(WeightTaps{taps, 1, 0, most, channels, out + f * out_filter, component, out_filter});
  }
}

struct InverseTiles {
  const float* m;
  const Layout& layout;
  std::int64_t tiles;
  std::int64_t columns;
  const TileOut* out;
};

/// A^T m A.
struct InverseInner {
  static THIMBLE_ALWAYS_INLINE void run(const InverseTiles& job) {
    const std::int64_t component = job.layout.component;
    for (std::int64_t tile = 0; tile < job.tiles; ++tile) {
      float* const* const out = job.out[tile].pixels;
      for (std::int64_t c = 0; c < job.columns; c += lanes) {
        const float* m = job.m + tile * job.layout.tile + c;
        Lanes t[2][4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j, m += component) {
          const Lanes m0 = lanes_at(m), m1 = lanes_at(m + 4 * component);
          const Lanes m2 = lanes_at(m + 8 * component), m3 = lanes_at(m + 12 * component);
          t[0][j] = m0 + m1 + m2;
          t[1][j] = m1 - m2 - m3;
        }
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
          if (out[2 * i] != nullptr) lanes_at(out[2 * i] + c) = t[i][0] + t[i][1] + t[i][2];
          if (out[2 * i + 1] != nullptr) lanes_at(out[2 * i + 1] + c) = t[i][1] - t[i][2] - t[i][3];
        }
      }
    }
  }
};

struct InverseTaps {
  const float* m;
  std::int64_t component;
  std::int64_t count;
  float* out;
  std::int64_t tap;
};

/// G^T m G.
struct TapsInner {
  static THIMBLE_ALWAYS_INLINE void run(const InverseTaps& taps) {
    for (std::int64_t c = 0; c < taps.count; c += lanes) {
      Lanes t[3][4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const float* const m = taps.m + j * taps.component + c;
        const Lanes m0 = lanes_at(m), m3 = lanes_at(m + 12 * taps.component);
        const Lanes half1 = 0.5F * lanes_at(m + 4 * taps.component), half2 = 0.5F * lanes_at(m + 8 * taps.component);
        const Lanes sum = half1 + half2;
        t[0][j] = m0 + sum;
        t[1][j] = half1 - half2;
        t[2][j] = sum + m3;
      }
      float* to = taps.out + c;
#pragma GCC unroll 3
      for (int i = 0; i < 3; ++i, to += 3 * taps.tap) {
        const Lanes half1 = 0.5F * t[i][1], half2 = 0.5F * t[i][2], sum = half1 + half2;
        lanes_at(to) = t[i][0] + sum;
        lanes_at(to + taps.tap) = half1 - half2;
        lanes_at(to + 2 * taps.tap) = sum + t[i][3];
      }
    }
  }
};

/// Calls inner's variant for every tile of `part`, whose `size` x `size` pixels begin at (step i + top, step j + left).
template <class Inner, int size>
struct TilesInner {
  struct Job {
    const Image& image;
    std::int64_t top, left;
    const Tiles& tiles;
    const Part& part;
    float* out;
    const Layout& layout;
  };

  static THIMBLE_ALWAYS_INLINE void run(const Job& job) {
    const bool is_float = job.image.dtype == DType::f32;
    const std::int64_t step = is_float ? job.part.channels : converted_channels;
    for (std::int64_t done = 0; done < job.part.channels; done += step) {
      run_channels(job, done, std::min(step, job.part.channels - done), is_float);
    }
  }

 private:
  static constexpr std::int64_t converted_channels = 64;
  static constexpr std::int64_t pixels_ahead = 2 * tile_size;  // whose lines are prefetched: tiles are jumps
  static constexpr std::int64_t line_elements = 32;            // of 16 bits

  static THIMBLE_ALWAYS_INLINE void run_channels(const Job& job, std::int64_t done, std::int64_t count, bool is_float) {
    // Pixel x of a line is converted into column x % size, where the tile to the right finds the shared ones.
    alignas(64) float converted[size][size][converted_channels];
    const Image& image = job.image;
    const Part& part = job.part;
    const NarrowFloatLoops::Load load = is_float ? nullptr : narrow_float_loops(isa()).load(image.dtype);
    std::int64_t index = part.tile / job.tiles.per_image(), in_image = part.tile % job.tiles.per_image();
    std::int64_t i = in_image / job.tiles.columns, j = in_image % job.tiles.columns;
    PatchTile tile;
    tile.count = count;
    tile.component = job.layout.component;
    for (std::int64_t t = 0; t < part.tiles; ++t) {
      tile.out = job.out + t * job.layout.tile + done;
      const int shared = t == 0 || j == 0 ? 0 : size - static_cast<int>(tile_size);
      for (int p = 0; p < size * size; ++p) {
        const std::int64_t y = tile_size * i + job.top + p / size, x = tile_size * j + job.left + p % size;
        const bool is_inside = y >= 0 && y < image.height && x >= 0 && x < image.width;
        const std::int64_t element =
            ((index * image.height + y) * image.width + x) * image.channels + part.channel + done;
        if (!is_inside) {
          tile.pixels[p] = zeros;
        } else if (is_float) {
          tile.pixels[p] = static_cast<const float*>(image.data) + element;
        } else {
          float* const to = converted[p / size][x % size];
          tile.pixels[p] = to;
          if (p % size < shared) continue;
          const std::byte* const from = element_at(image.data, image.dtype, element);
          const std::byte* const later = element_at(image.data, image.dtype, element + pixels_ahead * image.channels);
          for (std::int64_t c = 0; c < count; c += line_elements) __builtin_prefetch(later + c * 2);
          load(from, to, count);
        }
      }
      Inner::run(tile);
      if (++j < job.tiles.columns) continue;
      j = 0;
      if (++i < job.tiles.lines) continue;
      i = 0;
      ++index;
    }
  }
};

/// Sixteen filters at a time, transposed so that they lie side by side.
void transform_straight(const Weights& weights, std::int64_t column, std::int64_t width, float* out,
                        std::int64_t component_stride) noexcept {
  constexpr std::int64_t square = lanes * lanes;
  alignas(64) float transformed[components * square];
  const auto turn = gemm_detail::transpose<float>(isa());
  for (std::int64_t n = 0; n < width; n += lanes) {
    for (std::int64_t c = 0; c < weights.channels; c += lanes) {
      transform_taps(weights, column + n, lanes, c, lanes, false, transformed, square, lanes);
      for (std::int64_t component = 0; component < components; ++component) {
        turn(transformed + component * square, lanes, lanes, lanes, out + component * component_stride + c * width + n,
             width);
      }
    }
  }
}

}  // namespace transform_detail

void transform_patches(const Image& x, std::int64_t top, std::int64_t left, const Tiles& tiles, const Part& part,
                       float* out, const Layout& layout) noexcept {
  using Inner = transform_detail::TilesInner<transform_detail::PatchInner, patch_size>;
  run_variant<Inner>(Inner::Job{x, top, left, tiles, part, out, layout});
}

void transform_outputs(const Image& dy, const Tiles& tiles, const Part& part, float* out,
                       const Layout& layout) noexcept {
  using Inner = transform_detail::TilesInner<transform_detail::OutputInner, tile_size>;
  run_variant<Inner>(Inner::Job{dy, 0, 0, tiles, part, out, layout});
}

void transform_weights(const Weights& weights, std::int64_t column, std::int64_t width, float* out,
                       std::int64_t component_stride) noexcept {
  if (!weights.is_turned) {
    return transform_detail::transform_straight(weights, column, width, out, component_stride);
  }
  transform_detail::transform_taps(weights, 0, weights.filters, column, width, true, out, component_stride, width);
}

void inverse_tiles(const float* m, const Layout& layout, std::int64_t tiles, std::int64_t columns,
                   const TileOut* out) noexcept {
  run_variant<transform_detail::InverseInner>(transform_detail::InverseTiles{m, layout, tiles, columns, out});
}

void inverse_taps(const float* m, std::int64_t component_stride, std::int64_t columns, float* out,
                  std::int64_t tap_stride) noexcept {
  run_variant<transform_detail::TapsInner>(
      transform_detail::InverseTaps{m, component_stride, columns, out, tap_stride});
}

}  // namespace thimble::kernels::winograd
