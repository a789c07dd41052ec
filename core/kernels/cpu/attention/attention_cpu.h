#pragma once
// Shared by the CPU's attention passes.
//
// Scores are stored transposed, (keys, queries): a block of up to 64 keys by a panel of queries two vectors wide. Every
// tile then feeds a product directly: k and v are read in place, a block of scores is the right operand of the next
// product, and the softmax runs along rows, with the queries side by side in vector lanes.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include <thimble/core/kernels/attention.h>
#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/exp_below.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/shared/attention_range.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/core/numbers/math.h>

namespace thimble::kernels::attention_detail {

// ---- The products of attention's tiles: small matrices in the cache, computed in registers block by block.

/// out (rows, columns) = a (rows, depth) b (depth, columns) [+ out, its columns first scaled]. Element (r, p) of a is r
/// a_row + p a_depth elements behind a, so that a may be a matrix in place, or its transpose. Rows of b and out are
/// padded to whole vectors (tile_lanes) and aligned to them; every vector that has one of the `columns` is computed and
/// stored.
///
/// A sum over the depth is one chain in ascending p (fused multiply-adds on AVX2 and AVX-512, so these two agree
/// bitwise), added to the previous value: its bits depend only on the operands of the element.
template <class T>
struct Product {
  std::int64_t rows, columns, depth;
  const T* a;
  std::int64_t a_row, a_depth;
  const T* b;
  std::int64_t b_row;
  T* out;
  std::int64_t out_row;
  bool is_sum = false;              ///< adds to out
  const T* column_scale = nullptr;  ///< a row of factors for out's previous values; defaults to 1
};

/// Elements of a vector register.
template <class T>
constexpr std::int64_t tile_lanes(Isa isa) noexcept {
  return (isa == Isa::avx512 ? 64 : isa == Isa::avx2 ? 32 : 16) / static_cast<std::int64_t>(sizeof(T));
}

/// T is float or double.
template <class T>
void multiply(const Product<T>& product) noexcept;

// ---- Operations on tiles of scores between attention's products. Each step is a struct for run_panel: compiled for
// every instruction set with its panel width as a constant, so that the loops over queries become vectors.

/// Queries of a panel: two vectors of them. More would read the keys less often, but with a causal mask compute more
/// hidden scores.
template <class T>
constexpr std::int64_t panel_queries(Isa isa) noexcept {
  return 2 * tile_lanes<T>(isa);
}

/// Step<T, panel, is_fused>::run(args...) for the current instruction set.
template <template <class, int, bool> class Step, class T, class... Args>
void run_panel(const Args&... args) {
#if defined(__x86_64__)
  constexpr int wide = panel_queries<T>(Isa::avx512), narrow = panel_queries<T>(Isa::avx2);
  if (isa() == Isa::avx512) return variants_detail::run_avx512<Step<T, wide, true>>(args...);
  if (isa() == Isa::avx2) return variants_detail::run_avx2<Step<T, narrow, true>>(args...);
#endif
  Step<T, panel_queries<T>(Isa::generic), false>::run(args...);
}

/// The probabilities of a block that dropout keeps: bit j % 32 of word [j / 32 panel + w] is key j's for query w.
using KeptBits = std::uint32_t;

/// The decisions on 64 keys of one query, from their random words.
struct PackKept {
  static void run(std::uint32_t threshold, const std::uint32_t* words, std::int64_t panel, KeptBits* kept) {
    for (int half = 0; half < 2; ++half) {
      KeptBits bits = 0;
      for (int i = 0; i < 32; ++i) bits |= KeptBits{words[32 * half + i] >= threshold} << i;
      kept[half * panel] = bits;
    }
  }
};

/// x where the bit is set, else 0, as bits.
inline float keep_if(float x, KeptBits bits, int bit) noexcept {
  return math::detail::from_bits(math::detail::bits_of(x) & (KeptBits{0} - (bits >> bit & 1)));
}
inline double keep_if(double x, KeptBits bits, int bit) noexcept { return bits >> bit & 1 ? x : 0.0; }

/// scores (rows, panel) = -infinity except where low[w] <= row < high[w].
template <class T, int panel, bool is_fused>
struct HideUnseen {
  static void run(std::int64_t rows, const T* __restrict low, const T* __restrict high, T* __restrict scores) {
    for (std::int64_t j = 0; j < rows; ++j) {
      T* const __restrict z = scores + j * panel;
      const T row = static_cast<T>(j);
      for (int w = 0; w < panel; ++w) {
        z[w] = row >= low[w] && row < high[w] ? z[w] : -std::numeric_limits<T>::infinity();
      }
    }
  }
};

/// scores (rows, panel) = exp(scores - running maximum); updates maximum, sum and the factor of the earlier blocks
/// (`old`). A query that has seen only -infinity subtracts a maximum of 0.
template <class T, int panel, bool is_fused>
struct OnlineSoftmax {
  static void run(std::int64_t rows, T* __restrict scores, T* __restrict largest, T* __restrict sum,
                  T* __restrict old) {
    constexpr T lowest = -std::numeric_limits<T>::infinity();
    alignas(64) T added[panel], subtracted[panel], found[panel];
    for (int w = 0; w < panel; ++w) added[w] = 0, found[w] = largest[w];
    std::int64_t j = 0;
    // Four rows at a time, because a maximum that waits for the row before it is slower than reading.
    for (; j + 4 <= rows; j += 4) {
      const T* const z = scores + j * panel;
      for (int w = 0; w < panel; ++w) {
        const T a = z[w] > z[w + panel] ? z[w] : z[w + panel];
        const T b = z[w + 2 * panel] > z[w + 3 * panel] ? z[w + 2 * panel] : z[w + 3 * panel];
        const T c = a > b ? a : b;
        found[w] = c > found[w] ? c : found[w];
      }
    }
    for (; j < rows; ++j) {
      const T* const z = scores + j * panel;
      for (int w = 0; w < panel; ++w) found[w] = z[w] > found[w] ? z[w] : found[w];
    }
    for (int w = 0; w < panel; ++w) {
      subtracted[w] = found[w] == lowest ? T(0) : found[w];
      old[w] = exp_below<is_fused>(largest[w] - subtracted[w]);
      largest[w] = found[w];
    }
    for (j = 0; j < rows; ++j) {
      T* const __restrict z = scores + j * panel;
      for (int w = 0; w < panel; ++w) {
        const T e = exp_below<is_fused>(z[w] - subtracted[w]);
        z[w] = e;
        added[w] += e;
      }
    }
    for (int w = 0; w < panel; ++w) sum[w] = sum[w] * old[w] + added[w];
  }
};

/// scores (rows, panel) = scale x scores where kept, else 0.
template <class T, int panel, bool is_fused>
struct DropScores {
  static void run(std::int64_t rows, T scale, const KeptBits* __restrict kept, T* __restrict scores) {
    for (std::int64_t j = 0; j < rows; ++j) {
      T* const __restrict z = scores + j * panel;
      const KeptBits* const bits = kept + j / 32 * panel;
      const int bit = static_cast<int>(j % 32);
      for (int w = 0; w < panel; ++w) z[w] = keep_if(z[w] * scale, bits[w], bit);
    }
  }
};

/// With P the probabilities and dP the gradients of the dropped ones, scores become the dropped P, and gradients become
/// the gradients of the scores, P (dP factor - delta).
template <class T, int panel, bool is_fused>
struct ScoreGradients {
  static void run(std::int64_t rows, const T* __restrict lse, const T* __restrict delta, T* __restrict scores,
                  T* __restrict gradients) {
    for (std::int64_t j = 0; j < rows; ++j) {
      T* const __restrict z = scores + j * panel;
      T* const __restrict g = gradients + j * panel;
      for (int w = 0; w < panel; ++w) {
        const T p = exp_below<is_fused>(z[w] - lse[w]);
        z[w] = p;
        g[w] = p * (g[w] - delta[w]);
      }
    }
  }
};
template <class T, int panel, bool is_fused>
struct DroppedScoreGradients {
  static void run(std::int64_t rows, T scale, const KeptBits* __restrict kept, const T* __restrict lse,
                  const T* __restrict delta, T* __restrict scores, T* __restrict gradients) {
    for (std::int64_t j = 0; j < rows; ++j) {
      T* const __restrict z = scores + j * panel;
      T* const __restrict g = gradients + j * panel;
      const KeptBits* const bits = kept + j / 32 * panel;
      const int bit = static_cast<int>(j % 32);
      for (int w = 0; w < panel; ++w) {
        const T p = exp_below<is_fused>(z[w] - lse[w]);
        z[w] = keep_if(p * scale, bits[w], bit);
        g[w] = p * (keep_if(g[w] * scale, bits[w], bit) - delta[w]);
      }
    }
  }
};

/// Multiplies every row of x (rows, panel) by the row of factors.
template <class T, int panel, bool is_fused>
struct ScaleColumns {
  static void run(std::int64_t rows, const T* __restrict factors, T* __restrict x) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (int w = 0; w < panel; ++w) x[r * panel + w] *= factors[w];
    }
  }
};

