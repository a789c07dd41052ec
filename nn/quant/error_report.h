#pragma once
// How far a quantized net is from the one it was made from, value by value.

#include <span>
#include <string>
#include <vector>

#include <thimble/nn/quant/quantized_model.h>

namespace thimble::nn::quant {

/// Over all elements of a value x of the f32 net and its counterpart y: the error that has gathered up to there.
struct StepError {
  std::string name;  ///< of the step that makes the value; "input" for value 0
  double signal_to_noise_db =
      0;              ///< 10 log10(sum of x^2 / sum of (x - y)^2); infinite where they are equal; NaN of a NaN
  double cosine = 0;  ///< of the angle between x and y; 1 where both are 0; NaN of a NaN
};

/// The error of `there` beside `exact`, which has as many numbers.
StepError step_error(std::string name, std::span<const float> exact, std::span<const float> there);

/// Runs both nets on a batch. Throws ValueError when they are not the same net; DeviceError on a dry device.
std::vector<StepError> compare(FoldedNet& net, QuantizedModel& quantized, const Tensor& x);

}  // namespace thimble::nn::quant
