#include <thimble/core/ops/reduction/loss.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/functors/elementwise_functors.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/ops/reduce.h>
#include <thimble/core/ops/reduction/loss_common.h>
#include <thimble/core/ops/reuse.h>

namespace thimble::ops {
namespace loss_detail {

Shape without_last(Shape sizes) {
  sizes.erase(sizes.rank() - 1);
  return sizes;
}

void check_target_dtype(const Form& form, const Tensor& targets) {
  if (targets.dtype() == DType::i32 || targets.dtype() == DType::i64) return;
  throw DTypeError(std::string(form.name) + ": targets " + describe(targets) + " are neither i32 nor i64");
}

void check_label_smoothing(const Form& form) {
  if (form.label_smoothing >= 0 && form.label_smoothing <= 1) return;
  throw ValueError(std::string(form.name) + ": label smoothing " + std::to_string(form.label_smoothing) +
                   " is not in [0, 1]");
}

void check(const Form& form, const Tensor& scores, const Tensor& targets) {
  const std::string name = form.name;
  if (!is_floating(scores.dtype())) throw DTypeError(name + ": scores " + describe(scores) + " are not floating");
  check_target_dtype(form, targets);
  if (scores.rank() < 1 || scores.shape().back() < 1 || targets.shape() != without_last(scores.shape())) {
    throw ShapeError(name + ": scores " + describe(scores) + " and targets " + describe(targets) +
                     ", they must be (..., C) with C >= 1 and (...)");
  }
  check_one_device(name, scores, targets);
  check_label_smoothing(form);
}

kernels::ClassTargets class_targets(const Form& form, const Tensor& targets, std::int64_t classes,
                                    const Addresses& at) {
  return {at(targets), targets.dtype(), targets.elements(), classes, form.ignore_index};
}

// Kernels cannot throw, so targets are checked here.
void check_targets(const Form& form, const Tensor& targets, std::int64_t classes) {
  std::int64_t bad = -1, value = 0;
  launch(targets.device(), [&](const Addresses& at) {
    const auto find = kernels::cross_entropy_kernels(targets.device()).find_bad_target;
    if (!find) return;
    bad = find(class_targets(form, targets, classes, at));
    if (bad < 0) return;
    value = targets.dtype() == DType::i32 ? at.as<std::int32_t>(targets)[bad] : at.as<std::int64_t>(targets)[bad];
  });
  if (bad < 0) return;
  throw ValueError(std::string(form.name) + ": target " + std::to_string(value) + " at row " + std::to_string(bad) +
                   " is neither a class in [0, " + std::to_string(classes) + ") nor the ignored index " +
                   std::to_string(form.ignore_index));
}

// `targets` are dense; `log_sums`, unless undefined, gets one value per row.
Tensor forward(const Form& form, const Tensor& scores, const Tensor& targets, const Tensor& log_sums) {
  const std::int64_t classes = scores.shape().back();
  check_targets(form, targets, classes);
  const bool is_per_row = form.reduction == LossReduction::none;
  const DType dtype = loss_dtype(scores.dtype());
  const Tensor losses = Tensor::empty(targets.shape(), dtype, scores.device(),
                                      is_per_row ? memory::Category::temporary : memory::Category::workspace);  // (...)
  const Tensor out = is_per_row ? losses : Tensor::empty({}, dtype, scores.device());
  if (out.elements() == 0) return out;
  launch(scores.device(), [&](const Addresses& at) {
    kernels::CrossEntropyArgs args;
    args.outer = without_last(scores.shape());
    args.scores = {at(scores), scores.dtype(), without_last(scores.strides()), scores.strides().back()};
    args.are_logits = form.are_logits;
    args.targets = class_targets(form, targets, classes, at);
    args.smoothing = form.label_smoothing;
    args.reduction = form.reduction;
    args.log_sums = at(log_sums);
    args.losses = at(losses);
    args.out = at(out);
    kernels::cross_entropy_kernels(scores.device()).forward(args);
  });
  return out;
}

// `scores` are undefined unless they are logits; `dx` is (..., C), dense.
void backward(const Form& form, const Tensor& scores, const Tensor& targets, const Tensor& log_sums, const Tensor& dy,
              const Tensor& dx) {
  if (dx.elements() == 0) return;
  const Tensor dense_dy = contiguous(dy);
  launch(dx.device(), [&](const Addresses& at) {
    kernels::CrossEntropyBackwardArgs args;
    args.outer = without_last(dx.shape());
    if (form.are_logits) {
      args.scores = {at(scores), scores.dtype(), without_last(scores.strides()), scores.strides().back()};
    }
    args.are_logits = form.are_logits;
    args.targets = class_targets(form, targets, dx.shape().back(), at);
    args.smoothing = form.label_smoothing;
    args.reduction = form.reduction;
    args.log_sums = at(log_sums);
    args.dy = at(dense_dy);
    args.dx = {at(dx), dx.dtype(), without_last(dx.strides()), dx.strides().back()};
    kernels::cross_entropy_kernels(dx.device()).backward(args);
  });
}

}  // namespace loss_detail

Tensor CrossEntropy::forward(const Tensor& logits, const Tensor& targets, Needs needs, Saved& saved) const {
  const loss_detail::Form form{name, true, ignore_index, label_smoothing, reduction};
  loss_detail::check(form, logits, targets);
  const Tensor dense_targets = contiguous(targets);  // (...)
  Tensor lse;                                        // (...)
  if (needs[0]) lse = Tensor::empty(targets.shape(), loss_detail::loss_dtype(logits.dtype()), logits.device());
  const Tensor loss = loss_detail::forward(form, logits, dense_targets, lse);
  if (needs[0]) {
    saved.logits = logits;
    saved.targets = dense_targets;
    saved.lse = lse;
  }
  return loss;
}

Gradients CrossEntropy::backward(Saved saved, Tensor dy, Needs) const {
  const loss_detail::Form form{name, true, ignore_index, label_smoothing, reduction};
  const Tensor dx = reused_or_new(saved.logits);  // (..., C)
  loss_detail::backward(form, saved.logits, saved.targets, saved.lse, dy, dx);
  return {dx, Tensor()};
}

Tensor Nll::forward(const Tensor& log_probabilities, const Tensor& targets, Needs needs, Saved& saved) const {
  const loss_detail::Form form{name, false, ignore_index, label_smoothing, reduction};
  loss_detail::check(form, log_probabilities, targets);
  const Tensor dense_targets = contiguous(targets);  // (...)
  const Tensor loss = loss_detail::forward(form, log_probabilities, dense_targets, Tensor());
  saved.shape = log_probabilities.shape();
  saved.dtype = log_probabilities.dtype();
  if (needs[0]) saved.targets = dense_targets;
  return loss;
}

Gradients Nll::backward(Saved saved, Tensor dy, Needs) const {
  const loss_detail::Form form{name, false, ignore_index, label_smoothing, reduction};
  const Tensor dx = Tensor::empty(saved.shape, saved.dtype, dy.device());  // (..., C)
  loss_detail::backward(form, Tensor(), saved.targets, Tensor(), dy, dx);
  return {dx, Tensor()};
}

template <kernels::ReduceMap map>
Tensor PairLoss<map>::forward(const Tensor& x, const Tensor& target, Needs needs, Saved& saved) const {
  elementwise_detail::common_shape(name, {&x, &target});
  elementwise_detail::check_dtype(name, x.dtype(), false);
  elementwise_detail::check_dtype(name, target.dtype(), false);
  if (x.shape() != target.shape()) {
    throw ShapeError(std::string(name) + ": x " + describe(x) + " and target " + describe(target) +
                     " must have one shape");
  }
  const Tensor loss = Tensor::empty({}, loss_detail::loss_dtype(x.dtype()), x.device());
  const AxisMask all = axis_mask(name, {}, x.rank());
  reduce_into(loss, x, all, map, target, is_mean ? static_cast<double>(x.elements()) : 1, parameter);
  const unsigned kept = Elementwise<decltype(pair_functor<map>(0))>::keeps(needs);
  if (kept & 1u) saved.x = x;
  if (kept & 2u) saved.target = target;
  saved.shape = x.shape();
  saved.dtype = x.dtype();
  return loss;
}

template <kernels::ReduceMap map>
Gradients PairLoss<map>::backward(Saved saved, Tensor dy, Needs needs) const {
  const auto f = pair_functor<map>(parameter);
  using F = std::remove_const_t<decltype(f)>;
  const Tensor &x = saved.x, &target = saved.target, none;
  const Tensor g = reused_or_new(dy);  // ()
  elementwise_detail::run(name, MulScalar{is_mean ? 1 / static_cast<double>(saved.shape.elements()) : 1}, {&dy}, g);
  const auto gradient = [&]<int operand>(const Tensor& out) {
    constexpr auto kept = static_cast<unsigned>(functor::keeps<F, operand>);
    const auto& entry = kernels::elementwise_cpu_table[builtin_index<F>];
    elementwise_detail::run(name, entry.backward[operand], builtin_index<F>, operand, &f, saved.shape,
                            {(kept & 1u) ? &x : &none, (kept & 2u) ? &target : &none, &g}, out);
    return out;
  };
  const auto new_or = [&](const Tensor& t) {
    return t.defined() ? reused_or_new(t) : Tensor::empty(saved.shape, saved.dtype, dy.device());
  };
  Gradients gradients{Tensor(), Tensor()};
  if (needs[0] && needs[1]) {  // the second gradient still reads x
    gradients[0] = gradient.template operator()<0>(Tensor::empty(saved.shape, saved.dtype, dy.device()));
  } else if (needs[0]) {
    gradients[0] = gradient.template operator()<0>(new_or(x));
  }
  if (needs[1]) gradients[1] = gradient.template operator()<1>(new_or(target));
  return gradients;
}

template struct PairLoss<kernels::ReduceMap::squared_difference>;
template struct PairLoss<kernels::ReduceMap::absolute_difference>;
template struct PairLoss<kernels::ReduceMap::huber>;
template struct PairLoss<kernels::ReduceMap::bce_with_logits>;
template struct PairLoss<kernels::ReduceMap::kl_divergence>;

}  // namespace thimble::ops
