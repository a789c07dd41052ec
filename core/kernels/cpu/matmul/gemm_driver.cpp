#include <thimble/core/kernels/cpu/matmul/gemm_driver.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/numbers/integers.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels::gemm_detail {

// ---- How a matmul is cut into tiles: a small model of the costs of packing, computing and idle threads.

namespace tiling_detail {

// Bounds on a thread's memory, 2 MiB in all: packed blocks should stay in its second-level cache.
inline constexpr std::int64_t right_block_bytes = 400 * 1024;
inline constexpr std::int64_t right_kept_bytes = 1024 * 1024;
inline constexpr std::int64_t scratch_bytes = 512 * 1024;

// Rows of a left operand that are copied at a time: whole microtiles of every instruction set, and few enough for half
// of the first-level cache, which the right operand's panels pass through too.
inline constexpr std::int64_t copied_rows = 24;

// Up to this m, reading the right operand's rows in place beats packing them (measured on 16 shapes).
inline constexpr std::int64_t most_rows_in_place = 512;

inline constexpr double thread_start_cycles = 4000;      // to wake threads and wait for them
inline constexpr double microtile_overhead_cycles = 60;  // the call, and moving partial sums
inline constexpr double worthwhile_cycles = 60000;       // below this a second thread does not pay
inline constexpr double block_overhead_cycles = 300;     // calls that prepare a block
inline constexpr double near_cycles = 0.01;  // to stream an element of kept blocks from the second-level cache
inline constexpr double far_cycles = 0.1;    // or from beyond it
inline constexpr double near_bytes = 768 * 1024;
// For rows read in place from beyond the second-level cache: per row of tiles after the first, and per row of C.
inline constexpr double far_rows_cycles = 0.5;
inline constexpr double far_rows_use_cycles = 0.004;
inline constexpr double near_rows_bytes = 1280 * 1024;
inline constexpr double far_sums_cycles = 0.1;  // sums in C that do not stay in the second-level cache

/// Cycles per element of k: two multiply-adds, two loads per cycle, and chains four cycles long.
double depth_cycles(std::int64_t rows, std::int64_t vectors) noexcept {
  if (rows == 0 || vectors == 0) return 0;
  return static_cast<double>(std::max<std::int64_t>({rows * vectors, rows + vectors, 8})) / 2;
}

/// Cycles inside microkernels and epilogues, which do not depend on the tiling.
double compute_cycles(const Problem& problem, const MicroShape& micro) noexcept {
  const std::int64_t row_panels = problem.m / micro.rows, row_tail = problem.m % micro.rows;
  const std::int64_t panels = problem.n / micro.columns();
  const std::int64_t tail_vectors = ceil_div(problem.n % micro.columns(), micro.lanes);
  const auto band = [&](std::int64_t rows) {
    return static_cast<double>(panels) * depth_cycles(rows, micro.vectors) + depth_cycles(rows, tail_vectors);
  };
  const double microtiles = static_cast<double>(ceil_div(problem.m, micro.rows)) *
                            static_cast<double>(ceil_div(problem.n, micro.columns())) *
                            static_cast<double>(ceil_div(problem.k, block_depth));
  return (static_cast<double>(row_panels) * band(micro.rows) + band(row_tail)) * static_cast<double>(problem.k) +
         microtiles * microtile_overhead_cycles +
         static_cast<double>(problem.m) * static_cast<double>(problem.n) * problem.output_cost;
}

bool broadcasts_right(const Problem& problem) noexcept {
  for (int i = 0; i < problem.batch_rank; ++i) {
    if (problem.batch[i].size > 1 && problem.batch[i].right == 0) return true;
  }
  return false;
}

/// Whether to read rows of the right operand in place, because they are used too seldom to pay for a copy.
bool may_read_right(const Problem& problem) noexcept {
  return problem.has_right_rows && problem.m <= most_rows_in_place;
}

/// Columns of a panel. Four vectors of columns make two panels of two, not one of three and one of one, which would
/// have too few chains of sums to keep the machine busy.
int panel_width(const Problem& problem, const MicroShape& micro) noexcept {
  return micro.vectors == 3 && ceil_div(problem.n, micro.lanes) == 4 ? 2 * micro.lanes : micro.columns();
}

/// Completes a tiling from the tile's sizes; false if it breaks a bound.
bool complete(const Problem& problem, const MicroShape& micro, Tiling& tiling) noexcept {
  const std::int64_t bytes = micro.element_bytes;
  if (tiling.columns * std::min(problem.k, block_depth) * bytes > right_block_bytes && tiling.columns > tiling.width) {
    return false;
  }
  tiling.sums_in_out = problem.sums_in_out && problem.k > block_depth;
  if (problem.k > block_depth) {
    const bool is_ragged = problem.n % micro.lanes != 0;
    const std::int64_t columns = !tiling.sums_in_out ? tiling.columns : is_ragged ? tiling.width : 0;
    if (tiling.rows * columns * bytes > scratch_bytes) return false;
  }
  tiling.left_rows = problem.copies_left ? std::min(tiling.rows, copied_rows) : tiling.rows;
  const bool has_reuse = !tiling.reads_right && (tiling.tile_rows(problem.m) > 1 || broadcasts_right(problem));
  tiling.keeps_right =
      has_reuse && tiling.columns * ceil_div(problem.k, block_depth) * block_depth * bytes <= right_kept_bytes;
  return true;
}

double cost_of(const Problem& problem, const MicroShape& micro, const Tiling& tiling, double compute,
               double batch) noexcept {
  const double tile_rows = static_cast<double>(tiling.tile_rows(problem.m));
  const double tile_columns = static_cast<double>(tiling.tile_columns(problem.n));
  const double threads = tiling.threads;
  const double tasks = batch * tile_rows * tile_columns;
  const double k = static_cast<double>(problem.k);
  const bool is_kept = tiling.keeps_right || problem.k <= block_depth;
  const double packs = is_kept ? std::min(threads, tile_rows) : tile_rows;
  const double right_elements = k * static_cast<double>(problem.n);
  const double kept_bytes = is_kept ? k * static_cast<double>(tiling.columns) * micro.element_bytes : 0;
  const double streaming = tile_rows * right_elements * (kept_bytes > near_bytes ? far_cycles : near_cycles);
  const bool has_far_rows = tiling.reads_right && right_elements * micro.element_bytes > near_rows_bytes;
  const double in_place =
      has_far_rows
          ? right_elements * ((tile_rows - 1) * far_rows_cycles + static_cast<double>(problem.m) * far_rows_use_cycles)
          : 0;
  const bool has_far_sums =
      tiling.sums_in_out && static_cast<double>(tiling.rows * tiling.columns * micro.element_bytes) > near_bytes;
  const double sums = has_far_sums ? static_cast<double>(problem.m) * static_cast<double>(problem.n) *
                                         static_cast<double>(ceil_div(problem.k, block_depth)) * far_sums_cycles
                                   : 0;
  const double blocks = tile_rows * tile_columns * static_cast<double>(ceil_div(problem.k, block_depth));
  const double right_cost = tiling.reads_right ? 0 : problem.right_cost;
  const double work =
      batch * (compute + packs * right_elements * right_cost + streaming + in_place + sums +
               tile_columns * k * static_cast<double>(problem.m) * problem.left_cost + blocks * block_overhead_cycles);
  // Tiles at the lower and right end are smaller; while there are few tiles, the largest one decides.
  const double rounds = static_cast<double>(ceil_div(static_cast<std::int64_t>(tasks), tiling.threads));
  const double largest = static_cast<double>(std::min(tiling.rows, problem.m)) / static_cast<double>(problem.m) *
                         static_cast<double>(std::min(tiling.columns, problem.n)) / static_cast<double>(problem.n);
  const double tile = tasks <= 4 * threads ? work / batch * largest : work / tasks;
  return std::max(work / threads, tile * rounds) + (tiling.threads > 1 ? thread_start_cycles : 0);
}

/// One tile that needs no packing, for products so small that ranking tilings would take noticeable time; rows == 0 if
/// there is none.
Tiling whole_in_place(const Problem& problem, const MicroShape& micro, int threads) noexcept {
  constexpr std::int64_t most_rows = 256, most_columns = 256;
  Tiling tiling;
  const bool is_small = problem.m <= most_rows && problem.n <= most_columns && problem.k <= block_depth;
  const bool is_read_where_it_lies = !problem.copies_left && may_read_right(problem) && problem.output_cost < 1;
  if (!is_small || threads > 1 || !is_read_where_it_lies) return tiling;
  tiling.rows = ceil_div(problem.m, micro.rows) * micro.rows;
  tiling.columns = ceil_div(problem.n, micro.columns()) * micro.columns();
  tiling.left_rows = tiling.rows;
  tiling.width = micro.columns();
  tiling.reads_right = true;
  return tiling;
}

bool is_same(const Problem& a, const Problem& b) noexcept {
  return a.m == b.m && a.n == b.n && a.k == b.k && a.batch_rank == b.batch_rank && a.copies_left == b.copies_left &&
         a.sums_in_out == b.sums_in_out && a.has_right_rows == b.has_right_rows && a.left_cost == b.left_cost &&
         a.right_cost == b.right_cost && a.output_cost == b.output_cost &&
         std::equal(a.batch.begin(), a.batch.begin() + a.batch_rank, b.batch.begin());
}

/// A problem ranked for this many threads (0 at first), and its best tiling. Each place has the last four.
struct Ranked {
  Problem problem{};
  MicroShape micro{};
  int threads = 0;
  Tiling best{};
};
constinit thread_local std::array<std::array<Ranked, 4>, 16> ranked{};

/// Of costs too: a product and those of its gradients have the same sizes, often in the same order.
std::size_t place_of(const Problem& problem) noexcept {
  auto mixed = std::bit_cast<std::uint64_t>(problem.left_cost + 3 * problem.right_cost + 7 * problem.output_cost);
  for (const std::int64_t size : {problem.m, problem.n, problem.k})
    mixed = (mixed ^ mixed >> 32 ^ static_cast<std::uint64_t>(size)) * 0x9E3779B97F4A7C15u;
  return mixed >> 60;
}

}  // namespace tiling_detail

