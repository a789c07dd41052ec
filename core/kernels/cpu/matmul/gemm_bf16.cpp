// C is cut into tiles of 1024 x 256, each the sum over blocks of k: a block of the right operand is packed, then every
// 32 rows of the left one meet it. Sums stay in scratch until the last block, and are finished as in any gemm.

#include <thimble/core/kernels/cpu/matmul/gemm_bf16.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/matmul/gemm_bf16_driver.h>
#include <thimble/core/kernels/cpu/matmul/gemm_bf16_kernel.h>
#include <thimble/core/kernels/cpu/matmul/gemm_bf16_pack.h>
#include <thimble/core/kernels/cpu/matmul/gemm_epilogue.h>
#include <thimble/core/kernels/cpu/matmul/gemm_microkernel.h>
#include <thimble/core/numbers/integers.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace gemm_bf16_detail {

using namespace gemm_detail;

inline constexpr std::int64_t tile_rows = 1024, tile_columns = 256, unit_depth = 1024;
inline constexpr std::int64_t step_elements = step_bytes / 2;
// Few rows of A by so many elements of B, of whose columns so many are computed at a time (class Streamed).
inline constexpr std::int64_t most_streamed_rows = 4, least_streamed = 1 << 16, stream_columns = 1024;
inline constexpr std::int64_t worthwhile_work = 1 << 21;  // products that pay for another thread

/// Bytes of packed panels: depth is filled up to a step, columns to a panel.
std::int64_t packed_bytes(std::int64_t depth, std::int64_t columns) noexcept {
  return ceil_div(columns, dot_columns) * ceil_div(depth, step_elements) * step_block_bytes;
}

/// The regions of workspace, in bytes from its begin: every one a multiple of 64.
struct Space {
  std::int64_t columns, depth;  // of a tile and of a block, filled up
  std::int64_t sums;            // of a whole tile if k has several blocks, else 0
  std::int64_t packed;
  std::int64_t right;  // rows of B that are copied before they are packed, or 0
  std::int64_t left;   // for each thread, rows of A that are copied, or 0
  std::int64_t rows;   // for each thread, sums of a panel's rows when the tile has none
  std::int64_t total(int threads) const noexcept { return sums + packed + right + threads * (left + rows); }
};

Space space_of(const Bf16Operands& x) noexcept {
  Space s{};
  s.columns = std::min(tile_columns, round_up(x.n, dot_columns));
  s.depth = std::min(unit_depth, round_up(std::max<std::int64_t>(x.k, 1), step_elements));
  const bool is_one_block = x.k <= unit_depth;
  s.sums = is_one_block ? 0 : std::min(tile_rows, round_up(x.m, dot_rows)) * s.columns * 4;
  s.rows = is_one_block ? dot_rows * s.columns * 4 : 0;
  s.packed = packed_bytes(s.depth, s.columns);
  s.right = x.reads_right ? 0 : s.depth * s.columns * 2;
  s.left = x.reads_left ? 0 : dot_rows * s.depth * 2;
  return s;
}

int threads_of(const Bf16Operands& x, int threads) noexcept {
  const std::int64_t rows = std::min(tile_rows, x.m), columns = std::min(tile_columns, x.n);
  const std::int64_t panels = ceil_div(rows, dot_rows);
  const std::int64_t most = std::min(panels, rows * columns * std::min(unit_depth, x.k) / worthwhile_work);
  return static_cast<int>(std::clamp<std::int64_t>(most, 1, threads));
}

/// One tile of C, one block of k.
struct Block {
  std::int64_t row;    // of the tile
  std::int64_t p;      // where the block begins
  std::int64_t depth;  // elements of k
};

