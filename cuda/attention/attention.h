#pragma once
// Shared by the kernels of attention on CUDA devices: rows of operands, the mask, dropout, and the size of tiles.

#include <cmath>
#include <cstdint>

#include <thimble/core/kernels/attention.h>
#include <thimble/core/kernels/shared/attention_range.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/core/numbers/math.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/step_argument.h>

namespace thimble::cuda_kernels {

void attention_backward(const kernels::AttentionGradArgs& args, void* workspace, int threads);

namespace attention_cuda_detail {

using kernels::AttentionOperand;
using kernels::AttentionProblem;
using kernels::AttentionResult;
using kernels::KeyRange;

/// Sizes and the operations on scores.
struct Problem {
  DType dtype;
  std::int64_t heads, group, queries, keys, width;
  std::int64_t window, first_key;
  const std::int32_t* documents;
  std::int64_t documents_batch;
  bool is_causal, has_dropout, has_mask;
  kernels::AttentionMask mask;
  std::uint32_t threshold;
  double keep_scale, scale;
  StepArgument<RandomSite> site_argument;
  explicit Problem(const AttentionProblem& p)
      : dtype(p.dtype),
        heads(p.heads),
        group(p.group),
        queries(p.queries),
        keys(p.keys),
        width(p.width),
        window(p.window),
        first_key(p.first_key),
        documents(p.documents),
        documents_batch(p.documents_batch),
        is_causal(p.is_causal),
        has_dropout(p.has_dropout),
        has_mask(p.has_mask),
        mask(p.mask),
        threshold(p.threshold),
        keep_scale(p.keep_scale),
        scale(p.scale),
        site_argument(p.has_dropout ? step_argument(p.site) : StepArgument<RandomSite>{p.site, nullptr}) {}

  /// From one row of a tile in shared memory to the next: a column of neighbouring rows lies in different banks.
  THIMBLE_HD std::int64_t stride() const { return width + 1; }
  /// The keys that query t sees before the mask; beyond the last query, the last one's.
  THIMBLE_DEVICE KeyRange seen(std::int64_t b, std::int64_t t) const {
    return kernels::seen_range(*this, b, t < queries ? t : queries - 1);
  }
  /// The mask's addend to a score.
  template <class T>
  THIMBLE_DEVICE T masked(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s) const {
    if (!has_mask) return T(0);
    const std::int64_t at = b * mask.batch + h * mask.head + t * mask.query + s * mask.key;
    if (mask.dtype != DType::boolean) return load<T>(mask.data, mask.dtype, at);
    return static_cast<const std::uint8_t*>(mask.data)[at] != 0 ? T(0) : -static_cast<T>(INFINITY);
  }
  /// Dropout's factor of the probability of (h, t, s) in sample b.
  template <class T>
  THIMBLE_DEVICE T kept(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s) const {
    if (!has_dropout) return T(1);
    const std::int64_t i = (h * queries + t) * keys + s;
    const RandomSite& site = site_argument.get();
    const PhiloxBlock block = kernels::random_block(site, static_cast<std::uint32_t>(i / 4),
                                                    static_cast<std::uint32_t>(site.first_sample + b));
    return block.word[i % 4] < threshold ? T(0) : static_cast<T>(keep_scale);
  }
};

/// Rows [begin, end) of one head of an operand into a tile, (tile, width) with the problem's stride; 0 behind `end`.
template <class T, class Team>
THIMBLE_DEVICE inline void load_rows(Team& team, const Problem& p, const AttentionOperand& x, std::int64_t b,
                                     std::int64_t h, std::int64_t begin, std::int64_t end, int tile, Shared<T> to) {
  const std::int64_t elements = tile * p.width;
  for (std::int64_t e = team.rank(); e < elements; e += Team::size) {
    const std::int64_t i = e / p.width, d = e % p.width, row = begin + i;
    to[i * p.stride() + d] = row < end ? load<T>(x.data, p.dtype, b * x.batch + row * x.row + h * x.head + d) : T(0);
  }
}

template <class T>
THIMBLE_DEVICE inline T dot_rows(Shared<T> a, Shared<T> b, std::int64_t width) {
  T sum = 0;
  for (std::int64_t d = 0; d < width; ++d) sum += a[d] * b[d];
  return sum;
}

/// Element e of q's gradient from the workspace, (B, H, T, D) of `dtype`, to its place, by way of T.
template <class T>
struct PlaceQueryGradient {
  Problem p;
  const void* from;
  DType dtype;
  AttentionResult dq;
  THIMBLE_DEVICE void operator()(std::int64_t e) const {
    const std::int64_t d = e % p.width, t = e / p.width % p.queries, h = e / p.width / p.queries % p.heads;
    const std::int64_t b = e / p.width / p.queries / p.heads;
    store<T>(dq.data, p.dtype, b * dq.batch + t * dq.row + h * dq.head + d, load<T>(from, dtype, e));
  }
};

/// Rows of a tile such that `rows` arrays of them fit into every kernel's shared memory.
inline int tile_rows(std::int64_t width, std::size_t element_bytes, int arrays) {
  int rows = 16;
  while (rows > 1 && static_cast<std::size_t>(rows) * static_cast<std::size_t>(arrays * (width + 1) + 4 * rows + 8) *
                             element_bytes >
                         (std::size_t{48} << 10)) {
    rows /= 2;
  }
  return rows;
}

}  // namespace attention_cuda_detail
}  // namespace thimble::cuda_kernels