std::int64_t Problem::batch_size() const noexcept {
  std::int64_t size = 1;
  for (int i = 0; i < batch_rank; ++i) size *= batch[i].size;
  return size;
}

Tiling choose_tiling(const Problem& problem, const MicroShape& micro, int threads) noexcept {
  using namespace tiling_detail;
  if (const Tiling whole = whole_in_place(problem, micro, threads); whole.rows != 0) return whole;
  const double batch = static_cast<double>(problem.batch_size());
  const double compute = compute_cycles(problem, micro);
  const std::int64_t row_panels = ceil_div(problem.m, micro.rows);
  const int width = panel_width(problem, micro);
  const std::int64_t column_panels = ceil_div(problem.n, width);
  if (batch * compute < worthwhile_cycles) threads = 1;

  Tiling best;
  const auto consider = [&](std::int64_t rows, std::int64_t columns, bool reads_right) {
    Tiling tiling;
    // Tiles of equal size, without a small one at the end.
    tiling.rows = ceil_div(row_panels, ceil_div(row_panels, rows)) * micro.rows;
    tiling.columns = ceil_div(column_panels, ceil_div(column_panels, columns)) * width;
    tiling.width = width;
    tiling.reads_right = reads_right;
    tiling.threads = threads;
    if (!complete(problem, micro, tiling)) return false;
    tiling.cost = cost_of(problem, micro, tiling, compute, batch);
    if (best.rows == 0 || tiling.cost < best.cost) best = tiling;
    return true;
  };
  // Products so small that ranking tilings would take noticeable time: one tile, where it breaks no bound.
  if (threads == 1 && row_panels <= 48 && column_panels <= 16) {
    for (const bool reads_right : {true, false}) {
      if (!reads_right || may_read_right(problem)) consider(row_panels, column_panels, reads_right);
    }
    if (best.rows != 0) return best;
  }
  // A network repeats a few problems, and planning asks for nothing else: without this table, ranking took a third of
  // planning's time.
  auto& place = ranked[place_of(problem)];
  for (const Ranked& last : place) {
    if (last.threads == threads && is_same(last.problem, problem) && last.micro == micro) return last.best;
  }
  for (const bool reads_right : {true, false}) {
    if (reads_right && !may_read_right(problem)) continue;
    for (const std::int64_t columns : {1, 2, 3, 4, 6, 8, 12, 16}) {
      for (const std::int64_t rows : {1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024}) {
        consider(std::min(rows, row_panels), std::min(columns, column_panels), reads_right);
        if (rows >= row_panels) break;
      }
      if (columns >= column_panels) break;
    }
  }
  best.threads = static_cast<int>(
      std::min<std::int64_t>(threads, problem.batch_size() * best.tile_rows(problem.m) * best.tile_columns(problem.n)));
  std::shift_right(place.begin(), place.end(), 1);
  place[0] = {problem, micro, threads, best};
  return best;
}

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
  const std::int64_t panel = panel_stride(std::min(problem.k, block_depth), tiling.width, line);
  const std::int64_t blocks = tiling.keeps_right ? blocks_of(problem.k) : 1;
  const bool is_ragged = problem.n % micro.lanes != 0;  // a microtile ends within a vector
  const std::int64_t scratch_columns = problem.k <= block_depth ? 0
                                       : !tiling.sums_in_out    ? tiling.columns
                                       : is_ragged              ? tiling.width
                                                                : 0;
  const std::int64_t panels = !tiling.reads_right ? tiling.columns / tiling.width : is_ragged ? 1 : 0;
  return {panels * panel * blocks, whole_lines(tiling.rows * scratch_columns), whole_lines(left_elements)};
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