/// Adds the products of some rows of a tile to their sums.
void add_rows(const Bf16Operands& x, const Space& space, const Block& block, std::int64_t first, int rows,
              std::int64_t columns, const std::uint8_t* packed, std::uint16_t* left, float* sums,
              const DotKernel& kernel) noexcept {
  alignas(64) std::uint8_t tail[dot_rows * step_bytes] = {};
  alignas(64) float product[dot_rows * dot_columns] = {};
  const std::int64_t filled = round_up(block.depth, step_elements);
  DotTile tile{};
  tile.rows = rows;
  tile.is_half = x.n <= block_columns;
  if (left != nullptr) {
    x.copy_left(block.row + first, rows, block.p, block.depth, filled, left);
    tile.a = reinterpret_cast<const std::uint8_t*>(left);
    tile.a_stride = filled * 2;
    tile.whole_steps = filled / step_elements;
  } else {
    const std::uint16_t* const a = x.a + (block.row + first) * x.a_stride + block.p;
    tile.a = reinterpret_cast<const std::uint8_t*>(a);
    tile.a_stride = x.a_stride * 2;
    tile.whole_steps = block.depth / step_elements;
    if (x.n <= dot_columns && block.row + first + 2 * dot_rows <= x.m) tile.ahead = tile.a + dot_rows * tile.a_stride;
    const std::int64_t rest = block.depth % step_elements;
    tile.a_tail = rest != 0 ? tail : nullptr;
    for (int r = 0; rest != 0 && r < rows; ++r) {
      std::memcpy(tail + r * step_bytes, a + r * x.a_stride + tile.whole_steps * step_elements,
                  static_cast<std::size_t>(rest * 2));
    }
  }
  const bool is_first = block.p == 0;
  const std::int64_t panel_bytes = packed_bytes(block.depth, dot_columns);
  for (std::int64_t column = 0; column < columns; column += dot_columns, packed += panel_bytes) {
    float* const to = sums + column;
    tile.b = packed;
    tile.out = is_first ? to : product;
    tile.out_stride = is_first ? space.columns : dot_columns;
    kernel.compute(tile);
    if (is_first) continue;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < dot_columns; ++c) to[r * space.columns + c] += product[r * dot_columns + c];
    }
  }
}

/// Calls body(begin, end) on every thread with its part of [0, count).
template <class Body>
void split(std::int64_t count, int threads, Body&& body) noexcept {
  threads = static_cast<int>(std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(1, count)));
  parallel_threads(threads, [&](int thread) { body(count * thread / threads, count * (thread + 1) / threads); });
}

/// Packs a block of B, columns [column, column + columns) of it.
void pack_right(const Bf16Operands& x, const Block& block, std::int64_t column, std::int64_t columns,
                std::uint16_t* rows, std::uint8_t* packed, int threads) noexcept {
  const std::uint16_t* b = rows;
  std::int64_t row_stride = columns, column_stride = 1;
  if (x.reads_right) {
    b = x.b + block.p * x.b_row_stride + column * x.b_column_stride;
    row_stride = x.b_row_stride, column_stride = x.b_column_stride;
  } else {
    split(block.depth, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) x.copy_right(block.p + p, column, columns, rows + p * columns);
    });
  }
  split(ceil_div(columns, dot_columns), threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin * dot_columns; first < end * dot_columns; first += dot_columns) {
      pack_bf16_panel(b + first * column_stride, row_stride, column_stride, block.depth,
                      std::min<std::int64_t>(dot_columns, columns - first), packed + packed_bytes(block.depth, first));
    }
  });
}

/// Finishes some rows of a tile, whose place in C is (row, column).
void finish_rows(const Output<float>& output, Finish<float> finish, OutputTile tile, std::int64_t rows,
                 std::int64_t columns, int piece, float* sums, std::int64_t stride) noexcept {
  const std::int64_t row = tile.row, column = tile.column;
  for (std::int64_t r = 0; r < rows; r += max_tile_rows) {
    for (std::int64_t c = 0; c < columns; c += piece) {
      tile.row = row + r, tile.column = column + c;
      tile.rows = static_cast<int>(std::min<std::int64_t>(max_tile_rows, rows - r));
      tile.columns = static_cast<int>(std::min<std::int64_t>(piece, columns - c));
      finish(output, tile, sums + r * stride + c, static_cast<int>(stride));
    }
  }
}

