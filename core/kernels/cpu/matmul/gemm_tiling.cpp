// How a matmul is cut into tiles: a small model of the costs of packing, computing and idle threads.

#include <algorithm>
#include <array>

#include <thimble/core/kernels/cpu/matmul/gemm_driver.h>
#include <thimble/core/numbers/integers.h>

namespace thimble::kernels::gemm_detail {
namespace tiling_detail {

// Bounds on a thread's memory, 2 MiB in all: packed blocks should stay in its second-level cache.
inline constexpr std::int64_t right_block_bytes = 400 * 1024;
inline constexpr std::int64_t right_kept_bytes = 1024 * 1024;
inline constexpr std::int64_t scratch_bytes = 512 * 1024;

// Rows of a left operand that are copied at a time: whole microtiles of every instruction set, and little enough for
// half of the first-level cache, which the right operand's panels pass through too.
inline constexpr std::int64_t copied_rows = 24;

// Up to this m, reading the right operand's rows in place beats packing them: measured on 16 shapes.
inline constexpr std::int64_t most_rows_in_place = 512;

inline constexpr double thread_start_cycles = 4000;      // to wake threads and to wait for them
inline constexpr double microtile_overhead_cycles = 60;  // call, and partial sums to and fro
inline constexpr double worthwhile_cycles = 60000;       // below this a second thread does not pay
inline constexpr double block_overhead_cycles = 300;     // calls that prepare a block
inline constexpr double near_cycles = 0.01;  // to stream an element of kept blocks from the second-level cache
inline constexpr double far_cycles = 0.1;    // or from beyond it
inline constexpr double near_bytes = 768 * 1024;
// Rows read in place, from beyond the second-level cache: per row of tiles after the first, and per row of C.
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

/// Reads rows of the right operand in place while they are used too seldom to pay for a copy.
bool may_read_right(const Problem& problem) noexcept {
  return problem.has_right_rows && problem.m <= most_rows_in_place;
}

/// Columns of a panel. Four vectors of columns are two panels of two rather than one of three and one of one, which has
/// too few chains of sums to keep the machine busy.
int panel_width(const Problem& problem, const MicroShape& micro) noexcept {
  return micro.vectors == 3 && ceil_div(problem.n, micro.lanes) == 4 ? 2 * micro.lanes : micro.columns();
}

/// Completes a tiling from the tile's sizes; false when a bound is broken.
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
  // Tiles at the lower and right end are smaller; while there are few tiles, the largest decides.
  const double rounds = static_cast<double>(ceil_div(static_cast<std::int64_t>(tasks), tiling.threads));
  const double largest = static_cast<double>(std::min(tiling.rows, problem.m)) / static_cast<double>(problem.m) *
                         static_cast<double>(std::min(tiling.columns, problem.n)) / static_cast<double>(problem.n);
  const double tile = tasks <= 4 * threads ? work / batch * largest : work / tasks;
  return std::max(work / threads, tile * rounds) + (tiling.threads > 1 ? thread_start_cycles : 0);
}

/// One tile that needs no packing, for products so small that ranking tilings would take noticeable time; else rows ==
/// 0.
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

bool is_same(const MicroShape& a, const MicroShape& b) noexcept {
  return a.rows == b.rows && a.lanes == b.lanes && a.vectors == b.vectors && a.element_bytes == b.element_bytes;
}

bool is_same(const BatchDim& a, const BatchDim& b) noexcept {
  return a.size == b.size && a.left == b.left && a.right == b.right && a.out == b.out && a.bias == b.bias;
}

bool is_same(const Problem& a, const Problem& b) noexcept {
  return a.m == b.m && a.n == b.n && a.k == b.k && a.batch_rank == b.batch_rank && a.copies_left == b.copies_left &&
         a.sums_in_out == b.sums_in_out && a.has_right_rows == b.has_right_rows && a.left_cost == b.left_cost &&
         a.right_cost == b.right_cost && a.output_cost == b.output_cost &&
         std::equal(a.batch.begin(), a.batch.begin() + a.batch_rank, b.batch.begin(),
                    [](const BatchDim& x, const BatchDim& y) { return is_same(x, y); });
}

/// The problem ranked last for so many threads (0 at first), and its best tiling.
struct Ranked {
  Problem problem{};
  MicroShape micro{};
  int threads = 0;
  Tiling best{};
};
constinit thread_local std::array<Ranked, 32> ranked{};

/// By the highest bits of products with odd numbers: sizes are often multiples of the same powers of two.
std::size_t place_of(const Problem& problem) noexcept {
  return (static_cast<std::uint64_t>(problem.m) * 0x9E3779B97F4A7C15u ^
          static_cast<std::uint64_t>(problem.n) * 0xC2B2AE3D27D4EB4Fu ^
          static_cast<std::uint64_t>(problem.k) * 0x165667B19E3779F9u) >>
         59;
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
    // Tiles of equal size rather than a small one at the end.
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
  // A network has few different problems, again and again, and planning asks for nothing else: ranking took a third of
  // its time.
  Ranked& last = ranked[place_of(problem)];
  if (last.threads == threads && is_same(last.problem, problem) && is_same(last.micro, micro)) return last.best;
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
  last = {problem, micro, threads, best};
  return best;
}

}  // namespace thimble::kernels::gemm_detail
