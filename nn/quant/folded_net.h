#pragma once
// A trained net of convolutions with its batch norms folded in, for calibration, quantization and comparison.
//
// A convolution w (O, KH, KW, I) and b followed by a batch norm with running statistics mean and var, weight g and bias
// h are one convolution:
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

// ---- A model's steps, read off a recording

struct TracedWeights {
  Tensor weight, bias;
};

struct TracedNet {
  Program program;
  std::vector<TracedWeights> weights;  ///< one per step; undefined for a step without weights
};

/// See FoldedNet::FoldedNet.
TracedNet trace_net(Module& model, const std::function<Tensor(const Tensor&)>& forward, const Tensor& input);

class FoldedNet final : public Layer {
 public:
  /// Runs `forward` once in evaluation mode on `input` (N, H, W, C) and reads its steps off the recording; `model` gets
  /// its mode back. Weights are copies: leaves with the model's names, dtype and device, which may be dry.
  ///
  /// Understands conv2d without groups, batch norm after it, relu, add, max_pool2d, global_avg_pool, concat of
  /// channels, linear (with or without a relu) and flattening. Throws ValueError naming any other operator and its
  /// path, AutogradError while a tape records.
  FoldedNet(Module& model, const std::function<Tensor(const Tensor&)>& forward, const Tensor& input);

  const Program& program() const noexcept { return program_; }
  /// (O, KH, KW, I) or (O, I); bias (O). Undefined for a step without weights.
  const Tensor& weight(std::size_t step) const { return weights_.at(step).weight; }
  const Tensor& bias(std::size_t step) const { return weights_.at(step).bias; }

  /// Called with every value when it is computed, first with the input, value 0.
  using Observer = std::function<void(int value, const Tensor& x)>;
  /// forward() with an observer.
  Tensor run(const Tensor& x, const Observer& observer = {});

  /// The result of a step, not observed. `values` needs only the step's inputs.
  Tensor compute(std::size_t step, const std::vector<Tensor>& values) const;

  /// Makes forward() round like the quantized net: values go through fake_quantize() with `scales` (one per value; the
  /// net's result stays exact), weights with their current amax / 127 per filter (or per layer). Gradients pass
  /// straight through, so the net can be trained (Jacob et al. 2017). nullopt turns rounding off. Throws ValueError
  /// when the number of scales differs; DTypeError unless the net is f32.
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
  std::vector<Weights> weights_;  // one per step
  std::optional<Scales> scales_;
};

}  // namespace thimble::nn::quant
