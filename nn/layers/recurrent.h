#pragma once
// Recurrent layers, with PyTorch's names and orders of gates: "weight_ih_l0", "weight_hh_l0", "bias_ih_l0",
// "bias_hh_l0", "..._l0_reverse", "..._l1" and so on, all uniform in +-1 / sqrt(H) at the start.

#include <string>
#include <vector>

#include <thimble/autograd/functions/recurrent.h>
#include <thimble/nn/layers/module.h>

namespace thimble::nn {

struct RecurrentOptions {
  std::int64_t layers = 1;
  bool has_bias = true;
  bool is_batch_first = false;    ///< sequences (N, T, C) instead of (T, N, C)
  bool is_bidirectional = false;  ///< a second direction, whose states follow the first's in the last axis
  double dropout = 0;             ///< of the states between layers while training
};

/// States of all layers and directions, (layers directions, N, H), layer after layer; undefined ones are zeros.
struct RecurrentState {
  Tensor h, c;  ///< c: only an LSTM's
};

/// x (T, N, C) -> the last layer's hidden states (T, N, H), or (T, N, 2 H) of two directions.
class Recurrent : public Layer {
 public:
  /// Runs from `state`, and leaves the states after the last step there.
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
