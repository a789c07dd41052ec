// C is cut into tiles of 1024 x 256, each the sum over blocks of k: a block of the right operand is packed, then every
// 32 rows of the left one meet it. Sums are kept in scratch until the last block, and finished as in any gemm.

#include <thimble/core/kernels/gemm_bf16.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <string_view>

#include <thimble/core/error.h>
#include <thimble/core/kernels/gemm_dot_kernel.h>
#include <thimble/core/kernels/gemm_epilogue.h>
#include <thimble/core/kernels/gemm_microkernel.h>
#include <thimble/core/kernels/isa.h>
#include <thimble/core/kernels/variants.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace thimble::kernels {
namespace gemm_bf16_detail {

using namespace gemm_detail;

inline constexpr std::int64_t tile_rows = 1024, tile_columns = 256, block_depth = 1024;
inline constexpr std::int64_t step_elements = step_bytes / 2;
inline constexpr std::int64_t worthwhile_work = 1 << 21;  // products that pay for another thread

std::int64_t up_to(std::int64_t value, std::int64_t unit) noexcept { return (value + unit - 1) / unit * unit; }

/// The pieces of workspace, in bytes from its begin: every one a multiple of 64.
struct Space {
  std::int64_t columns, depth;      // of a tile and of a block, filled up
  std::int64_t sums, packed, left;  // bytes; the last for each thread, 0 where the left operand is read in place
  std::int64_t total(int threads) const noexcept { return sums + packed + threads * left; }
};

Space space_of(const GemmArgs& args) noexcept {
  Space s{};
  s.columns = std::min(tile_columns, up_to(args.n, dot_columns));
  s.depth = std::min(block_depth, up_to(std::max<std::int64_t>(args.k, 1), step_elements));
  s.sums = std::min(tile_rows, up_to(args.m, dot_rows)) * s.columns * 4;
  s.packed = up_to(static_cast<std::int64_t>(dot_packed_bytes(s.depth, s.columns, DType::bf16)), 64);
  s.left = args.a_column_stride == 1 ? 0 : dot_rows * s.depth * 2;
  return s;
}

int threads_of(const GemmArgs& args, int threads) noexcept {
  const std::int64_t rows = std::min(tile_rows, args.m), columns = std::min(tile_columns, args.n);
  const std::int64_t panels = (rows + dot_rows - 1) / dot_rows;
  const std::int64_t most = std::min(panels, rows * columns * std::min(block_depth, args.k) / worthwhile_work);
  return static_cast<int>(std::clamp<std::int64_t>(most, 1, threads));
}

/// One tile of C, one block of k.
struct Block {
  const std::uint16_t* a;  // its first row and column
  std::int64_t depth;      // elements of k
  bool is_first;           // of k: sums begin here
};

/// 32 rows of the left operand, side by side: what `Block::a` + row * a_row_stride has at every a_column_stride.
struct PackRows {
  static void run(const std::uint16_t* a, std::int64_t row_stride, std::int64_t column_stride, int rows,
                  std::int64_t depth, std::int64_t filled, std::uint16_t* out) noexcept {
    for (std::int64_t p0 = 0; p0 < filled; p0 += step_elements) {
      const std::int64_t count = std::clamp<std::int64_t>(depth - p0, 0, step_elements);
      for (int r = 0; r < rows; ++r) {
        const std::uint16_t* const from = a + r * row_stride + p0 * column_stride;
        std::uint16_t* const to = out + r * filled + p0;
        for (std::int64_t p = 0; p < count; ++p) to[p] = from[p * column_stride];
        for (std::int64_t p = count; p < step_elements; ++p) to[p] = 0;
      }
    }
  }
};

/// Adds the products of some rows of a tile to its sums.
void add_rows(const GemmArgs& args, const Space& space, const Block& block, std::int64_t first, int rows,
              std::int64_t columns, const std::uint8_t* packed, std::uint16_t* left, float* sums,
              const DotKernel& kernel) noexcept {
  alignas(64) std::uint8_t tail[dot_rows * step_bytes] = {};
  alignas(64) float product[dot_rows * dot_columns];
  const std::uint16_t* const a = block.a + first * args.a_row_stride;
  const std::int64_t filled = up_to(block.depth, step_elements);
  DotTile tile{};
  tile.rows = rows;
  tile.columns = dot_columns;
  if (left != nullptr) {
    run_variant<PackRows>(a, args.a_row_stride, args.a_column_stride, rows, block.depth, filled, left);
    tile.a = reinterpret_cast<const std::uint8_t*>(left);
    tile.a_stride = filled * 2;
    tile.whole_steps = filled / step_elements;
  } else {
    tile.a = reinterpret_cast<const std::uint8_t*>(a);
    tile.a_stride = args.a_row_stride * 2;
    tile.whole_steps = block.depth / step_elements;
    const std::int64_t rest = block.depth % step_elements;
    tile.a_tail = rest != 0 ? tail : nullptr;
    for (int r = 0; rest != 0 && r < rows; ++r) {
      std::memcpy(tail + r * step_bytes, a + r * args.a_row_stride + tile.whole_steps * step_elements,
                  static_cast<std::size_t>(rest * 2));
    }
  }
  const auto panel_bytes = static_cast<std::int64_t>(dot_packed_bytes(block.depth, dot_columns, DType::bf16));
  for (std::int64_t column = 0; column < columns; column += dot_columns, packed += panel_bytes) {
    float* const to = sums + first * space.columns + column;
    tile.b = packed;
    tile.out = block.is_first ? to : product;
    tile.out_stride = block.is_first ? space.columns : dot_columns;
    kernel.compute(tile);
    if (block.is_first) continue;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < dot_columns; ++c) to[r * space.columns + c] += product[r * dot_columns + c];
    }
  }
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

