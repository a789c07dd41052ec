#include <thimble/core/kernels/cpu/matmul/gemm_driver.h>

#include <algorithm>
#include <cmath>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/simd.h>
#include <thimble/core/kernels/cpu/matmul/gemm_epilogue.h>
#include <thimble/core/kernels/cpu/matmul/gemm_microkernel.h>
#include <thimble/core/numbers/integers.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels::gemm_detail {
namespace few_rows_detail {

inline constexpr std::int64_t most_rows = 4;
inline constexpr std::int64_t most_depth = std::int64_t{1} << 16;           // of a's rows, which are copied
inline constexpr std::int64_t least_elements = std::int64_t{1} << 16;       // of b
inline constexpr std::int64_t least_turned_elements = 2048;                 // with contiguous columns
inline constexpr std::int64_t worthwhile_elements = std::int64_t{1} << 17;  // that pay for another thread
inline constexpr std::int64_t tile_columns = 1024;                          // whose sums are kept at a time
inline constexpr std::int64_t rows_at_once = 4;                             // of b
inline constexpr std::int64_t quad = 4;                                     // elements of k that are transposed at a
                                                                            // time
inline constexpr std::int64_t most_lanes = 16;
inline constexpr std::int64_t converted = std::max(rows_at_once * tile_columns, most_lanes* block_depth);

/// a b + c in one rounding, or, on the generic instruction set, in two.
template <bool is_fused>
THIMBLE_ALWAYS_INLINE float multiply_add(float a, float b, float c) noexcept {
  return is_fused ? __builtin_fmaf(a, b, c) : a * b + c;
}

/// Adds the products of `depth` rows of b with their elements of a's rows to sums (rows, columns).
struct RowsOfB {
  const float* b;  // rows lie b_row apart
  std::int64_t b_row, depth, columns;
  const float* a;  // (rows, depth), rows a_row apart
  std::int64_t a_row;
  float* sums;  // rows lie tile_columns apart
};

template <class T, Isa target, int rows>
struct AddRows {
  using V = Simd<T, target>;
  using Vector = typename V::Vector;

  static THIMBLE_ALWAYS_INLINE void run(const RowsOfB& x) {
    if (x.depth == rows_at_once) {
      add<rows_at_once>(x);
    } else {
      RowsOfB one = x;
      for (std::int64_t p = 0; p < x.depth; ++p, one.b += x.b_row, ++one.a) add<1>(one);
    }
  }

 private:
  template <int depth>
  static THIMBLE_ALWAYS_INLINE void add(const RowsOfB& x) {
    Vector left[rows][depth];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < depth; ++p) V::broadcast(left[r][p], x.a[r * x.a_row + p]);
    }
    std::int64_t j = 0;
    for (; j + V::lanes <= x.columns; j += V::lanes) {
      Vector right[depth];
#pragma GCC unroll 4
      for (int p = 0; p < depth; ++p) right[p] = V::at(x.b + p * x.b_row + j);
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        Vector sum = V::at(x.sums + r * tile_columns + j);
#pragma GCC unroll 4
        for (int p = 0; p < depth; ++p) V::multiply_add(sum, left[r][p], right[p], sum);
        V::at(x.sums + r * tile_columns + j) = sum;
      }
    }
    for (; j < x.columns; ++j) {
      for (int r = 0; r < rows; ++r) {
        float& sum = x.sums[r * tile_columns + j];
        for (int p = 0; p < depth; ++p) {
          sum = multiply_add<target != Isa::generic>(x.a[r * x.a_row + p], x.b[p * x.b_row + j], sum);
        }
      }
    }
  }
};

/// sums (rows, lanes) = products of a block of k: a's rows with `lanes` columns of b, each contiguous.
struct ColumnsOfB {
  const float* b;  // columns lie b_column apart
  std::int64_t b_column, depth;
  const float* a;  // (rows, depth), rows a_row apart
  std::int64_t a_row;
  float* sums;         // rows lie tile_columns apart
  const float* ahead;  // the next columns, b_column apart; null if unknown
};

