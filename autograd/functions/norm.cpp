#include <thimble/autograd/functions/norm.h>

#include <thimble/autograd/apply.h>
#include <thimble/core/ops/norm/batch_norm.h>
#include <thimble/core/ops/norm/group_norm.h>
#include <thimble/core/ops/norm/layer_norm.h>
#include <thimble/core/tensor/evaluation.h>

namespace thimble {
namespace norm_functions_detail {

template <ops::NormTail tail>
Tensor batch_norm_with(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                       const Tensor& running_mean, const Tensor& running_var, const BatchNormOptions& options) {
  // Without running statistics it uses the batch's, in evaluation too.
  if (options.training && !(is_evaluating() && running_mean.defined() && running_var.defined())) {
    return apply(ops::BatchNorm<tail>{running_mean.detach(), running_var.detach(), options.momentum, options.epsilon},
                 x, residual, weight, bias);
  }
  return apply(ops::BatchNormEval<tail>{options.epsilon}, x, residual, weight, bias, running_mean, running_var);
}

}  // namespace norm_functions_detail

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon, int axes) {
  return apply(ops::LayerNorm{axes, epsilon}, x, weight, bias);
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon, int axes) {
  return apply(ops::RmsNorm{axes, epsilon}, x, weight);
}

Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias, double epsilon) {
  return apply(ops::GroupNorm{groups, epsilon}, x, weight, bias);
}

Tensor instance_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon) {
  return group_norm(x, x.rank() > 0 ? x.shape().back() : 0, weight, bias, epsilon);
}

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_var, const BatchNormOptions& options) {
  return norm_functions_detail::batch_norm_with<ops::NormTail::none>(x, Tensor(), weight, bias, running_mean,
                                                                     running_var, options);
}

Tensor batch_norm_relu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                       const Tensor& running_var, const BatchNormOptions& options) {
  return norm_functions_detail::batch_norm_with<ops::NormTail::relu>(x, Tensor(), weight, bias, running_mean,
                                                                     running_var, options);
}

Tensor batch_norm_add_relu(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                           const Tensor& running_mean, const Tensor& running_var, const BatchNormOptions& options) {
  return norm_functions_detail::batch_norm_with<ops::NormTail::add_relu>(x, residual, weight, bias, running_mean,
                                                                         running_var, options);
}

}  // namespace thimble