/// One matrix of the batch.
struct Matrix {
  const std::uint16_t *a, *b;
  std::int64_t c_offset, bias_offset;
};

void compute_matrix(const GemmArgs& args, const Matrix& matrix, const Output<float>& output, std::uint8_t* workspace,
                    int threads, DotUnit unit) noexcept {
  const Space space = space_of(args);
  auto* const sums = reinterpret_cast<float*>(workspace);
  std::uint8_t* const packed = workspace + space.sums;
  const DotKernel& kernel = dot_kernel(unit, DType::bf16);
  const Microkernels<float>& micro = microkernels<float>(isa());
  const int piece = micro.lanes * micro.vectors;
  const Finish<float> finisher = finish<float>(isa());
  for (std::int64_t column = 0; column < args.n; column += tile_columns) {
    const std::int64_t columns = std::min(tile_columns, args.n - column);
    for (std::int64_t row = 0; row < args.m; row += tile_rows) {
      const std::int64_t rows = std::min(tile_rows, args.m - row);
      const std::int64_t panels = (rows + dot_rows - 1) / dot_rows;
      for (std::int64_t p = 0; p == 0 || p < args.k; p += block_depth) {
        const Block block{matrix.a + row * args.a_row_stride + p * args.a_column_stride,
                          std::min(block_depth, args.k - p), p == 0};
        DotGemmArgs right;
        right.n = columns, right.k = block.depth;
        right.a_dtype = right.b_dtype = DType::bf16;
        right.b = matrix.b + p * args.b_row_stride + column * args.b_column_stride;
        right.b_row_stride = args.b_row_stride, right.b_column_stride = args.b_column_stride;
        pack_dot_right(right, packed, unit, threads);
        const bool is_last = p + block_depth >= args.k;
        const int workers = static_cast<int>(std::min<std::int64_t>(threads, panels));
        parallel_threads(workers, [&](int thread) {
          auto* const left =
              space.left == 0 ? nullptr : reinterpret_cast<std::uint16_t*>(packed + space.packed + thread * space.left);
          int begun = 0;
          for (std::int64_t i = panels * thread / workers; i < panels * (thread + 1) / workers; ++i) {
            const std::int64_t first = i * dot_rows;
            const int count = static_cast<int>(std::min<std::int64_t>(dot_rows, rows - first));
            if (count != begun) kernel.begin(count);
            begun = count;
            add_rows(args, space, block, first, count, columns, packed, left, sums, kernel);
            if (!is_last) continue;
            const OutputTile tile{matrix.c_offset, matrix.bias_offset, row + first, column, 0, 0};
            finish_rows(output, finisher, tile, count, columns, piece, sums + first * space.columns, space.columns);
          }
          if (begun != 0) kernel.end();
        });
      }
    }
  }
}

