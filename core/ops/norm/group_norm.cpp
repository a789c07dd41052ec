#include <thimble/core/ops/norm/group_norm.h>

#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/ops/norm/norm_common.h>

namespace thimble::ops {
namespace group_norm_detail {

norm_detail::ChannelNorm call_of(const Shape& shape, std::int64_t groups) {
  norm_detail::ChannelNorm call;
  call.layout = {shape[0], 1, shape.back(), groups};
  for (int axis = 1; axis + 1 < shape.rank(); ++axis) call.layout.rows *= shape[axis];
  return call;
}

}  // namespace group_norm_detail

Tensor GroupNorm::forward(const Tensor& x, const Tensor& weight, const Tensor& bias, Needs needs, Saved& saved) const {
  norm_detail::check_input(name, x, 2, epsilon);
  const Shape channels{x.shape().back()};
  norm_detail::check_parameter(name, "weight", weight, x, channels);
  norm_detail::check_parameter(name, "bias", bias, x, channels);
  if (groups < 1 || channels[0] % groups != 0) {
    throw ValueError(std::string(name) + ": " + std::to_string(groups) + " groups do not divide the " +
                     std::to_string(channels[0]) + " channels of " + describe(x));
  }
  saved.parameter_dtype = norm_detail::common_dtype(name, weight, bias, x.dtype());
  norm_detail::ChannelNorm call = group_norm_detail::call_of(x.shape(), groups);
  call.epsilon = epsilon;
  call.x = x;
  call.weight = weight;
  call.bias = bias;
  const bool keeps_statistics = needs[0] || needs[1];
  norm_detail::ChannelNormKept kept;
  const Tensor y = norm_detail::channel_norm_forward(call, keeps_statistics, false, kept);
  if (keeps_statistics) {
    saved.x = x;
    saved.mean = kept.mean;
    saved.rstd = kept.rstd;
  }
  if (needs[0]) saved.weight = weight;
  return y;
}

Gradients GroupNorm::backward(Saved saved, Tensor dy, Needs needs) const {
  norm_detail::ChannelNorm call = group_norm_detail::call_of(dy.shape(), groups);
  call.x = std::exchange(saved.x, Tensor());
  call.weight = saved.weight;
  norm_detail::ChannelNormGradients all =
      norm_detail::channel_norm_backward(std::move(call), {saved.mean, saved.rstd, Tensor()}, std::move(dy),
                                         {needs[0], false, needs[1], needs[2]}, saved.parameter_dtype);
  return {all.x, all.weight, all.bias};
}

}  // namespace thimble::ops
