#pragma once
// Sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2): between sharded layers
// (dist/sharding/operators.h), each of t ranks computes norms, dropout and residual sums for T / t tokens of a sample.
//
//     (B, T / t, C) -- AllGather -- W1[:, shard p] -- act -- W2[shard p, :] -- ReduceScatter -- (B, T / t, C)
//
//   operator       forward                                     backward
//   AllGather      gathers all tokens, (B, T, C)               adds the shards' gradients, the last shard first;
//                                                              each rank gets its tokens' sums
//   ReduceScatter  adds the shards' terms in order; each rank  gathers all tokens' gradients
//                  gets its tokens' sums
//
// Together they send the bytes of one all-reduce. One rank with all shards stores their tokens shard after shard,
// (t B, T / t, C). Its sums over tokens (the gradients of norms and biases) are sums over shards, added from the last
// one on, so it has the bits of a group.

#include <span>

#include <thimble/core/ops/op.h>
#include <thimble/dist/communicator.h>
#include <thimble/dist/sharding/group.h>

namespace thimble::dist {

/// x (P B, T / t, C) of this rank's P shards -> (B, T, C). Throws ShapeError, RankError.
struct AllGather {
  static constexpr const char* name = "all_gather";
  static constexpr ops::Cost cost = ops::Cost::elementwise;
  using Saved = SavesNothing;
  ShardGroup group;

  Tensor forward(const Tensor& x, ops::Needs needs, Saved& saved) const;
  ops::Gradients backward(Saved saved, Tensor dy, ops::Needs needs) const;
};

/// Terms (B, T, C) of this rank's shards -> (P B, T / t, C). Throws ShapeError (the number of shards does not divide
/// T), DTypeError, RankError.
struct ReduceScatter {
  static constexpr const char* name = "reduce_scatter";
  static constexpr ops::Cost cost = ops::Cost::elementwise;
  using Saved = SavesNothing;
  ShardGroup group;

  Tensor forward(std::span<const Tensor> terms, ops::Needs needs, Saved& saved) const;
  ops::Gradients backward(Saved saved, Tensor dy, ops::Needs needs) const;
};

// Exchanges tokens for heads and back, for attention in a group that shards only the sequence
// (ShardGroup::has_whole_layers; Ulysses: Jacobs et al. 2023, arXiv:2309.14509). Each rank has whole layers and T / t
// tokens of each sample; in attention it has all tokens of H / t heads.
//
//     (B, T / t, C) -- ExchangeHeads to heads -- (B, T, C / t) -- attention -- ExchangeHeads to tokens -- (B, T / t, C)
//
// The backward of each direction is the other direction. Nothing is summed, so one rank with all shards gets the same
// bits; it stores tokens, (t B, T / t, C), and heads, (t B, T, C / t), shard after shard. Each rank sends (t - 1) / t
// of its tensor.

/// To heads: x (P B, T / t, S C) of this rank's P shards -> (P B, T, S C / t); a row of x has S tensors of C numbers
/// side by side, each with consecutive heads. To tokens: the inverse. Throws ShapeError, RankError.
struct ExchangeHeads {
  static constexpr const char* name = "exchange_heads";
  static constexpr ops::Cost cost = ops::Cost::elementwise;
  using Saved = SavesNothing;
  ShardGroup group;
  std::int64_t projections = 1;  ///< S
  bool is_to_heads = true;

  Tensor forward(const Tensor& x, ops::Needs needs, Saved& saved) const;
  ops::Gradients backward(Saved saved, Tensor dy, ops::Needs needs) const;
};

}  // namespace thimble::dist
