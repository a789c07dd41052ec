#pragma once
// Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053): a layer's work in shards, and the ranks that have them.
//
// The number of shards is an attribute of the arithmetic: the shards' results are added in their order, on whichever
// ranks. A single rank computes all shards one after the other; in a group of ranks each has one shard, with the bits
// of that single rank. dist/parts/parts.h has the operators.

#include <cstdint>

namespace thimble::dist {

class Communicator;

/// Where part number `part` of `parts` begins in a row of `all`: parts differ by one at most.
constexpr std::int64_t part_begin(std::int64_t all, std::int64_t parts, std::int64_t part) noexcept {
  return all * part / parts;
}

/// A tensor-parallel group: the shards of a layer's work, and the ones that this rank has.
struct Team {
  int parts = 1;
  Communicator* ranks = nullptr;  ///< as many ranks, with one shard each; null when this rank has all
  bool cuts_sequence = false;     ///< the tensors between the sharded layers are sharded, too: dist/parts/sequence.h
  bool has_whole_layers = false;  ///< only the sequence is sharded, and heads in attention: dist/parts/sequence.h

  bool cuts_layers() const noexcept { return parts > 1 && !has_whole_layers; }
  /// Of a setup, as errors name it.
  const char* option() const noexcept { return has_whole_layers ? "`cp`" : "`tp`"; }

  int first() const noexcept;
  int count() const noexcept { return ranks != nullptr ? 1 : parts; }
  /// The begin of this rank's shard p, which counts from 0, in a row of `all`; p == count() gives the end of the last
  /// one. Shards differ by one at most.
  std::int64_t begin(std::int64_t all, int p = 0) const noexcept { return part_begin(all, parts, first() + p); }
  /// The size of shard p of `all`, and of all of this rank's shards together.
  std::int64_t size(std::int64_t all, int p) const noexcept { return begin(all, p + 1) - begin(all, p); }
  std::int64_t own(std::int64_t all) const noexcept { return begin(all, count()) - begin(all); }
};

/// A stage of a pipeline, and its units of a chain: `index` of `count`. A single stage is the whole chain. As with
/// shards, the number of stages is an attribute of the arithmetic: one rank may have all of them, and adds up as they
/// do.
struct StagePlace {
  int index = 0, count = 1;
  bool has_all = false;  ///< this rank has all stages

  bool is_first() const noexcept { return has_all || index == 0; }
  bool is_last() const noexcept { return has_all || index + 1 == count; }
  /// Of `units` of a chain, the ones from `first` up to `end`: equal numbers; where they do not divide, the first
  /// stages have one more. Throws ValueError for fewer units than stages.
  struct Units {
    std::int64_t first, end;
    bool has(std::int64_t unit) const noexcept { return first <= unit && unit < end; }
  };
  Units units(std::int64_t units) const;
};

}  // namespace thimble::dist