typedef float Quad __attribute__((vector_size(16)));
typedef float QuadInMemory __attribute__((vector_size(16), may_alias, aligned(4)));

template <class T, Isa target, int rows>
struct DotColumns {
  using V = Simd<T, target>;
  using Vector = typename V::Vector;
  static constexpr int lanes = V::lanes, quads = lanes / 4;

  static THIMBLE_ALWAYS_INLINE void run(const ColumnsOfB& x) {
    Vector sum[rows];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) V::broadcast(sum[r], T{0});
    std::int64_t p = 0;
    for (; p + quad <= x.depth; p += quad) {
      if (x.ahead != nullptr && p % most_lanes == 0) {
        for (int i = 0; i < lanes; ++i) __builtin_prefetch(x.ahead + i * x.b_column + p);
      }
      Vector right[quad];
      load_turned(x.b + p, x.b_column, right);
#pragma GCC unroll 4
      for (int q = 0; q < quad; ++q) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
          Vector left;
          V::broadcast(left, x.a[r * x.a_row + p + q]);
          V::multiply_add(sum[r], left, right[q], sum[r]);
        }
      }
    }
    for (; p < x.depth; ++p) {
      Vector right;
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i) right[i] = x.b[i * x.b_column + p];
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        Vector left;
        V::broadcast(left, x.a[r * x.a_row + p]);
        V::multiply_add(sum[r], left, right, sum[r]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) V::at(x.sums + r * tile_columns) = sum[r];
  }

 private:
  template <int... k>
  static THIMBLE_ALWAYS_INLINE void pair(const Vector& a, const Vector& b, Vector& low, Vector& high,
                                         std::integer_sequence<int, k...>) {
    // Within each four lanes: interleaves elements 0 and 1 of a and b, then 2 and 3.
    low = __builtin_shufflevector(a, b, (k / 4 * 4 + k % 4 / 2 + k % 2 * lanes)...);
    high = __builtin_shufflevector(a, b, (k / 4 * 4 + 2 + k % 4 / 2 + k % 2 * lanes)...);
  }
  template <int... k>
  static THIMBLE_ALWAYS_INLINE void join(const Vector& a, const Vector& b, Vector& low, Vector& high,
                                         std::integer_sequence<int, k...>) {
    // Within each four lanes: the first two of a and of b, then the last two.
    low = __builtin_shufflevector(a, b, (k / 4 * 4 + k % 2 + k % 4 / 2 * lanes)...);
    high = __builtin_shufflevector(a, b, (k / 4 * 4 + 2 + k % 2 + k % 4 / 2 * lanes)...);
  }

  static THIMBLE_ALWAYS_INLINE Quad quad_at(const T* p) { return *reinterpret_cast<const QuadInMemory*>(p); }

  /// Contiguous quads from columns first, first + 4, first + 8, ... of b.
  static THIMBLE_ALWAYS_INLINE void gather(const T* b, std::int64_t b_column, Vector& out) {
    if constexpr (quads == 1) {
      out = quad_at(b);
    } else if constexpr (quads == 2) {
      out = __builtin_shufflevector(quad_at(b), quad_at(b + 4 * b_column), 0, 1, 2, 3, 4, 5, 6, 7);
    } else {
      const auto low = __builtin_shufflevector(quad_at(b), quad_at(b + 4 * b_column), 0, 1, 2, 3, 4, 5, 6, 7);
      const auto high =
          __builtin_shufflevector(quad_at(b + 8 * b_column), quad_at(b + 12 * b_column), 0, 1, 2, 3, 4, 5, 6, 7);
      out = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    }
  }

  /// right[q][i] = element q of column i.
  static THIMBLE_ALWAYS_INLINE void load_turned(const T* b, std::int64_t b_column, Vector (&right)[quad]) {
    constexpr std::make_integer_sequence<int, lanes> numbers;
    Vector x[quad], y[quad];
#pragma GCC unroll 4
    for (int i = 0; i < quad; ++i) gather(b + i * b_column, b_column, x[i]);
    // x[i], four lanes L: elements 0 to 3 of column 4 L + i.
    pair(x[0], x[1], y[0], y[1], numbers);
    pair(x[2], x[3], y[2], y[3], numbers);
    join(y[0], y[2], right[0], right[1], numbers);
    join(y[1], y[3], right[2], right[3], numbers);
  }
};

