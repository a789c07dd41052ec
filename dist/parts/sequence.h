#pragma once
// Sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2): norms, dropout and sums with the
// residual, between the sharded layers (dist/parts/parts.h), have T / t tokens of each sample on each of t ranks.
//
//     (B, T / t, C) -- GatherSequence -- W1[:, shard p] -- act -- W2[shard p, :] -- SumToSequence -- (B, T / t, C)
//
//   operator         forward                                        backward
//   GatherSequence   all tokens, (B, T, C)                          shards' gradients are added, the last shard first,
//                                                                   and each rank has its tokens' sums
//   SumToSequence    shards' terms are added in order, and each     all tokens' gradients
//                    rank has its tokens' sums
//
// Both together send as much as an all-reduce. One rank that has all shards has their tokens one shard after the other,
// (t B, T / t, C): its sums over tokens, the gradients of norms and biases, are sums over shards, added from the last
// one on. So it has the bits of a group.

#include <span>

#include <thimble/core/ops/op.h>
#include <thimble/dist/communicator.h>
#include <thimble/dist/parts/team.h>

namespace thimble::dist {

/// x (P B, T / t, C), P this rank's shards -> (B, T, C). Throws ShapeError, RankError.
struct GatherSequence {
  static constexpr const char* name = "gather_sequence";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  Team team;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// Terms (B, T, C) of this rank's shards -> (P B, T / t, C). Throws ShapeError (the number of shards does not divide
/// T), DTypeError, RankError.
struct SumToSequence {
  static constexpr const char* name = "sum_to_sequence";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  Team team;

  Tensor forward(std::span<const Tensor> terms, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace thimble::dist
