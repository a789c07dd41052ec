#include <thimble/core/kernels/cpu/conv/winograd.h>

#include <algorithm>
#include <atomic>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/matmul/gemm_microkernel.h>
#include <thimble/core/kernels/cpu/matmul/gemm_operand.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels::winograd {

namespace transform_detail {

/// Sixteen floats, in as many registers as necessary.
typedef float Lanes __attribute__((vector_size(64), may_alias, aligned(4)));

inline constexpr std::int64_t lanes = vector_channels;
static_assert(sizeof(Lanes) == lanes * sizeof(float));

THIMBLE_ALWAYS_INLINE const Lanes& lanes_at(const float* p) { return *reinterpret_cast<const Lanes*>(p); }
THIMBLE_ALWAYS_INLINE Lanes& lanes_at(float* p) { return *reinterpret_cast<Lanes*>(p); }

alignas(64) inline constexpr float zeros[most_channels] = {};

/// The work of one call of an inner loop: one tile, `count` channels. Pixels may point to `zeros`.
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

/// Transforms up to 64 channels of some filters, optionally with taps in reverse.
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
  static constexpr std::int64_t pixels_ahead = 2 * tile_size;  // whose lines are prefetched: tiles lie apart
  static constexpr std::int64_t line_elements = 32;            // of 16 bits

