#include <thimble/nn/quant/error_report.h>

#include <cmath>
#include <limits>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/units.h>

namespace thimble::nn::quant {

StepError step_error(std::string name, std::span<const float> exact, std::span<const float> there) {
  if (exact.size() != there.size()) {
    throw ShapeError("compare: " + name + " has " + std::to_string(exact.size()) + " numbers in one and " +
                     std::to_string(there.size()) + " in the other");
  }
  double signal = 0, noise = 0, product = 0, power = 0;
  for (std::size_t i = 0; i < there.size(); ++i) {
    const double a = exact[i], b = there[i];
    signal += a * a;
    power += b * b;
    product += a * b;
    noise += (a - b) * (a - b);
  }
  const double cosine = signal == 0 || power == 0 ? (signal == power ? 1.0 : 0.0) : product / std::sqrt(signal * power);
  const double decibels = noise == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / noise);
  return {std::move(name), without_sign_of_nan(decibels), without_sign_of_nan(cosine)};
}

std::vector<StepError> compare(FoldedNet& net, QuantizedModel& quantized, const Tensor& x) {
  if (!(net.program() == quantized.program())) throw ValueError("compare: the two are not the same net");
  if (x.device().is_dry) throw DeviceError("compare: a dry device has no numbers to compare");
  const NoGrad off;
  std::vector<std::vector<float>> exact(static_cast<std::size_t>(net.program().values()));
  net.run(x, [&](int value, const Tensor& t) { exact[static_cast<std::size_t>(value)] = to_host<float>(t); });
  std::vector<StepError> errors(exact.size());
  quantized.run(x, [&](int value, const Tensor& t) {
    const auto v = static_cast<std::size_t>(value);
    errors[v] = step_error(v == 0 ? "input" : net.program().steps[v - 1].name, exact[v], to_host<float>(t));
    exact[v] = {};
  });
  return errors;
}

}  // namespace thimble::nn::quant
