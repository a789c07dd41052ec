#pragma once
// Checks operands of recorded operators, and losses. Refuses a tensor that was overwritten, belongs to another
// recording, or is a gradient.

#include <cstdint>
#include <span>

#include <thimble/autograd/engine/recorded.h>

namespace thimble::tape_detail {

/// The operands that need a gradient. Throws as Tape::needs does.
ops::Needs needs_of(const Recorded& recorded, const OpType& type, std::span<const Tensor> inputs);

/// Throws AutogradError for a refused operand. Called again after the operator, which may have written its operands.
void check_operands(const Recorded& recorded, const OpType& type, std::span<const Tensor> inputs, ops::Needs needs);

/// Throws AutogradError when `loss` leads to no leaf that this recording trains.
void check_loss(const Recorded& recorded, const Tensor& loss);

/// The value of an operand: a known one, or a new one for a leaf or constant seen for the first time, or a constant
/// written since. Without `notes_constants`, new constants are `none`.
std::uint32_t value_of_operand(Recorded& recorded, const Tensor& t, bool notes_constants);

}  // namespace thimble::tape_detail
