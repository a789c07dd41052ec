#pragma once
// Dropout. Draws the mask from the current generator (core/tensor/context.h) at the next site of the current module
// path. In evaluation (core/tensor/evaluation.h) both functions give x itself and still take the site.

#include <thimble/core/tensor/evaluation.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// x with each element dropped with probability p, the others scaled by 1 / (1 - p). Samples are along axis 0. Keeps
/// nothing: backward draws the mask again. p = 0 gives x itself. Throws ValueError for p outside [0, 1), DTypeError.
Tensor dropout(const Tensor& x, double p);

/// The same values, but it keeps the mask, one byte per element: for comparison.
Tensor dropout_textbook(const Tensor& x, double p);

}  // namespace thimble
