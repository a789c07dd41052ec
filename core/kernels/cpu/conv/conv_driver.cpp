#include <thimble/core/kernels/cpu/conv/conv_driver.h>

#include <algorithm>
#include <atomic>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/narrow_float.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels::conv_detail {
namespace conv_driver_detail {

using gemm_detail::block_depth;
using gemm_detail::max_runs;
using gemm_detail::max_tile_rows;
using gemm_detail::MicroShape;
using gemm_detail::panel_stride;
using gemm_detail::Panels;
using gemm_detail::Problem;
using gemm_detail::Tiling;

std::int64_t blocks_of(std::int64_t k) noexcept { return (k + block_depth - 1) / block_depth; }

/// Elements of one thread's sections of the workspace, each a whole number of cache lines.
struct Sections {
  std::int64_t right;
  std::int64_t scratch;

  Sections(const Problem& problem, const Tiling& tiling, const MicroShape& micro) noexcept {
    const std::int64_t line = 64 / micro.element_bytes;
    const std::int64_t panel = panel_stride(std::min(problem.k, block_depth), tiling.width, line);
    right = tiling.columns / tiling.width * panel * (tiling.keeps_right ? blocks_of(problem.k) : 1);
    scratch = problem.k > block_depth ? (tiling.rows * tiling.columns + line - 1) / line * line : 0;
  }
  std::int64_t total() const noexcept { return right + scratch; }
};

/// A block of columns of the window, cut where a tap ends.
struct Block {
  std::int64_t runs[max_runs];
  std::int64_t taps[max_runs];      ///< of each run
  std::int64_t channels[max_runs];  ///< where it begins in its tap
  std::int64_t count = 0;

  Block(const ConvWindow& window, std::int64_t k, std::int64_t depth) noexcept {
    for (std::int64_t at = k; at < k + depth; at += runs[count++]) {
      taps[count] = at / window.channels;
      channels[count] = at % window.channels;
      runs[count] = std::min(window.channels - channels[count], k + depth - at);
    }
  }
};

/// The runs [begin, end) of a block that a microtile's rows see; the others lie outside the image in every row.
template <class T>
struct Panel {
  const T* rows[max_runs * max_tile_rows];
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

template <class T>
class Worker {
 public:
  Worker(const Problem& problem, const Tiling& tiling, const gemm_detail::Microkernels<T>& kernels,
         const PixelWindow& left, const RightOperand<T>& right, const gemm_detail::Output<T>& output,
         gemm_detail::Finish<T> finish, T* workspace) noexcept
      : problem_(problem),
        tiling_(tiling),
        kernels_(kernels),
        left_(left),
        right_(right),
        output_(output),
        finish_(finish),
        load_(is_narrow(left.window.dtype) ? narrow_float_loops(isa()).load(left.window.dtype) : nullptr),
        right_panels_(workspace),
        scratch_(workspace + Sections(problem, tiling, gemm_detail::micro_shape(kernels)).right) {
    gemm_detail::Output<T> rows = output;
    rows.rows = {};
    is_plain_ = rows.is_plain();
  }

  void compute_tile(std::int64_t group, std::int64_t tile_row, std::int64_t tile_column) noexcept {
    group_ = group;
    row_ = tile_row * tiling_.rows;
    rows_ = std::min(tiling_.rows, problem_.m - row_);
    column_ = tile_column * tiling_.columns;
    columns_ = std::min(tiling_.columns, problem_.n - column_);
    const std::int64_t blocks = blocks_of(problem_.k);
    const bool is_packed = packed_group_ == group && packed_column_ == column_;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t k = block * block_depth;
      const std::int64_t depth = std::min(block_depth, problem_.k - k);
      const Panels<T> panels = panels_of(block, depth);
      if (!is_packed) right_.pack(group * problem_.batch[0].right, column_, columns_, k, depth, panels);
      multiply_block(Block(left_.window, k, depth), panels, block == 0, block + 1 == blocks);
    }
    if (tiling_.keeps_right || blocks == 1) {
      packed_group_ = group;
      packed_column_ = column_;
    }
  }

