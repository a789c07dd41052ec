#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/kernels/functors/binary.h>
#include <thimble/core/kernels/functors/elementwise_functors.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/numbers/integers.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/ops/matmul/chunked.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/ops/reduction/loss_common.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/view.h>

namespace thimble::ops {

namespace {

constexpr std::int64_t chunk_bytes = std::int64_t{16} << 20, fewest_rows = 128, fewest_rows_on_cuda = 2048,
                       most_chunks = 32;

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
  for (const Tensor* t : {&weight, &targets, &bias}) check_one_device(name, x, *t);
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
  Tensor lse;                                 // (N); undefined if no gradient is needed
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

using kernels::Activation;

// Number of a tile's inner results that are alive at once in backward; they determine the tile's size.
constexpr std::int64_t inner_plain = 3, inner_gated = 4;

void check(const TiledFeedForward& op, const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& gate,
           const Tensor& down, const Tensor& down_bias) {
  const std::string name = op.name;
  const Tensor* const all[] = {&up, &up_bias, &gate, &down, &down_bias};
  std::string operands = "x " + describe(x);
  const char* const names[] = {"up", "up_bias", "gate", "down", "down_bias"};
  for (std::size_t i = 0; i < std::size(all); ++i) {
    if (all[i]->defined()) operands += std::string(", ") + names[i] + " " + describe(*all[i]);
  }
  if (gate.defined() && (up_bias.defined() || down_bias.defined() || op.activation != Activation::none)) {
    throw ValueError(name + ": a gate with biases or an activation; expected a gate without them");
  }
  for (const Tensor* t : all) {
    if (!t->defined()) continue;
    if (!is_floating(x.dtype()) || t->dtype() != x.dtype()) {
      throw DTypeError(name + ": " + operands + "; expected one floating dtype");
    }
    check_one_device(name, x, *t);
  }
  const auto fits = [&] {
    if (x.rank() < 1 || up.rank() != 2 || down.rank() != 2) return false;
    const int in = op.weight_is_in_out ? 0 : 1, out = 1 - in;
    return up.size(in) == x.size(-1) && down.size(in) == up.size(out) && up.size(out) >= 1 && x.size(-1) >= 1 &&
           (!gate.defined() || gate.shape() == up.shape()) &&
           (!up_bias.defined() || up_bias.shape() == Shape{up.size(out)}) &&
           (!down_bias.defined() || down_bias.shape() == Shape{down.size(out)});
  };
  if (!fits()) {
    throw ShapeError(name + ": " + operands +
                     (op.weight_is_in_out ? "; they must be (..., C), (C, f), (f), (C, f), (f, O) and (O)"
                                          : "; they must be (..., C), (f, C), (f), (f, C), (O, f) and (O)"));
  }
}

/// The tensors that an elementwise F keeps for its gradients: operands or the result.
struct Kept {
  Tensor lhs = {}, rhs = {}, out = {};
};

/// Writes the gradient of one of F's operands to `to`, which may be dy.
template <class F>
void differentiate(int operand, const Kept& kept, const Tensor& dy, const Tensor& to) {
  constexpr int index = builtin_index<F>;
  const F f{};
  const Tensor none;
  elementwise_detail::run(F::name, kernels::elementwise_cpu_table[index].backward[operand], index, operand, &f,
                          dy.shape(), {&kept.lhs, &kept.rhs, &none, &kept.out, &dy}, to);
}

/// Applies the gradient of a plain layer's activation to dy in place.
void differentiate(Activation activation, const Kept& kept, const Tensor& dy) {
  switch (activation) {
    case Activation::relu:
      return differentiate<Relu>(0, kept, dy, dy);
    case Activation::gelu_tanh:
      return differentiate<GeluTanh>(0, kept, dy, dy);
    case Activation::gelu_erf:
      return differentiate<GeluErf>(0, kept, dy, dy);
    case Activation::none:
      return;
  }
}

bool keeps_operand(Activation activation) {
  return activation == Activation::gelu_tanh || activation == Activation::gelu_erf;
}

/// The layer on tiles of rows.
struct Tiles {
  const TiledFeedForward& op;
  const Tensor &up, &up_bias, &gate, &down;
  std::int64_t rows, step, inner;
  mutable Tensor workspace = {};

