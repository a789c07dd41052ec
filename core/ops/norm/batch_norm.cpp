#include <thimble/core/ops/norm/batch_norm.h>

#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/ops/norm/norm_common.h>

namespace thimble::ops {
namespace batch_norm_detail {

norm_detail::ChannelLayout layout_of(const Shape& shape) {
  return {1, shape.elements() / shape.back(), shape.back(), shape.back()};
}

void check_residual(const char* operation, NormTail tail, const Tensor& x, const Tensor& residual) {
  if (residual.defined() != (tail == NormTail::add_relu)) {
    throw ValueError(std::string(operation) + ": residual is " + describe(residual));
  }
  if (!residual.defined()) return;
  const auto is = [&] {
    return std::string(operation) + ": residual is " + describe(residual) + ", x is " + describe(x);
  };
  if (residual.shape() != x.shape()) throw ShapeError(is());
  if (residual.dtype() != x.dtype()) throw DTypeError(is());
  if (residual.device() != x.device()) throw DeviceError(is());
}

void check_operands(const char* operation, NormTail tail, const Tensor& x, const Tensor& residual, const Tensor& weight,
                    const Tensor& bias, const Tensor& running_mean, const Tensor& running_var, double epsilon) {
  norm_detail::check_input(operation, x, 2, epsilon);
  check_residual(operation, tail, x, residual);
  const Shape channels{x.shape().back()};
  norm_detail::check_parameter(operation, "weight", weight, x, channels);
  norm_detail::check_parameter(operation, "bias", bias, x, channels);
  norm_detail::check_parameter(operation, "running_mean", running_mean, x, channels);
  norm_detail::check_parameter(operation, "running_var", running_var, x, channels);
  const auto running = [&] {
    return std::string(operation) + ": running_mean is " + describe(running_mean) + ", running_var is " +
           describe(running_var);
  };
  if (running_mean.defined() != running_var.defined()) throw ValueError(running() + ": expected both or none");
  if (!running_mean.defined()) return;
  if (running_mean.dtype() != running_var.dtype()) throw DTypeError(running());
  if (!running_mean.is_contiguous() || !running_var.is_contiguous())
    throw ShapeError(running() + ": they must be dense");
}

void check_training(const char* operation, const Tensor& x, double momentum) {
  if (x.elements() / x.shape().back() < 2) {
    throw ShapeError(std::string(operation) + ": x is " + describe(x) +
                     ": batch statistics need at least two values for each channel");
  }
  if (!(momentum >= 0 && momentum <= 1)) {
    throw ValueError(std::string(operation) + ": momentum " + std::to_string(momentum) + ", expected 0 to 1");
  }
}

norm_detail::ChannelNormWants wants_of(Needs needs) { return {needs[0], needs[1], needs[2], needs[3]}; }

Gradients gradients_of(norm_detail::ChannelNormGradients all) { return {all.x, all.residual, all.weight, all.bias}; }

}  // namespace batch_norm_detail

template <NormTail tail>
Tensor BatchNorm<tail>::forward(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                                Needs needs, Saved& saved) const {
  batch_norm_detail::check_operands(name, tail, x, residual, weight, bias, running_mean, running_var, epsilon);
  batch_norm_detail::check_training(name, x, momentum);
  saved.parameter_dtype = norm_detail::common_dtype(name, weight, bias, x.dtype());
  norm_detail::ChannelNorm call{batch_norm_detail::layout_of(x.shape()),
                                tail,
                                epsilon,
                                momentum,
                                false,
                                x,
                                residual,
                                weight,
                                bias,
                                running_mean,
                                running_var};
  const bool finds_mask_in_x = tail == NormTail::relu && needs.any();
  const bool keeps_statistics = needs[0] || needs[2] || finds_mask_in_x;
  norm_detail::ChannelNormKept kept;
  const Tensor y =
      norm_detail::channel_norm_forward(call, keeps_statistics, tail == NormTail::add_relu && needs.any(), kept);
  if (keeps_statistics) saved.x = x;
  if (needs[0] || finds_mask_in_x) saved.weight = weight;
  if (finds_mask_in_x) saved.bias = bias;
  saved.mean = kept.mean, saved.rstd = kept.rstd, saved.mask = kept.mask;
  return y;
}

template <NormTail tail>
Tensor BatchNorm<tail>::output_from_saved(Saved saved, std::span<const Tensor> inputs) const {
  norm_detail::ChannelNorm call;
  call.layout = batch_norm_detail::layout_of(inputs[0].shape());
  call.tail = tail;
  call.epsilon = epsilon;
  call.x = inputs[0], call.residual = inputs[1], call.weight = inputs[2], call.bias = inputs[3];
  norm_detail::ChannelNormKept kept{saved.mean, saved.rstd, {}};
  return norm_detail::channel_norm_forward(call, false, false, kept);
}

template <NormTail tail>
Gradients BatchNorm<tail>::backward(Saved saved, Tensor dy, Needs needs) const {
  norm_detail::ChannelNorm call;
  call.layout = batch_norm_detail::layout_of(dy.shape());
  call.tail = tail;
  call.x = std::exchange(saved.x, Tensor());
  call.weight = saved.weight;
  call.bias = saved.bias;
  return batch_norm_detail::gradients_of(
      norm_detail::channel_norm_backward(std::move(call), {saved.mean, saved.rstd, saved.mask}, std::move(dy),
                                         batch_norm_detail::wants_of(needs), saved.parameter_dtype));
}

template <NormTail tail>
Tensor BatchNormEval<tail>::forward(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                                    const Tensor& running_mean, const Tensor& running_var, Needs needs,
                                    Saved& saved) const {
  batch_norm_detail::check_operands(name, tail, x, residual, weight, bias, running_mean, running_var, epsilon);
  if (!running_mean.defined()) throw ValueError(std::string(name) + ": expected running_mean and running_var");
  saved.parameter_dtype = norm_detail::common_dtype(name, weight, bias, x.dtype());
  norm_detail::ChannelNorm call{batch_norm_detail::layout_of(x.shape()),
                                tail,
                                epsilon,
                                0,
                                true,
                                x,
                                residual,
                                weight,
                                bias,
                                running_mean,
                                running_var};
  norm_detail::ChannelNormKept kept;
  const Tensor y = norm_detail::channel_norm_forward(call, false, tail == NormTail::add_relu && needs.any(), kept);
  const bool finds_mask_in_x = tail == NormTail::relu && needs.any();
  if (needs[2] || finds_mask_in_x) saved.x = x;
  if (needs[0] || finds_mask_in_x) saved.weight = weight;
  if (finds_mask_in_x) saved.bias = bias;
  if (needs[0] || needs[2] || finds_mask_in_x) saved.running_mean = running_mean, saved.running_var = running_var;
  saved.mask = kept.mask;
  return y;
}

template <NormTail tail>
Gradients BatchNormEval<tail>::backward(Saved saved, Tensor dy, Needs needs) const {
  norm_detail::ChannelNorm call;
  call.layout = batch_norm_detail::layout_of(dy.shape());
  call.tail = tail;
  call.epsilon = epsilon;
  call.uses_running = true;
  call.x = std::exchange(saved.x, Tensor());
  call.weight = saved.weight;
  call.bias = saved.bias;
  call.running_mean = saved.running_mean;
  call.running_var = saved.running_var;
  Gradients gradients = batch_norm_detail::gradients_of(
      norm_detail::channel_norm_backward(std::move(call), {Tensor(), Tensor(), saved.mask}, std::move(dy),
                                         batch_norm_detail::wants_of(needs), saved.parameter_dtype));
  gradients.push_back(Tensor());
  gradients.push_back(Tensor());
  return gradients;
}

template struct BatchNorm<NormTail::none>;
template struct BatchNorm<NormTail::relu>;
template struct BatchNorm<NormTail::add_relu>;
template struct BatchNormEval<NormTail::none>;
template struct BatchNormEval<NormTail::relu>;
template struct BatchNormEval<NormTail::add_relu>;

}  // namespace thimble::ops