/// Divisors and logarithms of a finished panel: lse = largest + log(sum), inverse = 1 / sum; both are `of_none` where a
/// query has seen only -infinity.
template <class T, int panel, bool is_fused>
struct FinishSums {
  static void run(T of_none, const T* __restrict largest, const T* __restrict sum, T* __restrict inverse,
                  T* __restrict lse) {
    for (int w = 0; w < panel; ++w) {
      const T inverse_sum = T(1) / sum[w], log_sum = largest[w] + math::log(sum[w]);
      inverse[w] = sum[w] == 0 ? of_none : inverse_sum;
      lse[w] = sum[w] == 0 ? of_none : log_sum;
    }
  }
};

// ---- Moving matrices between memory and attention's tiles: steps for run_panel (attention_cpu.h).

/// Vectors of `count` elements, at any address.
template <class T, int count>
struct AnyVector {
  typedef T Type __attribute__((vector_size(count * sizeof(T))));
  typedef T InMemory __attribute__((vector_size(count * sizeof(T)), may_alias, aligned(sizeof(T))));
};

/// to[r, c] = from[r, c] for (rows, columns), and zeros up to `padded` columns. Rows lie from_row and to_row apart.
template <class T, int panel, bool is_fused>
struct CopyRows {
  static void run(std::int64_t rows, std::int64_t columns, std::int64_t padded, const T* from, std::int64_t from_row,
                  T* to, std::int64_t to_row) {
    constexpr int lanes = panel / 2;
    using InMemory = typename AnyVector<T, lanes>::InMemory;
    for (std::int64_t r = 0; r < rows; ++r, from += from_row, to += to_row) {
      std::int64_t c = 0;
      for (; c + lanes <= columns; c += lanes) {
        *reinterpret_cast<InMemory*>(to + c) = *reinterpret_cast<const InMemory*>(from + c);
      }
      for (; c < columns; ++c) to[c] = from[c];
      for (; c < padded; ++c) to[c] = 0;
    }
  }
};