  static THIMBLE_ALWAYS_INLINE void run_channels(const Job& job, std::int64_t done, std::int64_t count, bool is_float) {
    // Pixel x of a line is converted into column x % size, where the next tile finds the pixels that both share.
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

namespace thimble::kernels::conv_detail {

namespace conv_winograd_detail {

using gemm_detail::block_depth;
using gemm_detail::max_tile_rows;
using gemm_detail::Microkernels;
using gemm_detail::Output;
using winograd::components;

inline constexpr std::int64_t weight_bytes = 1152 << 10;  // of transformed weights at a time
inline constexpr std::int64_t patch_bytes = 256 << 10;    // of transformed patches at a time
inline constexpr std::int64_t tile_step = 24;             // a multiple of every microtile's rows
inline constexpr std::int64_t line = gemm_detail::line_elements<float>;
inline constexpr int max_width = 48;  // of a panel

/// How a correlation is cut, and one thread's sections of the workspace. Does not affect results.
struct Cut {
  Cut(const Correlation& correlation, const Microkernels<float>& kernels) noexcept {
    depth = correlation.weights.rows();
    columns = correlation.weights.columns();
    // Whole vectors of sixteen, up to the width of a microtile; two vectors twice rather than three and one.
    width = static_cast<int>(std::max<std::int64_t>(kernels.columns(), winograd::vector_channels));
    if (kernels.vectors == 3 && columns % width != 0 && columns % width < 2 * kernels.lanes) width = 2 * kernels.lanes;
    panels = (columns + width - 1) / width;
    panel_stride = depth * width + line;
    panels_at_once = std::clamp<std::int64_t>(weight_bytes / (components * panel_stride * 4), 1, panels);
    patches.tile = (depth / line | 1) * line;
    tiles_at_once = std::clamp<std::int64_t>(patch_bytes / (components * depth * 4) / tile_step, 1, 5) * tile_step;
    patches.component = tiles_at_once * patches.tile;
    sums.tile = width;
    sums.component = tiles_at_once * width + line;
  }

  std::int64_t weight_elements() const noexcept { return panels_at_once * components * panel_stride; }
  std::int64_t patch_elements() const noexcept { return components * patches.component; }
  std::int64_t sum_elements() const noexcept { return components * sums.component; }
  std::int64_t elements() const noexcept { return weight_elements() + patch_elements() + sum_elements(); }

  std::int64_t depth, columns;
  int width;  // columns of a panel
  std::int64_t panels;
  std::int64_t panel_stride;    // from one component of a panel to the next
  std::int64_t panels_at_once;  // whose weights are transformed at once
  std::int64_t tiles_at_once;
  winograd::Layout patches, sums;
};

class Worker {
 public:
  Worker(const Correlation& correlation, const Output<float>& output, const Microkernels<float>& kernels,
         const Cut& cut, float* workspace) noexcept
      : correlation_(correlation),
        output_(output),
        kernels_(kernels),
        cut_(cut),
        finish_(gemm_detail::finish<float>(isa())),
        tiles_(correlation.tiles()),
        weights_(workspace),
        patches_(weights_ + cut.weight_elements()),
        sums_(patches_ + cut.patch_elements()) {}

  /// Tiles [tile, tile + count) of the panels from `panel` on.
  void compute(std::int64_t panel, std::int64_t tile, std::int64_t count) noexcept {
    const std::int64_t end = std::min(panel + cut_.panels_at_once, cut_.panels);
    if (panel != transformed_) {
      for (std::int64_t p = panel; p < end; ++p) transform_weights(p, weights_of(p - panel));
      transformed_ = panel;
    }
    winograd::transform_patches(correlation_.image, correlation_.top, correlation_.left, tiles_,
                                {tile, count, 0, cut_.depth}, patches_, cut_.patches);
    for (std::int64_t p = panel; p < end; ++p) {
      const std::int64_t column = p * cut_.width;
      const int width = static_cast<int>(std::min<std::int64_t>(cut_.width, cut_.columns - column));
      multiply(weights_of(p - panel), count, width);
      store(tile, count, column, width);
    }
  }

 private:
  float* weights_of(std::int64_t index) const noexcept { return weights_ + index * components * cut_.panel_stride; }

  void transform_weights(std::int64_t panel, float* out) const noexcept {
    const std::int64_t column = panel * cut_.width;
    const std::int64_t width = std::min<std::int64_t>(cut_.width, cut_.columns - column);
    winograd::transform_weights(correlation_.weights, column, width, out, cut_.panel_stride);
  }

  /// The sixteen products of `count` tiles with a panel of weights.
  void multiply(const float* weights, std::int64_t count, int width) const noexcept {
    for (std::int64_t component = 0; component < components; ++component, weights += cut_.panel_stride) {
      const float* const patches = patches_ + component * cut_.patches.component;
      float* const sums = sums_ + component * cut_.sums.component;
      for (std::int64_t t = 0; t < count; t += kernels_.rows) {
        const int rows = static_cast<int>(std::min<std::int64_t>(kernels_.rows, count - t));
        for (std::int64_t k = 0; k < cut_.depth; k += block_depth) {
          const std::int64_t depth = std::min(block_depth, cut_.depth - k);
          const float* a[max_tile_rows];
          for (int r = 0; r < rows; ++r) a[r] = patches + (t + r) * cut_.patches.tile + k;
          for (int j = 0; j < width; j += kernels_.columns()) {
            float* const sum = sums + t * cut_.sums.tile + j;
            kernels_.select(rows, std::min(kernels_.columns(), width - j))({a, &depth, 1, 1, weights + k * width + j,
                                                                            k == 0 ? nullptr : sum, cut_.sums.tile, sum,
                                                                            cut_.sums.tile, width});
          }
        }
      }
    }
  }

  /// The finished columns of `count` tiles, a few tiles at a time.
  void store(std::int64_t first, std::int64_t count, std::int64_t column, int width) const noexcept {
    constexpr std::int64_t at_once = 8;
    alignas(64) float finished[at_once * 4 * max_width];
    const bool is_plain = output_.is_plain();
    for (std::int64_t done = 0; done < count; done += at_once) {
      const std::int64_t tiles = std::min(at_once, count - done);
      winograd::TileOut out[at_once] = {};
      Place places[at_once];
      for (std::int64_t t = 0; t < tiles; ++t) {
        const Place& place = places[t] = place_of(first + done + t);
        for (int i = 0; i < place.lines; ++i) {
          for (int j = 0; j < place.pixels; ++j) {
            const std::int64_t row = place.row + i * correlation_.out_width + j;
            out[t].pixels[2 * i + j] = is_plain ? static_cast<float*>(output_.c) + row * output_.rows.pixel + column
                                                : finished + (4 * t + 2 * i + j) * width;
          }
        }
      }
      winograd::inverse_tiles(sums_ + done * cut_.sums.tile, cut_.sums, tiles, width, out);
      for (std::int64_t t = 0; t < tiles && !is_plain; ++t) {
        for (int i = 0; i < places[t].lines; ++i) {
          const std::int64_t row = places[t].row + i * correlation_.out_width;
          finish_(output_, {0, 0, row, column, places[t].pixels, width}, finished + (4 * t + 2 * i) * width, width);
        }
      }
    }
  }

  /// A tile's first pixel, counted over all images, and how many lines and pixels of it lie inside.
  struct Place {
    std::int64_t row;
    int lines;
    int pixels;
  };
  Place place_of(std::int64_t tile) const noexcept {
    const std::int64_t image = tile / tiles_.per_image(), in_image = tile % tiles_.per_image();
    const std::int64_t y = in_image / tiles_.columns * 2, x = in_image % tiles_.columns * 2;
    return {(image * correlation_.out_height + y) * correlation_.out_width + x, y + 1 < correlation_.out_height ? 2 : 1,
            x + 1 < correlation_.out_width ? 2 : 1};
  }

  const Correlation& correlation_;
  const Output<float>& output_;
  const Microkernels<float>& kernels_;
  const Cut& cut_;
  gemm_detail::Finish<float> finish_;
  winograd::Tiles tiles_;
  float* weights_;
  float* patches_;
  float* sums_;
  std::int64_t transformed_ = -1;  // the first panel whose weights are present
};

}  // namespace conv_winograd_detail

bool winograd_pays(const ConvShape& s) noexcept {
  using namespace winograd;
  const bool is_fit = s.kernel_h == kernel_size && s.kernel_w == kernel_size && s.stride_h == 1 && s.stride_w == 1 &&
                      s.dilation_h == 1 && s.dilation_w == 1 && s.groups == 1;
  const auto are_vectors = [](std::int64_t n) {
    return n >= 2 * vector_channels && n <= most_channels && n % vector_channels == 0;
  };
  if (!is_fit || !are_vectors(s.channels) || !are_vectors(s.filters)) return false;
  // Small maps leave much of their tiles empty, and the weights' transform pays only over many tiles.
  constexpr std::int64_t least = 8, most_weights_per_tile = 4096;
  const std::int64_t height = s.out_height(), width = s.out_width();
  if (std::min({height, width, s.height, s.width}) < least) return false;
  return s.channels * s.filters <= most_weights_per_tile * tiles_over(height, width, 1).count();
}

std::size_t winograd_workspace_bytes(const Correlation& correlation, int threads) noexcept {
  const conv_winograd_detail::Cut cut(correlation, gemm_detail::microkernels<float>(isa()));
  return static_cast<std::size_t>(cut.elements()) * sizeof(float) * static_cast<std::size_t>(threads);
}

void run_winograd(const Correlation& correlation, const gemm_detail::Output<float>& output, void* workspace,
                  int threads) noexcept {
  using namespace conv_winograd_detail;
  const Microkernels<float>& kernels = gemm_detail::microkernels<float>(isa());
  const Cut cut(correlation, kernels);
  const std::int64_t tiles = correlation.tiles().count();
  const std::int64_t blocks = (tiles + cut.tiles_at_once - 1) / cut.tiles_at_once;
  const std::int64_t groups = (cut.panels + cut.panels_at_once - 1) / cut.panels_at_once;
  std::atomic<std::int64_t> next{0};
  parallel_threads(threads, [&](int thread) {
    Worker worker(correlation, output, kernels, cut, static_cast<float*>(workspace) + thread * cut.elements());
    for (;;) {
      const std::int64_t item = next.fetch_add(1, std::memory_order_relaxed);
      if (item >= groups * blocks) return;
      const std::int64_t tile = item % blocks * cut.tiles_at_once;
      worker.compute(item / blocks * cut.panels_at_once, tile, std::min(cut.tiles_at_once, tiles - tile));
    }
  });
}

// ---- The weight's gradient by Winograd's algorithm: sixteen matmuls that sum over tiles.

namespace winograd_grad_detail {

using gemm_detail::max_tile_rows;
using gemm_detail::Microkernels;
using winograd::components;

inline constexpr std::int64_t taps = 9;
inline constexpr std::int64_t line = gemm_detail::line_elements<float>;
inline constexpr std::int64_t chunk_filters = 64;    // of one item of work, at most
inline constexpr std::int64_t chunk_channels = 128;  // of one item of work, at most
inline constexpr std::int64_t tiles_at_once = 48;    // whose products are one chain of sums
inline constexpr std::int64_t most_segments = 8;     // into which the tiles are cut
inline constexpr std::int64_t enough_items = 8;      // enough to keep threads busy

/// How the gradient is cut: into items of some filters and channels, and where these are few, the tiles into segments.
/// The segments' sums are added in ascending order. Depends only on the shape, because segments are part of the result.
struct Cut {
  explicit Cut(const ConvShape& s) noexcept
      : tiles(winograd::tiles_over(s.out_height(), s.out_width(), s.images)),
        filters(even(s.filters, chunk_filters)),
        channels(even(s.channels, chunk_channels)),
        filter_chunks((s.filters + filters - 1) / filters),
        channel_chunks((s.channels + channels - 1) / channels),
        weights(s.filters * taps * s.channels) {
    const std::int64_t blocks = (tiles.count() + tiles_at_once - 1) / tiles_at_once;
    const std::int64_t wanted = (enough_items + chunks() - 1) / chunks();
    segments = std::clamp<std::int64_t>(std::min(wanted, blocks / 2), 1, most_segments);
    segment_tiles = (blocks + segments - 1) / segments * tiles_at_once;
    x.tile = channels + line;
    x.component = tiles_at_once * x.tile + line;
    dy.tile = filters + line;
    dy.component = tiles_at_once * dy.tile + line;
    sums.tile = channels;
    sums.component = filters * channels + line;
  }

  /// Chunks of about the same size, in whole vectors.
  static std::int64_t even(std::int64_t n, std::int64_t most) noexcept {
    const std::int64_t chunks = (n + most - 1) / most;
    return ((n + chunks - 1) / chunks + line - 1) / line * line;
  }
  std::int64_t chunks() const noexcept { return filter_chunks * channel_chunks; }
  /// Floats of one thread, and of the region that threads share: a gradient for every segment.
  std::int64_t elements() const noexcept {
    return components * (x.component + dy.component + sums.component) + filters * taps * channels;
  }
  std::int64_t shared_elements() const noexcept { return segments == 1 ? 0 : segments * weights; }

  winograd::Tiles tiles;
  std::int64_t filters, channels;  // of a chunk
  std::int64_t filter_chunks, channel_chunks;
  std::int64_t weights;
  std::int64_t segments = 1, segment_tiles = 0;
  winograd::Layout x, dy, sums;
};

/// dweight[first, first + count) = values, or += values.
void finish(const ConvWeightGradArgs& args, float* values, std::int64_t first, std::int64_t count) noexcept {
  constexpr std::int64_t most = 256;
  float there[most];
  for (std::int64_t i = 0; i < count && args.accumulate; i += most) {
    const std::int64_t n = std::min(most, count - i);
    load_elements(args.dweight, args.out_dtype, first + i, 1, there, n);
    for (std::int64_t j = 0; j < n; ++j) values[i + j] += there[j];
  }
  store_elements(values, args.dweight, args.out_dtype, first, count);
}

class Worker {
 public:
  Worker(const ConvWeightGradArgs& args, const Cut& cut, const Microkernels<float>& kernels, float* shared,
         float* own) noexcept
      : args_(args),
        cut_(cut),
        kernels_(kernels),
        shared_(shared),
        x_(own),
        dy_(x_ + components * cut.x.component),
        sums_(dy_ + components * cut.dy.component),
        finished_(sums_ + components * cut.sums.component) {}

  void compute(std::int64_t chunk, std::int64_t segment) noexcept {
    const ConvShape& s = args_.shape;
    filter_ = chunk / cut_.channel_chunks * cut_.filters;
    filters_ = std::min(cut_.filters, s.filters - filter_);
    channel_ = chunk % cut_.channel_chunks * cut_.channels;
    channels_ = std::min(cut_.channels, s.channels - channel_);
    const std::int64_t begin = segment * cut_.segment_tiles;
    const std::int64_t end = std::min(begin + cut_.segment_tiles, cut_.tiles.count());
    for (std::int64_t tile = begin; tile < end; tile += tiles_at_once) {
      const std::int64_t count = std::min(tiles_at_once, end - tile);
      winograd::transform_patches({args_.x, args_.dtype, s.height, s.width, s.channels}, -s.pad_top, -s.pad_left,
                                  cut_.tiles, {tile, count, channel_, channels_}, x_, cut_.x);
      winograd::transform_outputs({args_.dy, args_.dtype, s.out_height(), s.out_width(), s.filters}, cut_.tiles,
                                  {tile, count, filter_, filters_}, dy_, cut_.dy);
      multiply(count, tile == begin);
    }
    store(segment, begin < end);
  }

 private:
  /// sums (filters, channels) [+]= dy^T x of every component.
  void multiply(std::int64_t count, bool is_first) const noexcept {
    const int width = kernels_.columns();
    for (std::int64_t component = 0; component < components; ++component) {
      const float* const x = x_ + component * cut_.x.component;
      const float* const dy = dy_ + component * cut_.dy.component;
      float* const sums = sums_ + component * cut_.sums.component;
      for (std::int64_t i = 0; i < filters_; i += kernels_.rows) {
        const int rows = static_cast<int>(std::min<std::int64_t>(kernels_.rows, filters_ - i));
        const float* a[max_tile_rows];
        for (int r = 0; r < rows; ++r) a[r] = dy + i + r;
        for (std::int64_t j = 0, columns; j < channels_; j += columns) {
          // Three vectors and one become two and two.
          const std::int64_t rest = channels_ - j;
          columns = kernels_.vectors == 3 && rest == 4 * kernels_.lanes ? 2 * kernels_.lanes
                                                                        : std::min<std::int64_t>(width, rest);
          float* const sum = sums + i * cut_.sums.tile + j;
          kernels_.select(rows, static_cast<int>(columns))({a, &count, 1, cut_.dy.tile, x + j, is_first ? nullptr : sum,
                                                            cut_.sums.tile, sum, cut_.sums.tile, cut_.x.tile});
        }
      }
    }
  }

  void store(std::int64_t segment, bool has_sums) const noexcept {
    const ConvShape& s = args_.shape;
    for (std::int64_t i = 0; i < filters_; ++i) {
      const std::int64_t first = (filter_ + i) * taps * s.channels + channel_;
      float* const out = shared_ != nullptr ? shared_ + segment * cut_.weights + first : finished_;
      const std::int64_t stride = shared_ != nullptr ? s.channels : channels_;
      if (has_sums) {
        winograd::inverse_taps(sums_ + i * cut_.sums.tile, cut_.sums.component, channels_, out, stride);
      } else {
        for (std::int64_t tap = 0; tap < taps; ++tap)
          std::fill(out + tap * stride, out + tap * stride + channels_, 0.0F);
      }
      if (shared_ != nullptr) continue;
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        finish(args_, out + tap * stride, first + tap * s.channels, channels_);
      }
    }
  }

  const ConvWeightGradArgs& args_;
  const Cut& cut_;
  const Microkernels<float>& kernels_;
  float* shared_;  // null with one segment
  float* x_;
  float* dy_;
  float* sums_;
  float* finished_;
  std::int64_t filter_ = 0, filters_ = 0, channel_ = 0, channels_ = 0;
};

}  // namespace winograd_grad_detail

std::size_t winograd_workspace_bytes(const ConvWeightGradArgs& args, int threads) noexcept {
  const winograd_grad_detail::Cut cut(args.shape);
  return static_cast<std::size_t>(cut.shared_elements() + threads * cut.elements()) * sizeof(float);
}

void run_winograd(const ConvWeightGradArgs& args, void* workspace, int threads) noexcept {
  using namespace winograd_grad_detail;
  const Cut cut(args.shape);
  float* const floats = static_cast<float*>(workspace);
  float* const shared = cut.segments == 1 ? nullptr : floats + threads * cut.elements();
  const Microkernels<float>& kernels = gemm_detail::microkernels<float>(isa());
  std::atomic<std::int64_t> next{0};
  parallel_threads(threads, [&](int thread) {
    Worker worker(args, cut, kernels, shared, floats + thread * cut.elements());
    for (;;) {
      const std::int64_t item = next.fetch_add(1, std::memory_order_relaxed);
      if (item >= cut.chunks() * cut.segments) return;
      worker.compute(item / cut.segments, item % cut.segments);
    }
  });
  if (shared == nullptr) return;
  parallel_for(cut.weights, 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t segment = 1; segment < cut.segments; ++segment) {
      const float* const more = shared + segment * cut.weights;
      for (std::int64_t i = begin; i < end; ++i) shared[i] += more[i];
    }
    finish(args, shared + begin, begin, end - begin);
  });
}

}  // namespace thimble::kernels::conv_detail
