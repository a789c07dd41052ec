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

#include <thimble/core/kernels/attention.h>
#include <thimble/core/kernels/cpu/attention/attention_move.h>
#include <thimble/core/kernels/cpu/attention/attention_product.h>
#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/shared/attention_range.h>
#include <thimble/core/kernels/shared/attention_score.h>
#include <thimble/core/kernels/shared/random_bits.h>

namespace thimble::kernels::attention_detail {

/// Keys of a block. Blocks are counted from key 0, and define every result: changing the number changes bits.
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

/// A block of rows in the compute type.
template <class T>
struct Rows {
  const T* data;
  std::int64_t stride;
};

/// Rows [first, first + count) of one head: in place when they are of type T, else converted into `buffer`, side by
/// side.
template <class T>
Rows<T> read_rows(const AttentionProblem& p, const AttentionOperand& x, std::int64_t b, std::int64_t h,
                  std::int64_t first, std::int64_t count, T* buffer) {
  const std::int64_t at = b * x.batch + first * x.row + h * x.head;
  if (p.dtype == dtype_of<T>) return {static_cast<const T*>(x.data) + at, x.row};
  load_rows(x.data, p.dtype, at, x.row, count, p.width, buffer, p.width);
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
  KeyRange seen[most_queries];  // of the existing queries
  std::int64_t queries;
  std::int64_t first_block, last;         // some query sees keys of blocks from first_block to last
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
  keys.first_block = keys.seen[0].begin / key_block * key_block;
  keys.last = keys.seen[queries - 1].end;
  return keys;
}

/// Whether a mask that is equal for all queries hides the whole block.
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
  const bool is_same = p.mask.query == 0;  // for all queries
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

/// How many threads `jobs` deserve: one for less than about 10 us of work.
inline int useful_threads(const AttentionProblem& p, std::int64_t jobs, int threads) {
  constexpr std::int64_t smallest_work = 1 << 18;  // products of a score
  const std::int64_t work = jobs == 0 ? 0 : p.batch * p.heads * p.queries * p.keys * p.width / smallest_work;
  return static_cast<int>(std::clamp<std::int64_t>(std::min(jobs, work), 1, threads));
}

/// Hands jobs 0 .. count - 1 to threads on demand: a job's result does not depend on the thread.
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
