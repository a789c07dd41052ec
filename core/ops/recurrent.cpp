#include <thimble/core/ops/recurrent.h>

#include <algorithm>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/kernels/recurrent.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/view.h>

namespace thimble::ops {
namespace {

struct Weights {
  Tensor ih, hh, bias_ih, bias_hh;
};

// Sizes of a layer over T steps of N samples, C inputs, H units with `gates` gates.
struct Layer {
  const char* name;
  std::int64_t gates, steps, samples, inputs, width;
  bool is_reverse;
  DType dtype;
  memory::Device device;

  DType wide() const { return dtype == DType::f64 ? DType::f64 : DType::f32; }
  // The position in the sequence of the s-th computed step.
  std::int64_t place(std::int64_t s) const { return is_reverse ? steps - 1 - s : s; }
  Tensor workspace(const Shape& shape, DType of) const {
    return Tensor::empty(shape, of, device, memory::Category::workspace);
  }
};

Layer layer_of(const char* name, std::int64_t gates, bool is_reverse, const Tensor& x, const Weights& w,
               std::initializer_list<const Tensor*> states) {
  const auto is = [&] {
    return std::string(name) + ": x is " + describe(x) + ", the weights are " + describe(w.ih) + " and " +
           describe(w.hh) + ", the biases " + describe(w.bias_ih) + " and " + describe(w.bias_hh);
  };
  if (x.rank() != 3 || w.ih.rank() != 2 || w.hh.rank() != 2) {
    throw ShapeError(is() + "; expected (T, N, C), (" + std::to_string(gates) + " H, C) and (" + std::to_string(gates) +
                     " H, H)");
  }
  const std::int64_t width = w.hh.size(1);
  const Layer layer{name, gates, x.size(0), x.size(1), x.size(2), width, is_reverse, x.dtype(), x.device()};
  const auto is_bias = [&](const Tensor& b) { return !b.defined() || b.shape() == Shape{gates * width}; };
  if (layer.steps < 1 || width < 1 || w.ih.shape() != Shape{gates * width, layer.inputs} ||
      w.hh.size(0) != gates * width || !is_bias(w.bias_ih) || !is_bias(w.bias_hh)) {
    throw ShapeError(is() + "; expected (T, N, C) with T >= 1, (" + std::to_string(gates) + " H, C), (" +
                     std::to_string(gates) + " H, H) and (" + std::to_string(gates) + " H)");
  }
  for (const Tensor* const state : states) {
    if (state->defined() && state->shape() != Shape{layer.samples, width}) {
      throw ShapeError(is() + "; the state before the first step is " + describe(*state) + ", expected (N, H)");
    }
  }
  const auto check_kind = [&](const Tensor& t) {
    if (!t.defined()) return;
    if (t.dtype() != x.dtype() || !is_floating(x.dtype())) throw DTypeError(is() + "; expected one floating dtype");
    check_one_device(name, x, t);
  };
  for (const Tensor* const t : {&w.ih, &w.hh, &w.bias_ih, &w.bias_hh}) check_kind(*t);
  for (const Tensor* const state : states) check_kind(*state);
  return layer;
}

// The state before the first step, dense; zeros if undefined.
Tensor state_or_zeros(const Layer& l, const Tensor& state) {
  return state.defined() ? contiguous(state)
                         : zeros({l.samples, l.width}, l.dtype, l.device, memory::Category::workspace);
}

Tensor rows_of(const Tensor& t) { return view::reshape(t, {t.size(0) * t.size(1), t.size(2)}); }

// to (..., R) = from (..., K) weight (R, K)^T + bias; `accumulate` adds it to `to`.
void product(const Layer& l, const Tensor& to, const Tensor& from, const Tensor& weight, const Tensor& bias,
             bool accumulate = false) {
  matmul_into({l.name, from, view::transpose(weight), to, contiguous(bias), Tensor(), 1, accumulate});
}

// The states' weights (G H, H) as the transpose of a dense copy, which the CPU's products of all steps read in place.
Tensor for_all_steps(const Layer& l, const Tensor& weight) {
  if (l.steps == 1 || l.device.is_cuda()) return weight;
  const Tensor turned = l.workspace({l.width, l.gates * l.width}, l.dtype);
  copy_into(turned, view::transpose(weight));
  return view::transpose(turned);
}

Tensor at_step(const Tensor& t, std::int64_t place) { return view::squeeze(view::slice(t, 0, place, place + 1), 0); }

// Calls body(gates (N, G H), place) for the steps in order, with the gates' products with x, which body may overwrite;
// they are rows of `all` (T, N, G H) if it is defined.
template <class F>
void for_each_step(const Layer& l, const Tensor& x, const Weights& w, const Tensor& all, F&& body) {
  // Steps whose products with x are computed at once: enough rows for a product.
  const std::int64_t together = std::clamp<std::int64_t>(256 / std::max<std::int64_t>(1, l.samples), 1, l.steps);
  const Tensor room = all.defined() ? all : l.workspace({together, l.samples, l.gates * l.width}, l.dtype);
  for (std::int64_t s = 0; s < l.steps; s += together) {
    const std::int64_t n = std::min(together, l.steps - s), first = std::min(l.place(s), l.place(s + n - 1));
    const std::int64_t row = all.defined() ? first : 0;
    const Tensor gates = view::slice(room, 0, row, row + n);
    product(l, rows_of(gates), rows_of(view::slice(x, 0, first, first + n)), w.ih, w.bias_ih);
    for (std::int64_t k = s; k < s + n; ++k) body(at_step(gates, l.place(k) - first), l.place(k));
  }
}

// The rows of all steps but the first, and y's rows of the states before them, in the same order.
std::pair<Tensor, Tensor> later_steps(const Layer& l, const Tensor& of_steps, const Tensor& y) {
  const std::int64_t from = l.is_reverse ? 0 : 1, before = l.is_reverse ? 1 : 0;
  return {view::slice(of_steps, 0, from, from + l.steps - 1), view::slice(y, 0, before, before + l.steps - 1)};
}

// The gradients of weights, biases and x, from the gradients of the gates' products with x and the state, which may be
// one tensor.
struct ParameterGradients {
  Tensor x, ih, hh, bias_ih, bias_hh;
};
struct ParameterNeeds {
  bool x, ih, hh, bias_ih, bias_hh;
};
ParameterGradients parameter_gradients(const Layer& l, const Tensor& dx_gates, const Tensor& dh_gates, const Tensor& x,
                                       const Tensor& y, const Tensor& h, const Weights& w,
                                       const ParameterNeeds& needs) {
  ParameterGradients d;
  const Tensor of_x = rows_of(dx_gates);  // (T N, G H)
  if (needs.ih) {
    d.ih = Tensor::empty(w.ih.shape(), l.dtype, l.device);
    matmul_into({l.name, view::transpose(of_x), rows_of(x), d.ih, Tensor(), Tensor()});
  }
  if (needs.hh) {
    d.hh = Tensor::empty(w.hh.shape(), l.dtype, l.device);
    matmul_into({l.name, view::transpose(at_step(dh_gates, l.place(0))), h, d.hh, Tensor(), Tensor()});
    if (l.steps > 1) {
      const auto [later, before] = later_steps(l, dh_gates, y);
      MatmulCall more{l.name, view::transpose(rows_of(later)), rows_of(before), d.hh, Tensor(), Tensor()};
      more.accumulate = true;
      matmul_into(more);
    }
  }
  if (needs.bias_ih) d.bias_ih = column_sum(of_x);
  const bool has_one_sum = dx_gates.storage() == dh_gates.storage() && d.bias_ih.defined();
  if (needs.bias_hh) d.bias_hh = has_one_sum ? clone(d.bias_ih) : column_sum(rows_of(dh_gates));
  if (needs.x) {
    d.x = Tensor::empty(x.shape(), l.dtype, l.device);
    matmul_into({l.name, of_x, w.ih, rows_of(d.x), Tensor(), Tensor()});
  }
  return d;
}

double input_work(std::span<const Tensor> inputs, const Tensor& weight_ih, const Tensor& weight_hh) {
  const Tensor& x = inputs[0];
  return static_cast<double>(x.size(0) * x.size(1)) * static_cast<double>(weight_ih.elements() + weight_hh.elements());
}

}  // namespace

double Lstm::multiply_adds(std::span<const Tensor> inputs, const Tensor&) const {
  return input_work(inputs, inputs[3], inputs[4]);
}

Tensor Lstm::forward(const Tensor& operand, const Tensor& h, const Tensor& c, const Tensor& weight_ih,
                     const Tensor& weight_hh, const Tensor& bias_ih, const Tensor& bias_hh, Needs needs,
                     Saved& saved) const {
  const Weights w{weight_ih, weight_hh, bias_ih, bias_hh};
  const Layer l = layer_of(name, 4, is_reverse, operand, w, {&h, &c});
  const Tensor x = contiguous(operand);                                                  // (T, N, C)
  const Tensor y = Tensor::empty({l.steps + 1, l.samples, l.width}, l.dtype, l.device);  // (T + 1, N, H)
  if (needs.any()) {
    const Tensor gates = Tensor::empty({l.steps, l.samples, 4 * l.width}, l.dtype, l.device);
    const Tensor cells = Tensor::empty({l.steps + 1, l.samples, l.width}, l.wide(), l.device);
    saved = {operand, h, weight_ih, weight_hh, y, gates, cells};
  }
  const Tensor room = needs.any() ? Tensor() : l.workspace({l.samples, l.width}, l.wide());
  const auto cell = [&](std::int64_t s) { return needs.any() ? at_step(saved.cells, s) : room; };  // (N, H)
  copy_into(cell(0), state_or_zeros(l, c));
  const Tensor weight = for_all_steps(l, w.hh);
  Tensor before = state_or_zeros(l, h);
  std::int64_t step = 0;
  for_each_step(l, x, w, saved.gates, [&](const Tensor& gates, std::int64_t place) {
    product(l, gates, before, weight, w.bias_hh, true);
    before = at_step(y, place);
    const Tensor cell_before = cell(step), cell_after = cell(++step);
    launch(l.device, [&](const Addresses& at) {
      kernels::LstmStepArgs args{l.samples, l.width, l.dtype};
      args.gates = at(gates);
      args.before = at(cell_before);
      args.cell = at(cell_after);
      args.h = at(before);
      kernels::recurrent_kernels(l.device).lstm(args);
    });
  });
  copy_into(at_step(y, l.steps), cell(l.steps));
  return y;
}

Gradients Lstm::backward(Saved saved, Tensor dy, Needs needs) const {
  const Weights w{saved.weight_ih, saved.weight_hh, {}, {}};
  const Layer l = layer_of(name, 4, is_reverse, saved.x, w, {&saved.h});
  const Tensor x = contiguous(saved.x), h = state_or_zeros(l, saved.h), y = saved.y, cells = saved.cells;
  dy = contiguous(dy);                                                               // (T + 1, N, H)
  const Tensor gates = is_reusable(saved.gates) ? saved.gates : clone(saved.gates);  // become their gradients
  const Tensor dh = zeros({l.samples, l.width}, l.wide(), l.device, memory::Category::workspace);
  const Tensor dc = l.workspace({l.samples, l.width}, l.wide());
  copy_into(dc, at_step(dy, l.steps));
  for (std::int64_t s = l.steps; s-- > 0;) {
    const Tensor of_step = at_step(gates, l.place(s));
    launch(l.device, [&](const Addresses& at) {
      kernels::LstmStepArgs args{l.samples, l.width, l.dtype};
      args.gates = at(of_step);
      args.before = at(at_step(cells, s));
      args.cell = at(at_step(cells, s + 1));
      args.dy = at(at_step(dy, l.place(s)));
      args.dh = at(dh);
      args.dc = at(dc);
      kernels::recurrent_kernels(l.device).lstm_backward(args);
    });
    if (s > 0 || needs[1]) matmul_into({name, of_step, w.hh, dh, Tensor(), Tensor()});
  }
  const ParameterGradients d =
      parameter_gradients(l, gates, gates, x, y, h, w, {needs[0], needs[3], needs[4], needs[5], needs[6]});
  Gradients gradients{d.x, needs[1] ? clone(to_dtype(dh, l.dtype)) : Tensor(),
                      needs[2] ? clone(to_dtype(dc, l.dtype)) : Tensor(), d.ih};
  for (const Tensor& t : {d.hh, d.bias_ih, d.bias_hh}) gradients.push_back(t);
  return gradients;
}

double Gru::multiply_adds(std::span<const Tensor> inputs, const Tensor&) const {
  return input_work(inputs, inputs[2], inputs[3]);
}

Tensor Gru::forward(const Tensor& operand, const Tensor& h, const Tensor& weight_ih, const Tensor& weight_hh,
                    const Tensor& bias_ih, const Tensor& bias_hh, Needs needs, Saved& saved) const {
  const Weights w{weight_ih, weight_hh, bias_ih, bias_hh};
  const Layer l = layer_of(name, 3, is_reverse, operand, w, {&h});
  const Tensor x = contiguous(operand);                                              // (T, N, C)
  const Tensor y = Tensor::empty({l.steps, l.samples, l.width}, l.dtype, l.device);  // (T, N, H)
  const Tensor h_gates = l.workspace({l.samples, 3 * l.width}, l.dtype);
  const Tensor weight = for_all_steps(l, w.hh);
  Tensor before = state_or_zeros(l, h);
  for_each_step(l, x, w, Tensor(), [&](const Tensor& gates, std::int64_t place) {
    product(l, h_gates, before, weight, w.bias_hh);
    const Tensor to = at_step(y, place);
    launch(l.device, [&](const Addresses& at) {
      kernels::GruStepArgs args{l.samples, l.width, l.dtype};
      args.x_gates = at(gates);
      args.h_gates = at(h_gates);
      args.before = at(before);
      args.h = at(to);
      kernels::recurrent_kernels(l.device).gru(args);
    });
    before = to;
  });
  if (needs.any()) saved = {operand, h, weight_ih, weight_hh, bias_ih, bias_hh, y};
  return y;
}

Gradients Gru::backward(Saved saved, Tensor dy, Needs needs) const {
  const Weights w{saved.weight_ih, saved.weight_hh, saved.bias_ih, saved.bias_hh};
  const Layer l = layer_of(name, 3, is_reverse, saved.x, w, {&saved.h});
  const Tensor x = contiguous(saved.x), h = state_or_zeros(l, saved.h), y = saved.y;
  dy = contiguous(dy);  // (T, N, H)
  const Tensor x_gates = l.workspace({l.steps, l.samples, 3 * l.width}, l.dtype);
  const Tensor h_gates = l.workspace({l.steps, l.samples, 3 * l.width}, l.dtype);
  product(l, rows_of(x_gates), rows_of(x), w.ih, w.bias_ih);
  product(l, at_step(h_gates, l.place(0)), h, w.hh, w.bias_hh);
  if (l.steps > 1) {
    const auto [later, before] = later_steps(l, h_gates, y);
    product(l, rows_of(later), rows_of(before), w.hh, w.bias_hh);
  }

  const Tensor dh = zeros({l.samples, l.width}, l.wide(), l.device, memory::Category::workspace);
  for (std::int64_t s = l.steps; s-- > 0;) {
    const std::int64_t place = l.place(s);
    const Tensor before = s > 0 ? at_step(y, l.place(s - 1)) : h, own = at_step(h_gates, place);
    launch(l.device, [&](const Addresses& at) {
      kernels::GruStepArgs args{l.samples, l.width, l.dtype};
      args.x_gates = at(at_step(x_gates, place));
      args.h_gates = at(own);
      args.before = at(before);
      args.dy = at(at_step(dy, place));
      args.dh = at(dh);
      kernels::recurrent_kernels(l.device).gru_backward(args);
    });
    MatmulCall share{name, own, w.hh, dh, Tensor(), Tensor()};
    share.accumulate = true;
    if (s > 0 || needs[1]) matmul_into(share);
  }
  const ParameterGradients d =
      parameter_gradients(l, x_gates, h_gates, x, y, h, w, {needs[0], needs[2], needs[3], needs[4], needs[5]});
  Gradients gradients{d.x, needs[1] ? clone(to_dtype(dh, l.dtype)) : Tensor(), d.ih, d.hh};
  for (const Tensor& t : {d.bias_ih, d.bias_hh}) gradients.push_back(t);
  return gradients;
}

}  // namespace thimble::ops
