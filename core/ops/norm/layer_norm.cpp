#include <thimble/core/ops/norm/layer_norm.h>

#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/ops/elementwise/elementwise_functors.h>
#include <thimble/core/ops/norm/norm_common.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/copy.h>

namespace thimble::ops {
namespace layer_norm_detail {

// x as (rows, length).
struct RowLayout {
  Shape parameter_shape;
  std::int64_t rows = 1, length = 1;

  RowLayout(const Shape& shape, int axes) {
    for (int axis = 0; axis < shape.rank(); ++axis) {
      const bool is_reduced = axis >= shape.rank() - axes;
      (is_reduced ? length : rows) *= shape[axis];
      if (is_reduced) parameter_shape.push_back(shape[axis]);
    }
  }
};

void check_operands(const char* operation, const Tensor& x, const Tensor& weight, const Tensor& bias, int axes,
                    double epsilon, std::int64_t groups) {
  norm_detail::check_input(operation, x, 1, epsilon);
  if (axes < 1 || axes > x.rank()) {
    throw ValueError(std::string(operation) + ": the last " + std::to_string(axes) + " axes of " + describe(x) +
                     ", expected 1 to " + std::to_string(x.rank()));
  }
  const RowLayout layout(x.shape(), axes);
  if (groups < 1 || layout.rows % groups != 0) {
    throw ValueError(std::string(operation) + ": " + std::to_string(groups) + " groups of " +
                     std::to_string(layout.rows) + " rows; expected a divisor");
  }
  norm_detail::check_parameter(operation, "weight", weight, x, layout.parameter_shape);
  norm_detail::check_parameter(operation, "bias", bias, x, layout.parameter_shape);
}

struct Statistics {
  Tensor mean, rstd;  // (rows)
};

// y; without centring there is no mean. Computes statistics only where they are kept.
Tensor forward_rows(const Tensor& operand, const Tensor& weight, const Tensor& bias, int axes, double epsilon,
                    bool is_centred, bool keeps_statistics, Statistics& kept) {
  const RowLayout layout(operand.shape(), axes);
  const Tensor x = contiguous(operand);
  const Tensor w = norm_detail::as_statistics(weight, x.dtype()), b = norm_detail::as_statistics(bias, x.dtype());
  const Tensor y = Tensor::empty_like(x, x.shape());
  if (keeps_statistics) {
    const DType dtype = norm_detail::statistics_dtype(x.dtype());
    if (is_centred) kept.mean = Tensor::empty({layout.rows}, dtype, x.device());
    kept.rstd = Tensor::empty({layout.rows}, dtype, x.device());
  }
  launch(x.device(), [&](const Addresses& at) {
    kernels::norm_kernels(x.device())
        .row_forward({x.dtype(), layout.rows, layout.length, is_centred, epsilon, at(x), at(w), at(b), at(y),
                      at(kept.mean), at(kept.rstd)});
  });
  return y;
}

// Gradients of x, weight and bias; dx reuses dy's buffer when dy has no other holder.
Gradients backward_rows(Tensor x, const Statistics& kept, const Tensor& weight, Tensor dy, int axes, bool is_centred,
                        std::int64_t groups, DType parameter_dtype, Needs needs) {
  const RowLayout layout(dy.shape(), axes);
  const bool wants_weight = needs[1], wants_bias = needs[2];
  dy = contiguous(dy);
  if (x.defined()) x = contiguous(x);
  const Tensor w = norm_detail::as_statistics(weight, dy.dtype());
  Tensor dx, dweight, dbias;
  if (needs[0]) dx = reused_or_new(dy);
  if (wants_weight) dweight = Tensor::empty(layout.parameter_shape, parameter_dtype, dy.device());
  if (wants_bias) dbias = Tensor::empty(layout.parameter_shape, parameter_dtype, dy.device());
  const std::int64_t rows = layout.rows / groups;  // of a group
  const DType statistics = norm_detail::statistics_dtype(dy.dtype());
  const Tensor partial =
      Tensor::empty({kernels::row_norm_partial_elements(rows, layout.length, wants_weight, wants_bias)}, statistics,
                    dy.device(), Category::workspace);
  Tensor weight_term, bias_term;  // of a group, if there are several
  if (groups > 1 && wants_weight) weight_term = Tensor::empty_like(dweight);
  if (groups > 1 && wants_bias) bias_term = Tensor::empty_like(dbias);
  for (std::int64_t g = groups; g-- > 0;) {
    const bool is_last = g + 1 == groups;
    launch(dy.device(), [&](const Addresses& at) {
      const auto rows_of = [&](const Tensor& t, std::int64_t length) -> std::byte* {
        if (!t.defined()) return nullptr;
        return at.as<std::byte>(t) + g * rows * length * static_cast<std::int64_t>(size_of(t.dtype()));
      };
      kernels::RowNormGradArgs args;
      args.dtype = dy.dtype();
      args.rows = rows, args.length = layout.length;
      args.is_centred = is_centred;
      args.x = rows_of(x, layout.length), args.dy = rows_of(dy, layout.length), args.weight = at(w);
      args.mean = rows_of(kept.mean, 1), args.rstd = rows_of(kept.rstd, 1);
      args.dx = rows_of(dx, layout.length);
      args.dweight = at(is_last ? dweight : weight_term), args.dbias = at(is_last ? dbias : bias_term);
      args.parameter_dtype = parameter_dtype;
      args.partial = at(partial);
      kernels::norm_kernels(dy.device()).row_backward(args);
    });
    if (is_last) continue;
    if (wants_weight) elementwise_detail::run("add", Add(), {&dweight, &weight_term}, dweight);
    if (wants_bias) elementwise_detail::run("add", Add(), {&dbias, &bias_term}, dbias);
  }
  return {dx, dweight, dbias};
}

}  // namespace layer_norm_detail

Tensor LayerNorm::forward(const Tensor& x, const Tensor& weight, const Tensor& bias, Needs needs, Saved& saved) const {
  layer_norm_detail::check_operands(name, x, weight, bias, axes, epsilon, groups);
  saved.parameter_dtype = norm_detail::common_dtype(name, weight, bias, x.dtype());
  const bool keeps_statistics = needs[0] || needs[1];
  layer_norm_detail::Statistics kept;
  const Tensor y = layer_norm_detail::forward_rows(x, weight, bias, axes, epsilon, true, keeps_statistics, kept);
  if (keeps_statistics) {
    saved.x = x;
    saved.mean = kept.mean;
    saved.rstd = kept.rstd;
  }
  if (needs[0]) saved.weight = weight;
  return y;
}

Gradients LayerNorm::backward(Saved saved, Tensor dy, Needs needs) const {
  return layer_norm_detail::backward_rows(std::move(saved.x), {saved.mean, saved.rstd}, saved.weight, std::move(dy),
                                          axes, true, groups, saved.parameter_dtype, needs);
}

Tensor RmsNorm::forward(const Tensor& x, const Tensor& weight, Needs needs, Saved& saved) const {
  layer_norm_detail::check_operands(name, x, weight, Tensor(), axes, epsilon, groups);
  saved.parameter_dtype = norm_detail::common_dtype(name, weight, Tensor(), x.dtype());
  layer_norm_detail::Statistics kept;
  const Tensor y = layer_norm_detail::forward_rows(x, weight, Tensor(), axes, epsilon, false, needs.any(), kept);
  if (needs.any()) {
    saved.x = x;
    saved.rstd = kept.rstd;
  }
  if (needs[0]) saved.weight = weight;
  return y;
}

Gradients RmsNorm::backward(Saved saved, Tensor dy, Needs needs) const {
  Gradients all = layer_norm_detail::backward_rows(std::move(saved.x), {Tensor(), saved.rstd}, saved.weight,
                                                   std::move(dy), axes, false, groups, saved.parameter_dtype, needs);
  return {all[0], all[1]};
}

}  // namespace thimble::ops
