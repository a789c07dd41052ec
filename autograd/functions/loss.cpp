#include <thimble/autograd/functions/loss.h>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions/softmax.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/elementwise/elementwise_functors.h>
#include <thimble/core/ops/matmul/linear_cross_entropy.h>

namespace thimble {

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  return apply(ops::CrossEntropy{options.ignore_index, options.label_smoothing, options.reduction}, logits, targets);
}

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options, const Tensor& bias) {
  return apply(ops::LinearCrossEntropy{options.ignore_index, options.label_smoothing, options.reduction}, x, weight,
               bias, targets);
}

Tensor cross_entropy_textbook(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  return nll(log_softmax(logits, -1), targets, options);
}

Tensor nll(const Tensor& log_probabilities, const Tensor& targets, const CrossEntropyOptions& options) {
  return apply(ops::Nll{options.ignore_index, options.label_smoothing, options.reduction}, log_probabilities, targets);
}

Tensor mse_loss(const Tensor& x, const Tensor& target, LossReduction reduction) {
  if (reduction != LossReduction::none) return apply(ops::MseLoss{reduction == LossReduction::mean}, x, target);
  if (x.shape() != target.shape()) {
    throw ShapeError("mse_loss: x " + describe(x) + " and target " + describe(target) + " must have one shape");
  }
  return apply<ops::SquaredDifference>(x, target);
}

}  // namespace thimble
