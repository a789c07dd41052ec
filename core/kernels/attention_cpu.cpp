// Attention on the CPU, forward: Dao et al. 2022 (arXiv:2205.14135), algorithm 1, with one pass over the keys per panel
// of queries (Dao 2023, arXiv:2307.08691, section 3.1). A query's result depends on its own keys, in blocks counted
// from key 0: a key it must not see adds an exact zero.

#include <thimble/core/kernels/attention_cpu.h>

#include <cmath>

#include <thimble/core/error.h>
#include <thimble/core/parallel.h>

namespace thimble::kernels {
namespace attention_detail {

// One thread's tiles.
template <class T>
struct ForwardTiles {
  T *q, *out;              // (D, panel): scale q^T; the result's transpose before it is divided by the sums
  T *scores, *factors;     // (key_block, panel)
  T *keys, *values;        // (key_block, D); only where they are converted
  T *largest, *sum, *old;  // (panel): running maximum and sum; exp(maximum before the block - maximum)
  T* row;                  // (D)

  ForwardTiles(Carver& carver, const AttentionProblem& p, std::int64_t panel) {
    const std::int64_t converted = p.dtype == dtype_of<T> ? 0 : key_block * p.width;
    q = carver.take<T>(p.width * panel);
    out = carver.take<T>(p.width * panel);
    scores = carver.take<T>(key_block * panel);
    factors = carver.take<T>(p.has_dropout ? key_block * panel : 0);
    keys = carver.take<T>(converted);
    values = carver.take<T>(converted);
    largest = carver.take<T>(panel);
    sum = carver.take<T>(panel);
    old = carver.take<T>(panel);
    row = carver.take<T>(p.width);
  }
};

// scores = exp(scores - running maximum), with maximum, sum and the sum's old weight brought up to date. A query that
// has met nothing but -infinity keeps 0 as the maximum it subtracts.
template <class T>
struct OnlineSoftmax {
  static void run(std::int64_t rows, std::int64_t panel, T* __restrict scores, T* __restrict largest, T* __restrict sum,
                  T* __restrict old) {
    constexpr T lowest = -std::numeric_limits<T>::infinity();
    alignas(64) T added[64], subtracted[64];
    for (std::int64_t w = 0; w < panel; ++w) {
      old[w] = largest[w];
      added[w] = 0;
    }
    for (std::int64_t j = 0; j < rows; ++j) {
      const T* const z = scores + j * panel;
      for (std::int64_t w = 0; w < panel; ++w) largest[w] = z[w] > largest[w] ? z[w] : largest[w];
    }
    for (std::int64_t w = 0; w < panel; ++w) {
      subtracted[w] = largest[w] == lowest ? T(0) : largest[w];
      old[w] = math::exp(old[w] - subtracted[w]);
    }
    for (std::int64_t j = 0; j < rows; ++j) {
      T* const __restrict z = scores + j * panel;
      for (std::int64_t w = 0; w < panel; ++w) z[w] = math::exp(z[w] - subtracted[w]);
      for (std::int64_t w = 0; w < panel; ++w) added[w] += z[w];
    }
    for (std::int64_t w = 0; w < panel; ++w) sum[w] = sum[w] * old[w] + added[w];
  }
};

template <class T>
struct DropScores {
  static void run(std::int64_t n, const T* __restrict factors, T* __restrict scores) {
    for (std::int64_t i = 0; i < n; ++i) scores[i] = factors[i] == 0 ? T(0) : scores[i] * factors[i];
  }
};

template <class T>
struct ScaleColumns {
  static void run(std::int64_t rows, std::int64_t panel, const T* __restrict factors, T* __restrict x) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t w = 0; w < panel; ++w) x[r * panel + w] *= factors[w];
    }
  }
};

template <class T>
void store_panel(const AttentionArgs& args, const ForwardTiles<T>& tiles, std::int64_t b, std::int64_t h,
                 std::int64_t first_query, std::int64_t queries, std::int64_t panel) {
  for (std::int64_t w = 0; w < queries; ++w) {
    const T inverse = T(1) / tiles.sum[w];
    for (std::int64_t d = 0; d < args.width; ++d) tiles.row[d] = tiles.out[d * panel + w] * inverse;
    const std::int64_t at = b * args.out.batch + (first_query + w) * args.out.row + h * args.out.head;
    store_elements(tiles.row, args.out.data, args.dtype, at, 1, args.width);
    if (!args.lse) continue;
    static_cast<T*>(args.lse)[row_index(args, b, h, first_query + w)] = tiles.largest[w] + std::log(tiles.sum[w]);
  }
}

