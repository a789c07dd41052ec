#pragma once
// Byte-pair encoding of a word (Sennrich, Haddow, Birch, arXiv:1508.07909, section 3.2): of all pairs of neighbours
// that may merge, the one of the lowest rank merges first, the leftmost where it is there several times.

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace thimble::data {

class MergeTable {
 public:
  struct Waiting {
    std::uint32_t rank, at, result;
  };
  /// Of apply(), for its next call.
  struct Room {
    std::vector<std::uint32_t> before, after;
    std::vector<Waiting> waiting;
  };

  /// `left` followed by `right` becomes `result`; ranks are the order of the calls. False: the pair has one already.
  bool add(std::uint32_t left, std::uint32_t right, std::uint32_t result);

  /// Merges the tokens of a word until no pair may merge, in O(n log n) for n tokens, which are fewer than 2^32 - 1.
  void apply(std::vector<std::uint32_t>& tokens, Room& room) const;

 private:
  struct Merge {
    std::uint32_t rank, result;
  };

  const Merge* find(std::uint32_t left, std::uint32_t right) const;

  std::unordered_map<std::uint64_t, Merge> merges_;
};

}  // namespace thimble::data
