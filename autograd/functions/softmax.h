#pragma once
// Softmax and its logarithm. The operators in core/ops/reduction/softmax.h have the formulas and the tensors kept for
// backward.

#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// exp(scale x) / sum exp(scale x) along an axis. Keeps its result.
Tensor softmax(const Tensor& x, int axis = -1, double scale = 1);

/// Softmax of attention scores (..., T, S) over the last axis; query t sees only the keys s <= t + (S - T). S >= T.
Tensor causal_softmax(const Tensor& scores, double scale = 1);

/// x - log sum exp(x) along an axis. Keeps its result.
Tensor log_softmax(const Tensor& x, int axis = -1);

}  // namespace thimble
