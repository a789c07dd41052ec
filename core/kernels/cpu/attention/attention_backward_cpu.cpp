// Attention on the CPU, backward: Dao et al. 2022 (arXiv:2205.14135), algorithm 4. Recomputes the probabilities from
// the scores and the kept logarithms of their sums. One thread does a head of keys of a sample, for all heads of
// queries that share it: panels of queries outside, blocks of keys inside, all ascending, so that dq sums over blocks
// of keys and dk and dv over heads and panels of queries, in an order that depends on nothing else.

#include <thimble/core/kernels/cpu/attention/attention_cpu.h>

#include <thimble/core/kernels/cpu/base/rows.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels::attention_detail {

// One thread's tiles.
template <class T>
struct BackwardTiles {
  std::int64_t panel;
  std::int64_t padded;         // D up to whole vectors
  T *q, *dout, *dq;            // (D, panel): scale q^T, dout^T, dq^T / scale
  T *q_rows, *dout_rows;       // (panel, padded): q and dout
  T *dk, *dv;                  // (S, padded): dk / scale and dv so far
  T *probabilities, *dscores;  // (key_block, panel); dscores holds the probabilities' gradients first
  T* rows;                     // (key_block, D), only where rows are converted: of v, then of k
  T *lse, *delta;              // (panel): delta_t = sum_d dout_td out_td
  KeptBits* kept;              // (key_block / 32, panel)

