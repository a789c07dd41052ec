#pragma once
// The keys that the queries of attention on tensor cores see, and the reverse. A kernel is compiled for its kind of
// visibility, a type called its Sight:
//
//   BySizes      lengths, causality and a window: ranges follow from sizes wherever they are used
//   ByDocuments  and documents: a team searches the ranges of its rows once and keeps them behind the rows
//   ByMask       and a given mask: added to the scores of the tiles within the ranges
//
// Policy
// - Both ends of a range ascend from row to row (attention_range.h). So the first and the last row of a tile determine
//   whether all pairs of two tiles are visible, and whether none is.
// - A kept range is in words 1 and 2 of the chunk behind its row; word 0 may have another use.
// - Each lane reads a mask's elements in place, for its scores. A mask of zeros leaves every bit.

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <thimble/core/kernels/shared/attention_range.h>
#include <thimble/cuda/attention/attention.h>
#include <thimble/cuda/kernel/tensor_core.h>

namespace thimble::cuda_kernels::attention_mma_detail {

using attention_cuda_detail::Problem;
using kernels::KeyRange;

struct BySizes {
  static constexpr bool keeps_ranges = false, has_mask = false;
};
struct ByDocuments {
  static constexpr bool keeps_ranges = true, has_mask = false;
};
struct ByMask {
  static constexpr bool keeps_ranges = true, has_mask = true;
};

/// Positions in the same document as `own`, of the positions [begin, end) of a sample.
THIMBLE_DEVICE inline KeyRange of_document(const std::int32_t* numbers, std::int64_t own, KeyRange all) {
  // They ascend, so nothing is searched behind `own` where `all` ends there, as with causality.
  const std::int64_t begin = all.begin, after = begin > own + 1 ? begin : own + 1;
  return {begin + kernels::first_from(numbers + begin, own - begin, numbers[own]),
          after + kernels::first_from(numbers + after, all.end - after, std::int64_t{numbers[own]} + 1)};
}

/// A query's keys. 32 bits save registers; no sequence is longer.
struct KeysOfQuery {
  THIMBLE_DEVICE static int begin(const Problem& p, std::int64_t t) {
    const int first = static_cast<int>(p.first_key);
    const int begin = static_cast<int>(t + 1) + static_cast<int>(p.keys - p.queries - p.window);
    return p.window > 0 && begin > first ? begin : first;
  }
  THIMBLE_DEVICE static int end(const Problem& p, std::int64_t t) {
    const int keys = static_cast<int>(p.keys);
    const int end = static_cast<int>(t) + static_cast<int>(p.keys - p.queries + (p.is_causal ? 1 : p.window));
    return (p.is_causal || p.window > 0) && end < keys ? end : keys;
  }
  /// With documents; beyond the last query, the last one's.
  THIMBLE_DEVICE static KeyRange range(const Problem& p, std::int64_t b, std::int64_t t) {
    if (t >= p.queries) t = p.queries - 1;
    const KeyRange all{begin(p, t), end(p, t)};
    return p.documents ? of_document(p.documents + b * p.documents_batch, t + p.keys - p.queries, all) : all;
  }
};

/// The queries that see a key.
struct QueriesOfKey {
  THIMBLE_DEVICE static int begin(const Problem& p, std::int64_t s) {
    const int t = static_cast<int>(s) - static_cast<int>(p.keys - p.queries + (p.is_causal ? 0 : p.window - 1));
    return (p.is_causal || p.window > 0) && t > 0 ? t : 0;
  }
  THIMBLE_DEVICE static int end(const Problem& p, std::int64_t s) {
    const int t = static_cast<int>(s) + static_cast<int>(p.window - (p.keys - p.queries));
    return p.window > 0 && t < static_cast<int>(p.queries) ? t : static_cast<int>(p.queries);
  }
  /// With documents; beyond the last key, the queries that see the last one.
  THIMBLE_DEVICE static KeyRange range(const Problem& p, std::int64_t b, std::int64_t s) {
    if (s >= p.keys) s = p.keys - 1;
    const KeyRange all{begin(p, s), end(p, s)};
    if (!p.documents) return all;
    const std::int64_t more = p.keys - p.queries;  // query t has the number of key t + more
    const KeyRange own = of_document(p.documents + b * p.documents_batch, s, {all.begin + more, all.end + more});
    return {own.begin - more, own.end - more};
  }
};

/// The ranges of a team's rows, each [begin, end) on the other side; Of: KeysOfQuery or QueriesOfKey.
template <class Sight, class Of, class T, int W>
struct Ranges {
  SharedTile<T, W> rows;

  /// Call with all threads before use: computes the ranges of the first `count` rows, the first of which is position
  /// `first`.
  template <class Team>
  THIMBLE_DEVICE void search(Team& team, const Problem& p, std::int64_t b, std::int64_t first, int count) const {
    if constexpr (Sight::keeps_ranges) {
      if (team.rank() < count) {
        const KeyRange range = Of::range(p, b, first + team.rank());
        const std::uint32_t words[4] = {0, static_cast<std::uint32_t>(range.begin),
                                        static_cast<std::uint32_t>(range.end), 0};
        store_shared(rows.at(team.rank(), W), words);
      }
      team.sync();  // any thread may read a range
    }
  }

  /// For row `row`, which is position `place` of its side.
  THIMBLE_DEVICE int begin(const Problem& p, std::int64_t place, int row) const {
    if constexpr (Sight::keeps_ranges) {
      return kept(row, 1);
    } else {
      return Of::begin(p, place);
    }
  }
  THIMBLE_DEVICE int end(const Problem& p, std::int64_t place, int row) const {
    if constexpr (Sight::keeps_ranges) {
      return kept(row, 2);
    } else {
      return Of::end(p, place);
    }
  }

