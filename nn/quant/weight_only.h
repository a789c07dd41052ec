#pragma once
// Weights in 8 bits, everything else as it was.

#include <cstddef>
#include <vector>

#include <thimble/nn/layers/layers.h>
#include <thimble/nn/quant/error_report.h>

namespace thimble::nn::quant {

/// A linear layer with its weight in Q8_0 blocks (core/ops/matmul/linear_q8.h), 34 bytes for 32 numbers: the buffer
/// "weight_q8" (O, 34 I / 32). The weight is gone; bias stays the layer's parameter.
class Q8Linear final : public Layer {
 public:
  /// Throws ShapeError unless 32 divides I, DTypeError, DeviceError, ValueError as quantize_q8() does, and ValueError
  /// for a layer that is replaced already.
  explicit Q8Linear(Linear& base);
  std::string_view difference() const override { return "has a quantized weight"; }
  Buffer weight_q8;

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  Linear& base_;
};

/// Puts a Q8Linear in the place of every linear layer: 1.0625 bytes a number. Returns how many layers there are.
/// Weights that a model holds itself, as GPT's embedding, which is its head too, stay. From then on the module is for
/// inference; save_weights() writes the blocks, and load_weights() reads them into a model that has been through this.
/// Throws as Q8Linear does, before the first layer has changed where a width is no multiple of 32.
std::size_t quantize_linear_weights(Module& module);

/// How far the weights are from those that they were made from: for each linear layer of `quantized` that has blocks,
/// its weight in `exact`, a model of the same make, beside what the blocks stand for. A name is the layer's path.
/// Throws ValueError where `exact` lacks the layer or its weight, ShapeError where that is another; DeviceError on a
/// dry device.
std::vector<StepError> compare_weights(const Module& exact, const Module& quantized);

}  // namespace thimble::nn::quant
