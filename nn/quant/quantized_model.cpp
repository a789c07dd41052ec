#include <thimble/nn/quant/quantized_model.h>

#include <algorithm>
#include <cmath>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>

namespace thimble::nn::quant {

QuantizedModel::QuantizedModel(const FoldedNet& net, const Scales& scales) : program_(net.program()), scales_(scales) {
  if (scales.values.size() != static_cast<std::size_t>(program_.values())) {
    throw ValueError("quantize: " + std::to_string(scales.values.size()) + " scales for " +
                     std::to_string(program_.values()) + " values");
  }
  const NoGrad off;
  const PathScope scope(path());
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const Step& step = program_.steps[i];
    const PathScope of_step(step.name);
    const CodeScale& in = scales_.values[static_cast<std::size_t>(step.inputs.front())];
    weights_.push_back(step.has_weight()
                           ? pack_weights(net.weight(i), net.bias(i), step, in, result_scale(i), scales.weights)
                           : PackedWeights{});
  }
  check_scales();
}

void QuantizedModel::check_scales() const {
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const Step& step = program_.steps[i];
    const CodeScale* const out = result_scale(i);
    std::vector<int> read;
    if (step.kind == StepKind::add || step.kind == StepKind::average) read = step.inputs;
    if (step.residual >= 0) read.push_back(step.residual);
    for (const int value : read) {
      const float scale = scales_.values[static_cast<std::size_t>(value)].scale;
      if (std::isfinite(255 * (scale / out->scale))) continue;
      throw ValueError("quantized net: step " + step.name + ": its scales are too far apart for f32: value " +
                       std::to_string(value) + " has " + number_text(scale) + ", the result " +
                       number_text(out->scale) + "; 255 x value / result must be finite");
    }
  }
}

const CodeScale* QuantizedModel::result_scale(std::size_t step) const {
  const bool is_last = step + 1 == program_.steps.size();
  const Step& s = program_.steps[step];
  if (is_last && s.has_weight() && !s.has_relu && s.residual < 0) return nullptr;
  return &scales_.values[step + 1];
}

std::size_t QuantizedModel::weight_bytes() const {
  std::size_t bytes = 0;
  for (const PackedWeights& w : weights_) {
    for (const Tensor& t : {w.codes, w.weight_scale, w.bias, w.scale}) bytes += t.bytes();
  }
  return bytes;
}

Codes QuantizedModel::compute(std::size_t index, const std::vector<Codes>& values) const {
  const Step& step = program_.steps[index];
  const auto in = [&](std::size_t i) -> const Codes& { return values[static_cast<std::size_t>(step.inputs[i])]; };
  const CodeScale* const out = result_scale(index);
  switch (step.kind) {
    case StepKind::conv:
    case StepKind::linear:
      return conv_codes(in(0), weights_[index], step,
                        step.residual >= 0 ? &values[static_cast<std::size_t>(step.residual)] : nullptr, out);
    case StepKind::max_pool:
      return max_pool_of(in(0), step.window);
    case StepKind::average:
      return mean_of(in(0), *out);
    case StepKind::concat: {
      std::vector<Codes> parts;
      for (std::size_t i = 0; i < step.inputs.size(); ++i) parts.push_back(in(i));
      return concat_of(parts);
    }
    case StepKind::add:
      return sum_of(in(0), in(1), step.has_relu, *out);
    case StepKind::relu:
      return relu_of(in(0));
    case StepKind::flatten: {
      const Tensor& t = in(0).tensor;
      return {t.window({t.size(0), t.elements() / std::max<std::int64_t>(t.size(0), 1)},
                       {t.elements() / std::max<std::int64_t>(t.size(0), 1), 1}, t.offset()),
              in(0).scale};
    }
  }
  throw ValueError("quantized net: step '" + step.name + "' is of an unknown kind");
}

Tensor QuantizedModel::run(const Tensor& x, const Observer& observer) {
  const NoGrad off;
  const PathScope scope(path());
  const std::vector<int> last = program_.last_uses();
  std::vector<Codes> values(static_cast<std::size_t>(program_.values()));
  const auto numbers = [](const Codes& c) { return c.tensor.dtype() == DType::u8 ? from_codes(c) : c.tensor; };
  values[0] = to_codes(x, scales_.values[0]);
  if (observer) observer(0, numbers(values[0]));
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const PathScope of_step(program_.steps[i].name);
    values[i + 1] = compute(i, values);
    if (observer) observer(static_cast<int>(i) + 1, numbers(values[i + 1]));
    for (std::size_t v = 0; v <= i; ++v) {
      if (last[v] == static_cast<int>(i)) values[v] = Codes();
    }
  }
  return numbers(values.back());
}

}  // namespace thimble::nn::quant
