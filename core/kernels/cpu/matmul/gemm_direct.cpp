#include <thimble/core/kernels/cpu/matmul/gemm_driver.h>

#include <algorithm>

#include <thimble/core/kernels/cpu/matmul/gemm_microkernel.h>
#include <thimble/core/numbers/integers.h>
#include <thimble/core/threads/parallel.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thimble::kernels::gemm_detail {
namespace direct_detail {

// Every row of C reads the right operand again: with more rows than this, a packed copy is faster.
inline constexpr std::int64_t most_rows = 512;
inline constexpr std::int64_t most_right_bytes = 4 * 1024 * 1024;
// A block of 64 columns that takes more ways of the second-level cache than this would be evicted by its neighbours:
// rows a large power of two apart fall into few sets.
inline constexpr std::int64_t most_ways = 4;
inline constexpr std::int64_t cache_way_bytes = 128 * 1024;
inline constexpr std::int64_t lanes = 16;
inline constexpr std::int64_t max_vectors = 4;  // in a row of a microtile
inline constexpr std::int64_t panel_columns = max_vectors * lanes;
// Columns of C whose sums advance by one block of k before the next columns, so that all of them read a block of the
// left operand once. One panel, if the whole left operand stays in the second-level cache.
inline constexpr std::int64_t tile_panels = 8;
inline constexpr std::int64_t near_left_bytes = 512 * 1024;

inline constexpr double worthwhile_cycles = 60000;  // below this a second thread does not pay

inline constexpr auto float_bytes = static_cast<std::int64_t>(sizeof(float));

/// The largest power of two that divides `stride`, at most a way of the cache: rows that far apart fall into
/// cache_way_bytes / spread_bytes different sets.
std::int64_t spread_bytes(std::int64_t stride) noexcept {
  return stride == 0 ? cache_way_bytes : std::min(stride & -stride, cache_way_bytes);
}

#if defined(__x86_64__)

/// A column of microtiles: c (rows, columns) = [alpha] ([c +] a (rows, depth) b (depth, columns)).
struct Strip {
  const float* a;
  std::int64_t a_row;
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t c_row;
  std::int64_t rows;
  std::int64_t depth;
  __mmask16 last;  ///< lanes of the last vector
  bool adds;       ///< to the values in c
  bool scales;     ///< the complete sum by alpha
  float alpha;
};

/// Four vectors of columns take six rows, fewer take eight: 24 of the 32 registers accumulate.
constexpr int full_rows(int vectors) noexcept { return vectors == 4 ? 6 : 8; }

/// Hides a pointer's origin from the compiler, which would keep the addresses of many rows in registers (there are too
/// few), or make variants of a loop for special strides.
template <class Pointer>
THIMBLE_ALWAYS_INLINE void hide(Pointer& pointer) noexcept {
  __asm__("" : "+r"(pointer));
}

/// The vectors of a row of a microtile. The last vector is read and written under a mask unless `is_whole`, because a
/// masked load occupies the multiply-add unit.
template <int vectors, bool is_whole>
struct Row {
  __mmask16 last;

  THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512 load(const float* row, int v) const noexcept {
    return is_whole || v + 1 < vectors ? _mm512_loadu_ps(row + v * lanes)
                                       : _mm512_maskz_loadu_ps(last, row + v * lanes);
  }
  THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE void store(float* row, int v, __m512 value) const noexcept {
    if (is_whole || v + 1 < vectors) return _mm512_storeu_ps(row + v * lanes, value);
    _mm512_mask_storeu_ps(row + v * lanes, last, value);
  }
};

/// sum += a's column p times b's row.
template <int row_count, int vectors, bool is_whole>
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE void multiply_step(const float* const (&a)[row_count], std::int64_t p,
                                                               const float* b, Row<vectors, is_whole> row,
                                                               __m512 (&sum)[row_count][vectors]) noexcept {
  __m512 right[vectors];
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) right[v] = row.load(b, v);
#pragma GCC unroll 8
  for (int r = 0; r < row_count; ++r) {
    const __m512 left = _mm512_set1_ps(a[r][p]);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sum[r][v] = _mm512_fmadd_ps(left, right[v], sum[r][v]);
  }
}

/// sum = [alpha] ([c +] sum).
template <int row_count, int vectors, bool is_whole>
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE void finish(const Strip& strip, const float* c, Row<vectors, is_whole> row,
                                                        __m512 (&sum)[row_count][vectors]) noexcept {
  const __m512 alpha = _mm512_set1_ps(strip.scales ? strip.alpha : 1.0F);
#pragma GCC unroll 8
  for (int r = 0; r < row_count; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      if (strip.adds) sum[r][v] = _mm512_add_ps(row.load(c, v), sum[r][v]);
      sum[r][v] = _mm512_mul_ps(alpha, sum[r][v]);
    }
    c += strip.c_row;
    hide(c);
  }
}

