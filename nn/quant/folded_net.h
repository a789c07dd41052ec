#pragma once
// A trained net of convolutions with its batch norms folded in: what is calibrated, quantized and compared with.
//
// A convolution w (O, KH, KW, I) and b, and behind it a batch norm with running statistics mean and var, weight g and
// bias h, are one convolution:
//
//     w'[o] = w[o] r[o],   b'[o] = (b[o] - mean[o]) r[o] + h[o],   r[o] = g[o] / sqrt(var[o] + epsilon)
//
// computed in f64 and rounded once.

#include <functional>
#include <optional>
#include <vector>

#include <thimble/core/tensor/tensor.h>
#include <thimble/nn/layers/module.h>
#include <thimble/nn/quant/program.h>

namespace thimble::nn::quant {

// ---- Reading a model's steps off a recording: what FoldedNet is made from.

struct TracedWeights {
  Tensor weight, bias;
};

struct TracedNet {
  Program program;
  std::vector<TracedWeights> weights;  ///< one for each step; undefined where it has none
};

/// See FoldedNet::FoldedNet.
TracedNet trace_net(Module& model, const std::function<Tensor(const Tensor&)>& forward, const Tensor& input);

class FoldedNet final : public Layer {
 public:
  /// The steps of `forward`, found by running it once in evaluation mode on `input` (N, H, W, C) and reading the
  /// recording; `model` gets its mode back. Weights are copies, leaves named as the model's, in its dtype and on its
  /// device, which may be dry.
  ///
  /// Understood are conv2d without groups, batch norm behind it, relu, add, max_pool2d, global_avg_pool, concat of
  /// channels, linear (with a relu or without) and flattening. Throws ValueError naming any other operator and its
  /// path, AutogradError while something else is recorded.
  FoldedNet(Module& model, const std::function<Tensor(const Tensor&)>& forward, const Tensor& input);

  const Program& program() const noexcept { return program_; }
  /// Of a step that has them: weight (O, KH, KW, I) or (O, I), bias (O).
  const Tensor& weight(std::size_t step) const { return weights_.at(step).weight; }
  const Tensor& bias(std::size_t step) const { return weights_.at(step).bias; }

  /// Called with every value when it is computed: value 0, the input, first.
  using Observer = std::function<void(int value, const Tensor& x)>;
  /// forward() with an observer.
  Tensor run(const Tensor& x, const Observer& observer = {});

  /// The value that a step makes from those before it, of which `values` has at least the step's own; not observed.
  Tensor compute(std::size_t step, const std::vector<Tensor>& values) const;

  /// From now on forward() rounds as the quantized net does: weights and values go through fake_quantize(), with
  /// `scales` for the values (one for each; the result of the net is left alone) and amax / 127 of the moment for each
  /// filter (or each weight). Gradients pass straight through, so the net can be trained (Jacob et al. 2017). Empty: no
  /// longer. Throws ValueError when the number of scales differs; DTypeError unless the net is f32.
  void fake_quantize(std::optional<Scales> scales);

 protected:
  Tensor forward(const Tensor& x) override { return run(x); }

 private:
  struct Weights {
    Parameter weight, bias;
  };
  Tensor rounded(int value, Tensor x) const;
  Tensor rounded_weight(std::size_t step) const;
  Tensor exact(std::size_t step, const std::vector<Tensor>& values) const;

  Program program_;
  std::vector<Weights> weights_;  // one for each step; undefined where it has none
  std::optional<Scales> scales_;
};

}  // namespace thimble::nn::quant
