// Attention on the CPU, forward: Dao et al. 2022 (arXiv:2205.14135), algorithm 1, with one pass over the keys per panel
// of queries (Dao 2023, arXiv:2307.08691, section 3.1). A query's result depends only on its keys, in blocks counted
// from key 0: a hidden key adds an exact zero.

#include <thimble/core/kernels/cpu/attention/attention_cpu.h>
#include <thimble/core/kernels/table_for.h>

#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace attention_detail {

// One thread's tiles.
template <class T>
struct ForwardTiles {
  std::int64_t panel;
  T *q, *out;              // (D, panel): scale q^T; the result's transpose before the division by the sums
  T* scores;               // (key_block, panel)
  T* rows;                 // (key_block, D), only where rows are converted: of q, k, v and out in turn
  T *largest, *sum, *old;  // (panel): running maximum and sum; exp(maximum before the block - maximum)
  KeptBits* kept;          // (key_block / 32, panel)

  ForwardTiles(Carver& carver, const AttentionProblem& p) : panel(panel_queries<T>(isa())) {
    q = carver.take<T>(p.width * panel);
    out = carver.take<T>(p.width * panel);
    scores = carver.take<T>(key_block * panel);
    rows = carver.take<T>(p.dtype == dtype_of<T> && !p.kept ? 0 : key_block * p.width);
    largest = carver.take<T>(panel);
    sum = carver.take<T>(panel);
    old = carver.take<T>(panel);
    kept = carver.take<KeptBits>(p.has_dropout ? key_block / 32 * panel : 0);
  }
};

// Rows of keys or values, as read_rows, in their stored dtype and times their factors.
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
void finish_panel(const AttentionArgs& args, const ForwardTiles<T>& tiles, std::int64_t b, std::int64_t h,
                  std::int64_t first_query, std::int64_t queries) {
  T* const inverse = tiles.old;
  // Only a mask may hide all keys: scores that are themselves -infinity give NaN.
  const T of_none = args.has_mask ? T(0) : std::numeric_limits<T>::quiet_NaN();
  run_panel<FinishSums, T>(of_none, tiles.largest, tiles.sum, inverse, tiles.scores);
  run_panel<ScaleColumns, T>(args.width, inverse, tiles.out);
  store_transposed(args, args.out, b, h, first_query, queries, T(1), tiles.out, tiles.rows);
  if (args.lse) std::copy_n(tiles.scores, queries, static_cast<T*>(args.lse) + row_index(args, b, h, first_query));
}

template <class T>
void forward_panel(const AttentionArgs& args, const ForwardTiles<T>& tiles, std::int64_t b, std::int64_t h,
                   std::int64_t first_query) {
  const std::int64_t queries = std::min(tiles.panel, args.queries - first_query);
  // Few queries, as in a decoder's step, need half of the panel; the other half is unused zeros.
  const std::int64_t columns = queries > tiles.panel / 2 ? tiles.panel : tiles.panel / 2;
  if (columns < tiles.panel) {
    std::fill_n(tiles.scores, key_block * tiles.panel, T(0));
    std::fill_n(tiles.out, args.width * tiles.panel, T(0));
  }
  const Rows<T> q = read_rows(args, args.q, b, h, first_query, queries, tiles.rows);
  pack_transposed(q, queries, args.width, static_cast<T>(args.scale), tiles.q);
  std::fill_n(tiles.largest, tiles.panel, -std::numeric_limits<T>::infinity());
  std::fill_n(tiles.sum, tiles.panel, T(0));
  const PanelKeys keys = panel_keys(args, b, first_query, queries);
  bool is_first = true;
  for (std::int64_t key = keys.first_block; key < keys.last; key += key_block) {
    const std::int64_t rows = std::min(key_block, keys.last - key);
    if (is_hidden(args, b, h, key, rows)) continue;
    const Rows<T> k = read_kept(args, args.k, args.k_scale, b, h / args.group, key, rows, tiles.rows);
    multiply<T>({rows, columns, args.width, k.data, k.stride, 1, tiles.q, tiles.panel, tiles.scores, tiles.panel});
    hide_unseen(args, keys, b, h, first_query, key, rows, tiles.scores);
    run_panel<OnlineSoftmax, T>(rows, tiles.scores, tiles.largest, tiles.sum, tiles.old);
    if (args.has_dropout) {
      draw_kept<T>(args, b, h, first_query, queries, key, rows, tiles.kept);
      run_panel<DropScores, T>(rows, static_cast<T>(args.keep_scale), tiles.kept, tiles.scores);
    }
    const Rows<T> v = read_kept(args, args.v, args.v_scale, b, h / args.group, key, rows, tiles.rows);
    multiply<T>({args.width, columns, rows, v.data, 1, v.stride, tiles.scores, tiles.panel, tiles.out, tiles.panel,
                 !is_first, is_first ? nullptr : tiles.old});
    is_first = false;
  }
  if (is_first) std::fill_n(tiles.out, args.width * tiles.panel, T(0));
  finish_panel(args, tiles, b, h, first_query, queries);
}

template <class T>
std::size_t forward_bytes_of(const AttentionProblem& p) {
  Carver carver(nullptr);
  ForwardTiles<T>(carver, p);
  return carver.bytes();
}

// A thread pays for its workspace from one and a half panels on.
template <class T>
int forward_threads_of(const AttentionProblem& p, int threads) {
  const std::int64_t heads = p.batch * p.heads;
  return useful_threads(p, heads * std::max<std::int64_t>(1, 2 * panels_of<T>(p) / 3), threads);
}

int forward_threads(const AttentionProblem& p, int threads) {
  return p.dtype == DType::f64 ? forward_threads_of<double>(p, threads) : forward_threads_of<float>(p, threads);
}

std::size_t forward_bytes(const AttentionProblem& p, int threads) noexcept {
  return static_cast<std::size_t>(forward_threads(p, threads)) *
         (p.dtype == DType::f64 ? forward_bytes_of<double>(p) : forward_bytes_of<float>(p));
}

template <class T>
void forward_of(const AttentionArgs& args, void* workspace, int threads) {
  const std::int64_t panels = panels_of<T>(args);
  const std::size_t bytes = forward_bytes_of<T>(args);
  Jobs jobs(args.batch * args.heads * panels);
  parallel_threads(threads, [&](int thread) {
    Carver carver(static_cast<std::byte*>(workspace) + static_cast<std::size_t>(thread) * bytes);
    const ForwardTiles<T> tiles(carver, args);
    // From the last panel of a head to the first: with a causal mask the longest come first, so that no thread waits
    // for them.
    for (std::int64_t job = jobs.take(); job >= 0; job = jobs.take()) {
      const std::int64_t head = job / panels, panel = panels - 1 - job % panels;
      forward_panel(args, tiles, head / args.heads, head % args.heads, panel * tiles.panel);
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
