#pragma once
// Operators that connect the shards of a layer (dist/sharding/group.h).
//
//        x ------ copy_to_group ---- W1[:, shard p] ---- act ---- W2[shard p, :] ----+
//                                                                               sum_shards ---- y
//        (the same for the other shards) ---------------------------------------+
//
//   operator       forward                         backward
//   copy_to_group  x itself                        adds the shards' gradients, the last shard first
//   sum_shards     adds the shards' terms in order  each shard gets the gradient
//
// One rank's backward visits the last shard first, so backward sums start from it. dist/fold.h makes sums over ranks;
// recomputing a shard repeats its sums, so all ranks of a group recompute the same shards.

#include <span>
#include <vector>

#include <thimble/core/ops/op.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/dist/communicator.h>
#include <thimble/dist/sharding/group.h>

namespace thimble::dist {

struct CopyToGroup {
  static constexpr const char* name = "copy_to_group";
  static constexpr ops::Cost cost = ops::Cost::view;
  using Saved = SavesNothing;
  Communicator* ranks = nullptr;

  Tensor forward(const Tensor& x, ops::Needs needs, Saved& saved) const;
  ops::Gradients backward(Saved saved, Tensor dy, ops::Needs needs) const;
};

struct AllReduce {
  static constexpr const char* name = "all_reduce";
  static constexpr ops::Cost cost = ops::Cost::elementwise;
  using Saved = SavesNothing;
  Communicator* ranks = nullptr;

  /// Terms of one shape and dtype, from this rank's shards. Throws ShapeError, DTypeError.
  Tensor forward(std::span<const Tensor> terms, ops::Needs needs, Saved& saved) const;
  ops::Gradients backward(Saved saved, Tensor dy, ops::Needs needs) const;
};

/// Throws ShapeError or DTypeError unless the terms have equal shapes and dtypes.
void check_terms(std::span<const Tensor> terms);
/// The sum of the local terms, in order.
Tensor sum_here(std::span<const Tensor> terms);

/// x as a shard's input; call it once per shard. Returns x itself if there is one shard. Throws RankError.
Tensor copy_to_group(const ShardGroup& group, const Tensor& x);
/// The sum of all shards' terms; `terms` are this rank's. Returns the term itself if there is one shard. In a group
/// that shards the sequence (dist/sharding/sequence.h), terms are (B, T, C) and the sum is sharded. Throws ValueError
/// unless there is a term for each of this rank's shards, and at most Needs::max_operands; RankError; as AllReduce.
Tensor sum_shards(const ShardGroup& group, std::span<const Tensor> terms);

/// Returns term_of(p, x) for each of this rank's shards p = 0, 1, ... term_of owns x, so that x is freed as soon as it
/// is read. If the group shards the sequence, x is sharded and term_of gets the gathered (B, T, C). Throws RankError.
std::vector<Tensor> for_each_shard(const ShardGroup& group, Tensor x,
                                   FunctionRef<Tensor(std::size_t p, Tensor x)> term_of);

/// Merges `own`, one number for each of this rank's parameters, with the other ranks' numbers, in the order of one rank
/// that has all shards:
///
///   this rank, shard 1  norm   up.1: weight bias   down.1: weight   bias
///   one rank            norm   up.0: weight bias   up.1: weight bias   down.0: weight   down.1: weight   bias
///
/// `layers` has for each parameter the layer that it is a shard of, below 0 for a whole one. Parameters of a shard are
/// adjacent. Throws RankError.
Tensor gather_square_sums(Communicator& ranks, const Tensor& own, std::span<const int> layers);

}  // namespace thimble::dist
