#include <thimble/core/kernels/gemm_driver.h>

#include <algorithm>
#include <atomic>

#include <thimble/core/parallel.h>

namespace thimble::kernels::gemm_detail {
namespace driver_detail {

inline constexpr std::int64_t max_microtile_elements = 64 * max_tile_rows;

std::int64_t blocks_of(std::int64_t k) noexcept {
  return std::max<std::int64_t>(1, (k + block_depth - 1) / block_depth);
}

/// Elements of one thread's sections of the workspace, each a whole number of cache lines.
struct Sections {
  std::int64_t right;
  std::int64_t scratch;
  std::int64_t left;

  std::int64_t total() const noexcept { return right + scratch + left; }
};

Sections sections(const Problem& problem, const Tiling& tiling, const MicroShape& micro,
                  std::int64_t left_elements) noexcept {
  const std::int64_t line = 64 / micro.element_bytes;
  const auto whole_lines = [&](std::int64_t elements) { return (elements + line - 1) / line * line; };
  const std::int64_t panel = panel_stride(std::min(problem.k, block_depth), micro.columns(), line);
  const std::int64_t blocks = tiling.keeps_right ? blocks_of(problem.k) : 1;
  const std::int64_t scratch = problem.k > block_depth ? tiling.rows * tiling.columns : 0;
  const std::int64_t panels = !tiling.reads_right            ? tiling.columns / micro.columns()
                              : problem.n % micro.lanes != 0 ? 1  // the one that ends within a vector
                                                             : 0;
  return {panels * panel * blocks, whole_lines(scratch), whole_lines(left_elements)};
}

struct Offsets {
  std::int64_t left = 0;
  std::int64_t right = 0;
  std::int64_t out = 0;
  std::int64_t bias = 0;
};

Offsets batch_offsets(const Problem& problem, std::int64_t index) noexcept {
  Offsets offsets;
  for (int i = problem.batch_rank - 1; i >= 0; --i) {
    const BatchDim& dim = problem.batch[static_cast<std::size_t>(i)];
    const std::int64_t at = index % dim.size;
    index /= dim.size;
    offsets.left += at * dim.left;
    offsets.right += at * dim.right;
    offsets.out += at * dim.out;
    offsets.bias += at * dim.bias;
  }
  return offsets;
}

/// A tile's place: in the batch, and counted in tiles in C.
struct Tile {
  std::int64_t batch;
  std::int64_t row;
  std::int64_t column;
};

/// What one thread does: tile after tile, remembering which right blocks are still packed.
template <class T>
class Worker {
 public:
  Worker(const Problem& problem, const Tiling& tiling, const Microkernels<T>& kernels, const LeftOperand<T>& left,
         const RightOperand<T>& right, const Output<T>& output, Finish<T> finish, const Sections& sections,
         T* workspace) noexcept
      : problem_(problem),
        tiling_(tiling),
        kernels_(kernels),
        left_(left),
        right_(right),
        output_(output),
        finish_(finish),
        is_plain_(output.is_plain()),
        is_small_(problem.m * problem.k * static_cast<std::int64_t>(sizeof(T)) < 512 * 1024),
        right_panels_(workspace),
        scratch_(right_panels_ + sections.right),
        left_scratch_(scratch_ + sections.scratch) {}

  void compute_tile(const Tile& tile) noexcept {
    offsets_ = batch_offsets(problem_, tile.batch);
    row_ = tile.row * tiling_.rows;
    rows_ = std::min(tiling_.rows, problem_.m - row_);
    column_ = tile.column * tiling_.columns;
    columns_ = std::min(tiling_.columns, problem_.n - column_);
    const std::int64_t blocks = blocks_of(problem_.k);
    const bool is_packed = packed_offset_ == offsets_.right && packed_column_ == column_;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t k = block * block_depth;
      const std::int64_t depth = std::min(block_depth, problem_.k - k);
      const Panels<T> panels = panels_of(block, depth);
      if (!is_packed) pack_right(k, depth, panels);
      const LeftBlock<T> left = left_.open(offsets_.left, row_, rows_, k, depth, kernels_.rows, left_scratch_);
      multiply_block(left, k, panels, block == 0, block + 1 == blocks);
    }
    if (tiling_.keeps_right || (blocks == 1 && !tiling_.reads_right)) {
      packed_offset_ = offsets_.right;
      packed_column_ = column_;
    }
  }

