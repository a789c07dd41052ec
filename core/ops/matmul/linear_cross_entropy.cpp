#include <thimble/core/ops/matmul/linear_cross_entropy.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/elementwise/binary.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/ops/matmul/row_chunks.h>
#include <thimble/core/ops/reduction/loss_common.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>

namespace thimble::ops {
namespace linear_cross_entropy_detail {

using loss_detail::Form;

void check(const Form& form, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& targets) {
  const std::string name = form.name;
  if (!is_floating(x.dtype()) || weight.dtype() != x.dtype() || (bias.defined() && bias.dtype() != x.dtype())) {
    throw DTypeError(name + ": x " + describe(x) + ", weight " + describe(weight) +
                     (bias.defined() ? ", bias " + describe(bias) : "") + "; expected one floating dtype");
  }
  loss_detail::check_target_dtype(form, targets);
  if (x.rank() != 2 || weight.rank() != 2 || x.size(1) != weight.size(1) || weight.size(0) < 1 ||
      targets.shape() != Shape{x.size(0)} || (bias.defined() && bias.shape() != Shape{weight.size(0)})) {
    throw ShapeError(name + ": x " + describe(x) + ", weight " + describe(weight) + ", targets " + describe(targets) +
                     (bias.defined() ? ", bias " + describe(bias) : "") +
                     "; they must be (N, C), (V, C) with V >= 1, (N) and (V)");
  }
  for (const Tensor* t : {&weight, &targets, &bias}) {
    if (t->defined() && t->device() != x.device()) {
      throw DeviceError(name + ": operands on different devices, x " + describe(x) + " and " + describe(*t));
    }
  }
  loss_detail::check_label_smoothing(form);
  if (form.reduction == kernels::LossReduction::none) {
    throw ValueError(name + ": reduction none; expected mean or sum, because backward has one dy");
  }
}

// One pass over the rows.
struct Pass {
  const Form& form;
  const Tensor &x, &weight, &bias, &targets;  // (N, C), (V, C), (V) or undefined, (N) dense
  Tensor losses;                              // (N)
  Tensor lse;                                 // (N); undefined where no gradient is needed
  Tensor one;                                 // (): the gradients' initial dy

  void make_logits(const Tensor& rows, const Tensor& logits) const {
    MatmulCall call{form.name, rows, view::transpose(weight), logits, bias, {}};
    matmul_into(call);
  }

  void lose(const Tensor& logits, std::int64_t begin, std::int64_t end) const {
    const Tensor part = view::slice(targets, 0, begin, end), loss = view::slice(losses, 0, begin, end);
    const Tensor level = lse.defined() ? view::slice(lse, 0, begin, end) : Tensor();
    launch(x.device(), [&](const Addresses& at) {
      kernels::CrossEntropyArgs args;
      args.outer = {end - begin};
      args.scores = {at(logits), logits.dtype(), {logits.strides()[0]}, 1};
      args.targets = loss_detail::class_targets(form, part, weight.size(0), at);
      args.smoothing = form.label_smoothing;
      args.reduction = kernels::LossReduction::none;
      args.log_sums = at(level);
      args.losses = at(loss);
      kernels::cross_entropy_kernels(x.device()).forward(args);
    });
  }

  // Replaces logits by the gradient of the loss.
  void differentiate(const Tensor& logits, std::int64_t begin, std::int64_t end) const {
    const Tensor part = view::slice(targets, 0, begin, end), level = view::slice(lse, 0, begin, end);
    launch(x.device(), [&](const Addresses& at) {
      kernels::CrossEntropyBackwardArgs args;
      args.outer = {end - begin};
      args.scores = {at(logits), logits.dtype(), {logits.strides()[0]}, 1};
      args.targets = loss_detail::class_targets(form, part, weight.size(0), at);
      args.batch = loss_detail::class_targets(form, targets, weight.size(0), at);
      args.smoothing = form.label_smoothing;
      args.reduction = form.reduction;
      args.log_sums = at(level);
      args.dy = at(one);
      args.dx = {at(logits), logits.dtype(), {logits.strides()[0]}, 1};
      kernels::cross_entropy_kernels(x.device()).backward(args);
    });
  }

