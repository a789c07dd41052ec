#include <thimble/dist/sharding/loss.h>

#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/reduction/loss_common.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/view.h>
#include <thimble/dist/transit.h>
#include <thimble/dist/window.h>

namespace thimble::dist {
namespace {

using ops::loss_detail::Form;

constexpr std::int64_t numbers = 3;  // per shard and row

template <class Op>
Form form_of(const Op& op) {
  return {Op::name, true, op.ignore_index, 0, kernels::LossReduction::mean};
}

void check(const ClassShardsLoss& op, const Tensor& logits, const Tensor& targets) {
  const std::string is = std::string(op.name) + ": logits " + describe(logits) + " and targets " + describe(targets);
  if (!is_floating(logits.dtype())) throw DTypeError(is + "; expected floating logits");
  ops::loss_detail::check_target_dtype(form_of(op), targets);
  const std::int64_t own = op.group.own(op.classes);
  if (logits.rank() != 2 || logits.size(1) != own || targets.shape() != Shape{logits.size(0)}) {
    throw ShapeError(is + "; expected (N, " + std::to_string(own) + "), the classes of this rank's shards, and (N)");
  }
  check_one_device(op.name, logits, targets);
}

/// The numbers of all shards, (shards, 3, N).
Tensor shard_numbers(const ClassShardsLoss& op, const Tensor& logits, const Tensor& targets) {
  const std::int64_t each = numbers * targets.elements();
  const ShardGroup& group = op.group;
  const PathScope path = ranks_path();
  const memory::Category category =
      group.ranks != nullptr ? memory::Category::communication : memory::Category::workspace;
  Tensor all = Tensor::empty({group.shards, numbers, targets.elements()}, DType::f64, logits.device(), category);
  for (int p = 0; p < group.count(); ++p) {
    const std::int64_t begin = group.begin(op.classes), first = group.begin(op.classes, p),
                       n = group.size(op.classes, p);
    const Tensor scores = view::slice(logits, 1, first - begin, first - begin + n),
                 to = window_of(all, (group.first() + p) * each, {each});
    launch(logits.device(), [&](const Addresses& at) {
      kernels::ClassPartArgs args;
      args.outer = targets.shape();
      args.scores = ops::loss_detail::rows_of(scores, at);
      args.targets = ops::loss_detail::class_targets(form_of(op), targets, n, at);
      args.targets.first = first;
      args.out = at.as<double>(to);
      kernels::cross_entropy_kernels(logits.device()).class_part(args);
    });
  }
  if (group.ranks != nullptr) all_gather(*group.ranks, all);
  return all;
}

Tensor log_probabilities(const Tensor& logits, const Tensor& lse) {
  const Tensor out = Tensor::empty(logits.shape(), logits.dtype(), logits.device());
  launch(logits.device(), [&](const Addresses& at) {
    kernels::LogProbabilityArgs args;
    args.outer = lse.shape();
    args.scores = ops::loss_detail::rows_of(logits, at);
    args.rows = logits.size(0), args.classes = logits.size(1);
    args.log_sums = at(lse);
    args.out = ops::loss_detail::result_rows_of(out, at);
    kernels::cross_entropy_kernels(logits.device()).log_probabilities(args);
  });
  return out;
}

}  // namespace

Tensor ClassShardsLoss::forward(const Tensor& logits, const Tensor& targets, ops::Needs needs, Saved& saved) const {
  check(*this, logits, targets);
  const Form form = form_of(*this);
  const Tensor dense_targets = contiguous(targets);  // (N)
  ops::loss_detail::check_targets(form, dense_targets, classes);
  const DType dtype = ops::loss_detail::loss_dtype(logits.dtype());
  const bool keeps_lse = needs[0] && !is_textbook;
  const Tensor loss = Tensor::empty({}, dtype, logits.device());
  Tensor lse = Tensor::empty(targets.shape(), dtype, logits.device(),
                             keeps_lse ? memory::Category::temporary : memory::Category::workspace);  // (N)
  {
    const Tensor all = shard_numbers(*this, logits, dense_targets);
    const Tensor losses = Tensor::empty(targets.shape(), dtype, logits.device(), memory::Category::workspace);  // (N)
    launch(logits.device(), [&](const Addresses& at) {
      const kernels::CrossEntropyKernels& run = kernels::cross_entropy_kernels(logits.device());
      const kernels::ClassTargets of_all = ops::loss_detail::class_targets(form, dense_targets, classes, at);
      run.class_parts({of_all, group.shards, dtype, at.as<double>(all), at(lse), at(losses)});
      run.total({of_all, dtype, form.reduction, at(losses), at(loss)});
    });
  }
  if (!needs[0]) return loss;
  saved.targets = dense_targets;
  saved.scores = is_textbook ? log_probabilities(logits, lse) : logits;
  if (keeps_lse) saved.lse = lse;
  return loss;
}

ops::Gradients ClassShardsLoss::backward(Saved saved, Tensor dy, ops::Needs) const {
  const Tensor dx = reused_or_new(saved.scores);  // (N, V)
  if (dx.elements() == 0) return {dx, Tensor()};
  const Tensor dense_dy = contiguous(dy);
  launch(dx.device(), [&](const Addresses& at) {
    kernels::CrossEntropyBackwardArgs args;
    args.outer = saved.targets.shape();
    args.scores = ops::loss_detail::rows_of(saved.scores, at);
    args.targets = ops::loss_detail::class_targets(form_of(*this), saved.targets, dx.size(1), at);
    args.targets.first = group.begin(classes);
    args.batch = ops::loss_detail::class_targets(form_of(*this), saved.targets, classes, at);
    args.reduction = kernels::LossReduction::mean;
    args.log_sums = at(saved.lse);
    args.dy = at(dense_dy);
    args.dx = ops::loss_detail::result_rows_of(dx, at);
    kernels::cross_entropy_kernels(dx.device()).backward(args);
  });
  return {dx, Tensor()};
}

namespace {

void check(const TokenShardsLoss& op, const Tensor& logits, const Tensor& targets) {
  const std::string is = std::string(op.name) + ": logits " + describe(logits) + " and targets " + describe(targets);
  if (!is_floating(logits.dtype())) throw DTypeError(is + "; expected floating logits");
  ops::loss_detail::check_target_dtype(form_of(op), targets);
  if (targets.rank() != 2 || targets.size(1) % op.group.shards != 0 || logits.rank() != 2 ||
      logits.size(0) != targets.elements() / op.group.shards * op.group.count()) {
    throw ShapeError(is + "; expected (N, V) of " + std::to_string(op.group.count()) + " in " +
                     std::to_string(op.group.shards) + " shards of (B, T)");
  }
  check_one_device(op.name, logits, targets);
}

/// (B, T) -> (B T), shard after shard.
Tensor by_shard(const Tensor& targets, std::int64_t shards) {
  const std::int64_t b = targets.size(0), each = targets.size(1) / shards;
  const Tensor cut = view::permute(view::reshape(contiguous(targets), {b, shards, each}), {1, 0, 2});
  return view::reshape(contiguous(cut), {b * shards * each});
}

}  // namespace

Tensor TokenShardsLoss::forward(const Tensor& logits, const Tensor& targets, ops::Needs needs, Saved& saved) const {
  check(*this, logits, targets);
  const Form form = form_of(*this);
  const std::int64_t rows = logits.size(0), first = targets.elements() / group.shards * group.first();
  const Tensor all_targets = by_shard(targets, group.shards);  // (B T)
  ops::loss_detail::check_targets(form, all_targets, logits.size(1));
  const Tensor own_targets = view::slice(all_targets, 0, first, first + rows);
  const DType dtype = ops::loss_detail::loss_dtype(logits.dtype());
  const Tensor loss = Tensor::empty({}, dtype, logits.device());
  const Tensor lse = Tensor::empty({rows}, dtype, logits.device(),
                                   needs[0] ? memory::Category::temporary : memory::Category::workspace);
  {
    const PathScope path = ranks_path();
    const memory::Category category =
        group.ranks != nullptr ? memory::Category::communication : memory::Category::workspace;
    const Tensor losses = Tensor::empty(all_targets.shape(), dtype, logits.device(), category);
    launch(logits.device(), [&](const Addresses& at) {
      kernels::CrossEntropyArgs args;
      args.outer = {rows};
      args.scores = ops::loss_detail::rows_of(logits, at);
      args.targets = ops::loss_detail::class_targets(form, own_targets, logits.size(1), at);
      args.reduction = kernels::LossReduction::none;
      args.log_sums = at(lse);
      args.losses = at(view::slice(losses, 0, first, first + rows));
      kernels::cross_entropy_kernels(logits.device()).forward(args);
    });
    if (group.ranks != nullptr) all_gather(*group.ranks, losses);
    launch(logits.device(), [&](const Addresses& at) {
      const kernels::ClassTargets of_all = ops::loss_detail::class_targets(form, all_targets, logits.size(1), at);
      kernels::cross_entropy_kernels(logits.device()).total({of_all, dtype, form.reduction, at(losses), at(loss)});
    });
  }
  if (needs[0]) saved.logits = logits, saved.targets = all_targets, saved.lse = lse;
  return loss;
}

ops::Gradients TokenShardsLoss::backward(Saved saved, Tensor dy, ops::Needs) const {
  const std::int64_t rows = saved.logits.size(0), first = saved.targets.elements() / group.shards * group.first();
  const Tensor own_targets = view::slice(saved.targets, 0, first, first + rows);
  const Tensor dx = reused_or_new(saved.logits);  // (N, V)
  if (dx.elements() == 0) return {dx, Tensor()};
  const Tensor dense_dy = contiguous(dy);
  launch(dx.device(), [&](const Addresses& at) {
    kernels::CrossEntropyBackwardArgs args;
    args.outer = {rows};
    args.scores = ops::loss_detail::rows_of(saved.logits, at);
    args.targets = ops::loss_detail::class_targets(form_of(*this), own_targets, dx.size(1), at);
    args.batch = ops::loss_detail::class_targets(form_of(*this), saved.targets, dx.size(1), at);
    args.reduction = kernels::LossReduction::mean;
    args.log_sums = at(saved.lse);
    args.dy = at(dense_dy);
    args.dx = ops::loss_detail::result_rows_of(dx, at);
    kernels::cross_entropy_kernels(dx.device()).backward(args);
  });
  return {dx, Tensor()};
}

}  // namespace thimble::dist
