#include <thimble/core/kernels/cpu/conv/conv_winograd.h>

#include <algorithm>
#include <atomic>

#include <thimble/core/kernels/cpu/matmul/gemm_microkernel.h>
#include <thimble/core/kernels/cpu/matmul/gemm_pack.h>
#include <thimble/core/threads/parallel.h>

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
    // Whole vectors of sixteen, up to the width of a microtile; two vectors and two rather than three and one.
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
  std::int64_t panels_at_once;  // whose weights are transformed together
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
  std::int64_t transformed_ = -1;  // the first panel with weights present
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

}  // namespace thimble::kernels::conv_detail
