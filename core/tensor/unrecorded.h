#pragma once
// Unrecorded functions must not be called, while a tape records, on what needs a gradient: the gradient would end
// there without a word.

#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// Throws AutogradError while a tape records, when `t` needs a gradient: a leaf that is not frozen, or a recorded value
/// that depends on one. `instead` names what is recorded. Operators' own bodies, and backward, run where nothing is
/// recorded.
void check_unrecorded(const char* function, const Tensor& t, const char* instead);

}  // namespace thimble