template <template <class, Isa, int> class Body, class Args>
void run_rows(std::int64_t rows, const Args& args) noexcept {
  with_target(isa(), [&]<Isa target>() {
    static constexpr void (*of_rows[most_rows])(const Args&) = {
        compiled_for<target, Body<float, target, 1>, Args>, compiled_for<target, Body<float, target, 2>, Args>,
        compiled_for<target, Body<float, target, 3>, Args>, compiled_for<target, Body<float, target, 4>, Args>};
    of_rows[rows - 1](args);
  });
}

/// The regions of workspace, in floats: a's rows; then for each thread the sums of a block of k, the sums of all blocks
/// so far, and converted elements.
struct Pieces {
  std::int64_t left, of_thread;
};
Pieces pieces_of(const GemmArgs& args) noexcept {
  return {round_up(args.m * args.k, most_lanes), 2 * args.m * tile_columns + converted};
}

int threads_of(const GemmArgs& args, int threads) noexcept {
  const std::int64_t most = std::min(args.n / 64, args.n * args.k / worthwhile_elements);
  return static_cast<int>(std::clamp<std::int64_t>(most, 1, threads));
}

/// The columns of C that one thread computes.
class Worker {
 public:
  Worker(const GemmArgs& args, const float* left, float* space) noexcept
      : args_(args),
        left_(left),
        block_(space),
        total_(space + args.m * tile_columns),
        buffer_(total_ + args.m * tile_columns) {
    output_.c = args.c;
    output_.pre_activation = args.pre_activation;
    output_.bias = args.bias;
    output_.accumulate = args.accumulate;
    output_.activation = args.activation;
    output_.dtype = args.c_dtype;
    output_.alpha = static_cast<float>(args.alpha);
    output_.rows.pixel = args.c_row_stride;
    output_.column_stride = args.c_column_stride;
  }

  void compute(std::int64_t begin, std::int64_t end) noexcept {
    for (std::int64_t column = begin; column < end; column += tile_columns) {
      const std::int64_t columns = std::min(tile_columns, end - column);
      if (args_.b_column_stride == 1) {
        by_rows(column, columns);
      } else {
        by_columns(column, columns, end);
      }
      finish_tile(column, columns);
    }
  }

 private:
  const float* left(std::int64_t p) const noexcept { return left_ + p; }

  void by_rows(std::int64_t column, std::int64_t columns) noexcept {
    if (args_.k == 0) clear(total_, columns);
    for (std::int64_t k = 0; k < args_.k; k += block_depth) {
      clear(block_, columns);
      const std::int64_t end = std::min(args_.k, k + block_depth);
      for (std::int64_t p = k; p < end; p += rows_at_once) {
        const std::int64_t depth = std::min(rows_at_once, end - p), at = p * args_.b_row_stride + column;
        RowsOfB x{nullptr, args_.b_row_stride, depth, columns, left(p), args_.k, block_};
        if (args_.dtype == DType::f32) {
          x.b = static_cast<const float*>(args_.b) + at;
        } else {
          load_rows(args_.b, args_.dtype, at, args_.b_row_stride, depth, columns, buffer_, tile_columns);
          x.b = buffer_, x.b_row = tile_columns;
        }
        run_rows<AddRows>(args_.m, x);
      }
      add_block(k == 0, 0, columns);
    }
  }