/// Interleaves a's and b's elements, of their first or of their second halves.
template <bool is_second, class Vector, int... k>
THIMBLE_ALWAYS_INLINE void interleave(const Vector& a, const Vector& b, Vector& out, std::integer_sequence<int, k...>) {
  constexpr int count = sizeof...(k), first = is_second ? count / 2 : 0;
  out = __builtin_shufflevector(a, b, (first + k / 2 + (k % 2) * count)...);
}

/// to[c, r] = factor from[r, c] for (rows, columns). Rows of `from` lie from_row apart, of `to` to_row.
template <class T, int panel, bool is_fused>
struct Transpose {
  static void run(std::int64_t rows, std::int64_t columns, T factor, const T* from, std::int64_t from_row, T* to,
                  std::int64_t to_row) {
    constexpr int lanes = panel / 2;
    std::int64_t r = 0;
    for (; r + lanes <= rows; r += lanes) {
      std::int64_t c = 0;
      for (; c + lanes <= columns; c += lanes)
        square(factor, from + r * from_row + c, from_row, to + c * to_row + r, to_row);
      plain(r, r + lanes, c, columns, factor, from, from_row, to, to_row);
    }
    plain(r, rows, 0, columns, factor, from, from_row, to, to_row);
  }

 private:
  static void plain(std::int64_t r, std::int64_t end, std::int64_t first, std::int64_t columns, T factor, const T* from,
                    std::int64_t from_row, T* to, std::int64_t to_row) {
    for (; r < end; ++r) {
      for (std::int64_t c = first; c < columns; ++c) to[c * to_row + r] = from[r * from_row + c] * factor;
    }
  }

