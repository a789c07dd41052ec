#include <thimble/core/ops/matmul/lora_linear.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>

namespace thimble::ops {
namespace lora_linear_detail {

enum Operand : int { of_x, of_weight, of_bias, of_z, of_a, of_b };

void check(const LoraLinear& op, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& z,
           const Tensor& a, const Tensor& b) {
  const int in_axis = op.weight_is_in_out ? 0 : 1;
  const bool fits =
      x.rank() >= 1 && weight.rank() == 2 && a.rank() == 2 && b.rank() == 2 && x.size(-1) == weight.size(in_axis) &&
      a.size(1) == x.size(-1) && a.size(0) >= 1 && b.shape() == Shape{weight.size(1 - in_axis), a.size(0)} &&
      (!bias.defined() || bias.shape() == Shape{weight.size(1 - in_axis)}) && (!z.defined() || z.shape() == x.shape());
  if (!fits) {
    throw ShapeError("lora_linear: input " + to_string(x.shape()) + ", weight " + to_string(weight.shape()) +
                     (op.weight_is_in_out ? " (in, out)" : " (out, in)") + ", bias " + to_string(bias.shape()) +
                     (z.defined() ? ", adapter's input " + to_string(z.shape()) : "") + ", A " + to_string(a.shape()) +
                     ", B " + to_string(b.shape()) + "; expected (..., in), (out), (r, in) and (out, r)");
  }
  for (const Tensor* t : {&weight, &bias, &z, &a, &b}) {
    if (t->defined() && t->dtype() != x.dtype()) {
      throw DTypeError("lora_linear: input " + describe(x) + " and " + describe(*t) + "; expected one dtype");
    }
  }
}

/// (..., n) -> (rows, n); a copy only where the layout forces one.
Tensor as_rows(const Tensor& x) {
  const std::int64_t columns = x.size(-1);
  const Shape shape{columns == 0 ? 0 : x.elements() / columns, columns};
  return view::reshape(view::can_reshape(x, shape) ? x : contiguous(x), shape);
}

/// scale a b, added to `into` if defined.
Tensor product(const Tensor& a, const Tensor& b, double scale = 1, const Tensor& into = {}) {
  MatmulCall call{LoraLinear::name, a, b, into, {}, {}};
  if (!into.defined()) call.c = Tensor::empty({a.size(0), b.size(1)}, a.dtype(), a.device());
  call.alpha = scale;
  call.accumulate = into.defined();
  matmul_into(call);
  return call.c;
}

}  // namespace lora_linear_detail

Tensor LoraLinear::forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& z, const Tensor& a,
                           const Tensor& b, Needs needs, Saved& saved) const {
  using namespace lora_linear_detail;
  check(*this, x, weight, bias, z, a, b);
  const Tensor w = weight_is_in_out ? weight : view::transpose(weight);  // (I, O)
  const Tensor rows = as_rows(x);                                        // (R, I)
  const Tensor y = Tensor::empty({rows.size(0), w.size(1)}, x.dtype(), x.device());
  matmul_into({name, rows, w, y, bias.defined() ? contiguous(bias) : bias, {}});
  const Tensor u = product(z.defined() ? as_rows(z) : rows, view::transpose(a));  // (R, r)
  product(u, view::transpose(b), scale, y);
  const bool needs_adapter_input = needs[z.defined() ? of_z : of_x];
  if (needs[of_weight] || (needs[of_a] && !z.defined())) saved.x = x;
  if (needs[of_x]) saved.weight = weight;
  if (needs[of_a]) saved.z = z;
  if (needs_adapter_input) saved.a = a;
  if (needs_adapter_input || needs[of_a]) saved.b = b;
  if (needs[of_b]) saved.u = u;
  saved.x_shape = x.shape();
  saved.has_z = z.defined();
  Shape shape = x.shape();
  shape[shape.rank() - 1] = w.size(1);
  return view::reshape(y, shape);
}

Gradients LoraLinear::backward(Saved saved, Tensor dy, Needs needs) const {
  using namespace lora_linear_detail;
  const Tensor rows = as_rows(dy);  // (R, O)
  Tensor dx, dweight, dbias, dz, da, db;
  if (needs[of_bias]) dbias = column_sum(rows);
  if (needs[of_weight]) {
    const Tensor x = as_rows(saved.x);  // (R, I)
    dweight = weight_is_in_out ? product(view::transpose(x), rows) : product(view::transpose(rows), x);
  }
  if (needs[of_b]) db = product(view::transpose(rows), saved.u, scale);  // (O, r)
  Tensor du;                                                             // (R, r)
  if (saved.b.defined()) du = product(rows, saved.b, scale);
  if (needs[of_a]) da = product(view::transpose(du), as_rows(saved.has_z ? saved.z : saved.x));  // (r, I)
  if (needs[of_x]) {
    dx = product(rows, weight_is_in_out ? view::transpose(saved.weight) : saved.weight);  // (R, I)
    if (!saved.has_z) product(du, saved.a, 1, dx);
    dx = view::reshape(dx, saved.x_shape);
  }
  if (needs[of_z]) dz = view::reshape(product(du, saved.a), saved.x_shape);
  return {dx, dweight, dbias, dz, da, db};
}

double LoraLinear::multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const {
  const auto in = static_cast<double>(inputs[0].size(-1)), out = static_cast<double>(output.size(-1));
  const auto rank = static_cast<double>(inputs[lora_linear_detail::of_a].size(0));
  const double rows = out > 0 ? static_cast<double>(output.elements()) / out : 0;
  return rows * (in * out + rank * (in + out));
}

}  // namespace thimble::ops