 private:
  Panels<T> panels_of(std::int64_t block, std::int64_t depth) const noexcept {
    const int width = tiling_.width;
    constexpr std::int64_t line = gemm_detail::line_elements<T>;
    const std::int64_t count = (columns_ + width - 1) / width;
    T* first = right_panels_;
    if (tiling_.keeps_right) first += block * count * panel_stride(block_depth, width, line);
    return {first, width, panel_stride(depth, width, line)};
  }

  void multiply_block(const Block& block, const Panels<T>& panels, bool is_first, bool is_last) noexcept {
    alignas(64) T finished[64 * max_tile_rows];
    Panel<T> a;
    for (std::int64_t i = 0; i < rows_; i += kernels_.rows) {
      const int rows = static_cast<int>(std::min<std::int64_t>(kernels_.rows, rows_ - i));
      const std::int64_t row = row_ + i;
      find(block, row, rows, a);
      // Nothing but padding: a sum that is neither begun nor finished here stays unchanged.
      if (a.begin == a.end && !is_first && !is_last) continue;
      std::int64_t skipped = 0;
      for (std::int64_t run = 0; run < a.begin; ++run) skipped += block.runs[run];
      const bool is_one_pixel = row % left_.images + rows <= left_.images;
      T* partial = scratch_ + i * columns_stride(panels.width);
      const T* b = panels.data + skipped * panels.width;
      for (std::int64_t j = 0; j < columns_; j += panels.width, b += panels.stride) {
        const int columns = static_cast<int>(std::min<std::int64_t>(panels.width, columns_ - j));
        const bool is_direct = is_last && is_plain_ && is_one_pixel && columns % kernels_.lanes == 0;
        T* const out = is_direct ? direct_out(row, column_ + j) : is_last ? finished : partial;
        const std::int64_t out_stride = is_direct ? output_.rows.pixel : panels.width;
        kernels_.select(rows, columns)({a.rows + a.begin * max_tile_rows, block.runs + a.begin, a.end - a.begin, 1, b,
                                        is_first ? nullptr : partial, panels.width, out, out_stride, panels.width});
        partial += kernels_.rows * panels.width;
        if (!is_last || is_direct) continue;
        const auto& batch = problem_.batch[0];
        finish_(output_, {group_ * batch.out, group_ * batch.bias, row, column_ + j, rows, columns}, finished,
                panels.width);
      }
    }
  }

  std::int64_t columns_stride(std::int64_t width) const noexcept { return (columns_ + width - 1) / width * width; }

  /// Points to the rows of a microtile, run by run; converted rows are in converted_.
  void find(const Block& block, std::int64_t row, int rows, Panel<T>& a) noexcept {
    alignas(64) static constexpr T zeros[block_depth] = {};
    const ConvWindow& window = left_.window;
    const std::int64_t image_stride = window.h.size * window.w.size * window.all_channels;
    const std::int64_t first = group_ * problem_.batch[0].left;
    a.begin = block.count;
    a.end = 0;
    T* converted = converted_;
    for (std::int64_t run = 0; run < block.count; converted += block.runs[run++]) {
      const std::int64_t down = window.h.origin + block.taps[run] / window.w.taps * window.h.tap_step;
      const std::int64_t right = window.w.origin + block.taps[run] % window.w.taps * window.w.tap_step;
      const T** const out = a.rows + run * max_tile_rows;
      bool is_seen = false;
      for (int r = 0; r < rows;) {
        // All images of one pixel at once.
        const std::int64_t pixel = (row + r) / left_.images, image = (row + r) % left_.images;
        const int count = static_cast<int>(std::min<std::int64_t>(rows - r, left_.images - image));
        const std::int64_t y = pixel / window.w.grid * window.h.step + down;
        const std::int64_t x = pixel % window.w.grid * window.w.step + right;
        const bool is_inside = y >= 0 && y < window.h.size && x >= 0 && x < window.w.size;
        is_seen = is_seen || is_inside;
        std::int64_t at = first + window.line(image, y) + x * window.all_channels + block.channels[run];
        for (const int end = r + count; r < end; ++r, at += image_stride) {
          out[r] = is_inside ? read(at, block.runs[run], converted + r * gemm_detail::scratch_row_stride<T>) : zeros;
        }
      }
      if (!is_seen) continue;
      a.begin = std::min(a.begin, run);
      a.end = run + 1;
    }
    a.begin = std::min(a.begin, a.end);
  }

