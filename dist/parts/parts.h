#pragma once
// Operators that join the shards of a layer's work (dist/parts/team.h).
//
//        x ------ copy_to_group ---- W1[:, shard p] ---- act ---- W2[shard p, :] ----+
//                                                                               sum_shards ---- y
//        (the same for the other shards) ---------------------------------------+
//
//   operator    forward                                backward
//   copy_to_group  x itself                               the shards' gradients are added, the last shard first
//   sum_shards   the shards' terms are added in order   each shard gets the gradient
//
// Backward of one rank meets the last shard first, so its sums have that order. dist/fold.h makes sums over ranks;
// recomputing a shard repeats its sums, so all ranks of a group recompute the same shards.

#include <span>
#include <vector>

#include <thimble/core/ops/op.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/dist/communicator.h>
#include <thimble/dist/parts/team.h>

namespace thimble::dist {

struct CopyToGroup {
  static constexpr const char* name = "copy_to_group";
  static constexpr Cost cost = Cost::view;
  using Saved = SavesNothing;
  Communicator* ranks = nullptr;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

struct AllReduce {
  static constexpr const char* name = "all_reduce";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  Communicator* ranks = nullptr;

  /// Terms of one shape and dtype, from this rank's shards. Throws ShapeError, DTypeError.
  Tensor forward(std::span<const Tensor> terms, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// Throws ShapeError, DTypeError, unless the terms are alike.
void check_terms(std::span<const Tensor> terms);
/// The sum of the local terms, in order.
Tensor sum_here(std::span<const Tensor> terms);

/// x as one shard's input: call it once per shard. x itself with one shard. Throws RankError.
Tensor copy_to_group(const Team& team, const Tensor& x);
/// The sum of all shards' terms, of which this rank has `terms`; the term itself with one shard. In a group that shards
/// the sequence (dist/parts/sequence.h), terms are (B, T, C) and the sum is sharded. Throws ValueError unless there are
/// as many as its shards, and at most Needs::max_operands; as AllReduce; RankError.
Tensor sum_shards(const Team& team, std::span<const Tensor> terms);

/// The results of this rank's shards on x, each by term_of(p, x), where p counts from 0. term_of takes x over, so that
/// x is freed as soon as it is read. In a group that shards the sequence, x is sharded and term_of gets all of it, (B,
/// T, C). Throws RankError.
std::vector<Tensor> of_parts(const Team& team, Tensor x, FunctionRef<Tensor(std::size_t p, Tensor x)> term_of);

/// One number for each of this rank's parameters, merged with the other ranks' shards, in the order of one rank that
/// has all shards:
///
///   this rank, shard 1  norm   up.1: weight bias   down.1: weight   bias
///   one rank            norm   up.0: weight bias   up.1: weight bias   down.0: weight   down.1: weight   bias
///
/// `layers` has for each the layer that it is a shard of, below 0 for a whole parameter. Parameters of a shard are
/// adjacent. Throws RankError.
Tensor of_all_parts(Communicator& ranks, const Tensor& own, std::span<const int> layers);

}  // namespace thimble::dist
