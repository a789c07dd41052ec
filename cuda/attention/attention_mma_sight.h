#pragma once
// Which keys the queries of attention on tensor cores see, and the other way round. What a kernel knows of it, its
// Sight, is a type that it is compiled for:
//
//   BySizes      lengths, causality and a window: ranges are made of sizes wherever they are asked for
//   ByDocuments  and documents: a team searches the ranges of its own rows once and keeps them behind the rows
//
// Policy
// - Both ends of a range never descend from a row to the next (attention_range.h). So the first and the last row of a
//   tile say whether all pairs of two tiles are seen, and whether none is.
// - A kept range is in words 1 and 2 of the chunk behind its row; word 0 may be another's.

#include <bit>
#include <cstdint>

#include <thimble/core/kernels/shared/attention_range.h>
#include <thimble/cuda/attention/attention.h>
#include <thimble/cuda/kernel/tensor_core.h>

namespace thimble::cuda_kernels::attention_mma_detail {

using attention_cuda_detail::Problem;
using kernels::KeyRange;

struct BySizes {
  static constexpr bool keeps_ranges = false;
};
struct ByDocuments {
  static constexpr bool keeps_ranges = true;
};

/// Of the places [begin, end) of a sample's documents those that have the number of place `own`.
THIMBLE_DEVICE inline KeyRange of_document(const std::int32_t* numbers, std::int64_t own, KeyRange all) {
  // They never descend, so that nothing is to be searched behind `own` where `all` ends there, as with causality.
  const std::int64_t begin = all.begin, after = begin > own + 1 ? begin : own + 1;
  return {begin + kernels::first_from(numbers + begin, own - begin, numbers[own]),
          after + kernels::first_from(numbers + after, all.end - after, std::int64_t{numbers[own]} + 1)};
}

/// A query's keys. In 32 bits, for registers are few; so many keys nobody has.
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
  /// With documents; of a query behind the last one, what that one sees.
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
  /// With documents; of a key behind the last one, those that see that one.
  THIMBLE_DEVICE static KeyRange range(const Problem& p, std::int64_t b, std::int64_t s) {
    if (s >= p.keys) s = p.keys - 1;
    const KeyRange all{begin(p, s), end(p, s)};
    if (!p.documents) return all;
    const std::int64_t more = p.keys - p.queries;  // query t has the number of key t + more
    const KeyRange own = of_document(p.documents + b * p.documents_batch, s, {all.begin + more, all.end + more});
    return {own.begin - more, own.end - more};
  }
};

/// The ranges of a team's own rows, each [begin, end) on the other side; Of: KeysOfQuery or QueriesOfKey.
template <class Sight, class Of, class T, int W>
struct Ranges {
  SharedTile<T, W> rows;

  /// Before they are asked for, by all threads: those of the first `count` rows, the first of which is place `first`.
  template <class Team>
  THIMBLE_DEVICE void search(Team& team, const Problem& p, std::int64_t b, std::int64_t first, int count) const {
    if constexpr (Sight::keeps_ranges) {
      if (team.rank() < count) {
        const KeyRange range = Of::range(p, b, first + team.rank());
        const std::uint32_t words[4] = {0, static_cast<std::uint32_t>(range.begin),
                                        static_cast<std::uint32_t>(range.end), 0};
        store_shared(rows.at(team.rank(), W), words);
      }
      team.sync();  // whoever needs a range reads it
    }
  }

  /// Of row `row`, which is place `place` of its side.
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

  /// How many of `most` places from `other` on are before the row's range, and how many are before its end.
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

}  // namespace thimble::cuda_kernels::attention_mma_detail