  Tiles(const TiledFeedForward& layer, const Tensor& x, const Tensor& up_, const Tensor& up_bias_, const Tensor& gate_,
        const Tensor& down_)
      : op(layer), up(up_), up_bias(up_bias_), gate(gate_), down(down_) {
    rows = x.size(0);
    inner = up.size(op.weight_is_in_out ? 1 : 0);
    step = chunk_rows_on(op.name, x.device(), op.tile_rows, rows, (is_gated() ? inner_gated : inner_plain) * inner,
                         size_of(x.dtype()));
  }

  bool is_gated() const { return gate.defined(); }
  std::int64_t count() const { return (rows + step - 1) / step; }
  Tensor in_out(const Tensor& weight) const { return op.weight_is_in_out ? weight : view::transpose(weight); }
  Tensor buffer(const Tensor& like, std::int64_t columns) const {
    return Tensor::empty({std::min(step, rows), columns}, like.dtype(), like.device(), memory::Category::workspace);
  }
  /// Multiplies in a workspace that all products share, so that a step's requests do not grow with its tiles.
  void multiply(MatmulCall call) const {
    const std::int64_t bytes = matmul_workspace_bytes(call);
    if (bytes > 0 && (!workspace.defined() || workspace.elements() < bytes)) {
      workspace = Tensor();
      workspace = Tensor::empty({bytes}, DType::u8, call.c.device(), memory::Category::workspace);
    }
    call.workspace = workspace;
    matmul_into(call);
  }
  /// Calls f with each tile's first row and end.
  template <class F>
  void for_each(F&& f) const {
    for (std::int64_t begin = 0; begin < rows; begin += step) f(begin, std::min(rows, begin + step));
  }

  /// Writes the input of `down` for a tile to `result`. In a plain layer `before`, if defined, gets the activation's
  /// input; in a gated one `before` gets the product with `gate`, and `other` (maybe `result`) the one with `up`.
  void make_inner(const Tensor& x, const Tensor& before, const Tensor& other, const Tensor& result) const {
    if (!is_gated()) {
      MatmulCall call{op.name, x, in_out(up), result, up_bias, before};
      call.activation = op.activation;
      return multiply(call);
    }
    multiply({op.name, x, in_out(gate), before, {}, {}});
    multiply({op.name, x, in_out(up), other, {}, {}});
    elementwise_detail::run(op.name, SwiGlu(), {&before, &other}, result);
  }

  /// sum += the gradient of a weight whose product read x and gave dy.
  void add_weight(const Tensor& x, const Tensor& dy, const ChunkSum& sum, bool is_first) const {
    const Tensor left = view::transpose(op.weight_is_in_out ? x : dy);
    MatmulCall call{op.name, left, op.weight_is_in_out ? dy : x, sum.sum, {}, {}};
    call.accumulate = !is_first;
    multiply(call);
  }