template <class T>
void forward_panel(const AttentionArgs& args, const Microkernels<T>& kernels, const ForwardTiles<T>& tiles,
                   std::int64_t b, std::int64_t h, std::int64_t first_query) {
  const std::int64_t panel = kernels.columns();
  const std::int64_t queries = std::min(panel, args.queries - first_query);
  std::fill_n(tiles.q, args.width * panel, T(0));
  for (std::int64_t w = 0; w < queries; ++w) {
    const std::int64_t at = b * args.q.batch + (first_query + w) * args.q.row + h * args.q.head;
    load_elements(args.q.data, args.dtype, at, 1, tiles.row, args.width);
    pack_column(tiles.row, args.width, static_cast<T>(args.scale), w, panel, tiles.q);
  }
  std::fill_n(tiles.largest, panel, -std::numeric_limits<T>::infinity());
  std::fill_n(tiles.sum, panel, T(0));
  const std::int64_t visible = visible_keys(args, first_query + queries);
  for (std::int64_t key = 0; key < visible; key += key_block) {
    const std::int64_t rows = std::min(key_block, visible - key);
    const Rows<T> k = read_rows(args, args.k, b, h, key, rows, tiles.keys);
    multiply<T>(kernels, rows, panel, k.data, k.stride, 1, tiles.q, args.width, nullptr, tiles.scores);
    hide_future(args, first_query, key, rows, panel, tiles.scores);
    run_variant<OnlineSoftmax<T>>(rows, panel, tiles.scores, tiles.largest, tiles.sum, tiles.old);
    if (args.has_dropout) {
      dropout_factors<T>(args, b, h, first_query, queries, key, rows, panel, tiles.factors);
      run_variant<DropScores<T>>(rows * panel, tiles.factors, tiles.scores);
    }
    if (key > 0) run_variant<ScaleColumns<T>>(args.width, panel, tiles.old, tiles.out);
    const Rows<T> v = read_rows(args, args.v, b, h, key, rows, tiles.values);
    multiply<T>(kernels, args.width, panel, v.data, 1, v.stride, tiles.scores, rows, key > 0 ? tiles.out : nullptr,
                tiles.out);
  }
  store_panel(args, tiles, b, h, first_query, queries, panel);
}

template <class T>
std::size_t forward_bytes_of(const AttentionProblem& p) {
  Carver carver(nullptr);
  ForwardTiles<T>(carver, p, gemm_detail::microkernels<T>(isa()).columns());
  return carver.bytes();
}

template <class T>
std::int64_t panel_count(const AttentionProblem& p) {
  const std::int64_t panel = gemm_detail::microkernels<T>(isa()).columns();
  return p.batch * p.heads * ((p.queries + panel - 1) / panel);
}

int forward_threads(const AttentionProblem& p, int threads) {
  return useful_threads(p, p.dtype == DType::f64 ? panel_count<double>(p) : panel_count<float>(p), threads);
}

std::size_t forward_bytes(const AttentionProblem& p, int threads) noexcept {
  return static_cast<std::size_t>(forward_threads(p, threads)) *
         (p.dtype == DType::f64 ? forward_bytes_of<double>(p) : forward_bytes_of<float>(p));
}

template <class T>
void forward_of(const AttentionArgs& args, void* workspace, int threads) {
  const Microkernels<T>& kernels = gemm_detail::microkernels<T>(isa());
  const std::int64_t panel = kernels.columns();
  const std::int64_t panels = (args.queries + panel - 1) / panel;
  const std::size_t bytes = forward_bytes_of<T>(args);
  parallel_threads(threads, [&](int thread) {
    Carver carver(static_cast<std::byte*>(workspace) + static_cast<std::size_t>(thread) * bytes);
    const ForwardTiles<T> tiles(carver, args, panel);
    // Neighbouring panels go to different threads: with a causal mask later ones see more.
    for (std::int64_t job = thread; job < args.batch * args.heads * panels; job += threads) {
      const std::int64_t head = job / panels;
      forward_panel(args, kernels, tiles, head / args.heads, head % args.heads, job % panels * panel);
    }
  });
}

void forward(const AttentionArgs& args, void* workspace, int threads) noexcept {
  threads = forward_threads(args, threads);
  return args.dtype == DType::f64 ? forward_of<double>(args, workspace, threads)
                                  : forward_of<float>(args, workspace, threads);
}

}  // namespace attention_detail

const AttentionKernels attention_cpu{attention_detail::forward_bytes, attention_detail::backward_bytes,
                                     attention_detail::forward, attention_detail::backward};

const AttentionKernels& attention_kernels(Device device) {
  if (device.is_cpu()) return attention_cpu;
  if (!attention_cuda) throw DeviceError("attention: " + to_string(device) + " is not in this build");
  return *attention_cuda;
}

}  // namespace thimble::kernels
