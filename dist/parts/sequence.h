#pragma once
// Sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2): norms, dropout and sums with the
// residual, between the sharded layers (dist/parts/parts.h), have T / t tokens of each sample on each of t ranks.
//
//     (B, T / t, C) -- AllGather -- W1[:, shard p] -- act -- W2[shard p, :] -- ReduceScatter -- (B, T / t, C)
//
//   operator         forward                                        backward
//   AllGather   all tokens, (B, T, C)                          shards' gradients are added, the last shard first,
//                                                                   and each rank has its tokens' sums
//   ReduceScatter    shards' terms are added in order, and each     all tokens' gradients
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
struct AllGather {
  static constexpr const char* name = "all_gather";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  Team team;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// Terms (B, T, C) of this rank's shards -> (P B, T / t, C). Throws ShapeError (the number of shards does not divide
/// T), DTypeError, RankError.
struct ReduceScatter {
  static constexpr const char* name = "reduce_scatter";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  Team team;

  Tensor forward(std::span<const Tensor> terms, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

// Exchanges tokens for heads and back: attention in a group that shards only the sequence (Team::has_whole_layers;
// Ulysses: Jacobs et al. 2023, arXiv:2309.14509). Each rank has all layers whole and T / t tokens of each sample; in
// attention it has all tokens of H / t heads.
//
//     (B, T / t, C) -- ExchangeHeads to heads -- (B, T, C / t) -- attention -- ExchangeHeads to tokens -- (B, T / t, C)
//
// Backward of one direction is the other one. Nothing is summed, so the bits equal one rank with all shards: their
// tokens one shard after the other, (t B, T / t, C), their heads as well, (t B, T, C / t). Each rank sends (t - 1) / t
// of its tensor.

/// To heads: x (P B, T / t, S C) of this rank's P shards, S tensors of C numbers side by side, whose heads are in a row
/// -> (P B, T, S C / t). To tokens: the way back. Throws ShapeError, RankError.
struct ExchangeHeads {
  static constexpr const char* name = "exchange_heads";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  Team team;
  std::int64_t stretches = 1;  ///< S
  bool is_to_heads = true;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace thimble::dist
