#pragma once
// Errors of a quantized net against the exact net, value by value.

#include <span>
#include <string>
#include <vector>

#include <thimble/nn/quant/quantized_model.h>

namespace thimble::nn::quant {

/// The error accumulated up to a value: all elements x of the f32 net compared with y of the quantized net.
struct StepError {
  std::string name;  ///< of the step that makes the value; "input" for value 0
  double signal_to_noise_db =
      0;              ///< 10 log10(sum of x^2 / sum of (x - y)^2); infinity if x = y, NaN if an element is NaN
  double cosine = 0;  ///< of the angle between x and y; 1 if both are 0, NaN if an element is NaN
};

/// The error of `there` against `exact`, which has as many numbers.
StepError step_error(std::string name, std::span<const float> exact, std::span<const float> there);

/// Runs both nets on a batch. Throws ValueError when their programs differ; DeviceError on a dry device.
std::vector<StepError> compare(FoldedNet& net, QuantizedModel& quantized, const Tensor& x);

}  // namespace thimble::nn::quant
