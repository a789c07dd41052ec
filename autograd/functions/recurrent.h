#pragma once
// Recurrent layers over whole sequences, as one operator each (core/ops/recurrent.h): backward keeps the operands and
// the result, and makes the gates again, of all steps in two products. Throw ShapeError, DTypeError, DeviceError.

#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// Of a layer with G gates (4 of an LSTM, 3 of a GRU) in PyTorch's order. Undefined biases are absent.
struct RecurrentWeights {
  Tensor weight_ih;         ///< (G H, C)
  Tensor weight_hh;         ///< (G H, H)
  Tensor bias_ih, bias_hh;  ///< (G H)
};

/// The hidden states (T, N, H) of all steps and the last step's cell (N, H).
struct LstmResult {
  Tensor output, cell;
};

/// x (T, N, C); h and c (N, H) before the first step, zeros where undefined. `is_reverse` goes from the last step to
/// the first; the output keeps the order of x.
LstmResult lstm(const Tensor& x, const Tensor& h, const Tensor& c, const RecurrentWeights& weights,
                bool is_reverse = false);
/// The hidden states (T, N, H).
Tensor gru(const Tensor& x, const Tensor& h, const RecurrentWeights& weights, bool is_reverse = false);

}  // namespace thimble
