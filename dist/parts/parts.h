#pragma once
// How the parts of a layer's work (dist/parts/team.h) meet.
//
//        x ------ enter_part ---- W1[:, part p] ---- act ---- W2[part p, :] ----+
//                                                                               sum_parts ---- y
//        (the same for the other parts) ----------------------------------------+
//
//   operator    forward                               backward
//   enter_part  x itself                              the parts' gradients are added, the last part first
//   sum_parts   the parts' terms are added in order   each part gets the gradient
//
// Backward of one rank meets the last part first, so its sums have that order. Sums over ranks are dist/fold.h's; a
// part of the work that is made again adds up again, so all ranks of a team make the same parts again.

#include <span>
#include <vector>

#include <thimble/core/ops/op.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/dist/communicator.h>
#include <thimble/dist/parts/team.h>

namespace thimble::dist {

struct EnterPart {
  static constexpr const char* name = "enter_part";
  static constexpr Cost cost = Cost::view;
  using Saved = SavesNothing;
  Communicator* ranks = nullptr;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

struct SumParts {
  static constexpr const char* name = "sum_parts";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  Communicator* ranks = nullptr;

  /// Terms of one shape and dtype, those of this rank's parts. Throws ShapeError, DTypeError.
  Tensor forward(std::span<const Tensor> terms, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// Throws ShapeError, DTypeError, unless the terms are alike.
void check_terms(std::span<const Tensor> terms);
/// The sum of terms that are here, in their order.
Tensor sum_here(std::span<const Tensor> terms);

/// x, as one of the parts reads it: each of them enters for itself. x itself where there is one part. Throws RankError.
Tensor enter_part(const Team& team, const Tensor& x);
/// The sum of all parts' terms, of which this rank has `terms`; of one part its term. Where the team cuts the sequence
/// (dist/parts/sequence.h), terms are (B, T, C) and the sum is in parts. Throws ValueError where they are
/// not as many as its parts, or more than Needs::max_operands; what SumParts throws; RankError.
Tensor sum_parts(const Team& team, std::span<const Tensor> terms);

/// What this rank's parts make of x, each by term_of(p, x), where p counts from 0. term_of takes x over, so that x goes
/// as soon as it is read. Where the team cuts the sequence, x is in parts and term_of gets all of it, (B, T, C). Throws
/// RankError.
std::vector<Tensor> of_parts(const Team& team, Tensor x, FunctionRef<Tensor(std::size_t p, Tensor x)> term_of);

/// One number for each parameter, of this rank's, with those of the other ranks' parts, in the order of one rank that
/// has all parts:
///
///   this rank, part 1   norm   up.1: weight bias   down.1: weight   bias
///   one rank            norm   up.0: weight bias   up.1: weight bias   down.0: weight   down.1: weight   bias
///
/// `layers` has of each the layer that it is a part of, below 0: it is whole. Parameters of a part lie side by side.
/// Throws RankError.
Tensor of_all_parts(Communicator& ranks, const Tensor& own, std::span<const int> layers);

}  // namespace thimble::dist