 private:
  /// Where a block of the right operand is packed: in its own place when all are kept.
  Panels<T> panels_of(std::int64_t block, std::int64_t depth) const noexcept {
    const int width = kernels_.columns();
    const std::int64_t count = (columns_ + width - 1) / width;
    T* first = right_panels_;
    if (tiling_.keeps_right) first += block * count * panel_stride(block_depth, width, line_elements<T>);
    return {first, width, panel_stride(depth, width, line_elements<T>)};
  }

  /// Columns of the microtile with `rest` columns left. Three vectors and one are evened out to two and two, because a
  /// single vector has too few chains of sums to keep the machine busy.
  int microtile_columns(std::int64_t rest) const noexcept {
    const int width = kernels_.columns();
    if (tiling_.reads_right && kernels_.vectors == 3 && rest > width && rest <= width + kernels_.lanes) {
      return 2 * kernels_.lanes;
    }
    return static_cast<int>(std::min<std::int64_t>(width, rest));
  }

  /// Packs what is not read in place: everything, or the microtile that ends within a vector.
  void pack_right(std::int64_t k, std::int64_t depth, const Panels<T>& panels) const noexcept {
    if (!tiling_.reads_right) return right_.pack(offsets_.right, column_, columns_, k, depth, panels);
    if (columns_ % kernels_.lanes == 0) return;
    std::int64_t first = 0;
    for (int step; first + (step = microtile_columns(columns_ - first)) < columns_;) first += step;
    right_.pack(offsets_.right, column_ + first, columns_ - first, k, depth, panels);
  }

  /// The rows of the two panels after the next, for the first microtile of every other panel to ask for.
  Ahead rows_below(const LeftBlock<T>& left, std::int64_t panel) const noexcept {
    const std::int64_t below = panel + 2, rows_left = rows_ - below * kernels_.rows;
    if (is_small_ || panel % 2 != 0 || rows_left <= 0 || left.base == nullptr || left.depth_stride != 1) return {};
    return {reinterpret_cast<const std::byte*>(left.base + below * left.panel_stride),
            left.row_stride * static_cast<std::int64_t>(sizeof(T)),
            std::min<std::int64_t>(rows_left, 2 * kernels_.rows)};
  }

  /// A panel of the left block stays in the first-level cache while the right block streams by.
  void multiply_block(const LeftBlock<T>& left, std::int64_t k, const Panels<T>& panels, bool is_first,
                      bool is_last) noexcept {
    alignas(64) T finished[max_microtile_elements];
    const RowsInPlace<T> right = tiling_.reads_right ? right_.rows(offsets_.right, column_, k) : RowsInPlace<T>{};
    T* partial = scratch_;
    RowPointers<T> a;
    std::int64_t panel = 0;
    for (std::int64_t i = 0; i < rows_; i += kernels_.rows, ++panel) {
      const int rows = static_cast<int>(std::min<std::int64_t>(kernels_.rows, rows_ - i));
      left_.panel(left, panel, rows, a);
      Ahead ahead = rows_below(left, panel);
      const T* packed = panels.data;
      int columns = 0;
      for (std::int64_t j = 0; j < columns_; j += columns) {
        columns = microtile_columns(columns_ - j);
        const bool has_whole_vectors = columns % kernels_.lanes == 0;
        const bool is_in_place = tiling_.reads_right && has_whole_vectors;
        // Whole vectors of a plain C are written by the microkernel itself.
        const bool is_direct = is_last && is_plain_ && has_whole_vectors;
        T* out = is_direct ? direct_out(row_ + i, column_ + j) : is_last ? finished : partial;
        const std::int64_t out_stride = is_direct ? output_.rows.pixel : panels.width;
        kernels_.select(
            rows, columns)({a, left.runs, left.run_count, left.depth_stride, is_in_place ? right.first + j : packed,
                            is_first ? nullptr : partial, out, out_stride, is_in_place ? right.stride : 0, ahead});
        ahead = {};
        partial += kernels_.rows * panels.width;
        if (!tiling_.reads_right) packed += panels.stride;
        if (!is_last || is_direct) continue;
        finish_(output_, {offsets_.out, offsets_.bias, row_ + i, column_ + j, rows, columns}, finished, panels.width);
      }
    }
  }