  BackwardTiles(Carver& carver, const AttentionProblem& p) : panel(panel_queries<T>(isa())) {
    const std::int64_t lanes = tile_lanes<T>(isa()), keys = std::min(p.keys, key_block);
    padded = (p.width + lanes - 1) / lanes * lanes;
    for (T** const tile : {&q, &dout, &dq}) *tile = carver.take<T>(p.width * panel);
    for (T** const tile : {&q_rows, &dout_rows}) *tile = carver.take<T>(panel * padded);
    for (T** const tile : {&dk, &dv}) *tile = carver.take<T>(p.keys * padded);
    for (T** const tile : {&probabilities, &dscores}) *tile = carver.take<T>(keys * panel);
    rows = carver.take<T>(p.dtype == dtype_of<T> ? 0 : keys * p.width);
    for (T** const tile : {&lse, &delta}) *tile = carver.take<T>(panel);
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

// All inputs of a panel of queries.
template <class T>
void load_panel(const AttentionGradArgs& args, const BackwardTiles<T>& tiles, std::int64_t b, std::int64_t h,
                std::int64_t first_query, std::int64_t queries) {
  const Rows<T> q = load_rows(args, tiles, args.q, b, h, first_query, queries, tiles.q_rows);
  pack_transposed(q, queries, args.width, static_cast<T>(args.scale), tiles.q);
  const Rows<T> dout = load_rows(args, tiles, args.dout, b, h, first_query, queries, tiles.dout_rows);
  pack_transposed(dout, queries, args.width, T(1), tiles.dout);
  for (T* const tile : {tiles.lse, tiles.delta}) std::fill_n(tile, tiles.panel, T(0));
  std::copy_n(static_cast<const T*>(args.lse) + row_index(args, b, h, first_query), queries, tiles.lse);
  for (std::int64_t w = 0; w < queries; ++w) {
    const std::int64_t at = b * args.out.batch + (first_query + w) * args.out.row + h * args.out.head;
    const T* const out = read_elements(args.out.data, args.dtype, at, args.width, tiles.dq);
    const T* const gradient = dout.data + w * dout.stride;
    tiles.delta[w] = static_cast<T>(row_sum<T>(args.width, [&](std::int64_t d) { return gradient[d] * out[d]; }));
  }
}

// Turns scores (keys, panel) of a block into the dropped probabilities, dscores into the gradients of the scores.
template <class T>
void differentiate_block(const AttentionGradArgs& args, const BackwardTiles<T>& tiles, const PanelKeys& keys,
                         std::int64_t b, std::int64_t h, std::int64_t first_query, std::int64_t key,
                         std::int64_t rows) {
  hide_unseen(args, keys, b, h, first_query, key, rows, tiles.probabilities);
  if (!args.has_dropout) {
    run_panel<ScoreGradients, T>(rows, tiles.lse, tiles.delta, tiles.probabilities, tiles.dscores);
    return;
  }
  draw_kept<T>(args, b, h, first_query, keys.queries, key, rows, tiles.kept);
  run_panel<DroppedScoreGradients, T>(rows, static_cast<T>(args.keep_scale), tiles.kept, tiles.lse, tiles.delta,
                                      tiles.probabilities, tiles.dscores);
}

template <class T>
void backward_panel(const AttentionGradArgs& args, const BackwardTiles<T>& tiles, std::int64_t b, std::int64_t h,
                    std::int64_t first_query) {
  const std::int64_t panel = tiles.panel, width = args.width, padded = tiles.padded;
  const std::int64_t queries = std::min(panel, args.queries - first_query);
  load_panel(args, tiles, b, h, first_query, queries);
  const PanelKeys keys = panel_keys(args, b, first_query, queries);
  bool is_first = true;
  for (std::int64_t key = keys.first_block; key < keys.last; key += key_block) {
    const std::int64_t rows = std::min(key_block, keys.last - key);
    if (is_hidden(args, b, h, key, rows)) continue;
    const Rows<T> v = read_rows(args, args.v, b, h / args.group, key, rows, tiles.rows);
    multiply<T>({rows, panel, width, v.data, v.stride, 1, tiles.dout, panel, tiles.dscores, panel});
    const Rows<T> k = read_rows(args, args.k, b, h / args.group, key, rows, tiles.rows);
    multiply<T>({rows, panel, width, k.data, k.stride, 1, tiles.q, panel, tiles.probabilities, panel});
    differentiate_block(args, tiles, keys, b, h, first_query, key, rows);
    multiply<T>({width, panel, rows, k.data, 1, k.stride, tiles.dscores, panel, tiles.dq, panel, !is_first});
    is_first = false;
    multiply<T>(
        {rows, width, queries, tiles.dscores, panel, 1, tiles.q_rows, padded, tiles.dk + key * padded, padded, true});
    multiply<T>({rows, width, queries, tiles.probabilities, panel, 1, tiles.dout_rows, padded, tiles.dv + key * padded,
                 padded, true});
  }
  if (is_first) std::fill_n(tiles.dq, width * panel, T(0));
  // q's rows are free now.
  if (args.dq.data) {
    store_transposed(args, args.dq, b, h, first_query, queries, static_cast<T>(args.scale), tiles.dq, tiles.q_rows);
  }
}

// Gradients of all keys or values of one of their heads, times `scale`.
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
void backward_group(const AttentionGradArgs& args, const BackwardTiles<T>& tiles, std::int64_t b,
                    std::int64_t key_head) {
  for (T* const total : {tiles.dk, tiles.dv}) std::fill_n(total, args.keys * tiles.padded, T(0));
  for (std::int64_t h = key_head * args.group; h < (key_head + 1) * args.group; ++h) {
    for (std::int64_t t = 0; t < args.queries; t += tiles.panel) backward_panel(args, tiles, b, h, t);
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
    const BackwardTiles<T> tiles(carver, args);
    for (std::int64_t job = jobs.take(); job >= 0; job = jobs.take()) {
      backward_group(args, tiles, job / key_heads, job % key_heads);
    }
  });
}

void backward(const AttentionGradArgs& args, void* workspace, int threads) noexcept {
  threads = backward_threads(args, threads);
  return args.dtype == DType::f64 ? backward_of<double>(args, workspace, threads)
                                  : backward_of<float>(args, workspace, threads);
}

}  // namespace thimble::kernels::attention_detail
