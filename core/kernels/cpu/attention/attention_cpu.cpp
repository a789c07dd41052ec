// Attention on the CPU, forward: Dao et al. 2022 (arXiv:2205.14135), algorithm 1, with one pass over the keys per panel
// of queries (Dao 2023, arXiv:2307.08691, section 3.1). A query's result depends only on its keys, in blocks counted
// from key 0: a hidden key adds an exact zero.

#include <thimble/core/kernels/cpu/attention/attention_cpu.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <thimble/core/kernels/cpu/base/rows.h>
#include <thimble/core/kernels/cpu/base/simd.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/numbers/integers.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels::attention_detail {

namespace product_detail {

/// A block of `rows` rows and `vectors` vectors of columns, from (row, column) on.
template <class T, Isa target, int rows, int vectors>
struct Block {
  using V = Simd<T, target>;
  using Vector = typename V::Vector;

  static THIMBLE_ALWAYS_INLINE void run(const Product<T>& x, std::int64_t row, std::int64_t column) {
    Vector sum[rows][vectors];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) V::broadcast(sum[r][v], T{0});
    }
    // Two pointers into a's rows and their distance address all of them; a pointer for each leaves too few registers.
    const std::int64_t a_row = x.a_row, a_depth = x.a_depth, b_row = x.b_row;
    const T* low = x.a + row * a_row;
    const T* high = low + (rows > 3 ? 3 * a_row : 0);
    const T* b = x.b + column;
    for (std::int64_t left = x.depth; left > 0; --left, low += a_depth, high += a_depth, b += b_row) {
      __asm__("" : "+r"(low), "+r"(high));  // hides that they come from one pointer
      Vector right[vectors];
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) right[v] = V::at(b + v * V::lanes);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        Vector value;
        V::broadcast(value, r < 3 ? low[r * a_row] : high[(r - 3) * a_row]);
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) V::multiply_add(sum[r][v], value, right[v], sum[r][v]);
      }
    }
    const bool is_sum = x.is_sum || x.column_scale;
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) {
      T* out = x.out + row * x.out_row + column + v * V::lanes;
      Vector scale;
      V::broadcast(scale, T{1});
      if (x.column_scale) scale = V::at(x.column_scale + column + v * V::lanes);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r, out += x.out_row) {
        if (is_sum) {
          const Vector before = V::at(out);
          V::multiply_add(sum[r][v], before, scale, sum[r][v]);
        }
        V::at(out) = sum[r][v];
      }
    }
  }
};

/// [vectors - 1][rows - 1]
template <class T, Isa target>
struct Blocks {
  constexpr Blocks() { fill_blocks<Block, T, target>(at); }
  void (*at[FullBlock<T, target>::vectors][FullBlock<T, target>::rows])(const Product<T>&, const std::int64_t& row,
                                                                        const std::int64_t& column) = {};
};
template <class T, Isa target>
inline constexpr Blocks<T, target> blocks_of;

template <Isa target, class T>
void multiply_blocks(const Product<T>& x) noexcept {
  using Full = FullBlock<T, target>;
  constexpr std::int64_t lanes = Simd<T, target>::lanes;
  std::int64_t vectors = 0;
  for (std::int64_t column = 0; column < x.columns; column += vectors * lanes) {
    const std::int64_t left = ceil_div(x.columns - column, lanes);
    // Four vectors are split two and two, because a single vector would wait for its loads.
    vectors = left == 4 ? 2 : std::min<std::int64_t>(left, Full::vectors);
    for (std::int64_t row = 0; row < x.rows; row += Full::rows) {
      const std::int64_t rows = std::min<std::int64_t>(Full::rows, x.rows - row);
      blocks_of<T, target>.at[vectors - 1][rows - 1](x, row, column);
    }
  }
}

}  // namespace product_detail

template <class T>
void multiply(const Product<T>& product) noexcept {
  with_target(isa(), [&]<Isa target>() { product_detail::multiply_blocks<target>(product); });
}

template void multiply<float>(const Product<float>&) noexcept;
template void multiply<double>(const Product<double>&) noexcept;

}  // namespace thimble::kernels::attention_detail

