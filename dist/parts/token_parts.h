#pragma once
// Cross entropy of tokens in parts (dist/parts/heads.h): each rank has the scores of its own tokens, of all classes.
//
//   part p    losses of its tokens          one number a token, which ranks exchange
//   all       their mean, part after part
//   backward  of a part's own scores        nothing is exchanged

#include <thimble/core/ops/op.h>
#include <thimble/dist/parts/team.h>

namespace thimble::dist {

/// Mean cross entropy of logits (N, V), the rows of this rank's parts of the sequence, part after part, and class
/// numbers (B, T) of all tokens in i32 or i64. Rows whose target is `ignore_index` count nothing. Result f32 (f64 for
/// f64), alike on all ranks of the team, with the bits of one rank that has all parts.
///
/// Keeps the logits and the targets by reference, and lse per row. Throws ShapeError (parts that do not divide T),
/// DTypeError, DeviceError, RankError, ValueError (on a CPU: a target that is no class).
struct TokenPartsLoss {
  static constexpr const char* name = "token_parts_loss";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor logits, targets, lse;
  };
  Team team;
  std::int64_t ignore_index = -100;

  Tensor forward(const Tensor& logits, const Tensor& targets, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace thimble::dist
