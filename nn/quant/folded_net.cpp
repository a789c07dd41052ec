#include <thimble/nn/quant/folded_net.h>

#include <algorithm>
#include <optional>
#include <string>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/functions/indexing.h>
#include <thimble/autograd/functions/matmul.h>
#include <thimble/autograd/functions/pool.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/nn/quant/folded_trace.h>

namespace thimble::nn::quant {
namespace folded_net_detail {

ops::Conv2d convolution(const StepWindow& w) {
  return {w.stride[0], w.stride[1], w.padding[0], w.padding[1], w.dilation[0], w.dilation[1], 1};
}

Tensor scalar(float value, memory::Device device) { return full({1}, static_cast<double>(value), DType::f32, device); }

/// (O, 1, ...) f32; none where a weight is not finite. The host finds them, for a CUDA device from a copy.
std::optional<Tensor> weight_scales(const Tensor& weight, bool is_per_tensor) {
  const memory::Device device = weight.device();
  Shape shape = weight.shape();
  for (int axis = 1; axis < shape.rank(); ++axis) shape[axis] = 1;
  if (device.is_cuda()) {
    if (device.is_dry) return Tensor::empty(shape, DType::f32, device);
    const std::optional<Tensor> scale = weight_scales(to_device(weight, cpu), is_per_tensor);
    return scale ? to_device(*scale, device) : scale;
  }
  const std::int64_t filters = weight.size(0), elements = weight.elements() / std::max<std::int64_t>(filters, 1);
  const Tensor scale = Tensor::empty(shape, DType::f32, device);
  const Tensor codes = Tensor::empty({weight.elements()}, DType::i8, device, Category::workspace);
  bool is_finite = true;
  launch(device, [&](const Addresses& at) {
    is_finite = kernels::quantize_weight_codes(at(weight), weight.dtype(), filters, elements, is_per_tensor, nullptr,
                                               at.as<std::int8_t>(codes), at.as<float>(scale));
  });
  return is_finite ? std::optional<Tensor>(scale) : std::nullopt;
}

}  // namespace folded_net_detail

FoldedNet::FoldedNet(Module& model, const std::function<Tensor(const Tensor&)>& forward, const Tensor& input) {
  TracedNet net = trace_net(model, forward, input);
  program_ = std::move(net.program);
  const PathScope scope(path());
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const Step& step = program_.steps[i];
    Weights own;
    if (step.has_weight()) {
      const FileLayout layout = step.kind == StepKind::conv ? FileLayout::oihw : FileLayout::same;
      own.weight = add_parameter(step.name + ".weight", net.weights[i].weight, layout);
      own.bias = add_parameter(step.name + ".bias", net.weights[i].bias);
    }
    weights_.push_back(std::move(own));
  }
}

void FoldedNet::fake_quantize(std::optional<Scales> scales) {
  if (scales && scales->values.size() != static_cast<std::size_t>(program_.values())) {
    throw ValueError("fake_quantize: " + std::to_string(scales->values.size()) + " scales for " +
                     std::to_string(program_.values()) + " values");
  }
  for (const Weights& w : weights_) {
    if (scales && w.weight.defined() && w.weight.dtype() != DType::f32) {
      throw DTypeError("fake_quantize: the net's weights are " + describe(w.weight) + "; f32 is needed");
    }
  }
  scales_ = std::move(scales);
}

Tensor FoldedNet::rounded(int value, Tensor x) const {
  const bool is_result = value + 1 == program_.values();
  if (!scales_ || is_result) return x;
  const CodeScale& s = scales_->values[static_cast<std::size_t>(value)];
  return thimble::fake_quantize(x, folded_net_detail::scalar(s.scale, x.device()), s.zero, s.low, s.high);
}

Tensor FoldedNet::rounded_weight(std::size_t step) const {
  const Tensor& weight = weights_[step].weight;
  if (!scales_) return weight;
  const std::optional<Tensor> scale =
      folded_net_detail::weight_scales(weight.detach(), scales_->weights == WeightScales::per_tensor);
  if (!scale)
    throw ValueError("fake_quantize: weight " + program_.steps[step].name + " has a value that is not finite");
  return thimble::fake_quantize(weight, *scale, 0, -127, 127);
}

Tensor FoldedNet::compute(std::size_t step, const std::vector<Tensor>& values) const {
  return rounded(static_cast<int>(step) + 1, exact(step, values));
}

Tensor FoldedNet::exact(std::size_t index, const std::vector<Tensor>& values) const {
  const Step& step = program_.steps[index];
  const auto in = [&](std::size_t i) -> const Tensor& { return values[static_cast<std::size_t>(step.inputs[i])]; };
  const Weights& own = weights_[index];
  switch (step.kind) {
    case StepKind::conv: {
      Tensor y = apply(folded_net_detail::convolution(step.window), in(0), rounded_weight(index), own.bias);
      if (step.residual >= 0) y = add(y, values[static_cast<std::size_t>(step.residual)]);
      return step.has_relu ? relu(y) : y;
    }
    case StepKind::linear:
      return linear(in(0), rounded_weight(index), own.bias,
                    step.has_relu ? kernels::Activation::relu : kernels::Activation::none);
    case StepKind::max_pool: {
      const StepWindow& w = step.window;
      return max_pool2d(in(0), {w.kernel, w.stride, w.padding, w.dilation, w.rounds_up});
    }
    case StepKind::average:
      return global_avg_pool(in(0));
    case StepKind::concat: {
      std::vector<Tensor> parts;
      for (std::size_t i = 0; i < step.inputs.size(); ++i) parts.push_back(in(i));
      return concat(parts, parts.front().rank() - 1);
    }
    case StepKind::add: {
      const Tensor y = add(in(0), in(1));
      return step.has_relu ? relu(y) : y;
    }
    case StepKind::relu:
      return relu(in(0));
    case StepKind::flatten:
      return flatten(in(0), 1);
  }
  throw ValueError("folded net: step '" + step.name + "' is of an unknown kind");
}

Tensor FoldedNet::run(const Tensor& x, const Observer& observer) {
  const PathScope scope(path());
  const std::vector<int> last = program_.last_uses();
  std::vector<Tensor> values(static_cast<std::size_t>(program_.values()));
  values[0] = rounded(0, x);
  if (observer) observer(0, values[0]);
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const PathScope of_step(program_.steps[i].name);
    values[i + 1] = compute(i, values);
    if (observer) observer(static_cast<int>(i) + 1, values[i + 1]);
    for (std::size_t v = 0; v <= i; ++v) {
      if (last[v] == static_cast<int>(i)) values[v] = Tensor();
    }
  }
  return values.back();
}

}  // namespace thimble::nn::quant
