#pragma once
// Checks the operands of recorded operators, and losses. Refuses a tensor that was written since, belongs to another
// recording, or is a gradient.

#include <cstdint>
#include <span>

#include <thimble/autograd/engine/recorded.h>

namespace thimble::tape_detail {

/// The operands that need a gradient. Throws as Tape::needs does.
Needs needs_of(const Recorded& recorded, const OpType& type, std::span<const Tensor> inputs);

/// Throws AutogradError for a refused operand; called again after the operator ran, because it may have written its
/// operands itself.
void check_operands(const Recorded& recorded, const OpType& type, std::span<const Tensor> inputs, Needs needs);

/// Throws AutogradError when `loss` leads to no leaf that this recording trains.
void check_loss(const Recorded& recorded, const Tensor& loss);

/// The value of an operand: known, a leaf seen for the first time, a constant, or none. A constant that was written
/// since is another value; a new constant is noted only where `notes_constants`.
std::uint32_t value_of_operand(Recorded& recorded, const Tensor& t, bool notes_constants);

}  // namespace thimble::tape_detail