void multiply(const Bf16Operands& x, const Output<float>& output, const Bf16Place& place, void* workspace, int threads,
              DotUnit unit) noexcept {
  threads = threads_of(x, threads);
  const Space space = space_of(x);
  auto* const sums = static_cast<float*>(workspace);
  std::uint8_t* const packed = static_cast<std::uint8_t*>(workspace) + space.sums;
  auto* const right_rows = reinterpret_cast<std::uint16_t*>(packed + space.packed);
  std::uint8_t* const own = packed + space.packed + space.right;  // by threads
  const DotKernel& kernel = dot_kernel(unit);
  const Microkernels<float>& micro = microkernels<float>(isa());
  const int piece = micro.lanes * micro.vectors;
  const Finish<float> finisher = finish<float>(isa());
  for (std::int64_t column = 0; column < x.n; column += tile_columns) {
    const std::int64_t columns = std::min(tile_columns, x.n - column);
    for (std::int64_t row = 0; row < x.m; row += tile_rows) {
      const std::int64_t rows = std::min(tile_rows, x.m - row);
      const std::int64_t panels = ceil_div(rows, dot_rows);
      for (std::int64_t p = 0; p == 0 || p < x.k; p += unit_depth) {
        const Block block{row, p, std::min(unit_depth, x.k - p)};
        pack_right(x, block, column, columns, right_rows, packed, threads);
        const bool is_last = p + unit_depth >= x.k;
        const int workers = static_cast<int>(std::min<std::int64_t>(threads, panels));
        parallel_threads(workers, [&](int thread) {
          std::uint8_t* const mine = own + thread * (space.left + space.rows);
          auto* const left = space.left == 0 ? nullptr : reinterpret_cast<std::uint16_t*>(mine);
          int begun = 0;
          for (std::int64_t i = panels * thread / workers; i < panels * (thread + 1) / workers; ++i) {
            const std::int64_t first = i * dot_rows;
            const int count = static_cast<int>(std::min<std::int64_t>(dot_rows, rows - first));
            if (count != begun) kernel.begin(count);
            begun = count;
            float* const to =
                space.rows == 0 ? sums + first * space.columns : reinterpret_cast<float*>(mine + space.left);
            add_rows(x, space, block, first, count, columns, packed, left, to, kernel);
            if (!is_last) continue;
            const OutputTile tile{place.c_offset, place.bias_offset, row + first, column, 0, 0};
            finish_rows(output, finisher, tile, count, columns, piece, to, space.columns);
          }
          if (begun != 0) kernel.end();
        });
      }
    }
  }
}

/// One thread's columns of a streamed product. Packs a step of B at a time, panel by panel of a tile, and continues the
/// sums of the steps before: packed data stays near, and B's rows are read in order.
class Streamed {
 public:
  static constexpr std::int64_t run = step_elements;
  static constexpr std::int64_t packed_run = run / step_elements * step_block_bytes;
  static constexpr std::int64_t sums = most_streamed_rows * stream_columns;  // floats
  static constexpr std::int64_t thread_bytes = 2 * packed_run + 2 * sums * 4;

  static int threads_of(const Bf16Operands& x, int threads) noexcept {
    constexpr std::int64_t worthwhile_elements = 1 << 17;  // that pay for another thread
    const std::int64_t most = std::min(x.n / dot_columns, x.n * x.k / worthwhile_elements);
    return static_cast<int>(std::clamp<std::int64_t>(most, 1, threads));
  }

  Streamed(const Bf16Operands& x, std::uint8_t* space, DotUnit unit) noexcept
      : x_(x),
        packed_(space),
        block_(reinterpret_cast<float*>(space + 2 * packed_run)),
        total_(block_ + sums),
        kernel_(dot_kernel(unit)) {}

  /// Calls done(column, columns, sums) for every tile of columns.
  template <class Done>
  void compute(std::int64_t begin, std::int64_t end, Done&& done) noexcept {
    kernel_.begin(static_cast<int>(x_.m));
    for (std::int64_t column = begin; column < end; column += stream_columns) {
      const std::int64_t columns = std::min(stream_columns, end - column);
      for (std::int64_t p = 0; p == 0 || p < x_.k; p += unit_depth) {
        const std::int64_t last = std::min(x_.k, p + unit_depth);
        float* const to = p == 0 ? total_ : block_;
        for (std::int64_t q = p; q == p || q < last; q += run) {
          add_run(column, columns, q, std::min(run, last - q), to, q > p);
        }
        for (std::int64_t i = 0; p > 0 && i < x_.m * stream_columns; ++i) total_[i] += block_[i];
      }
      done(column, columns, total_);
    }
    kernel_.end();
  }