namespace thimble::kernels {

namespace attention_detail {

template <class T>
struct ForwardPanel {
  T *q, *out;        // (D, panel): scale q^T; the result's transpose before the division by the sums
  T *largest, *sum;  // (panel): running maximum and sum
  std::int64_t queries;
  PanelKeys keys;
  bool is_first;  // no block of keys yet
};

// One thread's tiles.
template <class T>
struct ForwardTiles {
  std::int64_t panel;
  std::array<ForwardPanel<T>, max_grouped> panels;
  T* scores;       // (key_block, panel)
  T *k, *v;        // (key_block, D), null where a single panel reads rows in place; k also converts q and out
  T* old;          // (panel): exp(maximum before the block - maximum)
  KeptBits* kept;  // (key_block / 32, panel)

  ForwardTiles(Carver& carver, const AttentionProblem& p, std::int64_t grouped) : panel(panel_queries<T>(isa())) {
    for (std::int64_t g = 0; g < grouped; ++g) {
      ForwardPanel<T>& x = panels[static_cast<std::size_t>(g)];
      for (T** const tile : {&x.q, &x.out}) *tile = carver.take<T>(p.width * panel);
      for (T** const row : {&x.largest, &x.sum}) *row = carver.take<T>(panel);
    }
    scores = carver.take<T>(key_block * panel);
    const bool is_in_place = p.dtype == dtype_of<T> && !p.kept && grouped == 1;
    for (T** const tile : {&k, &v}) *tile = is_in_place ? nullptr : carver.take<T>(key_block * p.width);
    old = carver.take<T>(panel);
    kept = carver.take<KeptBits>(p.has_dropout ? key_block / 32 * panel : 0);
  }
};

// As read_rows, for rows of keys or values in their stored dtype, times their factors.
template <class T>
Rows<T> read_kept(const AttentionProblem& args, const AttentionOperand& x, const AttentionScales& scales,
                  std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count, T* buffer) {
  if (!args.kept) return read_rows(args, x, b, h, first, count, buffer);
  kernels::load_rows(x.data, *args.kept, b * x.batch + first * x.row + h * x.head, x.row, count, args.width, buffer,
                     args.width);
  if (scales.data == nullptr) return {buffer, args.width};
  const float* factor = scales.data + b * scales.batch + first * scales.row + h * scales.head;
  for (std::int64_t r = 0; r < count; ++r, factor += scales.row) {
    for (std::int64_t d = 0; d < args.width; ++d) buffer[r * args.width + d] *= static_cast<T>(*factor);
  }
  return {buffer, args.width};
}

template <class T>
void start_panel(const AttentionArgs& args, const ForwardTiles<T>& tiles, ForwardPanel<T>& x, std::int64_t b,
                 std::int64_t h, std::int64_t first_query) {
  x.queries = std::min(tiles.panel, args.queries - first_query);
  const Rows<T> q =
      read_rows(args, args.q, b, h, first_query, x.queries, args.dtype == dtype_of<T> ? nullptr : tiles.k);
  pack_transposed(q, x.queries, args.width, static_cast<T>(args.scale), x.q);
  std::fill_n(x.largest, tiles.panel, -std::numeric_limits<T>::infinity());
  std::fill_n(x.sum, tiles.panel, T(0));
  x.keys = panel_keys(args, b, first_query, x.queries);
  x.is_first = true;
}

template <class T>
void add_block(const AttentionArgs& args, const ForwardTiles<T>& tiles, ForwardPanel<T>& x, std::int64_t b,
               std::int64_t h, std::int64_t first_query, std::int64_t key, std::int64_t rows, const Rows<T>& k,
               const Rows<T>& v) {
  const std::int64_t panel = tiles.panel;
  // Few queries, as in a decoder's step, need half of the panel; the other half is unused zeros.
  const std::int64_t columns = x.queries > panel / 2 ? panel : panel / 2;
  if (columns < panel && x.is_first) {
    std::fill_n(tiles.scores, key_block * panel, T(0));
    std::fill_n(x.out, args.width * panel, T(0));
  }
  multiply<T>({rows, columns, args.width, k.data, k.stride, 1, x.q, panel, tiles.scores, panel});
  hide_unseen(args, x.keys, b, h, first_query, key, rows, tiles.scores);
  run_panel<OnlineSoftmax, T>(rows, tiles.scores, x.largest, x.sum, tiles.old);
  if (args.has_dropout) {
    draw_kept<T>(args, b, h, first_query, x.queries, key, rows, tiles.kept);
    run_panel<DropScores, T>(rows, static_cast<T>(args.keep_scale), tiles.kept, tiles.scores);
  }
  multiply<T>({args.width, columns, rows, v.data, 1, v.stride, tiles.scores, panel, x.out, panel, !x.is_first,
               x.is_first ? nullptr : tiles.old});
  x.is_first = false;
}

template <class T>
void finish_panel(const AttentionArgs& args, const ForwardTiles<T>& tiles, const ForwardPanel<T>& x, std::int64_t b,
                  std::int64_t h, std::int64_t first_query) {
  if (x.is_first) std::fill_n(x.out, args.width * tiles.panel, T(0));
  T* const inverse = tiles.old;
  // Only a mask may hide all keys: scores that are themselves -infinity give NaN.
  const T of_none = args.has_mask ? T(0) : std::numeric_limits<T>::quiet_NaN();
  run_panel<FinishSums, T>(of_none, x.largest, x.sum, inverse, tiles.scores);
  run_panel<ScaleColumns, T>(args.width, inverse, x.out);
  store_transposed(args, args.out, b, h, first_query, x.queries, T(1), x.out, tiles.k);
  if (args.lse) std::copy_n(tiles.scores, x.queries, static_cast<T*>(args.lse) + row_index(args, b, h, first_query));
}

// Computes `grouped` panels from first_query on, fewer where the queries end.
template <class T>
void forward_group(const AttentionArgs& args, ForwardTiles<T>& tiles, std::int64_t b, std::int64_t h,
                   std::int64_t first_query, std::int64_t grouped) {
  const std::int64_t panel = tiles.panel;
  const auto end = tiles.panels.begin() + std::min(grouped, ceil_div(args.queries - first_query, panel));
  const auto each = [&](auto run) {
    std::int64_t query = first_query;
    for (auto x = tiles.panels.begin(); x != end; ++x, query += panel) run(*x, query);
  };
  each([&](ForwardPanel<T>& x, std::int64_t query) { start_panel(args, tiles, x, b, h, query); });
  const std::int64_t last = std::prev(end)->keys.last;
  for (std::int64_t key = tiles.panels[0].keys.first / key_block * key_block; key < last; key += key_block) {
    const std::int64_t rows = std::min(key_block, last - key);
    if (is_hidden(args, b, h, key, rows)) continue;
    const Rows<T> k = read_kept(args, args.k, args.k_scale, b, h / args.group, key, rows, tiles.k);
    const Rows<T> v = read_kept(args, args.v, args.v_scale, b, h / args.group, key, rows, tiles.v);
    each([&](ForwardPanel<T>& x, std::int64_t query) {
      const std::int64_t first = std::max(key, x.keys.first) - key, end = std::min(key + rows, x.keys.last) - key;
      if (first >= end) return;
      add_block(args, tiles, x, b, h, query, key + first, end - first, k.from(first), v.from(first));
    });
  }
  each([&](ForwardPanel<T>& x, std::int64_t query) { finish_panel(args, tiles, x, b, h, query); });
}

// A thread is worth its workspace from one and a half panels on.
template <class T>
int forward_threads_of(const AttentionProblem& p, int threads) {
  const std::int64_t heads = p.batch * p.heads;
  return useful_threads(p, heads * std::max<std::int64_t>(1, 2 * panels_of<T>(p) / 3), threads);
}

int forward_threads(const AttentionProblem& p, int threads) {
  return p.dtype == DType::f64 ? forward_threads_of<double>(p, threads) : forward_threads_of<float>(p, threads);
}

// Panels of a group: the most that leave each thread four groups.
template <class T>
std::int64_t forward_grouped(const AttentionProblem& p, int threads) {
  return std::clamp<std::int64_t>(p.batch * p.heads * panels_of<T>(p) / (4 * threads), 1, full_group<T>(p));
}

template <class T>
std::size_t forward_bytes_of(const AttentionProblem& p, int threads) {
  Carver carver(nullptr);
  ForwardTiles<T>(carver, p, forward_grouped<T>(p, threads));
  return carver.bytes();
}

std::size_t forward_bytes(const AttentionProblem& p, int threads) noexcept {
  threads = forward_threads(p, threads);
  return static_cast<std::size_t>(threads) *
         (p.dtype == DType::f64 ? forward_bytes_of<double>(p, threads) : forward_bytes_of<float>(p, threads));
}

template <class T>
void forward_of(const AttentionArgs& args, void* workspace, int threads) {
  const std::int64_t grouped = forward_grouped<T>(args, threads), groups = ceil_div(panels_of<T>(args), grouped);
  const std::size_t bytes = forward_bytes_of<T>(args, threads);
  Jobs jobs(args.batch * args.heads * groups);
  parallel_threads(threads, [&](int thread) {
    Carver carver(static_cast<std::byte*>(workspace) + static_cast<std::size_t>(thread) * bytes);
    ForwardTiles<T> tiles(carver, args, grouped);
    // From the last group of a head to the first: with a causal mask the longest come first, so that no thread waits
    // for them.
    for (std::int64_t job = jobs.take(); job >= 0; job = jobs.take()) {
      const std::int64_t head = job / groups, group = groups - 1 - job % groups;
      forward_group(args, tiles, head / args.heads, head % args.heads, group * grouped * tiles.panel, grouped);
    }
  });
}

void forward(const AttentionArgs& args, void* workspace, int threads) noexcept {
  threads = forward_threads(args, threads);
  return args.dtype == DType::f64 ? forward_of<double>(args, workspace, threads)
                                  : forward_of<float>(args, workspace, threads);
}

}  // namespace attention_detail

const AttentionKernels attention_cpu{
    .forward_bytes = attention_detail::forward_bytes,
    .backward_bytes = attention_detail::backward_bytes,
    .forward = attention_detail::forward,
    .backward = attention_detail::backward,
};

const AttentionKernels& attention_kernels(memory::Device device) {
  return table_for(device, "attention", attention_cpu, attention_cuda, attention_cuda_sizes);
}

}  // namespace thimble::kernels