  /// How many of `most` positions from `other` on are before the row's range, and how many are before its end.
  THIMBLE_DEVICE int before(const Problem& p, std::int64_t place, int row, std::int64_t other, int most) const {
    return up_to(most, begin(p, place, row) - static_cast<int>(other));
  }
  THIMBLE_DEVICE int before_end(const Problem& p, std::int64_t place, int row, std::int64_t other, int most) const {
    return up_to(most, end(p, place, row) - static_cast<int>(other));
  }

 private:
  THIMBLE_DEVICE static int up_to(int most, int n) { return n < 0 ? 0 : n < most ? n : most; }
  THIMBLE_DEVICE int kept(int row, int word) const {
    return bit_cast<int>(load_shared(rows.at(row, W) + static_cast<SharedAddress>(4 * word)));
  }
};

/// The factors of scores before the mask is added, and in the powers of two of the sums. Late if possible, as without a
/// mask; a scale that reverses the scores' order, or is so small that a mask in its units might be infinite, comes
/// early.
struct MaskScale {
  static constexpr float least_late = 1e-6f;
  float early, late, of_mask;  ///< of_mask: for a mask multiplied by log2(e)
  explicit MaskScale(float scale)
      : early(scale > least_late ? 1.0f : scale),
        late(scale > least_late ? scale : 1.0f),
        of_mask(scale > least_late ? 1.0f / scale : 1.0f) {}
};

/// In backward, a probability's from its score, with log2(e).
template <class Sight>
THIMBLE_DEVICE inline float exponent_of(float score, float scale, const MaskScale& mask_scale, float log_sum) {
  if constexpr (Sight::has_mask) {
    // Below 1 except for rounding, which for a huge mask is arbitrary.
    const float exponent = std::fma(score, mask_scale.late, -log_sum);
    return exponent > 1 ? 1.0f : exponent;
  } else {
    return std::fma(score, scale, -log_sum);
  }
}

/// The sum of a score and an element of a mask; M: std::uint8_t when it tells whether the key is visible. A finite one
/// is at most 1e30, with log2(e), so that sums are finite.
template <class M>
THIMBLE_DEVICE inline float masked(float score, M element, float of_mask) {
  if constexpr (sizeof(M) == 1) {
    return element != 0 ? score : -INFINITY;
  } else {
    const float value = static_cast<float>(element);
    float scaled = value * 1.4426950408889634f;
    if constexpr (!std::is_same_v<M, f16>) {
      const float bounded = std::fmin(std::fmax(scaled, -1e30f), 1e30f);
      scaled = std::fabs(value) < INFINITY ? bounded : value;
    }
    return std::fma(scaled, of_mask, score);
  }
}

/// f.template operator()<M>(): the type of a mask's elements.
template <class F>
THIMBLE_DEVICE inline void with_mask_type(DType dtype, F&& f) {
  if (dtype == DType::boolean) return f.template operator()<std::uint8_t>();
  if (dtype == DType::bf16) return f.template operator()<bf16>();
  if (dtype == DType::f16) return f.template operator()<f16>();
  if (dtype == DType::f32) return f.template operator()<float>();
  f.template operator()<double>();
}

/// Scores of 16 queries from t0 on and 8 N keys from s0 on become early scores + the mask; with `is_turned` of 16 keys
/// and 8 N queries.
template <bool is_turned, int N>
THIMBLE_DEVICE inline void add_mask(const Warp& warp, const Problem& p, const MaskScale& scale, Sums (&scores)[N],
                                    std::int64_t b, std::int64_t h, std::int64_t t0, std::int64_t s0) {
  const kernels::AttentionMask& mask = p.mask;
  const std::int64_t first = b * mask.batch + h * mask.head + t0 * mask.query + s0 * mask.key;
  const std::int64_t of_row = is_turned ? mask.key : mask.query, of_column = is_turned ? mask.query : mask.key;
  // Reads nothing behind the last query and the last key; scores there are hidden or discarded.
  const int queries = static_cast<int>(p.queries - t0), keys = static_cast<int>(p.keys - s0);
  const int rows = is_turned ? keys : queries, columns = is_turned ? queries : keys;
  if (scale.early != 1) {
    THIMBLE_UNROLL
    for (Sums& sums : scores) {
      for (float& score : sums.value) score *= scale.early;
    }
  }
  with_mask_type(mask.dtype, [&]<class M>() {
    const Place at = lane_map::sums(warp.lane, 0);
    const int upper = at.row < rows ? at.row : rows - 1, lower = at.row + 8 < rows ? at.row + 8 : rows - 1;
    const M* from = static_cast<const M*>(mask.data) + first + upper * of_row + at.column * of_column;
    const std::int64_t to_lower = (lower - upper) * of_row;
    THIMBLE_UNROLL
    for (int n = 0; n < N; ++n) {
      THIMBLE_UNROLL
      for (int e = 0; e < 4; ++e) {
        float& score = scores[n].value[e];
        const bool is_there = 8 * n + at.column + e % 2 < columns;
        const M element = is_there ? from[e % 2 * of_column + e / 2 * to_lower] : M{};
        score = masked(score, element, scale.of_mask);
      }
      from += 8 * of_column;
    }
  });
}

}  // namespace thimble::cuda_kernels::attention_mma_detail
