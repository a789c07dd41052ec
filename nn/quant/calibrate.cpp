#include <thimble/nn/quant/calibrate.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/copy.h>

namespace thimble::nn::quant {
namespace calibrate_detail {

std::string name_of(const Program& program, int value) {
  return value == 0 ? "the input" : program.steps[static_cast<std::size_t>(value - 1)].name;
}

}  // namespace calibrate_detail

std::string_view to_string(Calibrator calibrator) noexcept {
  switch (calibrator) {
    case Calibrator::max:
      return "max";
    case Calibrator::percentile:
      return "percentile";
    case Calibrator::entropy:
      return "entropy";
    case Calibrator::mse:
      return "mse";
  }
  return "?";
}

Calibrator parse_calibrator(std::string_view name) {
  std::string known;
  for (const Calibrator calibrator : calibrators) {
    if (to_string(calibrator) == name) return calibrator;
    known += (known.empty() ? "" : ", ") + std::string(to_string(calibrator));
  }
  throw ValueError("calibrator: " + quote(name) + " is not one of " + known);
}

Scales calibrate(FoldedNet& net, std::int64_t count, const CalibrationBatch& batch, const CalibrationOptions& options) {
  const Program& program = net.program();
  if (count < 1) throw ValueError("calibrate: " + std::to_string(count) + " batches; at least 1 is needed");
  net.fake_quantize({});
  const NoGrad off;
  const std::vector<int> groups = program.scale_groups();
  std::vector<Histogram> histograms(groups.size());
  for (const bool counts : {false, true}) {
    for (std::int64_t i = 0; i < count; ++i) {
      const Tensor x = batch(i);
      if (x.device().is_dry) throw DeviceError("calibrate: a dry device has no numbers to calibrate with");
      if (x.dtype() != DType::f32) throw DTypeError("calibrate: the batch is " + describe(x) + "; f32 is needed");
      net.run(x, [&](int value, const Tensor& t) {
        const auto numbers = to_host<float>(t);
        Histogram& histogram = histograms[static_cast<std::size_t>(groups[static_cast<std::size_t>(value)])];
        counts ? histogram.count(numbers) : histogram.widen(numbers, calibrate_detail::name_of(program, value));
      });
    }
  }
  Scales scales{std::vector<CodeScale>(groups.size()), options.activations, options.weights};
  for (std::size_t v = 0; v < groups.size(); ++v) {
    const auto group = static_cast<std::size_t>(groups[v]);
    if (group != v) {
      scales.values[v] = scales.values[group];
      continue;
    }
    // Images have spikes (a background) in place of a tail, which the divergence takes for the end of one.
    const bool takes_all = v == 0 && options.calibrator == Calibrator::entropy;
    const Histogram::Range range =
        histograms[v].range(takes_all ? Calibrator::max : options.calibrator, options.activations, options.percent);
    scales.values[v] =
        code_scale(range.low, range.high, options.activations, calibrate_detail::name_of(program, static_cast<int>(v)));
  }
  return scales;
}

Scales unit_scales(const Program& program, Activations activations) {
  CodeScale one;
  if (activations == Activations::symmetric) one = {1, 128, 1, 255};
  return {std::vector<CodeScale>(static_cast<std::size_t>(program.values()), one), activations,
          WeightScales::per_channel};
}

}  // namespace thimble::nn::quant
