#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/kernels/functors/elementwise_functors.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/ops/norm/norm.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/transaction.h>

namespace thimble::norm_detail {

void check_epsilon(const char* operation, double epsilon) {
  if (epsilon >= 0 && !std::isinf(epsilon)) return;
  throw ValueError(std::string(operation) + ": epsilon " + std::to_string(epsilon) +
                   ", expected a finite number, at least 0");
}

void check_input(const char* operation, const Tensor& x, int rank, double epsilon) {
  if (!x.defined() || !is_floating(x.dtype())) {
    throw DTypeError(std::string(operation) + ": x is " + describe(x) + ", expected a floating dtype");
  }
  if (x.rank() < rank || x.shape().back() == 0) {
    throw ShapeError(std::string(operation) + ": x is " + describe(x) + ", at least " + std::to_string(rank) +
                     " axes and one channel are needed");
  }
  check_epsilon(operation, epsilon);
}

void check_parameter(const char* operation, const char* what, const Tensor& parameter, const Tensor& x,
                     const Shape& shape) {
  if (!parameter.defined()) return;
  const auto is = [&] {
    return std::string(operation) + ": " + what + " is " + describe(parameter) + ", x is " + describe(x);
  };
  if (parameter.shape() != shape) throw ShapeError(is() + ": " + what + " must have shape " + to_string(shape));
  if (parameter.dtype() != x.dtype() && parameter.dtype() != statistics_dtype(x.dtype())) {
    throw DTypeError(is() + ": expected x's dtype, or f32 for a narrower one");
  }
  check_one_device(operation, parameter, x);
}

DType common_dtype(const char* operation, const Tensor& weight, const Tensor& bias, DType otherwise) {
  if (weight.defined() && bias.defined() && weight.dtype() != bias.dtype()) {
    throw DTypeError(std::string(operation) + ": weight is " + describe(weight) + ", bias is " + describe(bias) +
                     ": they must share a dtype");
  }
  return weight.defined() ? weight.dtype() : bias.defined() ? bias.dtype() : otherwise;
}

Tensor as_statistics(const Tensor& parameter, DType x_dtype) {
  return parameter.defined() ? contiguous(to_dtype(parameter, statistics_dtype(x_dtype))) : Tensor();
}

namespace {

// The statistics in use, (instances, groups) each.
struct ChannelStatistics {
  Tensor mean, rstd;
};

ChannelStatistics empty_statistics(const ChannelNorm& call, const Tensor& like, memory::Category category) {
  const Shape shape{call.layout.instances, call.layout.groups};
  const DType dtype = statistics_dtype(like.dtype());
  return {Tensor::empty(shape, dtype, like.device(), category), Tensor::empty(shape, dtype, like.device(), category)};
}

void compute_running_statistics(const Addresses& at, const ChannelNorm& call, DType dtype,
                                const ChannelStatistics& statistics) {
  kernels::norm_kernels(call.running_mean.device())
      .running_statistics({call.layout.channels, call.epsilon, at(call.running_mean), at(call.running_var),
                           call.running_mean.dtype(), dtype, at(statistics.mean), at(statistics.rstd)});
}

Tensor row_of(const Tensor& matrix, std::int64_t row) {
  return matrix.window({matrix.size(1)}, {1}, matrix.offset() + row * matrix.size(1));
}

Tensor workspace(std::int64_t elements, DType dtype, memory::Device device) {
  return Tensor::empty({elements}, dtype, device, memory::Category::workspace);
}

Tensor partial_sums(const ChannelLayout& layout, memory::Device device) {
  return workspace(kernels::channel_norm_partial_elements(layout.instances, layout.rows, layout.channels), DType::f64,
                   device);
}

/// The later update of the running statistics by the batch's mean and variance.
tape::StateUpdate statistics_update(const ChannelNorm& call) {
  tape::StateUpdate update;
  update.found =
      zeros({2, call.running_mean.elements()}, DType::f64, call.running_mean.device(), memory::Category::communication);
  update.state = {call.running_mean, call.running_var, Tensor()};
  update.number = call.momentum;
  update.apply = [](const tape::StateUpdate& u) {
    for (std::size_t i = 0; i < 2; ++i) {
      const Tensor running = writable_state(u.state[i]), found = row_of(u.found, static_cast<std::int64_t>(i));
      const Tensor before = to_dtype(running, DType::f64);
      const Tensor old = Tensor::empty_like(before, running.shape()), taken = Tensor::empty_like(found);
      elementwise_detail::run("batch_norm", ops::MulScalar{1 - u.number}, {&before}, old);
      elementwise_detail::run("batch_norm", ops::MulScalar{u.number}, {&found}, taken);
      elementwise_detail::run("batch_norm", ops::Add(), {&old, &taken}, old);
      copy_into(running, old);
    }
  };
  return update;
}

}  // namespace

Tensor channel_norm_forward(const ChannelNorm& call, bool keeps_statistics, bool keeps_mask, ChannelNormKept& kept) {
  const Tensor x = contiguous(call.x);
  const Tensor residual = call.residual.defined() ? contiguous(call.residual) : Tensor();
  const ChannelLayout layout = call.layout;
  const DType statistics_type = statistics_dtype(x.dtype());
  const Tensor weight = as_statistics(call.weight, x.dtype()), bias = as_statistics(call.bias, x.dtype());
  const Tensor y = Tensor::empty_like(x, x.shape());
  if (keeps_mask) kept.mask = Tensor::empty({(x.elements() + 7) / 8}, DType::u8, x.device());
  const bool has_statistics = call.uses_running || kept.mean.defined();
  const ChannelStatistics statistics =
      kept.mean.defined()
          ? ChannelStatistics{kept.mean, kept.rstd}
          : empty_statistics(call, x, keeps_statistics ? memory::Category::temporary : memory::Category::workspace);
  const bool updates = !has_statistics && call.running_mean.defined() && !context().is_recomputing;
  tape::Transaction* const later = updates ? deferring_transaction() : nullptr;
  std::optional<tape::StateUpdate> update;
  Tensor running_mean, running_var;
  if (later != nullptr) {  // the kernel writes 0 x 0 + 1 x the batch's
    update = statistics_update(call);
    running_mean = row_of(update->found, 0), running_var = row_of(update->found, 1);
  } else if (updates) {
    running_mean = writable_state(call.running_mean), running_var = writable_state(call.running_var);
  }
  const Tensor coefficients = workspace(3 * layout.instances * layout.channels, statistics_type, x.device());
  const Tensor moments = has_statistics ? Tensor() : partial_sums(layout, x.device());
  launch(x.device(), [&](const Addresses& at) {
    if (call.uses_running) compute_running_statistics(at, call, x.dtype(), statistics);
    kernels::ChannelNormArgs args;
    args.dtype = x.dtype();
    args.instances = layout.instances, args.rows = layout.rows;
    args.channels = layout.channels, args.groups = layout.groups;
    args.tail = call.tail;
    args.epsilon = call.epsilon;
    args.x = at(x), args.residual = at(residual), args.weight = at(weight), args.bias = at(bias);
    args.y = at(y), args.mask = at.as<std::uint8_t>(kept.mask);
    args.mean = at(statistics.mean), args.rstd = at(statistics.rstd);
    args.has_statistics = has_statistics;
    args.running_mean = at(running_mean), args.running_var = at(running_var);
    if (updates) args.running_dtype = running_mean.dtype();
    args.momentum = later != nullptr ? 1 : call.momentum;
    args.moments = at.as<double>(moments), args.coefficients = at(coefficients);
    kernels::norm_kernels(x.device()).channel_forward(args);
  });
  if (updates) {
    running_mean.storage()->bump_version();
    running_var.storage()->bump_version();
  }
  if (later != nullptr) later->defer(std::move(*update));
  if (keeps_statistics) kept.mean = statistics.mean, kept.rstd = statistics.rstd;
  return y;
}

ChannelNormGradients channel_norm_backward(ChannelNorm call, ChannelNormKept kept, Tensor dy, ChannelNormWants wants,
                                           DType parameter_dtype) {
  const ChannelLayout layout = call.layout;
  dy = contiguous(dy);
  if (call.x.defined()) call.x = contiguous(call.x);
  const DType statistics_type = statistics_dtype(dy.dtype());
  const Tensor weight = as_statistics(call.weight, dy.dtype()), bias = as_statistics(call.bias, dy.dtype());
  ChannelNormGradients gradients;
  bool dy_is_free = is_reusable(dy);
  if (wants.residual) gradients.residual = std::exchange(dy_is_free, false) ? dy : Tensor::empty_like(dy);
  if (wants.x) {
    gradients.x = dy_is_free ? dy : call.x.defined() && is_reusable(call.x) ? call.x : Tensor::empty_like(dy);
  }
  if (wants.weight) gradients.weight = Tensor::empty({layout.channels}, parameter_dtype, dy.device());
  if (wants.bias) gradients.bias = Tensor::empty({layout.channels}, parameter_dtype, dy.device());
  ChannelStatistics statistics{kept.mean, kept.rstd};
  if (call.running_mean.defined()) statistics = empty_statistics(call, dy, memory::Category::workspace);
  const Tensor coefficients = workspace(5 * layout.instances * layout.channels, statistics_type, dy.device());
  const bool sums = wants.weight || wants.bias || (wants.x && !call.uses_running);
  const Tensor partial = sums ? partial_sums(layout, dy.device()) : Tensor();
  launch(dy.device(), [&](const Addresses& at) {
    if (call.running_mean.defined()) compute_running_statistics(at, call, dy.dtype(), statistics);
    kernels::ChannelNormGradArgs args;
    args.dtype = dy.dtype();
    args.instances = layout.instances, args.rows = layout.rows;
    args.channels = layout.channels, args.groups = layout.groups;
    args.tail = call.tail;
    args.has_fixed_statistics = call.uses_running;
    args.x = at(call.x), args.dy = at(dy), args.weight = at(weight), args.bias = at(bias);
    args.mean = at(statistics.mean), args.rstd = at(statistics.rstd);
    args.mask = at.as<std::uint8_t>(kept.mask);
    args.dx = at(gradients.x), args.dresidual = at(gradients.residual);
    args.parameter_dtype = parameter_dtype;
    args.dweight = at(gradients.weight), args.dbias = at(gradients.bias);
    args.partial = at.as<double>(partial), args.coefficients = at(coefficients);
    kernels::norm_kernels(dy.device()).channel_backward(args);
  });
  return gradients;
}

}  // namespace thimble::norm_detail