  // A perfect shuffle of all elements per step: each moves one bit of an element's row number into its lane number.
  static THIMBLE_ALWAYS_INLINE void square(T factor, const T* from, std::int64_t from_row, T* to, std::int64_t to_row) {
    constexpr int lanes = panel / 2;
    using Vector = typename AnyVector<T, lanes>::Type;
    using InMemory = typename AnyVector<T, lanes>::InMemory;
    constexpr std::make_integer_sequence<int, lanes> numbers;
    Vector x[lanes], y[lanes];
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) x[i] = *reinterpret_cast<const InMemory*>(from + i * from_row) * factor;
#pragma GCC unroll 4
    for (int step = 1; step < lanes; step *= 2) {
#pragma GCC unroll 8
      for (int i = 0; i < lanes / 2; ++i) {
        interleave<false>(x[i], x[i + lanes / 2], y[2 * i], numbers);
        interleave<true>(x[i], x[i + lanes / 2], y[2 * i + 1], numbers);
      }
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i) x[i] = y[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) *reinterpret_cast<InMemory*>(to + i * to_row) = x[i];
  }
};

/// Keys of a block. Blocks are counted from key 0 and are part of every result: changing the number changes bits.
inline constexpr std::int64_t key_block = 64;

/// Divides a workspace into regions, each aligned to 64 bytes; without a workspace it counts their bytes.
class Carver {
 public:
  explicit Carver(void* base) noexcept : base_(static_cast<std::byte*>(base)) {}
  template <class T>
  T* take(std::int64_t elements) noexcept {
    T* const piece = base_ ? reinterpret_cast<T*>(base_ + bytes_) : nullptr;
    bytes_ += (static_cast<std::size_t>(elements) * sizeof(T) + 63) / 64 * 64;
    return piece;
  }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* base_;
  std::size_t bytes_ = 0;
};

/// Panels of queries of one head.
template <class T>
std::int64_t panels_of(const AttentionProblem& p) {
  const std::int64_t panel = panel_queries<T>(isa());
  return (p.queries + panel - 1) / panel;
}

/// Panels of a head that run side by side, up to 128 queries: a block of keys and values is copied or converted once
/// for all of them. Rows in place lie a multiple of 1 KiB apart in most models and share only a few sets of the caches;
/// copying pays from 512 keys on, when a head's rows no longer stay in the second-level cache.
inline constexpr std::int64_t max_grouped = 8;
template <class T>
std::int64_t full_group(const AttentionProblem& p) {
  if (p.dtype == dtype_of<T> && !p.kept && p.keys < 512) return 1;
  return std::min({max_grouped, 128 / panel_queries<T>(isa()), panels_of<T>(p)});
}

/// A block of rows in the compute type.
template <class T>
struct Rows {
  const T* data;
  std::int64_t stride;
  Rows from(std::int64_t row) const { return {data + row * stride, stride}; }
};

