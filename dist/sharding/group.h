#pragma once
// Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053): a layer's work in shards, and the ranks that have them.
//
// The number of shards is part of the arithmetic: results are added in the order of shards, wherever they are computed.
// A single rank computes all shards one after the other; a group, in which each rank has one shard, gets the same bits.
// dist/sharding/operators.h has the operators.

#include <cstdint>

namespace thimble::dist {

class Communicator;

/// Start of shard `shard` of `shards` in a row of `all`; sizes of shards differ by one at most.
constexpr std::int64_t shard_begin(std::int64_t all, std::int64_t shards, std::int64_t shard) noexcept {
  return all * shard / shards;
}

/// A tensor-parallel group: the shards of a layer's work, and the ones that this rank has.
struct ShardGroup {
  int shards = 1;
  Communicator* ranks = nullptr;  ///< `shards` ranks with a shard each; null if this rank has all shards
  bool cuts_sequence = false;     ///< also shards the tensors between sharded layers: dist/sharding/sequence.h
  bool has_whole_layers = false;  ///< shards only the sequence, and heads in attention: dist/sharding/sequence.h

  bool cuts_layers() const noexcept { return shards > 1 && !has_whole_layers; }
  /// The setup's option, for errors.
  const char* option() const noexcept { return has_whole_layers ? "`cp`" : "`tp`"; }

  int first() const noexcept;
  int count() const noexcept { return ranks != nullptr ? 1 : shards; }
  /// Start of this rank's shard p = 0, 1, ... in a row of `all`; p == count() gives the end of the last one.
  std::int64_t begin(std::int64_t all, int p = 0) const noexcept { return shard_begin(all, shards, first() + p); }
  /// Size of this rank's shard p of `all`; size of all its shards together.
  std::int64_t size(std::int64_t all, int p) const noexcept { return begin(all, p + 1) - begin(all, p); }
  std::int64_t own(std::int64_t all) const noexcept { return begin(all, count()) - begin(all); }
};

/// Stage `index` of `count` of a pipeline, and its units of a chain. A single stage is the whole chain. As with shards,
/// the number of stages is part of the arithmetic: one rank that has all of them adds in the same order.
struct StagePlace {
  int index = 0, count = 1;
  bool has_all = false;  ///< this rank has all stages

  bool is_first() const noexcept { return has_all || index == 0; }
  bool is_last() const noexcept { return has_all || index + 1 == count; }
  /// This stage's units [first, end) of a chain of `units`. Stages have equal numbers, the first ones one more if the
  /// division leaves a rest. Throws ValueError for fewer units than stages.
  struct Units {
    std::int64_t first, end;
    bool has(std::int64_t unit) const noexcept { return first <= unit && unit < end; }
  };
  Units units(std::int64_t units) const;
};

}  // namespace thimble::dist
