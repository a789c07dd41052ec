#pragma once
// Recurrent layers, with PyTorch's names and order of gates: "weight_ih_l0", "weight_hh_l0", "bias_ih_l0",
// "bias_hh_l0", "..._l0_reverse", "..._l1" and so on. All start uniform in +-1 / sqrt(H).

#include <string>
#include <vector>

#include <thimble/autograd/functions/recurrent.h>
#include <thimble/nn/layers/module.h>

namespace thimble::nn {

struct RecurrentOptions {
  std::int64_t layers = 1;
  bool has_bias = true;
  bool is_batch_first = false;    ///< sequences (N, T, C) instead of (T, N, C)
  bool is_bidirectional = false;  ///< appends a second direction's states along the last axis
  double dropout = 0;             ///< between layers while training
};

/// States of all layers and directions, (layers directions, N, H), layer after layer; undefined tensors mean zeros.
struct RecurrentState {
  Tensor h, c;  ///< only an LSTM has c
};

/// x (T, N, C) -> the last layer's hidden states (T, N, H), or (T, N, 2 H) with two directions.
class Recurrent : public Layer {
 public:
  /// Starts from `state` and stores the states after the last step in it.
  Tensor run(const Tensor& x, RecurrentState& state);

  std::int64_t width() const noexcept { return width_; }  ///< H
  const RecurrentOptions& options() const noexcept { return options_; }

 protected:
  Recurrent(bool is_lstm, std::int64_t in, std::int64_t width, const RecurrentOptions& options,
            const TensorOptions& on);
  Tensor forward(const Tensor& x) override;

 private:
  struct Direction {
    Parameter weight_ih, weight_hh, bias_ih, bias_hh;
  };
  Tensor run_all(const Tensor& x, RecurrentState* state);

  bool is_lstm_;
  std::int64_t width_;
  RecurrentOptions options_;
  std::optional<DType> compute_;
  std::vector<Direction> directions_;  // layer after layer
};

class Lstm final : public Recurrent {
 public:
  Lstm(std::int64_t in, std::int64_t width, const RecurrentOptions& options = {}, const TensorOptions& on = {})
      : Recurrent(true, in, width, options, on) {}
};

class Gru final : public Recurrent {
 public:
  Gru(std::int64_t in, std::int64_t width, const RecurrentOptions& options = {}, const TensorOptions& on = {})
      : Recurrent(false, in, width, options, on) {}
};

}  // namespace thimble::nn