/// The microtile of `row_count` rows from a and c on.
template <int row_count, int vectors, bool is_whole>
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE void multiply(const Strip& strip, const float* a, float* c) noexcept {
  const Row<vectors, is_whole> row{strip.last};
  const std::int64_t b_row = strip.b_row, c_row = strip.c_row;
  const float* b = strip.b;
  __m512 sum[row_count][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < row_count; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  const float* left[row_count];
#pragma GCC unroll 8
  for (int r = 0; r < row_count; ++r) left[r] = a + r * strip.a_row;
  for (std::int64_t groups = strip.depth / group_depth; groups > 0; --groups) {
#pragma GCC unroll 4
    for (int p = 0; p < group_depth; ++p) {
      multiply_step(left, p, b, row, sum);
      b += b_row;
    }
#pragma GCC unroll 8
    for (int r = 0; r < row_count; ++r) left[r] += group_depth;
    hide(b);
  }
  for (std::int64_t p = 0; p < strip.depth % group_depth; ++p) {
    multiply_step(left, p, b, row, sum);
    b += b_row;
    hide(b);
  }
  if (strip.adds || strip.scales) finish(strip, c, row, sum);
#pragma GCC unroll 8
  for (int r = 0; r < row_count; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) row.store(c, v, sum[r][v]);
    c += c_row;
    hide(c);
  }
}

/// The last rows of a strip, fewer than a full microtile's.
template <int row_count, int vectors, bool is_whole>
THIMBLE_TARGET_AVX512 void multiply_rest(const Strip& strip, std::int64_t rows, const float* a, float* c) noexcept {
  if (rows == row_count) return multiply<row_count, vectors, is_whole>(strip, a, c);
  if constexpr (row_count > 1) multiply_rest<row_count - 1, vectors, is_whole>(strip, rows, a, c);
}

template <int vectors, bool is_whole>
THIMBLE_TARGET_AVX512 void multiply_strip(const Strip& strip) noexcept {
  constexpr int step = full_rows(vectors);
  const float* a = strip.a;
  float* c = strip.c;
  std::int64_t rows = strip.rows;
  for (; rows >= step; rows -= step) {
    multiply<step, vectors, is_whole>(strip, a, c);
    a += step * strip.a_row;
    c += step * strip.c_row;
  }
  if (rows > 0) multiply_rest<step - 1, vectors, is_whole>(strip, rows, a, c);
}

using MultiplyStrip = void (*)(const Strip&) noexcept;
template <bool is_whole>
inline constexpr MultiplyStrip strips[max_vectors] = {multiply_strip<1, is_whole>, multiply_strip<2, is_whole>,
                                                      multiply_strip<3, is_whole>, multiply_strip<4, is_whole>};

/// Vectors of the microtile when `rest` are left: five are split three and two, because a single one has too few chains
/// of sums to keep the machine busy.
constexpr std::int64_t panel_vectors(std::int64_t rest) noexcept {
  return rest == max_vectors + 1 ? max_vectors - 1 : std::min(rest, max_vectors);
}

/// A region of C, in one matrix of the batch.
struct Part {
  const float* a;
  const float* b;
  float* c;
  std::int64_t row, rows, column, columns;
};

/// One tile of a region: columns [column, column + columns), all rows, all of k.
void compute_tile(const GemmArgs& args, const Part& part, std::int64_t column, std::int64_t columns) noexcept {
  Strip strip{};
  strip.a_row = args.a_row_stride;
  strip.b_row = args.b_row_stride;
  strip.c_row = args.c_row_stride;
  strip.rows = part.rows;
  strip.alpha = static_cast<float>(args.alpha);
  const float* const a = part.a + part.row * args.a_row_stride;
  const float* b = part.b + column;
  float* const c = part.c + part.row * args.c_row_stride + column;
  std::int64_t k = 0;
  do {
    strip.depth = std::min(block_depth, args.k - k);
    strip.adds = k > 0;
    strip.scales = strip.alpha != 1 && k + block_depth >= args.k;
    strip.a = a + k;
    for (std::int64_t j = 0; j < columns;) {
      const std::int64_t vectors = panel_vectors(ceil_div(columns - j, lanes));
      const std::int64_t count = std::min(vectors * lanes, columns - j);
      strip.b = b + j;
      strip.c = c + j;
      strip.last = static_cast<__mmask16>(0xFFFF >> (vectors * lanes - count));
      (count % lanes == 0 ? strips<true> : strips<false>)[vectors - 1](strip);
      j += count;
    }
    b += block_depth * args.b_row_stride;
    k += block_depth;
  } while (k < args.k);
}

