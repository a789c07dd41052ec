#include <thimble/autograd/functions/loss.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/functions/reduction.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/functors/elementwise_functors.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/matmul/chunked.h>
#include <thimble/core/ops/reduction/reduction.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/units.h>

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

namespace {

// Reduced in one pass, or elementwise.
template <kernels::ReduceMap map>
Tensor pair_loss(const Tensor& x, const Tensor& target, LossReduction reduction, double parameter = 0) {
  using Loss = ops::PairLoss<map>;
  if (reduction != LossReduction::none) return apply(Loss{reduction == LossReduction::mean, parameter}, x, target);
  if (x.shape() != target.shape()) {
    throw ShapeError(std::string(Loss::name) + ": x " + describe(x) + " and target " + describe(target) +
                     " must have one shape");
  }
  return apply(ops::pair_functor<map>(parameter), x, target);
}

}  // namespace

Tensor mse_loss(const Tensor& x, const Tensor& target, LossReduction reduction) {
  return pair_loss<kernels::ReduceMap::squared_difference>(x, target, reduction);
}

Tensor l1_loss(const Tensor& x, const Tensor& target, LossReduction reduction) {
  return pair_loss<kernels::ReduceMap::absolute_difference>(x, target, reduction);
}

Tensor huber_loss(const Tensor& x, const Tensor& target, double delta, LossReduction reduction) {
  if (!(delta > 0)) throw ValueError("huber_loss: delta " + std::to_string(delta) + ", expected above 0");
  return pair_loss<kernels::ReduceMap::huber>(x, target, reduction, delta);
}

Tensor bce_with_logits(const Tensor& logits, const Tensor& targets, double positive_weight, LossReduction reduction) {
  if (!(positive_weight >= 0 && std::isfinite(positive_weight))) {
    throw ValueError("bce_with_logits: positive_weight " + std::to_string(positive_weight) +
                     ", expected a finite number, at least 0");
  }
  return pair_loss<kernels::ReduceMap::bce_with_logits>(logits, targets, reduction, positive_weight);
}

Tensor kl_div(const Tensor& log_probabilities, const Tensor& targets, LossReduction reduction, bool is_log_target) {
  return pair_loss<kernels::ReduceMap::kl_divergence>(log_probabilities, targets, reduction, is_log_target ? 1 : 0);
}

Tensor cosine_similarity(const Tensor& a, const Tensor& b, int axis, double epsilon) {
  if (!(epsilon >= 0 && std::isfinite(epsilon))) {
    throw ValueError("cosine_similarity: epsilon " + std::to_string(epsilon) +
                     ", expected a finite number, at least 0");
  }
  const char* const name = "cosine_similarity";
  const Shape shape = broadcast(name, view::defined(name, a).shape(), view::defined(name, b).shape());
  check_one_device(name, a, b);
  const auto whole = [&](const Tensor& t) { return t.shape() == shape ? t : expand(t, shape); };
  const Tensor x = whole(a), y = whole(b);
  const AxisMask along = axis_mask(name, std::array{axis}, shape.rank());
  const auto length = [&](const Tensor& t) {  // in f64, which holds squares and their product
    return sqrt(clamp(apply(ops::DotProduct{along}, t, t), epsilon * epsilon, HUGE_VAL));
  };
  return cast(apply(ops::DotProduct{along}, x, y) / (length(x) * length(y)), a.dtype());
}

Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& targets, double margin,
                             LossReduction reduction) {
  if (a.rank() != 2 || a.shape() != b.shape() || targets.shape() != Shape{a.size(0)}) {
    throw ShapeError("cosine_embedding_loss: a " + describe(a) + ", b " + describe(b) + ", targets " +
                     describe(targets) + "; expected (N, C), (N, C) and (N)");
  }
  if (!std::isfinite(margin)) {
    throw ValueError("cosine_embedding_loss: margin " + std::to_string(margin) + ", expected a finite number");
  }
  if (targets.device().is_cpu()) {
    const Tensor wide = to_dtype(contiguous(targets.detach()), DType::f64);  // allocated on a dry device too
    const std::vector<double> of = wide.device().is_dry ? std::vector<double>() : to_host<double>(wide);
    const auto other = std::find_if(of.begin(), of.end(), [](double t) { return t != 1 && t != -1; });
    if (other != of.end()) {
      throw ValueError("cosine_embedding_loss: target " + format_real(*other) + " of row " +
                       std::to_string(other - of.begin()) + ", expected 1 or -1");
    }
  }
  const Tensor cosine = cosine_similarity(a, b);
  const Tensor is_pair = greater(targets, zeros({}, targets.dtype(), targets.device()));
  const Tensor losses = where(is_pair, 1.0 - cosine, relu(cosine - margin));
  if (reduction == LossReduction::none) return losses;
  return reduction == LossReduction::mean ? mean(losses) : sum(losses);
}

}  // namespace thimble
