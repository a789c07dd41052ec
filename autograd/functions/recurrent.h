#pragma once
// Recurrent layers over whole sequences, as one operator each (core/ops/recurrent.h). Throw ShapeError, DTypeError,
// DeviceError.

#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// The weights of G gates (4 of an LSTM, 3 of a GRU) in PyTorch's order. Biases may be undefined.
struct RecurrentWeights {
  Tensor weight_ih;         ///< (G H, C)
  Tensor weight_hh;         ///< (G H, H)
  Tensor bias_ih, bias_hh;  ///< (G H)
};

/// The hidden states (T, N, H) of all steps and the last step's cell (N, H).
struct LstmResult {
  Tensor output, cell;
};

/// x (T, N, C); h and c (N, H) before the first step, zero if undefined. `is_reverse` goes from the last step to the
/// first; the output keeps the order of x.
LstmResult lstm(const Tensor& x, const Tensor& h, const Tensor& c, const RecurrentWeights& weights,
                bool is_reverse = false);
/// The hidden states (T, N, H).
Tensor gru(const Tensor& x, const Tensor& h, const RecurrentWeights& weights, bool is_reverse = false);

}  // namespace thimble
