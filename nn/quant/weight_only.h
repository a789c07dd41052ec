#pragma once
// Weights in 8 bits, everything else as it was.

#include <cstddef>
#include <vector>

#include <thimble/nn/layers/module.h>
#include <thimble/nn/quant/error_report.h>

namespace thimble::nn::quant {

/// Puts the weights of all linear layers in Q8_0 blocks (nn::Linear::quantize_weight): 1.0625 bytes a number. Returns
/// how many layers there are. Weights that a model holds itself, as GPT's embedding, which is its head too, stay. From
/// then on the module is for inference; save_weights() writes the blocks, and load_weights() reads them into a model
/// that has been through this. Throws what quantize_weight() throws, before the first layer has changed where a width
/// is no multiple of 32.
std::size_t quantize_linear_weights(Module& module);

/// How far the weights are from those that they were made from: for each linear layer of `quantized` that has blocks,
/// its weight in `exact`, a model of the same make, beside what the blocks stand for. A name is the layer's path.
/// Throws ValueError where `exact` lacks the layer or its weight, ShapeError where that is another; DeviceError on a
/// dry device.
std::vector<StepError> compare_weights(const Module& exact, const Module& quantized);

}  // namespace thimble::nn::quant