  /// Writes the gradient of the input of `weight`'s product to `out`.
  void go_back(const Tensor& dy, const Tensor& weight, const Tensor& out) const {
    multiply({op.name, dy, view::transpose(in_out(weight)), out, {}, {}});
  }
};

}  // namespace

std::int64_t chunk_rows_of(std::int64_t rows, std::int64_t numbers, std::size_t element_bytes) {
  const std::int64_t within = chunk_bytes / (numbers * static_cast<std::int64_t>(element_bytes));
  const std::int64_t enough = std::max({within, fewest_rows, ceil_div(rows, most_chunks)});
  return std::clamp<std::int64_t>(enough, 1, std::max<std::int64_t>(rows, 1));
}

std::int64_t chunk_rows_on(const char* operation, memory::Device device, std::int64_t asked, std::int64_t rows,
                           std::int64_t numbers, std::size_t element_bytes) {
  if (asked < 0) {
    throw ValueError(std::string(operation) + ": chunks of " + std::to_string(asked) +
                     " rows; expected at least 1, or 0 for automatic");
  }
  if (asked > 0) return std::min(asked, std::max<std::int64_t>(rows, 1));
  const std::int64_t suiting = chunk_rows_of(rows, numbers, element_bytes);
  return device.is_cuda() ? std::max(suiting, std::min(rows, fewest_rows_on_cuda)) : suiting;
}

ChunkSum::ChunkSum(const Shape& shape, const Tensor& like, std::int64_t chunks) : dtype(like.dtype()) {
  sum = Tensor::empty(shape, chunks > 1 ? loss_detail::loss_dtype(dtype) : dtype, like.device());
  if (chunks == 0) fill(sum, 0);
}

Tensor ChunkSum::rounded() const { return sum.dtype() == dtype ? sum : to_dtype(sum, dtype); }

Tensor LinearCrossEntropy::forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& targets,
                                   Needs needs, Saved& saved) const {
  const loss_detail::Form form{name, true, ignore_index, label_smoothing, reduction};
  check(form, x, weight, bias, targets);
  const std::int64_t rows = x.size(0), classes = weight.size(0);
  const std::int64_t step = chunk_rows_on(name, x.device(), chunk_rows, rows, classes, size_of(x.dtype()));
  const std::int64_t chunks = (rows + step - 1) / step;
  const bool has_gradients = needs[0] || needs[1] || needs[2];
  const DType statistic = loss_detail::loss_dtype(x.dtype());
  const Tensor dense_targets = contiguous(targets), dense_bias = bias.defined() ? contiguous(bias) : bias;
  loss_detail::check_targets(form, dense_targets, classes);

  Pass pass{form, x, weight, dense_bias, dense_targets, {}, {}, {}};
  pass.losses = Tensor::empty({rows}, statistic, x.device(), memory::Category::workspace);
  if (has_gradients) {
    pass.lse = Tensor::empty({rows}, statistic, x.device(), memory::Category::workspace);
    pass.one = full({}, 1, statistic, x.device());
  }
  Tensor dx;
  std::optional<ChunkSum> dweight, dbias;
  if (needs[0]) dx = Tensor::empty(x.shape(), x.dtype(), x.device());
  if (needs[1]) dweight.emplace(weight.shape(), x, chunks);
  if (needs[2]) dbias.emplace(Shape{classes}, x, chunks);
  {
    const Tensor buffer =
        Tensor::empty({std::min(step, rows), classes}, x.dtype(), x.device(), memory::Category::workspace);
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

Tensor TiledFeedForward::forward(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& gate,
                                 const Tensor& down, const Tensor& down_bias, Needs needs, Saved& saved) const {
  check(*this, x, up, up_bias, gate, down, down_bias);
  const Tensor in = as_rows(x);
  const Tensor first_bias = up_bias.defined() ? contiguous(up_bias) : up_bias;
  const Tensor last_bias = down_bias.defined() ? contiguous(down_bias) : down_bias;
  const Tiles tiles(*this, in, up, first_bias, gate, down);
  const std::int64_t out = down.size(weight_is_in_out ? 1 : 0);
  const Tensor y = Tensor::empty({tiles.rows, out}, x.dtype(), x.device());
  {
    const Tensor result = tiles.buffer(x, tiles.inner);
    const Tensor before = tiles.is_gated() ? tiles.buffer(x, tiles.inner) : Tensor();
    tiles.for_each([&](std::int64_t begin, std::int64_t end) {
      const auto part = [&](const Tensor& t) { return t.defined() ? view::slice(t, 0, 0, end - begin) : t; };
      tiles.make_inner(view::slice(in, 0, begin, end), part(before), part(result), part(result));
      tiles.multiply({name, part(result), tiles.in_out(down), view::slice(y, 0, begin, end), last_bias, {}});
    });
  }
  saved.x_shape = x.shape();
  if (needs.any()) saved.x = x, saved.up = up, saved.up_bias = up_bias, saved.gate = gate, saved.down = down;
  Shape shape = x.shape();
  shape[shape.rank() - 1] = out;
  return view::reshape(y, shape);
}

Gradients TiledFeedForward::backward(Saved saved, Tensor dy, Needs needs) const {
  const Tensor x = as_rows(saved.x), dout = as_rows(dy);
  const Tensor bias = saved.up_bias.defined() ? contiguous(saved.up_bias) : saved.up_bias;
  const Tiles tiles(*this, x, saved.up, bias, saved.gate, saved.down);
  const bool is_gated = tiles.is_gated(), has_before = is_gated || keeps_operand(activation);
  const bool goes_in = needs[0] || needs[1] || needs[2] || needs[3];
  Tensor dx, dup_bias, ddown_bias;
  std::optional<ChunkSum> dup, dgate, ddown, dfirst;
  const std::int64_t count = tiles.count();
  if (needs[0]) dx = Tensor::empty(x.shape(), x.dtype(), x.device());
  if (needs[1]) dup.emplace(saved.up.shape(), x, count);
  if (needs[2]) dfirst.emplace(Shape{tiles.inner}, x, count);
  if (needs[3]) dgate.emplace(saved.gate.shape(), x, count);
  if (needs[4]) ddown.emplace(saved.down.shape(), x, count);
  if (needs[5]) ddown_bias = column_sum(dout);
  {
    const Tensor result = tiles.buffer(x, tiles.inner), d = tiles.buffer(x, tiles.inner);
    const Tensor before = has_before ? tiles.buffer(x, tiles.inner) : Tensor();
    const Tensor other = is_gated ? tiles.buffer(x, tiles.inner) : Tensor();
    const Tensor dpart = is_gated && needs[0] ? tiles.buffer(x, x.size(1)) : Tensor();
    tiles.for_each([&](std::int64_t begin, std::int64_t end) {
      const auto part = [&](const Tensor& t) { return t.defined() ? view::slice(t, 0, 0, end - begin) : t; };
      const Tensor in = view::slice(x, 0, begin, end), inner = part(result), din = part(d);
      const Tensor dy_part = view::slice(dout, 0, begin, end);
      const bool is_first = begin == 0;
      tiles.make_inner(in, part(before), part(other), inner);
      if (needs[4]) tiles.add_weight(inner, dy_part, *ddown, is_first);
      if (!goes_in) return;
      tiles.go_back(dy_part, saved.down, din);
      if (is_gated) {  // the gate's gradient goes into the inner result's buffer, the other one into their product's
        const Kept kept{part(before), part(other)};
        differentiate<SwiGlu>(0, kept, din, inner);
        differentiate<SwiGlu>(1, {kept.lhs}, din, din);
        if (needs[3]) tiles.add_weight(in, inner, *dgate, is_first);
      } else {
        const bool has_operand = before.defined();
        differentiate(activation, {part(before), {}, has_operand ? Tensor() : inner}, din);
      }
      if (needs[1]) tiles.add_weight(in, din, *dup, is_first);
      if (needs[2]) {
        const Tensor sums = to_dtype(column_sum(din), dfirst->sum.dtype());
        is_first ? copy_into(dfirst->sum, sums)
                 : elementwise_detail::run(name, Add(), {&dfirst->sum, &sums}, dfirst->sum);
      }
      if (!needs[0]) return;
      const Tensor dx_part = view::slice(dx, 0, begin, end);
      tiles.go_back(din, saved.up, dx_part);
      if (!is_gated) return;
      const Tensor of_gate = part(dpart);
      tiles.go_back(inner, saved.gate, of_gate);
      elementwise_detail::run(name, Add(), {&dx_part, &of_gate}, dx_part);
    });
  }
  const auto rounded = [](const std::optional<ChunkSum>& sum) { return sum ? sum->rounded() : Tensor(); };
  Gradients gradients;
  gradients.push_back(dx.defined() ? view::reshape(dx, saved.x_shape) : dx);
  gradients.push_back(rounded(dup));
  gradients.push_back(rounded(dfirst));
  gradients.push_back(rounded(dgate));
  gradients.push_back(rounded(ddown));
  gradients.push_back(ddown_bias);
  return gradients;
}

double TiledFeedForward::multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const {
  const bool is_gated = inputs[3].defined();
  const double rows = static_cast<double>(inputs[0].elements()) / static_cast<double>(inputs[0].size(-1));
  const double into = rows * static_cast<double>(inputs[1].elements()) * (is_gated ? 2 : 1);
  const double out = static_cast<double>(output.elements()) * static_cast<double>(inputs[4].elements()) /
                     static_cast<double>(output.size(-1));
  return into + out + into / 3;
}

}  // namespace thimble::ops