/// A tile's position in the batch, and in C, counted in tiles.
struct Tile {
  std::int64_t batch;
  std::int64_t row;
  std::int64_t column;
};

/// One thread's work: computes tile after tile, and remembers which right blocks are still packed.
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
        is_small_(std::max(problem.k, problem.n) * problem.m * static_cast<std::int64_t>(sizeof(T)) < 512 * 1024),
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
    for (std::int64_t index = 0; index < blocks; ++index) {
      const std::int64_t k = index * block_depth;
      const std::int64_t depth = std::min(block_depth, problem_.k - k);
      const Block block{k, depth, panels_of(index, depth), index == 0, index + 1 == blocks};
      if (!is_packed) pack_right(block);
      partial_ = scratch_;
      for (std::int64_t i = 0; i < rows_; i += tiling_.left_rows) {
        multiply_rows(block, i, std::min(tiling_.left_rows, rows_ - i));
      }
    }
    if (tiling_.keeps_right || (blocks == 1 && !tiling_.reads_right)) {
      packed_offset_ = offsets_.right;
      packed_column_ = column_;
    }
  }

 private:
  /// A block of k, and the address of its packed right operand.
  struct Block {
    std::int64_t k;
    std::int64_t depth;
    Panels<T> panels;
    bool is_first;
    bool is_last;
  };

  /// The destination of a packed block of the right operand: a separate one for each block if all are kept.
  Panels<T> panels_of(std::int64_t block, std::int64_t depth) const noexcept {
    const int width = tiling_.width;
    const std::int64_t count = (columns_ + width - 1) / width;
    T* first = right_panels_;
    if (tiling_.keeps_right) first += block * count * panel_stride(block_depth, width, line_elements<T>);
    return {first, width, panel_stride(depth, width, line_elements<T>)};
  }

  /// Columns of the microtile with `rest` columns left. Three vectors and one become two and two, because a single
  /// vector has too few chains of sums to keep the machine busy.
  int microtile_columns(std::int64_t rest) const noexcept {
    const int width = tiling_.width;
    if (tiling_.reads_right && width == 3 * kernels_.lanes && rest > width && rest <= width + kernels_.lanes) {
      return 2 * kernels_.lanes;
    }
    return static_cast<int>(std::min<std::int64_t>(width, rest));
  }

  /// Packs the columns that are not read in place: all, or the microtile that ends within a vector.
  void pack_right(const Block& block) const noexcept {
    const std::int64_t k = block.k, depth = block.depth;
    if (!tiling_.reads_right) return right_.pack(offsets_.right, column_, columns_, k, depth, block.panels);
    if (columns_ % kernels_.lanes == 0) return;
    std::int64_t first = 0;
    for (int step; first + (step = microtile_columns(columns_ - first)) < columns_;) first += step;
    right_.pack(offsets_.right, column_ + first, columns_ - first, k, depth, block.panels);
  }

  /// Cache lines to prefetch while microtiles are computed, one line per group of k: some whole columns of lines for
  /// each microtile, or a part of one.
  class LinePrefetcher {
   public:
    LinePrefetcher() = default;
    LinePrefetcher(const Lines& lines, std::int64_t depth) noexcept
        : lines_(lines), groups_(std::max<std::int64_t>(1, depth / group_depth)) {}
    bool is_done() const noexcept { return lines_.columns <= 0; }
    Ahead next() noexcept {
      Ahead ahead = lines_.ahead;
      if (ahead.rows <= groups_) {
        const std::int64_t step = groups_ / ahead.rows;
        lines_.ahead.first += step * 64;
        lines_.columns -= step;
        return ahead;
      }
      ahead.first += row_ * ahead.stride;
      ahead.rows -= row_;
      row_ += groups_;
      if (row_ < lines_.ahead.rows) return ahead;
      row_ = 0;
      lines_.ahead.first += 64;
      --lines_.columns;
      return ahead;
    }

   private:
    Lines lines_;
    std::int64_t groups_ = 1;
    std::int64_t row_ = 0;  // where the next part begins
  };

  /// The left operand's lines after rows [i, i + count) of the tile.
  Lines left_after(const Block& block, std::int64_t i, std::int64_t count) const noexcept {
    const std::int64_t next = i + count;
    if (next < rows_) {
      return left_.lines(offsets_.left, row_ + next, std::min(count, rows_ - next), block.k, block.depth);
    }
    const std::int64_t k = block.k + block_depth;
    if (block.is_last) return {};
    return left_.lines(offsets_.left, row_, std::min(count, rows_), k, std::min(block_depth, problem_.k - k));
  }

  /// Rows of C below a panel: the next panel's results or partial sums.
  Lines out_after(const Block& block, std::int64_t i) const noexcept {
    const std::int64_t next = i + kernels_.rows;
    if (next >= rows_ || !(block.is_last ? output_.has_rows() : tiling_.sums_in_out)) return {};
    const auto bytes = static_cast<std::int64_t>(size_of(output_.dtype));
    const auto* const first = element_at(output_.c, output_.dtype, out_element(row_ + next, column_));
    return {{first, output_.rows.pixel * bytes, std::min<std::int64_t>(kernels_.rows, rows_ - next)},
            (columns_ * bytes + 63) / 64};
  }

  /// Rows [first, first + count) of the tile. A panel of the left block stays in the first-level cache while the right
  /// block streams by.
  void multiply_rows(const Block& block, std::int64_t first, std::int64_t count) noexcept {
    alignas(64) T finished[max_microtile_elements];
    const LeftBlock<T> left =
        left_.open(offsets_.left, row_ + first, count, block.k, block.depth, kernels_.rows, left_scratch_);
    const RowsInPlace<T> right = tiling_.reads_right ? right_.rows(offsets_.right, column_, block.k) : RowsInPlace<T>{};
    const int width = tiling_.width;
    LinePrefetcher left_ahead;
    if (!is_small_ && problem_.copies_left) left_ahead = LinePrefetcher(left_after(block, first, count), block.depth);
    RowPointers<T> a;
    std::int64_t panel = 0;
    for (std::int64_t i = first; i < first + count; i += kernels_.rows, ++panel) {
      const int rows = static_cast<int>(std::min<std::int64_t>(kernels_.rows, first + count - i));
      left_.panel(left, panel, rows, a);
      LinePrefetcher out_ahead;
      if (!is_small_) {
        if (!problem_.copies_left) left_ahead = LinePrefetcher(left_after(block, i, rows), block.depth);
        out_ahead = LinePrefetcher(out_after(block, i), block.depth);
      }
      const T* packed = block.panels.data;
      int columns = 0;
      for (std::int64_t j = 0; j < columns_; j += columns) {
        columns = microtile_columns(columns_ - j);
        const bool has_whole_vectors = kernels_.is_whole_vectors(columns);
        const bool is_in_place = tiling_.reads_right && has_whole_vectors;
        // The microkernel itself writes whole vectors of a plain C.
        const bool is_direct = block.is_last && is_plain_ && has_whole_vectors;
        const bool sums_in_out = tiling_.sums_in_out && has_whole_vectors;
        T* const direct = is_direct || sums_in_out ? direct_out(row_ + i, column_ + j) : nullptr;
        T* const sum = sums_in_out ? direct : partial_;
        const std::int64_t sum_stride = sums_in_out ? output_.rows.pixel : width;
        T* const out = is_direct ? direct : block.is_last ? finished : sum;
        const std::int64_t out_stride = is_direct ? output_.rows.pixel : block.is_last ? width : sum_stride;
        const Ahead ahead = !left_ahead.is_done()  ? left_ahead.next()
                            : !out_ahead.is_done() ? out_ahead.next()
                                                   : Ahead{};
        kernels_.select(rows, columns)({a, left.runs, left.run_count, left.depth_stride,
                                        is_in_place ? right.first + j : packed, block.is_first ? nullptr : sum,
                                        sum_stride, out, out_stride, is_in_place ? right.stride : width, ahead});
        if (!sums_in_out) partial_ += kernels_.rows * width;
        if (!is_in_place) packed += block.panels.stride;
        if (!block.is_last || is_direct) continue;
        finish_(output_, {offsets_.out, offsets_.bias, row_ + i, column_ + j, rows, columns}, finished, width);
      }
    }
  }

  std::int64_t out_element(std::int64_t row, std::int64_t column) const noexcept {
    return offsets_.out + row * output_.rows.pixel + column;
  }
  T* direct_out(std::int64_t row, std::int64_t column) const noexcept {
    return static_cast<T*>(output_.c) + out_element(row, column);
  }

  const Problem& problem_;
  const Tiling& tiling_;
  const Microkernels<T>& kernels_;
  const LeftOperand<T>& left_;
  const RightOperand<T>& right_;
  const Output<T>& output_;
  Finish<T> finish_;
  bool is_plain_;
  bool is_small_;  // the left operand and C stay in the cache
  T* right_panels_;
  T* scratch_;
  T* left_scratch_;
  T* partial_ = nullptr;  // of the next microtile, in scratch_
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
  const std::int64_t left_elements = left.scratch_elements(std::min(tiling.left_rows, problem.m), kernels.rows);
  const Sections parts = sections(problem, tiling, micro_shape(kernels), left_elements);
  const std::int64_t tile_rows = tiling.tile_rows(problem.m);
  const std::int64_t tile_columns = tiling.tile_columns(problem.n);
  const std::int64_t tiles = problem.batch_size() * tile_rows * tile_columns;
  // Tiles are handed out in order, row by row of one column, so that a thread's next tile often needs the blocks that
  // the thread has packed.
  const auto tile_at = [&](std::int64_t index) {
    return Tile{index / (tile_rows * tile_columns), index % tile_rows, index / tile_rows % tile_columns};
  };
  if (tiling.threads == 1) {
    Worker<T> worker(problem, tiling, kernels, left, right, output, finish, parts, static_cast<T*>(workspace));
    for (std::int64_t tile = 0; tile < tiles; ++tile) worker.compute_tile(tile_at(tile));
    return;
  }
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
