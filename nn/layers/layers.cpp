#include <thimble/nn/layers/layers.h>

#include <algorithm>
#include <cmath>

#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/functions/indexing.h>
#include <thimble/autograd/functions/norm.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/conv/conv.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/norm/norm.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/nn/layers/init.h>

namespace thimble::nn {

namespace {

void check_groups(const char* name, std::int64_t groups, std::int64_t in, std::int64_t out) {
  if (groups >= 1 && in % groups == 0 && out % groups == 0) return;
  throw ValueError(std::string(name) + ": " + std::to_string(groups) + " groups do not divide " + std::to_string(in) +
                   " and " + std::to_string(out) + " channels");
}

void check_sizes(const char* name, const Conv2dOptions& o, std::int64_t in, std::int64_t out, std::int64_t kernel) {
  if (std::min({in, out, kernel}) < 1) {
    throw ShapeError(std::string(name) + ": " + std::to_string(in) + " input channels, " + std::to_string(out) +
                     " output channels, a kernel of " + std::to_string(kernel) + "; expected at least 1 of each");
  }
  ops::check_conv_numbers(name, o.stride, o.padding, o.dilation, o.groups);
  check_groups(name, o.groups, in, out);
}

double checked_epsilon(const char* name, std::int64_t channels, double epsilon) {
  if (channels < 1) throw ShapeError(std::string(name) + ": " + std::to_string(channels) + " channels; at least 1");
  norm_detail::check_epsilon(name, epsilon);
  return epsilon;
}

}  // namespace

Tensor as_operand(const Tensor& t, std::optional<DType> compute) {
  return t.defined() && compute ? cast(t, *compute) : t;
}

Linear::Linear(Shard, std::int64_t in, std::int64_t out, const TensorOptions& on, const LinearOptions& options)
    : in_(in), out_(out), options_(options), compute_(on.compute), is_in_block_(on.is_in_blocks) {
  const auto require_number = [](const char* field, double value) {
    if (!std::isnan(value)) return;
    throw ValueError(std::string("linear: options.") + field + ": expected a number, got nan");
  };
  if (in < 1) throw ShapeError("linear: " + std::to_string(in) + " inputs, expected at least 1");
  require_number("deviation", options.deviation), require_number("bound", options.bound);
}

Linear::Linear(std::int64_t in, std::int64_t out, const TensorOptions& on, const LinearOptions& options)
    : Linear(Shard(), in, out, on, options) {
  if (on.rules) {
    if (auto sharded = on.rules->for_linear(*this, on)) {
      put_in_place(std::move(sharded));
      return;
    }
  }
  if (on.fp8) replace<Fp8Linear>(*this, on);
  const bool is_normal = options.deviation >= 0, has_bound = options.bound >= 0;
  const double bound = has_bound ? options.bound : 1 / std::sqrt(static_cast<double>(in));
  const auto drawn = [&](const Shape& shape) {
    return is_normal ? init::normal(shape, options.deviation, on.dtype, on.device)
                     : init::uniform(shape, bound, on.dtype, on.device);
  };
  {
    const ParameterStoreScope store(on.coded_weights ? on.coded_weights : context().parameter_store);
    weight =
        add_parameter(options.prefix + "weight", drawn(options.weight_is_in_out ? Shape{in, out} : Shape{out, in}));
  }
  if (options.has_bias) {
    bias = add_parameter(options.prefix + "bias",
                         is_normal || has_bound ? init::constant({out}, 0, on.dtype, on.device) : drawn({out}));
  }
}

Tensor Linear::forward(const Tensor& x) {
  const Tensor operand = as_operand(x, compute_), addend = as_operand(bias, compute_);
  return linear(operand, as_operand(weight, compute_), addend, options_.activation, options_.weight_is_in_out);
}

Conv2d::Conv2d(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv2dOptions& options, bool has_bias,
               const TensorOptions& on)
    : options_(options), compute_(on.compute), fp8_fallback_(on.fp8 ? "convolutions have no FP8 form" : "") {
  check_fp8_strict(on.fp8, fp8_fallback_);
  check_sizes("conv2d", options, in, out, kernel);
  const Shape shape{out, kernel, kernel, in / options.groups};  // (O, KH, KW, I / groups)
  weight =
      add_parameter("weight", init::kaiming_fan_out(shape, out * kernel * kernel / options.groups, on.dtype, on.device),
                    FileLayout::oihw);
  if (has_bias) bias = add_parameter("bias", init::constant({out}, 0, on.dtype, on.device));
}

Tensor Conv2d::forward(const Tensor& x) {
  return conv2d(as_operand(x, compute_), as_operand(weight, compute_), as_operand(bias, compute_), options_);
}

Conv1d::Conv1d(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv2dOptions& options, bool has_bias,
               const TensorOptions& on)
    : options_(options), compute_(on.compute) {
  check_fp8_strict(on.fp8, on.fp8 ? "convolutions have no FP8 form" : "");
  check_sizes("conv1d", options, in, out, kernel);
  const double bound = 1 / std::sqrt(static_cast<double>(in / options.groups * kernel));
  weight = add_parameter("weight", init::uniform({out, kernel, in / options.groups}, bound, on.dtype, on.device),
                         FileLayout::oihw);
  if (has_bias) bias = add_parameter("bias", init::uniform({out}, bound, on.dtype, on.device));
}

Tensor Conv1d::forward(const Tensor& x) {
  return conv1d(as_operand(x, compute_), as_operand(weight, compute_), as_operand(bias, compute_), options_);
}

ConvTranspose2d::ConvTranspose2d(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv2dOptions& options,
                                 std::int64_t output_padding, bool has_bias, const TensorOptions& on)
    : options_(options), output_padding_(output_padding), compute_(on.compute) {
  check_fp8_strict(on.fp8, on.fp8 ? "convolutions have no FP8 form" : "");
  check_sizes("conv_transpose2d", options, in, out, kernel);
  if (output_padding < 0 || output_padding >= options.stride) {
    throw ValueError("conv_transpose2d: output padding " + std::to_string(output_padding) +
                     "; expected 0 to stride - 1");
  }
  const Shape shape{in, kernel, kernel, out / options.groups};
  const double bound = 1 / std::sqrt(static_cast<double>(out / options.groups * kernel * kernel));
  weight = add_parameter("weight", init::uniform(shape, bound, on.dtype, on.device), FileLayout::oihw);
  if (has_bias) bias = add_parameter("bias", init::uniform({out}, bound, on.dtype, on.device));
}

Tensor ConvTranspose2d::forward(const Tensor& x) {
  return conv_transpose2d(as_operand(x, compute_), as_operand(weight, compute_), as_operand(bias, compute_), options_,
                          output_padding_);
}

BatchNorm2d::BatchNorm2d(std::int64_t channels, const TensorOptions& on, double momentum, double epsilon)
    : momentum_(momentum), epsilon_(checked_epsilon("batch_norm", channels, epsilon)) {
  if (!(momentum >= 0 && momentum <= 1)) {
    throw ValueError("batch_norm: momentum " + std::to_string(momentum) + ", expected 0 to 1");
  }
  const DType dtype = on.norm_dtype(), statistics = dtype == DType::f64 ? DType::f64 : DType::f32;
  weight = add_parameter("weight", init::constant({channels}, 1, dtype, on.device));
  bias = add_parameter("bias", init::constant({channels}, 0, dtype, on.device));
  running_mean = add_buffer("running_mean", init::constant({channels}, 0, statistics, on.device));
  running_var = add_buffer("running_var", init::constant({channels}, 1, statistics, on.device));
  num_batches_tracked = add_buffer("num_batches_tracked", init::constant({}, 0, DType::i64, on.device));
}

void BatchNorm2d::count_batch() {
  if (!is_training()) return;  // recomputation runs operators, not modules
  tape::StateUpdate update;
  update.state[0] = num_batches_tracked;
  update.apply = [](const tape::StateUpdate& u) {
    const NoGrad off;
    const Tensor count = writable_state(u.state[0]);
    copy_into(count, add(count, 1.0));
  };
  if (tape::Transaction* const later = deferring_transaction()) return later->defer(std::move(update));
  update.apply(update);
}

Tensor BatchNorm2d::forward(const Tensor& x) {
  count_batch();
  return batch_norm(x, weight, bias, running_mean, running_var, {is_training(), momentum_, epsilon_});
}

Tensor BatchNorm2d::with_relu(const Tensor& x) {
  const PathScope scope(path());
  const EvaluationScope mode(!is_training());
  count_batch();
  return batch_norm_relu(x, weight, bias, running_mean, running_var, {is_training(), momentum_, epsilon_});
}

Tensor BatchNorm2d::with_relu6(const Tensor& x) {
  const PathScope scope(path());
  const EvaluationScope mode(!is_training());
  count_batch();
  return batch_norm_relu6(x, weight, bias, running_mean, running_var, {is_training(), momentum_, epsilon_});
}

Tensor BatchNorm2d::with_add_relu(const Tensor& x, const Tensor& residual) {
  const PathScope scope(path());
  const EvaluationScope mode(!is_training());
  count_batch();
  return batch_norm_add_relu(x, residual, weight, bias, running_mean, running_var,
                             {is_training(), momentum_, epsilon_});
}

LayerNorm::LayerNorm(std::int64_t width, const TensorOptions& on, double epsilon)
    : epsilon_(checked_epsilon("layer_norm", width, epsilon)) {
  weight = add_parameter("weight", init::constant({width}, 1, on.norm_dtype(), on.device));
  bias = add_parameter("bias", init::constant({width}, 0, on.norm_dtype(), on.device));
}

Tensor LayerNorm::forward(const Tensor& x) { return layer_norm(x, weight, bias, epsilon_); }

RmsNorm::RmsNorm(std::int64_t width, const TensorOptions& on, double epsilon)
    : epsilon_(checked_epsilon("rms_norm", width, epsilon)) {
  weight = add_parameter("weight", init::constant({width}, 1, on.norm_dtype(), on.device));
}

Tensor RmsNorm::forward(const Tensor& x) { return rms_norm(x, weight, epsilon_); }

GroupNorm::GroupNorm(std::int64_t groups, std::int64_t channels, const TensorOptions& on, double epsilon)
    : groups_(groups), epsilon_(checked_epsilon("group_norm", channels, epsilon)) {
  check_groups("group_norm", groups, channels, channels);
  weight = add_parameter("weight", init::constant({channels}, 1, on.norm_dtype(), on.device));
  bias = add_parameter("bias", init::constant({channels}, 0, on.norm_dtype(), on.device));
}

Tensor GroupNorm::forward(const Tensor& x) { return group_norm(x, groups_, weight, bias, epsilon_); }

InstanceNorm2d::InstanceNorm2d(std::int64_t channels, bool is_affine, const TensorOptions& on, double epsilon)
    : epsilon_(checked_epsilon("instance_norm", channels, epsilon)) {
  if (!is_affine) return;
  weight = add_parameter("weight", init::constant({channels}, 1, on.norm_dtype(), on.device));
  bias = add_parameter("bias", init::constant({channels}, 0, on.norm_dtype(), on.device));
}

Tensor InstanceNorm2d::forward(const Tensor& x) { return instance_norm(x, weight, bias, epsilon_); }

Embedding::Embedding(std::int64_t count, std::int64_t width, const TensorOptions& on, double deviation) {
  const Shape shape{count, width};
  if (on.rules) {
    if (auto sharded = on.rules->for_table(shape, on, deviation)) {
      put_in_place(std::move(sharded));
      return;
    }
  }
  weight = add_parameter("weight", init::normal(shape, deviation, on.dtype, on.device));
}

Tensor Embedding::forward(const Tensor& ids) { return embedding(weight, ids); }

Dropout::Dropout(double p, bool is_textbook) : p_(p), is_textbook_(is_textbook) {
  if (!(p >= 0 && p < 1)) throw ValueError("dropout: probability " + std::to_string(p) + " is not in [0, 1)");
}

Tensor Dropout::forward(const Tensor& x) {
  if (!is_training() || p_ == 0) return x;
  return is_textbook_ ? dropout_textbook(x, p_) : dropout(x, p_);
}

}  // namespace thimble::nn