namespace thimble::ops {

namespace {

norm_detail::ChannelLayout layout_of(const Shape& shape) {
  return {1, shape.elements() / shape.back(), shape.back(), shape.back()};
}

void check_residual(const char* operation, NormTail tail, const Tensor& x, const Tensor& residual) {
  if (residual.defined() != (tail == NormTail::add_relu)) {
    throw ValueError(std::string(operation) + ": residual is " + describe(residual));
  }
  if (!residual.defined()) return;
  const auto is = [&] {
    return std::string(operation) + ": residual is " + describe(residual) + ", x is " + describe(x);
  };
  if (residual.shape() != x.shape()) throw ShapeError(is());
  if (residual.dtype() != x.dtype()) throw DTypeError(is());
  check_one_device(operation, residual, x);
}

void check_operands(const char* operation, NormTail tail, const Tensor& x, const Tensor& residual, const Tensor& weight,
                    const Tensor& bias, const Tensor& running_mean, const Tensor& running_var, double epsilon) {
  norm_detail::check_input(operation, x, 2, epsilon);
  check_residual(operation, tail, x, residual);
  const Shape channels{x.shape().back()};
  norm_detail::check_parameter(operation, "weight", weight, x, channels);
  norm_detail::check_parameter(operation, "bias", bias, x, channels);
  norm_detail::check_parameter(operation, "running_mean", running_mean, x, channels);
  norm_detail::check_parameter(operation, "running_var", running_var, x, channels);
  const auto running = [&] {
    return std::string(operation) + ": running_mean is " + describe(running_mean) + ", running_var is " +
           describe(running_var);
  };
  if (running_mean.defined() != running_var.defined()) throw ValueError(running() + ": expected both or none");
  if (!running_mean.defined()) return;
  if (running_mean.dtype() != running_var.dtype()) throw DTypeError(running());
  if (!running_mean.is_contiguous() || !running_var.is_contiguous())
    throw ShapeError(running() + ": they must be dense");
}

void check_training(const char* operation, const Tensor& x, double momentum) {
  if (x.elements() / x.shape().back() < 2) {
    throw ShapeError(std::string(operation) + ": x is " + describe(x) +
                     ": batch statistics need at least two values for each channel");
  }
  if (!(momentum >= 0 && momentum <= 1)) {
    throw ValueError(std::string(operation) + ": momentum " + std::to_string(momentum) + ", expected 0 to 1");
  }
}

norm_detail::ChannelNormWants wants_of(Needs needs) { return {needs[0], needs[1], needs[2], needs[3]}; }

Gradients gradients_of(norm_detail::ChannelNormGradients all) { return {all.x, all.residual, all.weight, all.bias}; }

}  // namespace

template <NormTail tail>
Tensor BatchNorm<tail>::forward(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                                Needs needs, Saved& saved) const {
  check_operands(name, tail, x, residual, weight, bias, running_mean, running_var, epsilon);
  check_training(name, x, momentum);
  saved.parameter_dtype = norm_detail::common_dtype(name, weight, bias, x.dtype());
  norm_detail::ChannelNorm call{layout_of(x.shape()), tail, epsilon, momentum};
  call.x = x, call.residual = residual, call.weight = weight, call.bias = bias;
  call.running_mean = running_mean, call.running_var = running_var;
  const bool finds_mask_in_x = kernels::reads_x(tail) && needs.any();
  const bool keeps_statistics = needs[0] || needs[2] || finds_mask_in_x;
  norm_detail::ChannelNormKept kept;
  const Tensor y =
      norm_detail::channel_norm_forward(call, keeps_statistics, tail == NormTail::add_relu && needs.any(), kept);
  if (keeps_statistics) saved.x = x;
  if (needs[0] || finds_mask_in_x) saved.weight = weight;
  if (finds_mask_in_x) saved.bias = bias;
  saved.mean = kept.mean, saved.rstd = kept.rstd, saved.mask = kept.mask;
  return y;
}

template <NormTail tail>
Tensor BatchNorm<tail>::output_from_saved(Saved saved, std::span<const Tensor> inputs) const {
  norm_detail::ChannelNorm call{layout_of(inputs[0].shape()), tail, epsilon};
  call.x = inputs[0], call.residual = inputs[1], call.weight = inputs[2], call.bias = inputs[3];
  norm_detail::ChannelNormKept kept{saved.mean, saved.rstd, {}};
  return norm_detail::channel_norm_forward(call, false, false, kept);
}

template <NormTail tail>
Gradients BatchNorm<tail>::backward(Saved saved, Tensor dy, Needs needs) const {
  norm_detail::ChannelNorm call{layout_of(dy.shape()), tail};
  call.x = std::exchange(saved.x, Tensor()), call.weight = saved.weight, call.bias = saved.bias;
  return gradients_of(norm_detail::channel_norm_backward(std::move(call), {saved.mean, saved.rstd, saved.mask},
                                                         std::move(dy), wants_of(needs), saved.parameter_dtype));
}

template <NormTail tail>
Tensor BatchNormEval<tail>::forward(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                                    const Tensor& running_mean, const Tensor& running_var, Needs needs,
                                    Saved& saved) const {
  check_operands(name, tail, x, residual, weight, bias, running_mean, running_var, epsilon);
  if (!running_mean.defined()) throw ValueError(std::string(name) + ": expected running_mean and running_var");
  saved.parameter_dtype = norm_detail::common_dtype(name, weight, bias, x.dtype());
  norm_detail::ChannelNorm call{layout_of(x.shape()), tail, epsilon, 0, true};
  call.x = x, call.residual = residual, call.weight = weight, call.bias = bias;
  call.running_mean = running_mean, call.running_var = running_var;
  norm_detail::ChannelNormKept kept;
  const Tensor y = norm_detail::channel_norm_forward(call, false, tail == NormTail::add_relu && needs.any(), kept);
  const bool finds_mask_in_x = kernels::reads_x(tail) && needs.any();
  if (needs[2] || finds_mask_in_x) saved.x = x;
  if (needs[0] || finds_mask_in_x) saved.weight = weight;
  if (finds_mask_in_x) saved.bias = bias;
  if (needs[0] || needs[2] || finds_mask_in_x) saved.running_mean = running_mean, saved.running_var = running_var;
  saved.mask = kept.mask;
  return y;
}

template <NormTail tail>
Gradients BatchNormEval<tail>::backward(Saved saved, Tensor dy, Needs needs) const {
  norm_detail::ChannelNorm call{layout_of(dy.shape()), tail, epsilon, 0, true};
  call.x = std::exchange(saved.x, Tensor()), call.weight = saved.weight, call.bias = saved.bias;
  call.running_mean = saved.running_mean, call.running_var = saved.running_var;
  Gradients gradients = gradients_of(norm_detail::channel_norm_backward(
      std::move(call), {Tensor(), Tensor(), saved.mask}, std::move(dy), wants_of(needs), saved.parameter_dtype));
  gradients.push_back(Tensor());
  gradients.push_back(Tensor());
  return gradients;
}

template struct BatchNorm<NormTail::none>;
template struct BatchNorm<NormTail::relu>;
template struct BatchNorm<NormTail::relu6>;
template struct BatchNorm<NormTail::add_relu>;
template struct BatchNormEval<NormTail::none>;
template struct BatchNormEval<NormTail::relu>;
template struct BatchNormEval<NormTail::relu6>;
template struct BatchNormEval<NormTail::add_relu>;

namespace {

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

// Without centring there is no mean. Stores statistics only if they are kept.
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

// Gradients of x, weight and bias; dx reuses dy's buffer if dy has no other holder.
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
                    dy.device(), memory::Category::workspace);
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

}  // namespace

