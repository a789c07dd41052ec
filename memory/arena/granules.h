#pragma once
// The exchange of granules in a remap (Backing::remap), for tables with one entry per granule.

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace thimble::memory {

/// Moves entries [from, from + count) to `to` < `from`; the displaced entries move, in order, to the rest of [from,
/// from + count). `entries` is a random-access iterator.
template <class Iterator>
void move_granules(Iterator entries, std::size_t from, std::size_t to, std::size_t count) {
  using Difference = typename std::iterator_traits<Iterator>::difference_type;
  const auto at = [&](std::size_t index) { return entries + static_cast<Difference>(index); };
  if (count <= from - to) {
    std::swap_ranges(at(from), at(from + count), at(to));
  } else {
    std::rotate(at(to), at(from), at(from + count));
  }
}

/// Undoes move_granules.
template <class Iterator>
void move_granules_back(Iterator entries, std::size_t from, std::size_t to, std::size_t count) {
  using Difference = typename std::iterator_traits<Iterator>::difference_type;
  if (count <= from - to) return move_granules(entries, from, to, count);
  std::rotate(entries + static_cast<Difference>(to), entries + static_cast<Difference>(to + count),
              entries + static_cast<Difference>(from + count));
}

}  // namespace thimble::memory
