#include <thimble/nn/quant/error_report.h>

#include <cmath>
#include <limits>

#include <thimble/core/context.h>
#include <thimble/core/copy.h>
#include <thimble/core/error.h>

namespace thimble::nn::quant {

std::vector<StepError> compare(FoldedNet& net, QuantizedModel& quantized, const Tensor& x) {
  if (!(net.program() == quantized.program())) throw ValueError("compare: the two are not the same net");
  if (x.device().is_dry) throw DeviceError("compare: a dry device has no numbers to compare");
  const NoGrad off;
  std::vector<std::vector<float>> exact(static_cast<std::size_t>(net.program().values()));
  net.run(x, [&](int value, const Tensor& t) { exact[static_cast<std::size_t>(value)] = to_host<float>(t); });
  std::vector<StepError> errors(exact.size());
  quantized.run(x, [&](int value, const Tensor& t) {
    const auto v = static_cast<std::size_t>(value);
    const std::vector<float> there = to_host<float>(t);
    double signal = 0, noise = 0, product = 0, power = 0;
    for (std::size_t i = 0; i < there.size(); ++i) {
      const double a = exact[v].at(i), b = there[i];
      signal += a * a;
      power += b * b;
      product += a * b;
      noise += (a - b) * (a - b);
    }
    StepError& e = errors[v];
    e.name = v == 0 ? "input" : net.program().steps[v - 1].name;
    e.signal_to_noise_db = noise > 0 ? 10 * std::log10(signal / noise) : std::numeric_limits<double>::infinity();
    e.cosine = signal > 0 && power > 0 ? product / std::sqrt(signal * power) : signal == power ? 1 : 0;
    exact[v] = {};
  });
  return errors;
}

}  // namespace thimble::nn::quant