namespace thimble::kernels::attention_detail {

// ---- Attention on the CPU, backward: Dao et al. 2022 (arXiv:2205.14135), algorithm 4. Recomputes the probabilities
// from the scores and the kept logarithms of their sums. One thread computes a head of keys of a sample, for all heads
// of queries that share it. Its loops run over groups of panels of queries, in each over blocks of keys, in each over
// the group's panels, all ascending. So dq sums over blocks of keys, and dk and dv over heads and panels of queries, in
// a fixed order.

template <class T>
using PanelRow = std::array<T, static_cast<std::size_t>(panel_queries<T>(Isa::avx512))>;

template <class T>
struct BackwardPanel {
  T *q, *dout, *dq;       // (D, panel): scale q^T, dout^T, dq^T / scale
  T *q_rows, *dout_rows;  // (panel, padded): q and dout
  T *lse, *delta;         // (panel): delta_t = sum_d dout_td out_td
  std::int64_t queries;
  PanelKeys keys;
  bool is_first;    // no block of keys yet
  bool is_refined;  // see refine_sums
  PanelRow<T> share;
};

// One thread's tiles.
template <class T>
struct BackwardTiles {
  std::int64_t panel;
  std::int64_t padded;  // D up to whole vectors
  std::int64_t grouped;
  std::array<BackwardPanel<T>, max_grouped> panels;
  T *dk, *dv;                  // (S, padded): dk / scale and dv so far
  T *probabilities, *dscores;  // (key_block, panel); dscores holds the probabilities' gradients first
  T *k, *v;                    // (key_block, D), null where a single panel reads rows in place
  KeptBits* kept;              // (key_block / 32, panel)