std::atomic<int>& forced() noexcept {
  static std::atomic<int> unit{-1};  // not set
  return unit;
}

#if defined(__x86_64__)
bool is_amd() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) == 0) return false;
  char name[12];
  std::memcpy(name, &b, 4);
  std::memcpy(name + 4, &d, 4);
  std::memcpy(name + 8, &c, 4);
  return std::string_view(name, 12) == "AuthenticAMD";
}
#endif

}  // namespace gemm_bf16_detail

bool is_worthwhile_for_bf16([[maybe_unused]] DotUnit unit) noexcept {
#if defined(__x86_64__)
  static const bool has_fast_vectors = gemm_bf16_detail::is_amd();
  return unit == DotUnit::amx || (unit == DotUnit::avx512 && has_fast_vectors);
#else
  return false;
#endif
}

std::optional<DotUnit> gemm_bf16_unit() noexcept {
  const int forced = gemm_bf16_detail::forced().load(std::memory_order_relaxed);
  const DotUnit unit = forced < 0 ? dot_unit(DType::bf16) : static_cast<DotUnit>(forced);
  if (!is_supported(unit, DType::bf16) || (forced < 0 && !is_worthwhile_for_bf16(unit))) return std::nullopt;
  return unit;
}

void set_gemm_bf16_unit(std::optional<DotUnit> unit) {
  if (unit && *unit != DotUnit::generic && !is_supported(*unit, DType::bf16)) {
    throw ValueError("set_gemm_bf16_unit: this machine has no bf16 products on unit " +
                     std::to_string(static_cast<int>(*unit)) + "; generic, which converts to f32, is allowed");
  }
  gemm_bf16_detail::forced().store(unit ? static_cast<int>(*unit) : -1, std::memory_order_relaxed);
}

namespace gemm_detail {

std::size_t bf16_workspace_bytes(const GemmArgs& args, int threads) noexcept {
  using namespace gemm_bf16_detail;
  return static_cast<std::size_t>(space_of(args).total(threads_of(args, threads)));
}

void compute_bf16(const GemmArgs& args, void* workspace, int threads, DotUnit unit) noexcept {
  using namespace gemm_bf16_detail;
  Output<float> output;
  output.c = args.c;
  output.pre_activation = args.pre_activation;
  output.bias = args.bias;
  output.accumulate = args.accumulate;
  output.activation = args.activation;
  output.dtype = args.c_dtype;
  output.alpha = static_cast<float>(args.alpha);
  output.rows.pixel = args.c_row_stride;
  output.column_stride = args.c_column_stride;
  threads = threads_of(args, threads);
  std::int64_t count = 1;
  for (int i = 0; i < args.batch_rank; ++i) count *= args.batch[static_cast<std::size_t>(i)].size;
  for (std::int64_t index = 0; index < count; ++index) {
    Matrix matrix{static_cast<const std::uint16_t*>(args.a), static_cast<const std::uint16_t*>(args.b), 0, 0};
    std::int64_t rest = index;
    for (int i = args.batch_rank; i-- > 0;) {
      const GemmBatchDim& dim = args.batch[static_cast<std::size_t>(i)];
      const std::int64_t at = rest % dim.size;
      rest /= dim.size;
      matrix.a += at * dim.a, matrix.b += at * dim.b;
      matrix.c_offset += at * dim.c, matrix.bias_offset += at * dim.bias;
    }
    compute_matrix(args, matrix, output, static_cast<std::uint8_t*>(workspace), threads, unit);
  }
}

}  // namespace gemm_detail
}  // namespace thimble::kernels
