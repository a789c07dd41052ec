// Attention on the CPU, backward: Dao et al. 2022 (arXiv:2205.14135), algorithm 4. The probabilities are made again
// from the scores and the kept logarithms of their sums. One thread does a head of a sample: panels of queries outside,
// blocks of keys inside, both ascending, so that dq sums over blocks of keys and dk and dv over panels of queries, in
// an order that depends on nothing else.

#include <thimble/core/kernels/attention_cpu.h>

#include <thimble/core/kernels/rows.h>
#include <thimble/core/parallel.h>

namespace thimble::kernels::attention_detail {

// One thread's tiles. Matrices with D columns are cut into strips of `panel` columns, one behind the other.
template <class T>
struct BackwardTiles {
  T *q, *dout, *dq;            // (D, panel): scale q^T, dout^T, dq^T / scale
  T *q_strips, *dout_strips;   // (strips, panel queries, panel): q and dout
  T *dk, *dv;                  // (strips, S, panel): dk / scale and dv so far
  T *probabilities, *dscores;  // (key_block, panel); dscores holds the probabilities' gradients first
  T* factors;                  // (key_block, panel)
  T *keys, *values;            // (key_block, D); only where they are converted
  T *lse, *delta;              // (panel): delta_t = sum_d dout_td out_td
  T *row, *other;              // (D)

