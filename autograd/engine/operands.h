#pragma once
// Checks the operands of recorded operators, and losses. Refuses a tensor that was written since, belongs to another
// recording, or is a gradient.

#include <cstdint>
#include <span>

#include <thimble/autograd/engine/recorded.h>

namespace thimble::tape_detail {

/// Which operands need a gradient. Throws what Tape::needs throws.
Needs needs_of(const Recorded& recorded, const OpType& type, std::span<const Tensor> inputs);

/// Throws AutogradError for an operand that is refused; to be called again after the operator ran, which may have
/// written its operands itself.
void check_operands(const Recorded& recorded, const OpType& type, std::span<const Tensor> inputs, Needs needs);

/// Throws AutogradError when `loss` leads to no leaf that is trained on this recording.
void check_loss(const Recorded& recorded, const Tensor& loss);

/// The value of an operand: known, a leaf seen for the first time, a constant, or none. A constant that was written
/// since is another value; one that is new is noted only where `notes_constants`.
std::uint32_t value_of_operand(Recorded& recorded, const Tensor& t, bool notes_constants);

}  // namespace thimble::tape_detail