 private:
  void add_run(std::int64_t column, std::int64_t columns, std::int64_t p, std::int64_t depth, float* to,
               bool is_sum) noexcept {
    alignas(64) std::uint8_t tail[most_streamed_rows * step_bytes] = {};
    ask(column, columns, p + depth);
    DotTile tile{};
    tile.rows = static_cast<int>(x_.m);
    tile.a = reinterpret_cast<const std::uint8_t*>(x_.a + p);
    tile.a_stride = x_.a_stride * 2;
    tile.whole_steps = depth / step_elements;
    const std::int64_t rest = depth % step_elements;
    tile.a_tail = rest != 0 ? tail : nullptr;
    for (int r = 0; rest != 0 && r < tile.rows; ++r) {
      std::memcpy(tail + r * step_bytes, x_.a + p + r * x_.a_stride + tile.whole_steps * step_elements,
                  static_cast<std::size_t>(rest * 2));
    }
    tile.is_sum = is_sum;
    tile.out_stride = stream_columns;
    // Computes a panel after packing the next one: the stores have then arrived.
    const auto pack = [&](std::int64_t first) {
      pack_bf16_panel(x_.b + p * x_.b_row_stride + column + first, x_.b_row_stride, 1, depth,
                      std::min<std::int64_t>(dot_columns, columns - first), place_of(first));
    };
    pack(0);
    for (std::int64_t first = 0; first < columns; first += dot_columns) {
      if (first + dot_columns < columns) pack(first + dot_columns);
      tile.b = place_of(first);
      tile.out = to + first;
      kernel_.compute(tile);
    }
  }

  std::uint8_t* place_of(std::int64_t first) const noexcept { return packed_ + first / dot_columns % 2 * packed_run; }

  /// Prefetches the rows of the next run.
  void ask(std::int64_t column, std::int64_t columns, std::int64_t p) const noexcept {
    for (std::int64_t r = p; r < std::min(x_.k, p + run); ++r) {
      const std::uint16_t* const row = x_.b + r * x_.b_row_stride + column;
      for (std::int64_t c = 0; c < columns; c += dot_columns) __builtin_prefetch(row + c);
    }
  }

  const Bf16Operands& x_;
  std::uint8_t* packed_;
  float *block_, *total_;
  const DotKernel& kernel_;
};

void multiply_streamed(const Bf16Operands& x, const Output<float>& output, const Bf16Place& place, void* workspace,
                       int threads, DotUnit unit) noexcept {
  threads = Streamed::threads_of(x, threads);
  const std::int64_t each = round_up(ceil_div(x.n, threads), dot_columns);
  const Microkernels<float>& micro = microkernels<float>(isa());
  const Finish<float> finisher = finish<float>(isa());
  parallel_threads(threads, [&](int thread) {
    Streamed worker(x, static_cast<std::uint8_t*>(workspace) + thread * Streamed::thread_bytes, unit);
    worker.compute(std::min(x.n, thread * each), std::min(x.n, (thread + 1) * each),
                   [&](std::int64_t column, std::int64_t columns, float* sums) {
                     const OutputTile tile{place.c_offset, place.bias_offset, 0, column, 0, 0};
                     finish_rows(output, finisher, tile, x.m, columns, micro.lanes * micro.vectors, sums,
                                 stream_columns);
                   });
  });
}

/// Whether C^T = B^T A^T is computed in place of C: few rows, and contiguous columns of B, as in a decoder's weights.
/// These are then read once, in place, and threads divide C^T's many rows. An element has the same products in the same
/// order, and the units' sums treat both factors alike.
bool is_turned(const GemmArgs& args) noexcept { return args.m <= block_columns && args.b_row_stride == 1; }