  BackwardTiles(Carver& carver, const AttentionProblem& p, std::int64_t panel) {
    const std::int64_t converted = p.dtype == dtype_of<T> ? 0 : key_block * p.width;
    const std::int64_t strips = (p.width + panel - 1) / panel;
    for (T** const tile : {&q, &dout, &dq}) *tile = carver.take<T>(p.width * panel);
    for (T** const tile : {&q_strips, &dout_strips}) *tile = carver.take<T>(strips * panel * panel);
    for (T** const tile : {&dk, &dv}) *tile = carver.take<T>(strips * p.keys * panel);
    for (T** const tile : {&probabilities, &dscores}) *tile = carver.take<T>(key_block * panel);
    factors = carver.take<T>(p.has_dropout ? key_block * panel : 0);
    for (T** const tile : {&keys, &values}) *tile = carver.take<T>(converted);
    for (T** const tile : {&lse, &delta}) *tile = carver.take<T>(panel);
    for (T** const tile : {&row, &other}) *tile = carver.take<T>(p.width);
  }
};

// With P the probabilities and dP the gradients of the dropped ones: scores become the dropped P, gradients those of
// the scores, P (dP factor - delta).
template <class T, bool has_dropout>
struct ScoreGradients {
  static void run(std::int64_t rows, std::int64_t panel, const T* __restrict lse, const T* __restrict delta,
                  const T* __restrict factors, T* __restrict scores, T* __restrict gradients) {
    for (std::int64_t j = 0; j < rows; ++j) {
      T* const __restrict z = scores + j * panel;
      T* const __restrict g = gradients + j * panel;
      for (std::int64_t w = 0; w < panel; ++w) {
        const T p = math::exp(z[w] - lse[w]);
        if constexpr (has_dropout) {
          const T factor = factors[j * panel + w];
          z[w] = factor == 0 ? T(0) : p * factor;
          g[w] = p * ((factor == 0 ? T(0) : g[w] * factor) - delta[w]);
        } else {
          z[w] = p;
          g[w] = p * (g[w] - delta[w]);
        }
      }
    }
  }
};

// Row w of a matrix in strips.
template <class T>
void pack_strips(const T* row, std::int64_t width, std::int64_t w, std::int64_t panel, T* strips) {
  for (std::int64_t at = 0; at < width; at += panel) {
    const std::int64_t n = std::min(panel, width - at);
    T* const to = strips + (at + w) * panel;
    std::copy_n(row + at, n, to);
    std::fill(to + n, to + panel, T(0));
  }
}

// Everything that a panel of queries brings along.
template <class T>
void load_panel(const AttentionGradArgs& args, const BackwardTiles<T>& tiles, std::int64_t b, std::int64_t h,
                std::int64_t first_query, std::int64_t queries, std::int64_t panel) {
  for (T* const tile : {tiles.q, tiles.dout}) std::fill_n(tile, args.width * panel, T(0));
  for (T* const tile : {tiles.lse, tiles.delta}) std::fill_n(tile, panel, T(0));
  const auto load_row = [&](const AttentionOperand& x, std::int64_t t, T* to) {
    load_elements(x.data, args.dtype, b * x.batch + t * x.row + h * x.head, 1, to, args.width);
  };
  for (std::int64_t w = 0; w < queries; ++w) {
    const std::int64_t t = first_query + w;
    load_row(args.q, t, tiles.row);
    pack_column(tiles.row, args.width, static_cast<T>(args.scale), w, panel, tiles.q);
    pack_strips(tiles.row, args.width, w, panel, tiles.q_strips);
    load_row(args.dout, t, tiles.row);
    pack_column(tiles.row, args.width, T(1), w, panel, tiles.dout);
    pack_strips(tiles.row, args.width, w, panel, tiles.dout_strips);
    load_row(args.out, t, tiles.other);
    tiles.delta[w] =
        static_cast<T>(row_sum<T>(args.width, [&](std::int64_t d) { return tiles.row[d] * tiles.other[d]; }));
    tiles.lse[w] = static_cast<const T*>(args.lse)[row_index(args, b, h, t)];
  }
}

// total (rows of keys) += block^T's transpose times a panel of queries in strips: dk and dv.
template <class T>
void add_to_keys(const Microkernels<T>& kernels, std::int64_t rows, std::int64_t queries, std::int64_t width,
                 std::int64_t keys, const T* block, const T* strips, T* total) {
  const std::int64_t panel = kernels.columns();
  for (std::int64_t at = 0, strip = 0; at < width; at += panel, ++strip) {
    T* const out = total + strip * keys * panel;
    multiply<T>(kernels, rows, std::min(panel, width - at), block, panel, 1, strips + at * panel, queries, out, out);
  }
}

template <class T>
void backward_panel(const AttentionGradArgs& args, const Microkernels<T>& kernels, const BackwardTiles<T>& tiles,
                    std::int64_t b, std::int64_t h, std::int64_t first_query) {
  const std::int64_t panel = kernels.columns(), width = args.width;
  const std::int64_t queries = std::min(panel, args.queries - first_query);
  load_panel(args, tiles, b, h, first_query, queries, panel);
  const std::int64_t visible = visible_keys(args, first_query + queries);
  for (std::int64_t key = 0; key < visible; key += key_block) {
    const std::int64_t rows = std::min(key_block, visible - key);
    const Rows<T> k = read_rows(args, args.k, b, h, key, rows, tiles.keys);
    const Rows<T> v = read_rows(args, args.v, b, h, key, rows, tiles.values);
    multiply<T>(kernels, rows, panel, k.data, k.stride, 1, tiles.q, width, nullptr, tiles.probabilities);
    multiply<T>(kernels, rows, panel, v.data, v.stride, 1, tiles.dout, width, nullptr, tiles.dscores);
    hide_future(args, first_query, key, rows, panel, tiles.probabilities);
    if (args.has_dropout) {
      dropout_factors<T>(args, b, h, first_query, queries, key, rows, panel, tiles.factors);
      run_variant<ScoreGradients<T, true>>(rows, panel, tiles.lse, tiles.delta, tiles.factors, tiles.probabilities,
                                           tiles.dscores);
    } else {
      run_variant<ScoreGradients<T, false>>(rows, panel, tiles.lse, tiles.delta, tiles.factors, tiles.probabilities,
                                            tiles.dscores);
    }
    multiply<T>(kernels, width, panel, k.data, 1, k.stride, tiles.dscores, rows, key > 0 ? tiles.dq : nullptr,
                tiles.dq);
    add_to_keys(kernels, rows, queries, width, args.keys, tiles.dscores, tiles.q_strips, tiles.dk + key * panel);
    add_to_keys(kernels, rows, queries, width, args.keys, tiles.probabilities, tiles.dout_strips,
                tiles.dv + key * panel);
  }
  if (!args.dq.data) return;
  const T scale = static_cast<T>(args.scale);
  for (std::int64_t w = 0; w < queries; ++w) {
    for (std::int64_t d = 0; d < width; ++d) tiles.row[d] = tiles.dq[d * panel + w] * scale;
    const std::int64_t at = b * args.dq.batch + (first_query + w) * args.dq.row + h * args.dq.head;
    store_elements(tiles.row, args.dq.data, args.dtype, at, 1, width);
  }
}

// Gradients of all keys or values of a head, from strips.
template <class T>
void store_keys(const AttentionGradArgs& args, const AttentionResult& to, std::int64_t b, std::int64_t h,
                std::int64_t panel, T factor, const T* strips, T* row) {
  if (!to.data) return;
  for (std::int64_t s = 0; s < args.keys; ++s) {
    for (std::int64_t at = 0; at < args.width; at += panel) {
      const T* const from = strips + (at / panel * args.keys + s) * panel;
      const std::int64_t n = std::min(panel, args.width - at);
      for (std::int64_t i = 0; i < n; ++i) row[at + i] = from[i] * factor;
    }
    store_elements(row, to.data, args.dtype, b * to.batch + s * to.row + h * to.head, 1, args.width);
  }
}

template <class T>
void backward_head(const AttentionGradArgs& args, const Microkernels<T>& kernels, const BackwardTiles<T>& tiles,
                   std::int64_t b, std::int64_t h) {
  const std::int64_t panel = kernels.columns(), strips = (args.width + panel - 1) / panel;
  for (T* const total : {tiles.dk, tiles.dv}) std::fill_n(total, strips * args.keys * panel, T(0));
  for (std::int64_t t = 0; t < args.queries; t += panel) backward_panel(args, kernels, tiles, b, h, t);
  store_keys(args, args.dk, b, h, panel, static_cast<T>(args.scale), tiles.dk, tiles.row);
  store_keys(args, args.dv, b, h, panel, T(1), tiles.dv, tiles.row);
}

template <class T>
std::size_t backward_bytes_of(const AttentionProblem& p) {
  Carver carver(nullptr);
  BackwardTiles<T>(carver, p, gemm_detail::microkernels<T>(isa()).columns());
  return carver.bytes();
}

int backward_threads(const AttentionProblem& p, int threads) { return useful_threads(p, p.batch * p.heads, threads); }

std::size_t backward_bytes(const AttentionProblem& p, int threads) noexcept {
  return static_cast<std::size_t>(backward_threads(p, threads)) *
         (p.dtype == DType::f64 ? backward_bytes_of<double>(p) : backward_bytes_of<float>(p));
}

template <class T>
void backward_of(const AttentionGradArgs& args, void* workspace, int threads) {
  const Microkernels<T>& kernels = gemm_detail::microkernels<T>(isa());
  const std::size_t bytes = backward_bytes_of<T>(args);
  parallel_threads(threads, [&](int thread) {
    Carver carver(static_cast<std::byte*>(workspace) + static_cast<std::size_t>(thread) * bytes);
    const BackwardTiles<T> tiles(carver, args, kernels.columns());
    for (std::int64_t head = thread; head < args.batch * args.heads; head += threads) {
      backward_head(args, kernels, tiles, head / args.heads, head % args.heads);
    }
  });
}

void backward(const AttentionGradArgs& args, void* workspace, int threads) noexcept {
  threads = backward_threads(args, threads);
  return args.dtype == DType::f64 ? backward_of<double>(args, workspace, threads)
                                  : backward_of<float>(args, workspace, threads);
}

}  // namespace thimble::kernels::attention_detail
