#pragma once
// Exchanges tokens for heads and back: attention in a group that shards only the sequence (Team::has_whole_layers;
// Ulysses: Jacobs et al. 2023, arXiv:2309.14509). Each rank has all layers whole and T / t tokens of each sample; in
// attention it has all tokens of H / t heads.
//
//     (B, T / t, C) -- ExchangeHeads to heads -- (B, T, C / t) -- attention -- ExchangeHeads to tokens -- (B, T / t, C)
//
// Backward of one direction is the other one. Nothing is summed, so the bits equal one rank with all shards: their
// tokens one shard after the other, (t B, T / t, C), their heads as well, (t B, T, C / t). Each rank sends (t - 1) / t
// of its tensor.

#include <thimble/core/ops/op.h>
#include <thimble/dist/parts/team.h>

namespace thimble::dist {

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
