#pragma once
// Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053): a layer's work in parts, and who has them.
//
// In how many parts the work is cut is an attribute of the arithmetic: what parts give is added up in their order,
// whoever has them. One rank alone computes all parts one after the other; of a team of ranks each has one part, with
// the bits of that one rank. dist/parts/parts.h has the operators.

#include <cstdint>

namespace thimble::dist {

class Communicator;

/// Where part number `part` of `parts` begins in a row of `all`: parts differ by one at most.
constexpr std::int64_t part_begin(std::int64_t all, std::int64_t parts, std::int64_t part) noexcept {
  return all * part / parts;
}

/// The parts of a layer's work, and which of them this rank has.
struct Team {
  int parts = 1;
  Communicator* ranks = nullptr;  ///< of as many ranks, which have one part each; null: this rank has all
  bool cuts_sequence = false;     ///< what lies between the layers in parts is in parts, too: dist/parts/sequence.h
  bool has_whole_layers = false;  ///< the sequence alone is cut, and in attention heads: dist/parts/heads.h

  bool cuts_layers() const noexcept { return parts > 1 && !has_whole_layers; }

  int first() const noexcept;
  int count() const noexcept { return ranks != nullptr ? 1 : parts; }
  /// Where this rank's part p, which counts from 0, begins in a row of `all`; p == count(): where the last one ends.
  /// Parts differ by one at most.
  std::int64_t begin(std::int64_t all, int p = 0) const noexcept { return part_begin(all, parts, first() + p); }
  /// What of `all` is in part p; in all of this rank's parts.
  std::int64_t size(std::int64_t all, int p) const noexcept { return begin(all, p + 1) - begin(all, p); }
  std::int64_t own(std::int64_t all) const noexcept { return begin(all, count()) - begin(all); }
};

}  // namespace thimble::dist