/// Rows [first, first + count) of one head: dense in `buffer`, or, if it is null, in place, which takes rows of type T.
template <class T>
Rows<T> read_rows(const AttentionProblem& p, const AttentionOperand& x, std::int64_t b, std::int64_t h,
                  std::int64_t first, std::int64_t count, T* buffer) {
  const std::int64_t at = b * x.batch + first * x.row + h * x.head;
  if (p.dtype != dtype_of<T>) {
    load_rows(x.data, p.dtype, at, x.row, count, p.width, buffer, p.width);
    return {buffer, p.width};
  }
  const T* const rows = static_cast<const T*>(x.data) + at;
  if (!buffer) return {rows, x.row};
  run_panel<CopyRows, T>(count, p.width, p.width, rows, x.row, buffer, p.width);
  return {buffer, p.width};
}

/// Writes the rows of a panel, factor x the transpose of `tile` (D, panel). Conversions use `buffer` (queries, D).
template <class T>
void store_transposed(const AttentionProblem& p, const AttentionResult& x, std::int64_t b, std::int64_t h,
                      std::int64_t first, std::int64_t queries, T factor, const T* tile, T* buffer) {
  const std::int64_t panel = panel_queries<T>(isa()), at = b * x.batch + first * x.row + h * x.head;
  if (p.dtype == dtype_of<T>) {
    run_panel<Transpose, T>(p.width, queries, factor, tile, panel, static_cast<T*>(x.data) + at, x.row);
    return;
  }
  run_panel<Transpose, T>(p.width, queries, factor, tile, panel, buffer, p.width);
  store_rows(buffer, p.width, x.data, p.dtype, at, x.row, queries, p.width);
}

/// tile (D, panel) = factor x the transpose of rows (queries, D); zeros in the columns of missing queries.
template <class T>
void pack_transposed(const Rows<T>& rows, std::int64_t queries, std::int64_t width, T factor, T* tile) {
  const std::int64_t panel = panel_queries<T>(isa());
  if (queries < panel) std::fill_n(tile, width * panel, T(0));
  run_panel<Transpose, T>(queries, width, factor, rows.data, rows.stride, tile, panel);
}

struct PanelKeys {
  static constexpr std::int64_t most_queries = 32;
  KeyRange seen[most_queries];  // of the queries that exist
  std::int64_t queries;
  std::int64_t first, last;               // no query sees a key outside
  std::int64_t begin_of_all, end_of_all;  // all queries see the keys in between
};

inline PanelKeys panel_keys(const AttentionProblem& p, std::int64_t b, std::int64_t first_query, std::int64_t queries) {
  PanelKeys keys;
  keys.queries = queries;
  keys.begin_of_all = 0, keys.end_of_all = p.keys;
  for (std::int64_t w = 0; w < queries; ++w) {
    const KeyRange& seen = keys.seen[w] = seen_range(p, b, first_query + w);
    keys.begin_of_all = std::max(keys.begin_of_all, seen.begin);
    keys.end_of_all = std::min(keys.end_of_all, seen.end);
  }
  keys.first = keys.seen[0].begin;
  keys.last = keys.seen[queries - 1].end;
  return keys;
}

/// Whether a mask that all queries share hides the whole block.
inline bool is_hidden(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t first_key,
                      std::int64_t rows) {
  if (!p.has_mask || p.mask.dtype != DType::boolean || p.mask.query != 0) return false;
  const auto* const sees = static_cast<const std::uint8_t*>(p.mask.data) + b * p.mask.batch + h * p.mask.head;
  for (std::int64_t j = 0; j < rows; ++j) {
    if (sees[(first_key + j) * p.mask.key] != 0) return false;
  }
  return true;
}

