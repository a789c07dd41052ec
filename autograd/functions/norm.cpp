#include <thimble/autograd/functions/norm.h>

#include <thimble/autograd/apply.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/norm/norm.h>
#include <thimble/core/tensor/context.h>

namespace thimble {
namespace {

template <ops::NormTail tail>
Tensor batch_norm_with(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                       const Tensor& running_mean, const Tensor& running_var, const BatchNormOptions& options) {
  // Without running statistics, evaluation uses the batch's too.
  if (options.training && !(is_evaluating() && running_mean.defined() && running_var.defined())) {
    return apply(ops::BatchNorm<tail>{running_mean.detach(), running_var.detach(), options.momentum, options.epsilon},
                 x, residual, weight, bias);
  }
  return apply(ops::BatchNormEval<tail>{options.epsilon}, x, residual, weight, bias, running_mean, running_var);
}

}  // namespace

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
  return batch_norm_with<ops::NormTail::none>(x, Tensor(), weight, bias, running_mean, running_var, options);
}

Tensor batch_norm_relu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                       const Tensor& running_var, const BatchNormOptions& options) {
  return batch_norm_with<ops::NormTail::relu>(x, Tensor(), weight, bias, running_mean, running_var, options);
}

Tensor batch_norm_relu6(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                        const Tensor& running_var, const BatchNormOptions& options) {
  return batch_norm_with<ops::NormTail::relu6>(x, Tensor(), weight, bias, running_mean, running_var, options);
}

Tensor batch_norm_add_relu(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                           const Tensor& running_mean, const Tensor& running_var, const BatchNormOptions& options) {
  return batch_norm_with<ops::NormTail::add_relu>(x, residual, weight, bias, running_mean, running_var, options);
}

Tensor max_pool2d(const Tensor& x, const PoolWindow& window, MaxPoolKeeps keeps) {
  return apply(ops::MaxPool2d{window, keeps}, x);
}

Tensor avg_pool2d(const Tensor& x, const PoolWindow& window, bool count_include_pad) {
  return apply(ops::AvgPool2d{window, count_include_pad}, x);
}

Tensor adaptive_avg_pool2d(const Tensor& x, std::int64_t height, std::int64_t width) {
  return apply(ops::Resample2d{height, width, Resample::area, "adaptive_avg_pool2d"}, x);
}

Tensor interpolate(const Tensor& x, std::int64_t height, std::int64_t width, Resample mode) {
  return apply(ops::Resample2d{height, width, mode}, x);
}

Tensor upsample(const Tensor& x, std::int64_t factor, Resample mode) {
  if (x.rank() != 4) throw ShapeError("upsample: x is " + describe(x) + ", expected (N, H, W, C)");
  return apply(ops::Resample2d{x.size(1) * factor, x.size(2) * factor, mode, "upsample"}, x);
}

Tensor global_avg_pool(const Tensor& x) { return apply(ops::GlobalAvgPool{}, x); }

}  // namespace thimble