Tensor LayerNorm::forward(const Tensor& x, const Tensor& weight, const Tensor& bias, Needs needs, Saved& saved) const {
  check_operands(name, x, weight, bias, axes, epsilon, groups);
  saved.parameter_dtype = norm_detail::common_dtype(name, weight, bias, x.dtype());
  const bool keeps_statistics = needs[0] || needs[1];
  Statistics kept;
  const Tensor y = forward_rows(x, weight, bias, axes, epsilon, true, keeps_statistics, kept);
  if (keeps_statistics) saved.x = x, saved.mean = kept.mean, saved.rstd = kept.rstd;
  if (needs[0]) saved.weight = weight;
  return y;
}

Gradients LayerNorm::backward(Saved saved, Tensor dy, Needs needs) const {
  return backward_rows(std::move(saved.x), {saved.mean, saved.rstd}, saved.weight, std::move(dy), axes, true, groups,
                       saved.parameter_dtype, needs);
}

Tensor RmsNorm::forward(const Tensor& x, const Tensor& weight, Needs needs, Saved& saved) const {
  check_operands(name, x, weight, Tensor(), axes, epsilon, groups);
  saved.parameter_dtype = norm_detail::common_dtype(name, weight, Tensor(), x.dtype());
  Statistics kept;
  const Tensor y = forward_rows(x, weight, Tensor(), axes, epsilon, false, needs.any(), kept);
  if (needs.any()) saved.x = x, saved.rstd = kept.rstd;
  if (needs[0]) saved.weight = weight;
  return y;
}

