#pragma once
// The range of keys that a query of attention sees, given causality, a window and documents. Both ends ascend with the
// query, so a tile of queries sees the keys from its first query's begin to its last query's end.

#include <cstdint>

namespace thimble::kernels {

struct KeyRange {
  std::int64_t begin, end;
};

/// Index of the first of n ascending numbers that is at least `least`, or n.
constexpr std::int64_t first_from(const std::int32_t* numbers, std::int64_t n, std::int64_t least) {
  std::int64_t begin = 0;
  while (begin < n) {
    const std::int64_t middle = begin + (n - begin) / 2;
    if (numbers[middle] < least) {
      begin = middle + 1;
    } else {
      n = middle;
    }
  }
  return begin;
}

/// The range of query t of sample b. Problem: AttentionProblem, or a type with its fields.
template <class Problem>
constexpr KeyRange seen_range(const Problem& p, std::int64_t b, std::int64_t t) {
  const std::int64_t at = t + p.keys - p.queries;  // the query's own key
  KeyRange seen{p.first_key, p.is_causal && at + 1 < p.keys ? at + 1 : p.keys};
  if (p.window > 0) {
    if (seen.begin < at - p.window + 1) seen.begin = at - p.window + 1;
    if (seen.end > at + p.window) seen.end = at + p.window;
  }
  if (p.documents) {
    const std::int32_t* const numbers = p.documents + b * p.documents_batch;
    const std::int64_t begin = first_from(numbers, p.keys, numbers[at]);
    const std::int64_t end = first_from(numbers, p.keys, std::int64_t{numbers[at]} + 1);
    if (seen.begin < begin) seen.begin = begin;
    if (seen.end > end) seen.end = end;
  }
  return seen;
}

/// The queries [begin, end) of sample b that see at least one of the keys [first, last); may be empty.
template <class Problem>
constexpr KeyRange seeing_range(const Problem& p, std::int64_t b, std::int64_t first, std::int64_t last) {
  // From the first query whose range ends behind `first` to the last whose range begins before `last`.
  const auto find = [&](auto&& is_behind) {
    std::int64_t begin = 0, end = p.queries;
    while (begin < end) {
      const std::int64_t middle = begin + (end - begin) / 2;
      if (is_behind(seen_range(p, b, middle))) {
        end = middle;
      } else {
        begin = middle + 1;
      }
    }
    return begin;
  };
  const std::int64_t begin = find([&](const KeyRange& seen) { return seen.end > first; });
  const std::int64_t end = find([&](const KeyRange& seen) { return seen.begin >= last; });
  return {begin, end > begin ? end : begin};
}

}  // namespace thimble::kernels
