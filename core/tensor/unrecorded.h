#pragma once
// While a tape records, unrecorded functions refuse tensors that need a gradient: the gradient would end there
// silently.

#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// Throws AutogradError if a tape records and `t` needs a gradient: a leaf that is not frozen, or a recorded value that
/// depends on one. `instead` names the recorded function. Operators' bodies and backward run unrecorded.
void check_unrecorded(const char* function, const Tensor& t, const char* instead);

}  // namespace thimble
