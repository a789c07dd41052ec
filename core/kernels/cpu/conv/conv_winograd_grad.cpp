// The weight's gradient by Winograd's algorithm: sixteen matmuls that sum over tiles.

#include <algorithm>
#include <atomic>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/conv/conv_winograd.h>
#include <thimble/core/kernels/cpu/matmul/gemm_microkernel.h>
#include <thimble/core/kernels/cpu/matmul/gemm_pack.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels::conv_detail {
namespace winograd_grad_detail {

using gemm_detail::max_tile_rows;
using gemm_detail::Microkernels;
using winograd::components;

inline constexpr std::int64_t taps = 9;
inline constexpr std::int64_t line = gemm_detail::line_elements<float>;
inline constexpr std::int64_t chunk_filters = 64;    // of one item of work, at most
inline constexpr std::int64_t chunk_channels = 128;  // likewise
inline constexpr std::int64_t tiles_at_once = 48;    // whose products are one chain of sums
inline constexpr std::int64_t most_segments = 8;     // that the tiles are cut into
inline constexpr std::int64_t enough_items = 8;      // of work

/// How the gradient is cut: items of some filters and channels, and segments of the tiles where there are few items.
/// The segments' sums are added in ascending order. A function of only the shape: segments are part of the result.
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
  /// Floats of one thread, and the threads' shared region: a gradient for every segment.
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
          // Three vectors and one are evened out to two and two.
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
