#pragma once
// What the CPU's attention passes share.
//
// Scores are held transposed, (keys, queries): a block of up to 64 keys by a panel of as many queries as the matmul's
// microkernel has columns (gemm_microkernel.h). Every tile is then what a microkernel wants as it stands: k and v are
// read where they lie, a block of scores is the packed right operand of the next product, and the softmax runs along
// rows, with the queries side by side in vector lanes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <thimble/core/kernels/attention.h>
#include <thimble/core/kernels/compute.h>
#include <thimble/core/kernels/gemm_microkernel.h>
#include <thimble/core/kernels/random_bits.h>
#include <thimble/core/kernels/variants.h>
#include <thimble/core/math.h>

namespace thimble::kernels::attention_detail {

using gemm_detail::Microkernels;

/// Keys of a block. Blocks are counted from key 0, and are part of the definition of every result: changing the number
/// changes bits.
inline constexpr std::int64_t key_block = 64;

/// Hands out pieces of a workspace, each aligned to 64 bytes; without a workspace it counts their bytes.
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

/// A block of rows of k or v in the type of the arithmetic.
template <class T>
struct Rows {
  const T* data;
  std::int64_t stride;
};

/// Rows [first, first + count) of one head: where they lie when they are of type T already, else converted into
/// `buffer`.
template <class T>
Rows<T> read_rows(const AttentionProblem& p, const AttentionOperand& x, std::int64_t b, std::int64_t h,
                  std::int64_t first, std::int64_t count, T* buffer) {
  const std::int64_t at = b * x.batch + first * x.row + h * x.head;
  if (p.dtype == dtype_of<T>) return {static_cast<const T*>(x.data) + at, x.row};
  for (std::int64_t i = 0; i < count; ++i)
    load_elements(x.data, p.dtype, at + i * x.row, 1, buffer + i * p.width, p.width);
  return {buffer, p.width};
}

/// out (rows, columns) = [total +] a b; b, total and out are panels: rows of kernels.columns() elements.
template <class T>
void multiply(const Microkernels<T>& kernels, std::int64_t rows, std::int64_t columns, const T* a,
              std::int64_t row_stride, std::int64_t depth_stride, const T* b, std::int64_t depth, const T* total,
              T* out) {
  const std::int64_t panel = kernels.columns();
  for (std::int64_t r = 0; r < rows; r += kernels.rows) {
    const int count = static_cast<int>(std::min<std::int64_t>(kernels.rows, rows - r));
    const T* starts[gemm_detail::max_tile_rows] = {};
    for (int i = 0; i < count; ++i) starts[i] = a + (r + i) * row_stride;
    kernels.select(count, static_cast<int>(columns))(
        {starts, &depth, 1, depth_stride, b, total ? total + r * panel : nullptr, out + r * panel, panel});
  }
}

/// How many keys the queries before `end` see between them.
inline std::int64_t visible_keys(const AttentionProblem& p, std::int64_t end) {
  return p.is_causal ? end + p.keys - p.queries : p.keys;
}

/// Sets the scores of keys that a query must not see to -infinity.
template <class T>
void hide_future(const AttentionProblem& p, std::int64_t first_query, std::int64_t first_key, std::int64_t rows,
                 std::int64_t panel, T* scores) {
  if (!p.is_causal) return;
  for (std::int64_t j = 0; j < rows; ++j) {
    const std::int64_t first_seeing = first_key + j - (p.keys - p.queries) - first_query;
    std::fill_n(scores + j * panel, std::clamp<std::int64_t>(first_seeing, 0, panel),
                -std::numeric_limits<T>::infinity());
  }
}

/// What a block of probabilities is multiplied by: 0 where dropped. factors is (key_block, panel); the columns of
/// queries that are not there are 0.
template <class T>
void dropout_factors(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t first_query,
                     std::int64_t queries, std::int64_t first_key, std::int64_t rows, std::int64_t panel, T* factors) {
  alignas(64) std::uint32_t words[key_block + 8];
  const T scale = static_cast<T>(p.keep_scale);
  for (std::int64_t w = 0; w < queries; ++w) {
    const std::int64_t element = (h * p.queries + first_query + w) * p.keys + first_key;
    const std::int64_t skipped = element % 4;
    sample_words(p.site, static_cast<std::uint32_t>(element / 4), static_cast<std::uint32_t>(p.site.first_sample + b),
                 (skipped + rows + 3) / 4, words);
    for (std::int64_t j = 0; j < rows; ++j) factors[j * panel + w] = words[skipped + j] < p.threshold ? T(0) : scale;
  }
  for (std::int64_t j = 0; j < rows; ++j) std::fill(factors + j * panel + queries, factors + (j + 1) * panel, T(0));
}

/// Column w of a (width, panel) matrix = factor x row.
template <class T>
void pack_column(const T* row, std::int64_t width, T factor, std::int64_t w, std::int64_t panel, T* packed) {
  for (std::int64_t d = 0; d < width; ++d) packed[d * panel + w] = row[d] * factor;
}

/// Element b, h, t of a dense (B, H, T) array.
inline std::int64_t row_index(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t t) {
  return (b * p.heads + h) * p.queries + t;
}

/// How many threads `jobs` are worth: none for less than about 10 us of work.
inline int useful_threads(const AttentionProblem& p, std::int64_t jobs, int threads) {
  constexpr std::int64_t smallest_work = 1 << 18;  // products of a score
  const std::int64_t work = jobs == 0 ? 0 : p.batch * p.heads * p.queries * p.keys * p.width / smallest_work;
  return static_cast<int>(std::clamp<std::int64_t>(std::min(jobs, work), 1, threads));
}

std::size_t backward_bytes(const AttentionProblem& p, int threads) noexcept;
void backward(const AttentionGradArgs& args, void* workspace, int threads) noexcept;

}  // namespace thimble::kernels::attention_detail
