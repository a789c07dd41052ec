#pragma once
// Reading a model's steps off a recording: what FoldedNet is made from.

#include <functional>
#include <vector>

#include <thimble/core/tensor/tensor.h>
#include <thimble/nn/layers/module.h>
#include <thimble/nn/quant/program.h>

namespace thimble::nn::quant {

struct TracedWeights {
  Tensor weight, bias;
};

struct TracedNet {
  Program program;
  std::vector<TracedWeights> weights;  ///< one for each step; undefined where it has none
};

/// See FoldedNet::FoldedNet.
TracedNet trace_net(Module& model, const std::function<Tensor(const Tensor&)>& forward, const Tensor& input);

}  // namespace thimble::nn::quant