  BackwardTiles(Carver& carver, const AttentionProblem& p) : panel(panel_queries<T>(isa())), grouped(full_group<T>(p)) {
    const std::int64_t lanes = tile_lanes<T>(isa()), keys = std::min(p.keys, key_block);
    padded = ceil_div(p.width, lanes) * lanes;
    for (std::int64_t g = 0; g < grouped; ++g) {
      BackwardPanel<T>& x = panels[static_cast<std::size_t>(g)];
      for (T** const tile : {&x.q, &x.dout, &x.dq}) *tile = carver.take<T>(p.width * panel);
      for (T** const tile : {&x.q_rows, &x.dout_rows}) *tile = carver.take<T>(panel * padded);
      for (T** const row : {&x.lse, &x.delta}) *row = carver.take<T>(panel);
    }
    for (T** const tile : {&dk, &dv}) *tile = carver.take<T>(p.keys * padded);
    for (T** const tile : {&probabilities, &dscores}) *tile = carver.take<T>(keys * panel);
    const bool is_in_place = p.dtype == dtype_of<T> && grouped == 1;
    for (T** const tile : {&k, &v}) *tile = is_in_place ? nullptr : carver.take<T>(keys * p.width);
    kept = carver.take<KeptBits>(p.has_dropout ? key_block / 32 * panel : 0);
  }
};

// Rows of a panel, padded with zeros.
template <class T>
Rows<T> load_rows(const AttentionProblem& p, const BackwardTiles<T>& tiles, const AttentionOperand& x, std::int64_t b,
                  std::int64_t h, std::int64_t first, std::int64_t queries, T* rows) {
  const std::int64_t at = b * x.batch + first * x.row + h * x.head;
  if (p.dtype == dtype_of<T>) {
    run_panel<CopyRows, T>(queries, p.width, tiles.padded, static_cast<const T*>(x.data) + at, x.row, rows,
                           tiles.padded);
  } else {
    kernels::load_rows(x.data, p.dtype, at, x.row, queries, p.width, rows, tiles.padded);
    for (std::int64_t w = 0; w < queries; ++w) {
      std::fill(rows + w * tiles.padded + p.width, rows + (w + 1) * tiles.padded, T(0));
    }
  }
  return {rows, tiles.padded};
}

// Loads all inputs of a panel of queries.
template <class T>
void load_panel(const AttentionGradArgs& args, const BackwardTiles<T>& tiles, BackwardPanel<T>& x, std::int64_t b,
                std::int64_t h, std::int64_t first_query) {
  x.queries = std::min(tiles.panel, args.queries - first_query);
  const Rows<T> q = load_rows(args, tiles, args.q, b, h, first_query, x.queries, x.q_rows);
  pack_transposed(q, x.queries, args.width, static_cast<T>(args.scale), x.q);
  const Rows<T> dout = load_rows(args, tiles, args.dout, b, h, first_query, x.queries, x.dout_rows);
  pack_transposed(dout, x.queries, args.width, T(1), x.dout);
  for (T* const row : {x.lse, x.delta}) std::fill_n(row, tiles.panel, T(0));
  std::copy_n(static_cast<const T*>(args.lse) + row_index(args, b, h, first_query), x.queries, x.lse);
  for (std::int64_t w = 0; w < x.queries; ++w) {
    const std::int64_t at = b * args.out.batch + (first_query + w) * args.out.row + h * args.out.head;
    const T* const out = read_elements(args.out.data, args.dtype, at, args.width, x.dq);
    const T* const gradient = dout.data + w * dout.stride;
    x.delta[w] = static_cast<T>(row_sum<T>(args.width, [&](std::int64_t d) { return gradient[d] * out[d]; }));
  }
  x.keys = panel_keys(args, b, first_query, x.queries);
  x.is_first = true;
}

// Turns scores (keys, panel) of a block into the dropped probabilities, dscores into the gradients of the scores.
template <class T>
void differentiate_block(const AttentionGradArgs& args, const BackwardTiles<T>& tiles, const BackwardPanel<T>& x,
                         std::int64_t b, std::int64_t h, std::int64_t first_query, std::int64_t key,
                         std::int64_t rows) {
  hide_unseen(args, x.keys, b, h, first_query, key, rows, tiles.probabilities);
  if (!args.has_dropout) {
    run_panel<ScoreGradients, T>(rows, x.lse, x.delta, tiles.probabilities, tiles.dscores);
  } else {
    draw_kept<T>(args, b, h, first_query, x.queries, key, rows, tiles.kept);
    run_panel<DroppedScoreGradients, T>(rows, static_cast<T>(args.keep_scale), tiles.kept, x.lse, x.delta,
                                        tiles.probabilities, tiles.dscores);
  }
  for (T* const tile : {tiles.probabilities, tiles.dscores}) {
    if (x.is_refined) run_panel<ScaleColumns, T>(rows, static_cast<const T*>(x.share.data()), tile);
  }
}

// Where a query's lse is so large that its rounding shows in e^(score - lse), as under additive masks of -3e38, lse
// becomes the largest score, and `share` 1 over the sum of the exponentials. Returns false if no query needs it.
template <class T>
bool refine_sums(const AttentionGradArgs& args, const BackwardTiles<T>& tiles, BackwardPanel<T>& x, std::int64_t b,
                 std::int64_t h, std::int64_t first_query) {
  constexpr T limit = sizeof(T) == 4 ? T(1 << 10) : T(std::int64_t{1} << 39);
  const auto panel = static_cast<std::size_t>(tiles.panel);
  PanelRow<T> largest, sum{};
  x.share.fill(T(1)), largest.fill(-std::numeric_limits<T>::infinity());
  std::array<bool, std::tuple_size_v<PanelRow<T>>> is_coarse{};
  for (std::size_t w = 0; w < panel; ++w) is_coarse[w] = std::isfinite(x.lse[w]) && std::abs(x.lse[w]) > limit;
  if (std::find(is_coarse.begin(), is_coarse.end(), true) == is_coarse.end()) return false;
  for (const bool is_sum : {false, true}) {
    for (std::int64_t key = x.keys.first / key_block * key_block; key < x.keys.last; key += key_block) {
      const std::int64_t rows = std::min(key_block, x.keys.last - key);
      if (is_hidden(args, b, h, key, rows)) continue;
      const Rows<T> k = read_rows(args, args.k, b, h / args.group, key, rows, tiles.k);
      multiply<T>(
          {rows, tiles.panel, args.width, k.data, k.stride, 1, x.q, tiles.panel, tiles.probabilities, tiles.panel});
      hide_unseen(args, x.keys, b, h, first_query, key, rows, tiles.probabilities);
      const T* score = tiles.probabilities;
      for (std::int64_t j = 0; j < rows; ++j) {
        for (std::size_t w = 0; w < panel; ++w, ++score) {
          if (is_sum) sum[w] += math::exp(*score - largest[w]);
          if (!is_sum && *score > largest[w]) largest[w] = *score;
        }
      }
    }
  }
  for (std::size_t w = 0; w < panel; ++w) {
    if (is_coarse[w]) x.lse[w] = largest[w], x.share[w] = T(1) / sum[w];
  }
  return true;
}

template <class T>
void add_block(const AttentionGradArgs& args, const BackwardTiles<T>& tiles, BackwardPanel<T>& x, std::int64_t b,
               std::int64_t h, std::int64_t first_query, std::int64_t key, std::int64_t rows, const Rows<T>& k,
               const Rows<T>& v) {
  const std::int64_t panel = tiles.panel, width = args.width, padded = tiles.padded, queries = x.queries;
  multiply<T>({rows, panel, width, v.data, v.stride, 1, x.dout, panel, tiles.dscores, panel});
  multiply<T>({rows, panel, width, k.data, k.stride, 1, x.q, panel, tiles.probabilities, panel});
  differentiate_block(args, tiles, x, b, h, first_query, key, rows);
  multiply<T>({width, panel, rows, k.data, 1, k.stride, tiles.dscores, panel, x.dq, panel, !x.is_first});
  x.is_first = false;
  T *const dk = tiles.dk + key * padded, *const dv = tiles.dv + key * padded;
  multiply<T>({rows, width, queries, tiles.dscores, panel, 1, x.q_rows, padded, dk, padded, true});
  multiply<T>({rows, width, queries, tiles.probabilities, panel, 1, x.dout_rows, padded, dv, padded, true});
}

// Computes the panels of a group from first_query on, fewer where the queries end.
template <class T>
void backward_panels(const AttentionGradArgs& args, BackwardTiles<T>& tiles, std::int64_t b, std::int64_t h,
                     std::int64_t first_query) {
  const std::int64_t panel = tiles.panel;
  const auto end = tiles.panels.begin() + std::min(tiles.grouped, ceil_div(args.queries - first_query, panel));
  const auto each = [&](auto run) {
    std::int64_t query = first_query;
    for (auto x = tiles.panels.begin(); x != end; ++x, query += panel) run(*x, query);
  };
  each([&](BackwardPanel<T>& x, std::int64_t query) {
    load_panel(args, tiles, x, b, h, query);
    x.is_refined = refine_sums(args, tiles, x, b, h, query);
  });
  const std::int64_t last = std::prev(end)->keys.last;
  for (std::int64_t key = tiles.panels[0].keys.first / key_block * key_block; key < last; key += key_block) {
    const std::int64_t rows = std::min(key_block, last - key);
    if (is_hidden(args, b, h, key, rows)) continue;
    const Rows<T> k = read_rows(args, args.k, b, h / args.group, key, rows, tiles.k);
    const Rows<T> v = read_rows(args, args.v, b, h / args.group, key, rows, tiles.v);
    each([&](BackwardPanel<T>& x, std::int64_t query) {
      const std::int64_t first = std::max(key, x.keys.first) - key, end = std::min(key + rows, x.keys.last) - key;
      if (first >= end) return;
      add_block(args, tiles, x, b, h, query, key + first, end - first, k.from(first), v.from(first));
    });
  }
  each([&](BackwardPanel<T>& x, std::int64_t query) {
    if (x.is_first) std::fill_n(x.dq, args.width * panel, T(0));
    if (!args.dq.data) return;
    // q's rows are free now.
    store_transposed(args, args.dq, b, h, query, x.queries, static_cast<T>(args.scale), x.dq, x.q_rows);
  });
}

// Writes the gradients of all keys or values of one head, times `factor`.
template <class T>
void store_keys(const AttentionGradArgs& args, const AttentionResult& to, std::int64_t b, std::int64_t h,
                std::int64_t padded, T factor, T* rows) {
  if (!to.data) return;
  for (std::int64_t s = 0; s < args.keys; ++s) {
    T* const row = rows + s * padded;
    for (std::int64_t d = 0; d < args.width; ++d) row[d] *= factor;
  }
  store_rows(rows, padded, to.data, args.dtype, b * to.batch + h * to.head, to.row, args.keys, args.width);
}

template <class T>
void backward_head(const AttentionGradArgs& args, BackwardTiles<T>& tiles, std::int64_t b, std::int64_t key_head) {
  for (T* const total : {tiles.dk, tiles.dv}) std::fill_n(total, args.keys * tiles.padded, T(0));
  for (std::int64_t h = key_head * args.group; h < (key_head + 1) * args.group; ++h) {
    for (std::int64_t t = 0; t < args.queries; t += tiles.grouped * tiles.panel) backward_panels(args, tiles, b, h, t);
  }
  store_keys(args, args.dk, b, key_head, tiles.padded, static_cast<T>(args.scale), tiles.dk);
  store_keys(args, args.dv, b, key_head, tiles.padded, T(1), tiles.dv);
}

template <class T>
std::size_t backward_bytes_of(const AttentionProblem& p) {
  Carver carver(nullptr);
  BackwardTiles<T>(carver, p);
  return carver.bytes();
}

int backward_threads(const AttentionProblem& p, int threads) {
  return useful_threads(p, p.batch * p.heads / p.group, threads);
}

std::size_t backward_bytes(const AttentionProblem& p, int threads) noexcept {
  return static_cast<std::size_t>(backward_threads(p, threads)) *
         (p.dtype == DType::f64 ? backward_bytes_of<double>(p) : backward_bytes_of<float>(p));
}

template <class T>
void backward_of(const AttentionGradArgs& args, void* workspace, int threads) {
  const std::size_t bytes = backward_bytes_of<T>(args);
  const std::int64_t key_heads = args.heads / args.group;
  Jobs jobs(args.batch * key_heads);
  parallel_threads(threads, [&](int thread) {
    Carver carver(static_cast<std::byte*>(workspace) + static_cast<std::size_t>(thread) * bytes);
    BackwardTiles<T> tiles(carver, args);
    for (std::int64_t job = jobs.take(); job >= 0; job = jobs.take()) {
      backward_head(args, tiles, job / key_heads, job % key_heads);
    }
  });
}

void backward(const AttentionGradArgs& args, void* workspace, int threads) noexcept {
  threads = backward_threads(args, threads);
  return args.dtype == DType::f64 ? backward_of<double>(args, workspace, threads)
                                  : backward_of<float>(args, workspace, threads);
}

}  // namespace thimble::kernels::attention_detail
