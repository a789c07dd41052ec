#include <thimble/core/ops/norm/norm_common.h>

#include <optional>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/ops/elementwise/elementwise_functors.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/transaction.h>

namespace thimble::norm_detail {

void check_input(const char* operation, const Tensor& x, int rank, double epsilon) {
  if (!x.defined() || !is_floating(x.dtype())) {
    throw DTypeError(std::string(operation) + ": x is " + describe(x) + ", expected a floating dtype");
  }
  if (x.rank() < rank || x.shape().back() == 0) {
    throw ShapeError(std::string(operation) + ": x is " + describe(x) + ", at least " + std::to_string(rank) +
                     " axes and one channel are needed");
  }
  if (!(epsilon >= 0)) {
    throw ValueError(std::string(operation) + ": epsilon " + std::to_string(epsilon) + ", expected at least 0");
  }
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
  if (parameter.device() != x.device()) throw DeviceError(is());
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

// The statistics to use: (instances, groups) each.
struct ChannelStatistics {
  Tensor mean, rstd;
};

ChannelStatistics empty_statistics(const ChannelNorm& call, const Tensor& like, Category category) {
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
  return Tensor::empty({elements}, dtype, device, Category::workspace);
}

Tensor partial_sums(const ChannelLayout& layout, memory::Device device) {
  return workspace(kernels::channel_norm_partial_elements(layout.instances, layout.rows, layout.channels), DType::f64,
                   device);
}

/// The batch's mean and variance, which update the running ones later.
StateUpdate statistics_update(const ChannelNorm& call) {
  StateUpdate update;
  update.found =
      zeros({2, call.running_mean.elements()}, DType::f64, call.running_mean.device(), Category::communication);
  update.state = {call.running_mean, call.running_var, Tensor()};
  update.number = call.momentum;
  update.apply = [](const StateUpdate& u) {
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
      kept.mean.defined() ? ChannelStatistics{kept.mean, kept.rstd}
                          : empty_statistics(call, x, keeps_statistics ? Category::temporary : Category::workspace);
  const bool updates = !has_statistics && call.running_mean.defined() && !context().is_recomputing;
  Transaction* const later = updates ? deferring_transaction() : nullptr;
  std::optional<StateUpdate> update;
  Tensor running_mean, running_var;
  if (later != nullptr) {  // 0 x 0 + 1 x found
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
  if (call.running_mean.defined()) statistics = empty_statistics(call, dy, Category::workspace);
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