  void by_columns(std::int64_t column, std::int64_t columns, std::int64_t end) noexcept {
    const std::int64_t lanes = microkernels<float>(isa()).lanes;
    const bool is_f32 = args_.dtype == DType::f32;
    if (args_.k == 0) clear(total_, columns);
    for (std::int64_t j = 0; j < columns; j += lanes) {
      const std::int64_t count = std::min(lanes, columns - j);
      for (std::int64_t k = 0; k < args_.k; k += block_depth) {
        const std::int64_t depth = std::min(block_depth, args_.k - k);
        const std::int64_t at = (column + j) * args_.b_column_stride + k;
        ColumnsOfB x{nullptr, args_.b_column_stride, depth, left(k), args_.k, block_ + j, nullptr};
        if (is_f32 && count == lanes) {
          x.b = static_cast<const float*>(args_.b) + at;
          if (column + j + 2 * lanes <= end) x.ahead = x.b + lanes * args_.b_column_stride;
        } else {  // a vector reads all its lanes
          if (count < lanes) std::fill_n(buffer_, lanes * block_depth, 0.0F);
          load_rows(args_.b, args_.dtype, at, args_.b_column_stride, count, depth, buffer_, block_depth);
          x.b = buffer_, x.b_column = block_depth;
        }
        run_rows<DotColumns>(args_.m, x);
        add_block(k == 0, j, lanes);
      }
    }
  }

  void clear(float* sums, std::int64_t columns) noexcept {
    for (std::int64_t r = 0; r < args_.m; ++r) std::fill_n(sums + r * tile_columns, columns, 0.0F);
  }

  void add_block(bool is_first, std::int64_t column, std::int64_t columns) noexcept {
    for (std::int64_t r = 0; r < args_.m; ++r) {
      const float* const block = block_ + r * tile_columns + column;
      float* const total = total_ + r * tile_columns + column;
      if (is_first) {
        std::copy_n(block, columns, total);
      } else {
        for (std::int64_t j = 0; j < columns; ++j) total[j] += block[j];
      }
    }
  }

  void finish_tile(std::int64_t column, std::int64_t columns) noexcept {
    const Microkernels<float>& micro = microkernels<float>(isa());
    const std::int64_t piece = micro.lanes * micro.vectors;
    for (std::int64_t j = 0; j < columns; j += piece) {
      const OutputTile tile{
          0, 0, 0, column + j, static_cast<int>(args_.m), static_cast<int>(std::min(piece, columns - j))};
      finish<float>(isa())(output_, tile, total_ + j, static_cast<int>(tile_columns));
    }
  }

  const GemmArgs& args_;
  const float* left_;
  float *block_, *total_, *buffer_;
  Output<float> output_;
};

}  // namespace few_rows_detail

bool has_few_rows(const GemmArgs& args) noexcept {
  using namespace few_rows_detail;
  for (int i = 0; i < args.batch_rank; ++i) {
    if (args.batch[static_cast<std::size_t>(i)].size != 1) return false;
  }
  // Other ways also read rows that are in the caches in place, but not columns.
  const std::int64_t least = args.b_column_stride == 1 ? least_elements : least_turned_elements;
  return compute_type(args.dtype) == ComputeType::f32 && args.m <= most_rows && args.k <= most_depth &&
         args.n * args.k >= least && args.n >= 64 && (args.b_row_stride == 1 || args.b_column_stride == 1);
}

std::size_t few_rows_bytes(const GemmArgs& args, int threads) noexcept {
  using namespace few_rows_detail;
  const Pieces pieces = pieces_of(args);
  return sizeof(float) * static_cast<std::size_t>(pieces.left + threads_of(args, threads) * pieces.of_thread);
}

void few_rows_gemm(const GemmArgs& args, void* workspace, int threads) noexcept {
  using namespace few_rows_detail;
  const Pieces pieces = pieces_of(args);
  auto* const left = static_cast<float*>(workspace);
  for (std::int64_t r = 0; r < args.m; ++r) {
    load_elements(args.a, args.dtype, r * args.a_row_stride, args.a_column_stride, left + r * args.k, args.k);
  }
  threads = threads_of(args, threads);
  const std::int64_t each = round_up(ceil_div(args.n, threads), 64);
  parallel_threads(threads, [&](int thread) {
    Worker worker(args, left, left + pieces.left + thread * pieces.of_thread);
    worker.compute(std::min(args.n, thread * each), std::min(args.n, (thread + 1) * each));
  });
}

}  // namespace thimble::kernels::gemm_detail