void compute_part(const GemmArgs& args, const Part& part) noexcept {
  const bool has_near_left = part.rows * args.k * float_bytes <= near_left_bytes;
  const std::int64_t tile = panel_columns * (has_near_left ? 1 : tile_panels);
  for (std::int64_t j = 0; j < part.columns;) {
    const std::int64_t rest = part.columns - j;
    const std::int64_t columns = rest <= tile + lanes ? rest : tile;
    compute_tile(args, part, part.column + j, columns);
    j += columns;
  }
}

/// How C is cut for threads: rows and columns of a matrix that one computes at a time. Does not affect results.
struct Jobs {
  std::int64_t rows, columns;
  int threads = 1;
};

Jobs jobs_of(const GemmArgs& args, std::int64_t batch, int threads) noexcept {
  const std::int64_t vectors = ceil_div(args.n, lanes);
  const double cycles = 0.5 * static_cast<double>(args.m * vectors) * static_cast<double>(args.k);  // for one matrix
  Jobs jobs{args.m, args.n};
  if (threads == 1 || cycles * static_cast<double>(batch) < worthwhile_cycles) return jobs;
  jobs.threads = threads;
  if (batch % threads == 0 || batch >= 8 * threads) return jobs;
  // Cuts columns if all threads get about equally many whole panels or rows are few, else rows.
  const std::int64_t thread_vectors = max_vectors * threads;
  if (vectors % thread_vectors == 0 || vectors >= 8 * thread_vectors || args.m < 8 * threads) {
    jobs.columns = ceil_div(vectors, thread_vectors) * panel_columns;
  } else {
    jobs.rows = ceil_div(args.m, threads);
  }
  return jobs;
}

Part part_at(const GemmArgs& args, std::int64_t index) noexcept {
  Part part{
      static_cast<const float*>(args.a), static_cast<const float*>(args.b), static_cast<float*>(args.c), 0, 0, 0, 0};
  for (int i = args.batch_rank - 1; i >= 0; --i) {
    const GemmBatchDim& dim = args.batch[static_cast<std::size_t>(i)];
    const std::int64_t at = index % dim.size;
    index /= dim.size;
    part.a += at * dim.a;
    part.b += at * dim.b;
    part.c += at * dim.c;
  }
  return part;
}

#endif

}  // namespace direct_detail

bool is_direct([[maybe_unused]] const GemmArgs& args, [[maybe_unused]] Isa isa) noexcept {
#if defined(__x86_64__)
  using namespace direct_detail;
  const bool is_plain = args.dtype == DType::f32 && args.c_dtype == DType::f32 && !args.accumulate &&
                        args.bias == nullptr && args.activation == Activation::none && args.pre_activation == nullptr;
  const bool has_rows = args.a_column_stride == 1 && args.b_column_stride == 1 && args.c_column_stride == 1;
  // Columns behind the last whole vector cost a vector: at most an eighth of the work.
  const std::int64_t whole = ceil_div(args.n, lanes) * lanes;
  const bool stays_near =
      args.k * args.n * float_bytes <= most_right_bytes &&
      std::min(args.k, block_depth) * spread_bytes(args.b_row_stride * float_bytes) <= most_ways * cache_way_bytes;
  return isa == Isa::avx512 && is_plain && stays_near && has_rows && args.m <= most_rows && args.n >= 2 * lanes &&
         whole * 7 <= args.n * 8;
#else
  return false;
#endif
}

void direct_gemm([[maybe_unused]] const GemmArgs& args, [[maybe_unused]] int threads) noexcept {
#if defined(__x86_64__)
  using namespace direct_detail;
  std::int64_t batch = 1;
  for (int i = 0; i < args.batch_rank; ++i) batch *= args.batch[static_cast<std::size_t>(i)].size;
  const Jobs jobs = jobs_of(args, batch, threads);
  const auto compute = [&](Part& part, std::int64_t row, std::int64_t column) {
    part.row = row;
    part.rows = std::min(jobs.rows, args.m - row);
    part.column = column;
    part.columns = std::min(jobs.columns, args.n - column);
    compute_part(args, part);
  };
  if (jobs.threads == 1) {  // small products would feel the divisions below
    for (std::int64_t index = 0; index < batch; ++index) {
      Part part = part_at(args, index);
      compute(part, 0, 0);
    }
    return;
  }
  // Every thread computes the same regions each time, so that its output is still in its cache.
  const std::int64_t row_jobs = ceil_div(args.m, jobs.rows), column_jobs = ceil_div(args.n, jobs.columns);
  const std::int64_t count = batch * row_jobs * column_jobs;
  const std::int64_t used = std::min<std::int64_t>(jobs.threads, count);
  parallel_threads(static_cast<int>(used), [&](int thread) {
    for (std::int64_t index = count * thread / used; index < count * (thread + 1) / used; ++index) {
      Part part = part_at(args, index / (row_jobs * column_jobs));
      compute(part, index % row_jobs * jobs.rows, index / row_jobs % column_jobs * jobs.columns);
    }
  });
#endif
}

}  // namespace thimble::kernels::gemm_detail