  T* direct_out(std::int64_t row, std::int64_t column) const noexcept {
    return static_cast<T*>(output_.c) + offsets_.out + row * output_.rows.pixel + column;
  }

  const Problem& problem_;
  const Tiling& tiling_;
  const Microkernels<T>& kernels_;
  const LeftOperand<T>& left_;
  const RightOperand<T>& right_;
  const Output<T>& output_;
  Finish<T> finish_;
  bool is_plain_;
  bool is_small_;  // the left operand stays in the cache
  T* right_panels_;
  T* scratch_;
  T* left_scratch_;
  Offsets offsets_;
  std::int64_t row_ = 0, rows_ = 0, column_ = 0, columns_ = 0;
  std::int64_t packed_offset_ = 0;
  std::int64_t packed_column_ = -1;  // none
};

}  // namespace driver_detail

std::size_t workspace_bytes(const Problem& problem, const Tiling& tiling, const MicroShape& micro,
                            std::int64_t left_elements) noexcept {
  const auto sections = driver_detail::sections(problem, tiling, micro, left_elements);
  return static_cast<std::size_t>(sections.total() * micro.element_bytes * tiling.threads);
}

template <class T>
void run(const Problem& problem, const Tiling& tiling, const Microkernels<T>& kernels, const LeftOperand<T>& left,
         const RightOperand<T>& right, const Output<T>& output, Finish<T> finish, void* workspace) noexcept {
  using namespace driver_detail;
  const std::int64_t left_elements = left.scratch_elements(std::min(tiling.rows, problem.m), kernels.rows);
  const Sections parts = sections(problem, tiling, micro_shape(kernels), left_elements);
  const std::int64_t tile_rows = tiling.tile_rows(problem.m);
  const std::int64_t tile_columns = tiling.tile_columns(problem.n);
  const std::int64_t tiles = problem.batch_size() * tile_rows * tile_columns;
  // Tiles are handed out in order, row by row of one column, so that a thread's next tile often needs the blocks that
  // it has packed.
  const auto tile_at = [&](std::int64_t index) {
    return Tile{index / (tile_rows * tile_columns), index % tile_rows, index / tile_rows % tile_columns};
  };
  std::atomic<std::int64_t> next{0};
  parallel_threads(tiling.threads, [&](int thread) {
    Worker<T> worker(problem, tiling, kernels, left, right, output, finish, parts,
                     static_cast<T*>(workspace) + thread * parts.total());
    for (;;) {
      const std::int64_t tile = next.fetch_add(1, std::memory_order_relaxed);
      if (tile >= tiles) return;
      worker.compute_tile(tile_at(tile));
    }
  });
}

template void run<float>(const Problem&, const Tiling&, const Microkernels<float>&, const LeftOperand<float>&,
                         const RightOperand<float>&, const Output<float>&, Finish<float>, void*) noexcept;
template void run<double>(const Problem&, const Tiling&, const Microkernels<double>&, const LeftOperand<double>&,
                          const RightOperand<double>&, const Output<double>&, Finish<double>, void*) noexcept;
template void run<std::int64_t>(const Problem&, const Tiling&, const Microkernels<std::int64_t>&,
                                const LeftOperand<std::int64_t>&, const RightOperand<std::int64_t>&,
                                const Output<std::int64_t>&, Finish<std::int64_t>, void*) noexcept;

}  // namespace thimble::kernels::gemm_detail