/// The operands of one matrix of a gemm's batch: views.
class Views final : public Bf16Operands {
 public:
  Views(const GemmArgs& args, std::int64_t a_offset, std::int64_t b_offset) noexcept
      : rows_(static_cast<const std::uint16_t*>(args.a) + a_offset),
        row_stride_(args.a_row_stride),
        column_stride_(args.a_column_stride) {
    m = args.m, n = args.n, k = args.k;
    b = static_cast<const std::uint16_t*>(args.b) + b_offset;
    b_row_stride = args.b_row_stride, b_column_stride = args.b_column_stride;
    if (is_turned(args)) {
      std::swap(m, n);
      std::swap(rows_, b);
      std::swap(row_stride_, b_column_stride);
      std::swap(column_stride_, b_row_stride);
    }
    reads_left = column_stride_ == 1, reads_right = true;
    a = rows_, a_stride = row_stride_;
    is_streamed = m <= most_streamed_rows && reads_left && b_column_stride == 1 && n * k >= least_streamed;
  }
  void copy_left(std::int64_t row, int rows, std::int64_t p, std::int64_t depth, std::int64_t filled,
                 std::uint16_t* out) const noexcept override {
    copy_bf16_rows(rows_ + row * row_stride_ + p * column_stride_, row_stride_, column_stride_, rows, depth, filled,
                   out);
  }
  void copy_right(std::int64_t, std::int64_t, std::int64_t, std::uint16_t*) const noexcept override {}

 private:
  const std::uint16_t* rows_;
  std::int64_t row_stride_, column_stride_;
};

}  // namespace gemm_bf16_detail

namespace gemm_detail {

std::size_t bf16_product_bytes(const Bf16Operands& operands, int threads) noexcept {
  using namespace gemm_bf16_detail;
  if (operands.is_streamed) {
    return static_cast<std::size_t>(Streamed::threads_of(operands, threads) * Streamed::thread_bytes);
  }
  return static_cast<std::size_t>(space_of(operands).total(threads_of(operands, threads)));
}

void bf16_product(const Bf16Operands& operands, const Output<float>& output, const Bf16Place& place, void* workspace,
                  int threads, DotUnit unit) noexcept {
  using namespace gemm_bf16_detail;
  operands.is_streamed ? multiply_streamed(operands, output, place, workspace, threads, unit)
                       : multiply(operands, output, place, workspace, threads, unit);
}

std::size_t bf16_workspace_bytes(const GemmArgs& args, int threads) noexcept {
  return bf16_product_bytes(gemm_bf16_detail::Views(args, 0, 0), threads);
}

void compute_bf16(const GemmArgs& args, void* workspace, int threads, DotUnit unit) noexcept {
  Output<float> output;
  output.c = args.c;
  output.pre_activation = args.pre_activation;
  output.bias = args.bias;
  output.accumulate = args.accumulate;
  output.activation = args.activation;
  output.dtype = args.c_dtype;
  output.alpha = static_cast<float>(args.alpha);
  output.bias_along_rows = gemm_bf16_detail::is_turned(args);
  output.rows.pixel = args.c_row_stride;
  output.column_stride = args.c_column_stride;
  if (output.bias_along_rows) std::swap(output.rows.pixel, output.column_stride);
  std::int64_t count = 1;
  for (int i = 0; i < args.batch_rank; ++i) count *= args.batch[static_cast<std::size_t>(i)].size;
  for (std::int64_t index = 0; index < count; ++index) {
    std::int64_t a = 0, b = 0, rest = index;
    Bf16Place place;
    for (int i = args.batch_rank; i-- > 0;) {
      const GemmBatchDim& dim = args.batch[static_cast<std::size_t>(i)];
      const std::int64_t at = rest % dim.size;
      rest /= dim.size;
      a += at * dim.a, b += at * dim.b;
      place.c_offset += at * dim.c, place.bias_offset += at * dim.bias;
    }
    bf16_product(gemm_bf16_detail::Views(args, a, b), output, place, workspace, threads, unit);
  }
}

}  // namespace gemm_detail
}  // namespace thimble::kernels