/// Applies the given mask to the scores of a block.
template <class T>
void apply_mask(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t first_query,
                std::int64_t queries, std::int64_t first_key, std::int64_t rows, T* scores) {
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  const std::int64_t panel = panel_queries<T>(isa());
  const bool is_same = p.mask.query == 0;  // one row for all queries
  for (std::int64_t w = 0; w < (is_same ? 1 : queries); ++w) {
    const std::int64_t at =
        b * p.mask.batch + h * p.mask.head + (first_query + w) * p.mask.query + first_key * p.mask.key;
    alignas(64) T added[key_block];
    if (p.mask.dtype == DType::boolean) {
      const auto* const sees = static_cast<const std::uint8_t*>(p.mask.data) + at;
      for (std::int64_t j = 0; j < rows; ++j) added[j] = sees[j * p.mask.key] != 0 ? T(0) : lowest;
    } else {
      load_elements(p.mask.data, p.mask.dtype, at, p.mask.key, added, rows);
    }
    for (std::int64_t j = 0; j < rows; ++j) {
      T* const z = scores + j * panel + w;
      if (is_same) {
        for (std::int64_t i = 0; i < panel; ++i) z[i] += added[j];
      } else {
        *z += added[j];
      }
    }
  }
}

/// Sets the scores of keys that a query does not see to -infinity.
template <class T>
void hide_unseen(const AttentionProblem& p, const PanelKeys& keys, std::int64_t b, std::int64_t h,
                 std::int64_t first_query, std::int64_t first_key, std::int64_t rows, T* scores) {
  if (p.has_mask) apply_mask(p, b, h, first_query, keys.queries, first_key, rows, scores);
  if (first_key >= keys.begin_of_all && first_key + rows <= keys.end_of_all) return;
  alignas(64) T low[PanelKeys::most_queries] = {}, high[PanelKeys::most_queries];
  std::fill_n(high, PanelKeys::most_queries, static_cast<T>(rows));
  for (std::int64_t w = 0; w < keys.queries; ++w) {
    low[w] = static_cast<T>(std::clamp<std::int64_t>(keys.seen[w].begin - first_key, 0, rows));
    high[w] = static_cast<T>(std::clamp<std::int64_t>(keys.seen[w].end - first_key, 0, rows));
  }
  run_panel<HideUnseen, T>(rows, low, high, scores);
}

/// Dropout's decisions on a block of probabilities: (key_block / 32, panel) words.
template <class T>
void draw_kept(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t first_query,
               std::int64_t queries, std::int64_t first_key, std::int64_t rows, KeptBits* kept) {
  static_assert(key_block == 64);
  const std::int64_t panel = panel_queries<T>(isa());
  alignas(64) std::uint32_t words[key_block + 8] = {};
  for (std::int64_t w = 0; w < queries; ++w) {
    const std::int64_t element = (h * p.queries + first_query + w) * p.keys + first_key;
    const std::int64_t skipped = element % 4;
    sample_words(p.site, static_cast<std::uint32_t>(element / 4), static_cast<std::uint32_t>(p.site.first_sample + b),
                 (skipped + rows + 3) / 4, words);
    run_variant<PackKept>(p.threshold, words + skipped, panel, kept + w);
  }
}

/// Element b, h, t of a dense (B, H, T) array.
inline std::int64_t row_index(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t t) {
  return (b * p.heads + h) * p.queries + t;
}

/// Threads that `jobs` are worth: one for less than about 10 us of work.
inline int useful_threads(const AttentionProblem& p, std::int64_t jobs, int threads) {
  constexpr std::int64_t smallest_work = 1 << 18;  // multiply-adds of q k^T
  const std::int64_t work = jobs == 0 ? 0 : p.batch * p.heads * p.queries * p.keys * p.width / smallest_work;
  return static_cast<int>(std::clamp<std::int64_t>(std::min(jobs, work), 1, threads));
}

/// Hands jobs 0 .. count - 1 to threads on demand; a job's result does not depend on its thread.
class Jobs {
 public:
  explicit Jobs(std::int64_t count) noexcept : count_(count) {}
  /// The next job, or -1.
  std::int64_t take() noexcept {
    const std::int64_t job = next_.fetch_add(1, std::memory_order_relaxed);
    return job < count_ ? job : -1;
  }

 private:
  std::atomic<std::int64_t> next_{0};
  std::int64_t count_;
};

std::size_t backward_bytes(const AttentionProblem& p, int threads) noexcept;
void backward(const AttentionGradArgs& args, void* workspace, int threads) noexcept;

}  // namespace thimble::kernels::attention_detail