  Tensor total() const {
    const Tensor out = Tensor::empty({}, losses.dtype(), x.device());
    launch(x.device(), [&](const Addresses& at) {
      const kernels::ClassTargets all = loss_detail::class_targets(form, targets, weight.size(0), at);
      kernels::cross_entropy_kernels(x.device()).total({all, losses.dtype(), form.reduction, at(losses), at(out)});
    });
    return out;
  }
};

}  // namespace linear_cross_entropy_detail

std::int64_t LinearCrossEntropy::chunk_rows_of(std::int64_t rows, std::int64_t classes, std::size_t element_bytes) {
  return ops::chunk_rows_of(rows, classes, element_bytes);
}

Tensor LinearCrossEntropy::forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& targets,
                                   Needs needs, Saved& saved) const {
  namespace detail = linear_cross_entropy_detail;
  const loss_detail::Form form{name, true, ignore_index, label_smoothing, reduction};
  detail::check(form, x, weight, bias, targets);
  const std::int64_t rows = x.size(0), classes = weight.size(0);
  const std::int64_t step = chunk_rows_on(name, x.device(), chunk_rows, rows, classes, size_of(x.dtype()));
  const std::int64_t chunks = (rows + step - 1) / step;
  const bool has_gradients = needs[0] || needs[1] || needs[2];
  const DType statistic = loss_detail::loss_dtype(x.dtype());
  const Tensor dense_targets = contiguous(targets), dense_bias = bias.defined() ? contiguous(bias) : bias;
  loss_detail::check_targets(form, dense_targets, classes);

  detail::Pass pass{form, x, weight, dense_bias, dense_targets, {}, {}, {}};
  pass.losses = Tensor::empty({rows}, statistic, x.device(), Category::workspace);
  if (has_gradients) {
    pass.lse = Tensor::empty({rows}, statistic, x.device(), Category::workspace);
    pass.one = full({}, 1, statistic, x.device());
  }
  Tensor dx;
  std::optional<ChunkSum> dweight, dbias;
  if (needs[0]) dx = Tensor::empty(x.shape(), x.dtype(), x.device());
  if (needs[1]) dweight.emplace(weight.shape(), x, chunks);
  if (needs[2]) dbias.emplace(Shape{classes}, x, chunks);
  {
    const Tensor buffer = Tensor::empty({std::min(step, rows), classes}, x.dtype(), x.device(), Category::workspace);
    for (std::int64_t begin = 0; begin < rows; begin += step) {
      const std::int64_t end = std::min(rows, begin + step);
      const Tensor part = view::slice(x, 0, begin, end), logits = view::slice(buffer, 0, 0, end - begin);
      pass.make_logits(part, logits);
      pass.lose(logits, begin, end);
      if (!has_gradients) continue;
      pass.differentiate(logits, begin, end);
      if (needs[0]) matmul_into({name, logits, weight, view::slice(dx, 0, begin, end), {}, {}});
      if (needs[1]) {
        MatmulCall call{name, view::transpose(logits), part, dweight->sum, {}, {}};
        call.accumulate = begin > 0;
        matmul_into(call);
      }
      if (needs[2]) {
        const Tensor sums = column_sum(logits);
        begin > 0 ? elementwise_detail::run(name, Add(), {&dbias->sum, &sums}, dbias->sum)
                  : copy_into(dbias->sum, sums);
      }
    }
  }
  saved.dx = dx;
  if (needs[1]) saved.dweight = dweight->rounded();
  if (needs[2]) saved.dbias = dbias->rounded();
  return pass.total();
}

Gradients LinearCrossEntropy::backward(Saved saved, Tensor dy, Needs needs) const {
  Gradients gradients;
  const std::array<Tensor*, 3> kept{&saved.dx, &saved.dweight, &saved.dbias};
  for (int i = 0; i < 3; ++i) {
    if (!needs[i]) {
      gradients.push_back(Tensor());
      continue;
    }
    const Tensor made = std::exchange(*kept[static_cast<std::size_t>(i)], Tensor());
    const Tensor out = reused_or_new(made);
    elementwise_detail::run(name, Mul(), {&made, &dy}, out);
    gradients.push_back(out);
  }
  gradients.push_back(Tensor());
  return gradients;
}

double LinearCrossEntropy::multiply_adds(std::span<const Tensor> inputs, const Tensor&) const {
  return static_cast<double>(inputs[0].elements()) * static_cast<double>(inputs[1].size(0));
}

}  // namespace thimble::ops