  /// The image's elements [first, first + count), in place or in `converted`.
  const T* read(std::int64_t first, std::int64_t count, T* converted) const noexcept {
    const ConvWindow& window = left_.window;
    if constexpr (std::is_same_v<T, float>) {
      if (load_ != nullptr) {
        load_(element_at(window.image, window.dtype, first), converted, count);
        return converted;
      }
    }
    return static_cast<const T*>(window.image) + first;
  }

  T* direct_out(std::int64_t row, std::int64_t column) const noexcept {
    const gemm_detail::RowMap& map = output_.rows;
    const std::int64_t pixel = row / left_.images, image = row % left_.images;
    return static_cast<T*>(output_.c) + group_ * problem_.batch[0].out + pixel / map.height * map.image +
           pixel % map.height * map.line + image * map.pixel + column;
  }

  const Problem& problem_;
  const Tiling& tiling_;
  const gemm_detail::Microkernels<T>& kernels_;
  const PixelWindow& left_;
  const RightOperand<T>& right_;
  const gemm_detail::Output<T>& output_;
  gemm_detail::Finish<T> finish_;
  NarrowFloatLoops::Load load_;  ///< null to read in place
  bool is_plain_;
  T* right_panels_;
  T* scratch_;
  std::int64_t group_ = 0;
  std::int64_t row_ = 0, rows_ = 0, column_ = 0, columns_ = 0;
  std::int64_t packed_group_ = 0;
  std::int64_t packed_column_ = -1;  // none
  alignas(64) T converted_[max_tile_rows * gemm_detail::scratch_row_stride<T>];
};

}  // namespace conv_driver_detail

gemm_detail::RowMap pixel_rows(const PixelWindow& left, std::int64_t pixel, std::int64_t line,
                               std::int64_t image) noexcept {
  return {left.images, left.window.w.grid, image, pixel, line};
}

std::size_t pixels_workspace_bytes(const gemm_detail::Problem& problem, const gemm_detail::Tiling& tiling,
                                   const gemm_detail::MicroShape& micro) noexcept {
  const conv_driver_detail::Sections sections(problem, tiling, micro);
  return static_cast<std::size_t>(sections.total() * micro.element_bytes * tiling.threads);
}

template <class T>
void run_pixels(const gemm_detail::Problem& problem, const gemm_detail::Tiling& tiling,
                const gemm_detail::Microkernels<T>& kernels, const PixelWindow& left, const RightOperand<T>& right,
                const gemm_detail::Output<T>& output, gemm_detail::Finish<T> finish, void* workspace) noexcept {
  using namespace conv_driver_detail;
  const Sections parts(problem, tiling, gemm_detail::micro_shape(kernels));
  const std::int64_t tile_rows = tiling.tile_rows(problem.m);
  const std::int64_t tile_columns = tiling.tile_columns(problem.n);
  const std::int64_t tiles = problem.batch_size() * tile_rows * tile_columns;
  std::atomic<std::int64_t> next{0};
  parallel_threads(tiling.threads, [&](int thread) {
    Worker<T> worker(problem, tiling, kernels, left, right, output, finish,
                     static_cast<T*>(workspace) + thread * parts.total());
    for (;;) {
      const std::int64_t tile = next.fetch_add(1, std::memory_order_relaxed);
      if (tile >= tiles) return;
      worker.compute_tile(tile / (tile_rows * tile_columns), tile % tile_rows, tile / tile_rows % tile_columns);
    }
  });
}

template void run_pixels(const gemm_detail::Problem&, const gemm_detail::Tiling&,
                         const gemm_detail::Microkernels<float>&, const PixelWindow&, const RightOperand<float>&,
                         const gemm_detail::Output<float>&, gemm_detail::Finish<float>, void*) noexcept;
template void run_pixels(const gemm_detail::Problem&, const gemm_detail::Tiling&,
                         const gemm_detail::Microkernels<double>&, const PixelWindow&, const RightOperand<double>&,
                         const gemm_detail::Output<double>&, gemm_detail::Finish<double>, void*) noexcept;

}  // namespace thimble::kernels::conv_detail
