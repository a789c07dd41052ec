#pragma once
// Recurrent layers over a sequence, as one operator each. Given all hidden states, the gates of all steps are two
// products: a GRU's backward computes them again. An LSTM keeps gates and cells; a plan may run it again instead.

#include <thimble/core/ops/op.h>

namespace thimble::ops {

/// An LSTM (core/kernels/recurrent.h has a step): x (T, N, C), h and c (N, H) before the first step, weight_ih (4 H,
/// C), weight_hh (4 H, H), bias_ih and bias_hh (4 H) or undefined -> (T + 1, N, H): the hidden states of the steps,
/// then the last cell. Cells are f32 (f64 for f64) inside. Keeps x, h, weights and the result by reference, the gates
/// before their functions, in which backward writes their gradients, and all cells.
struct Lstm {
  static constexpr const char* name = "lstm";
  static constexpr Cost cost = Cost::matmul;
  struct Saved {
    Tensor x, h, weight_ih, weight_hh, y;
    Tensor gates, cells;  ///< (T, N, 4 H), (T + 1, N, H)
  };
  bool is_reverse = false;  ///< goes from the last step to the first

  Tensor forward(const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& weight_ih, const Tensor& weight_hh,
                 const Tensor& bias_ih, const Tensor& bias_hh, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

/// A GRU: without cells, with weights of 3 H rows -> (T, N, H). Keeps x, h, weights, biases and the result. Backward's
/// workspace is 6 T N H elements.
struct Gru {
  static constexpr const char* name = "gru";
  static constexpr Cost cost = Cost::matmul;
  struct Saved {
    Tensor x, h, weight_ih, weight_hh, bias_ih, bias_hh, y;
  };
  bool is_reverse = false;

  Tensor forward(const Tensor& x, const Tensor& h, const Tensor& weight_ih, const Tensor& weight_hh,
                 const Tensor& bias_ih, const Tensor& bias_hh, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

}  // namespace thimble::ops
