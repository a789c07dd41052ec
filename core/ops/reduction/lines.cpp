#include <thimble/core/ops/reduction/lines.h>

#include <cmath>
#include <limits>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/lines.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>

namespace thimble::ops {
namespace lines_detail {

kernels::LineShape lines_of(const Shape& shape, int axis) {
  kernels::LineShape lines{1, shape[axis], 1};
  for (int i = 0; i < shape.rank(); ++i) {
    if (i < axis) lines.outer *= shape[i];
    if (i > axis) lines.inner *= shape[i];
  }
  return lines;
}

DType wide(DType dtype) { return is_floating(dtype) ? dtype : DType::i64; }

// Running sums of dense `in` into `out`, which may be `in`.
void cumsum_into(const Tensor& out, const Tensor& in, int axis, bool is_reverse) {
  if (in.elements() == 0) return;
  launch(in.device(), [&](const Addresses& at) {
    kernels::CumSumArgs args;
    args.shape = lines_of(in.shape(), axis);
    args.dtype = in.dtype();
    args.in = at(in);
    args.out = at(out);
    args.is_reverse = is_reverse;
    kernels::line_kernels(in.device()).cumsum(args);
  });
}

// Throws for the first row that is no distribution.
void check_weights(const char* name, const Tensor& weights, const Tensor& sums) {
  std::int64_t bad = -1;
  launch(weights.device(), [&](const Addresses& at) {
    if (!weights.device().is_cpu()) return;
    const double *const w = at.as<double>(weights), *const s = at.as<double>(sums);
    const std::int64_t length = weights.shape().back();
    for (std::int64_t i = 0; i < weights.elements() && bad < 0; ++i) {
      const bool is_last = i % length == length - 1;
      if (!(w[i] >= 0) || (is_last && !(s[i] > 0 && std::isfinite(s[i])))) bad = i / length;
    }
  });
  if (bad < 0) return;
  throw ValueError(std::string(name) + ": the weights of row " + std::to_string(bad) +
                   ": expected finite ones, at least 0, with a sum above 0");
}

}  // namespace lines_detail

Tensor CumSum::forward(const Tensor& x, Needs, Saved&) const {
  const int along = normalize_axis(name, axis, x.rank());
  const Tensor y = Tensor::empty(x.shape(), lines_detail::wide(x.dtype()), x.device());
  lines_detail::cumsum_into(y, contiguous(x), along, false);
  return y;
}

Gradients CumSum::backward(Saved, Tensor dy, Needs) const {
  const int along = normalize_axis(name, axis, dy.rank());
  const Tensor dx = reused_or_new(dy);
  lines_detail::cumsum_into(dx, contiguous(dy), along, true);
  return {dx};
}

Tensor Prod::forward(const Tensor& operand, Needs needs, Saved& saved) const {
  const int along = normalize_axis(name, axis, operand.rank());
  Shape shape = operand.shape();
  shape[along] = 1;
  if (!keep_axis) shape.erase(along);
  const Tensor x = contiguous(operand);
  const Tensor y = Tensor::empty(shape, lines_detail::wide(x.dtype()), x.device());
  launch(x.device(), [&](const Addresses& at) {
    kernels::line_kernels(x.device()).prod({lines_detail::lines_of(x.shape(), along), x.dtype(), at(x), at(y)});
  });
  if (needs[0]) saved.x = operand;
  return y;
}

Gradients Prod::backward(Saved saved, Tensor dy, Needs) const {
  const int along = normalize_axis(name, axis, saved.x.rank());
  dy = contiguous(dy);
  const Tensor dx = reused_or_new(saved.x);
  const Tensor x = contiguous(saved.x);
  launch(x.device(), [&](const Addresses& at) {
    kernels::line_kernels(x.device())
        .prod_backward({lines_detail::lines_of(x.shape(), along), x.dtype(), at(x), at(dy), at(dx)});
  });
  return {dx};
}

Tensor ArgSort::forward(const Tensor& x, Needs, Saved&) const {
  const int along = normalize_axis(name, axis, x.rank());
  const std::int64_t length = x.shape()[along];
  if (count < 0 || count > length || length > std::numeric_limits<std::int32_t>::max()) {
    throw ShapeError(std::string(name) + ": " + std::to_string(count) + " of axis " + std::to_string(along) + " of " +
                     describe(x) + ", expected 0 to its size, which is below 2^31");
  }
  const Tensor rows = contiguous(view::transpose(x, along, -1));
  Shape shape = rows.shape();
  shape[shape.rank() - 1] = count;
  const Tensor order = Tensor::empty(shape, DType::i32, x.device());
  const std::int64_t row_count = lines_detail::lines_of(x.shape(), along).lines();
  const std::int64_t room = kernels::sort_workspace_elements(x.device(), row_count, length);
  const Tensor workspace = room > 0 ? Tensor::empty({room}, DType::i32, x.device(), Category::workspace) : Tensor();
  launch(x.device(), [&](const Addresses& at) {
    kernels::SortArgs args;
    args.rows = row_count;
    args.length = length;
    args.count = count;
    args.dtype = x.dtype();
    args.is_descending = is_descending;
    args.x = at(rows);
    args.order = at.as<std::int32_t>(order);
    args.workspace = at.as<std::int32_t>(workspace);
    kernels::line_kernels(x.device()).sort(args);
  });
  return view::transpose(order, along, -1);
}

Gradients ArgSort::backward(Saved, Tensor, Needs) const { return {Tensor()}; }

Tensor Choose::forward(const Tensor& weights, const Tensor& points, Needs, Saved&) const {
  const Tensor w = contiguous(to_dtype(weights, DType::f64)), u = contiguous(points);
  const Tensor sums = Tensor::empty(w.shape(), DType::f64, w.device(), Category::workspace);
  lines_detail::cumsum_into(sums, w, w.rank() - 1, false);
  lines_detail::check_weights(name, w, sums);
  const Tensor places = Tensor::empty(u.shape(), DType::i64, u.device());
  launch(u.device(), [&](const Addresses& at) {
    const std::int64_t length = w.shape().back(), count = u.shape().back();
    kernels::line_kernels(u.device())
        .choose({u.elements() / std::max<std::int64_t>(1, count), length, count, at.as<double>(sums), at.as<double>(u),
                 at.as<std::int64_t>(places)});
  });
  return places;
}

Gradients Choose::backward(Saved, Tensor, Needs) const { return {Tensor(), Tensor()}; }

}  // namespace thimble::ops