Gradients RmsNorm::backward(Saved saved, Tensor dy, Needs needs) const {
  Gradients all = backward_rows(std::move(saved.x), {Tensor(), saved.rstd}, saved.weight, std::move(dy), axes, false,
                                groups, saved.parameter_dtype, needs);
  return {all[0], all[1]};
}

namespace {

norm_detail::ChannelNorm call_of(const Shape& shape, std::int64_t groups) {
  norm_detail::ChannelNorm call;
  call.layout = {shape[0], 1, shape.back(), groups};
  for (int axis = 1; axis + 1 < shape.rank(); ++axis) call.layout.rows *= shape[axis];
  return call;
}

}  // namespace

Tensor GroupNorm::forward(const Tensor& x, const Tensor& weight, const Tensor& bias, Needs needs, Saved& saved) const {
  norm_detail::check_input(name, x, 2, epsilon);
  const Shape channels{x.shape().back()};
  norm_detail::check_parameter(name, "weight", weight, x, channels);
  norm_detail::check_parameter(name, "bias", bias, x, channels);
  if (groups < 1 || channels[0] % groups != 0) {
    throw ValueError(std::string(name) + ": " + std::to_string(groups) + " groups do not divide the " +
                     std::to_string(channels[0]) + " channels of " + describe(x));
  }
  saved.parameter_dtype = norm_detail::common_dtype(name, weight, bias, x.dtype());
  norm_detail::ChannelNorm call = call_of(x.shape(), groups);
  call.epsilon = epsilon;
  call.x = x;
  call.weight = weight;
  call.bias = bias;
  const bool keeps_statistics = needs[0] || needs[1];
  norm_detail::ChannelNormKept kept;
  const Tensor y = norm_detail::channel_norm_forward(call, keeps_statistics, false, kept);
  if (keeps_statistics) saved.x = x, saved.mean = kept.mean, saved.rstd = kept.rstd;
  if (needs[0]) saved.weight = weight;
  return y;
}

Gradients GroupNorm::backward(Saved saved, Tensor dy, Needs needs) const {
  norm_detail::ChannelNorm call = call_of(dy.shape(), groups);
  call.x = std::exchange(saved.x, Tensor());
  call.weight = saved.weight;
  norm_detail::ChannelNormGradients all =
      norm_detail::channel_norm_backward(std::move(call), {saved.mean, saved.rstd, Tensor()}, std::move(dy),
                                         {needs[0], false, needs[1], needs[2]}, saved.parameter_dtype);
  return {all.x, all.weight, all.bias};
}

}  // namespace thimble::ops
