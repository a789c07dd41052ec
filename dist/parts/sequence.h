#pragma once
// Sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2): what lies between the layers in
// parts (dist/parts/parts.h), norms, dropout and sums with the residual, has T / t tokens of each sample on each of t
// ranks.
//
//     (B, T / t, C) -- GatherSequence -- W1[:, part p] -- act -- W2[part p, :] -- SumToSequence -- (B, T / t, C)
//
//   operator         forward                                        backward
//   GatherSequence   all tokens, (B, T, C)                          parts' gradients are added, the last part first,
//                                                                   and each rank has its tokens' sums
//   SumToSequence    parts' terms are added in order, and each      all tokens' gradients
//                    rank has its tokens' sums
//
// Both together send what a sum over ranks sends. One rank that has all parts has their tokens one part after the
// other, (t B, T / t, C): its sums of tokens, the gradients of norms and biases, are those of parts, added from the
// last one on. So it has the bits of a team.

#include <span>

#include <thimble/core/ops/op.h>
#include <thimble/dist/communicator.h>
#include <thimble/dist/parts/team.h>

namespace thimble::dist {

/// x (P B, T / t, C), P this rank's parts -> (B, T, C). Throws ShapeError, RankError.
struct GatherSequence {
  static constexpr const char* name = "gather_sequence";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  Team team;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// Terms (B, T, C) of this rank's parts -> (P B, T / t, C). Throws ShapeError (parts that do not divide T), DTypeError,
/// RankError.
struct SumToSequence {
  static constexpr const char* name = "sum_to_sequence";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  Team team;

  Tensor forward(std::span<const Tensor> terms, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace thimble::dist
