#include <thimble/nn/layers/layers.h>

#include <cmath>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions/dropout.h>
#include <thimble/autograd/functions/norm.h>
#include <thimble/autograd/functions/q8.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/layout/gather.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/core/tensor/view.h>
#include <thimble/dist/parts/team.h>
#include <thimble/nn/layers/init.h>

namespace thimble::nn {

Tensor as_operand(const Tensor& t, std::optional<DType> compute) {
  return t.defined() && compute ? cast(t, *compute) : t;
}

namespace linear_detail {

// What a part has of a parameter of the whole layer, whose outputs lie along `axis`.
init::PartOf part_of(const Shape& whole, int axis, const LinearPart& part) {
  if (!part.by_inputs) return {whole, axis, part.parts, part.part, part.stretches};
  return {whole, 1 - axis, part.parts, part.part};
}

std::int64_t own_inputs(std::int64_t in, const LinearOptions& options) {
  return options.part && options.part->by_inputs ? part_of({1, in}, 0, *options.part).shape()[1] : in;
}
std::int64_t own_outputs(std::int64_t out, const LinearOptions& options) {
  return options.part && !options.part->by_inputs ? part_of({out}, 0, *options.part).shape()[0] : out;
}

}  // namespace linear_detail

Linear::Linear(std::int64_t in, std::int64_t out, const TensorOptions& on, const LinearOptions& options)
    : options_(options),
      compute_(on.compute),
      fp8_(on, linear_detail::own_inputs(in, options), linear_detail::own_outputs(out, options)),
      is_coded_(on.coded_weights != nullptr),
      is_in_block_(on.is_in_blocks) {
  const bool is_normal = options.deviation >= 0, has_bound = options.bound >= 0;
  const double bound = has_bound ? options.bound : 1 / std::sqrt(static_cast<double>(in));
  const auto drawn = [&](const Shape& whole, int axis, const RandomSite& site) {
    if (!options.part) {
      return is_normal ? init::normal(whole, options.deviation, on.dtype, on.device)
                       : init::uniform(whole, bound, on.dtype, on.device);
    }
    const init::PartOf part = linear_detail::part_of(whole, axis, *options.part);
    return is_normal ? init::normal_part(part, options.deviation, on.dtype, on.device, site)
                     : init::uniform_part(part, bound, on.dtype, on.device, site);
  };
  const LinearPart part = options.part.value_or(LinearPart{});
  cut_size_ = part.by_inputs ? in : out;
  {
    const ParameterStoreScope store(is_coded_ ? on.coded_weights : context().parameter_store);
    weight = add_parameter(
        "weight", options.weight_is_in_out ? drawn({in, out}, 1, part.weight) : drawn({out, in}, 0, part.weight));
  }
  if (options.has_bias) {
    bias = add_parameter("bias", is_normal || has_bound ? init::constant({linear_detail::own_outputs(out, options)}, 0,
                                                                         on.dtype, on.device)
                                                        : drawn({out}, 0, part.bias));
  }
  if (fp8_.state().defined()) {
    add_buffer("fp8_amax", fp8_.state().amax);
    add_buffer("fp8_scale", fp8_.state().scale);
    add_buffer("fp8_steps", fp8_.state().steps);
  }
}

std::optional<PlaceInWhole> Linear::place_in_whole(const Tensor& parameter) const {
  if (!options_.part) return {};
  const int axis = parameter.rank() == 2 && options_.weight_is_in_out ? 1 : 0;  // of the outputs
  PlaceInWhole place{linear_detail::part_of(parameter.shape(), axis, *options_.part), options_.part->joint};
  place.part.whole[place.part.axis] = cut_size_;
  return place;
}

void Linear::quantize_weight() {
  if (has_quantized_weight()) throw ValueError("linear: the weight is quantized already");
  if (adapter_) throw ValueError("linear: the weight has an adapter; one without is allowed");
  const PathScope scope(path());
  const NoGrad off;
  weight_q8 = add_buffer("weight_q8", quantize_q8(options_.weight_is_in_out ? view::transpose(weight) : weight));
  weight = Tensor();
}

void Linear::check_adapter(const AdapterOptions& options) const {
  const auto refuse = [&](const std::string& why) {
    throw ValueError("linear: an adapter of " + std::string(path_name(path())) + ": " + why);
  };
  if (adapter_) refuse("it has one; one is allowed");
  if (has_quantized_weight()) refuse("its weight is quantized for inference");
  if (fp8_.runs()) refuse("its product is in FP8; f32, f16 and bf16 are allowed");
  if (options.rank < 1) refuse("rank " + std::to_string(options.rank) + "; at least 1 is allowed");
  if (!std::isfinite(options.alpha)) refuse("alpha " + std::to_string(options.alpha) + "; a finite number is allowed");
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    refuse("dropout " + std::to_string(options.dropout) + " is not in [0, 1)");
  }
}

void Linear::add_adapter(const AdapterOptions& options) {
  check_adapter(options);
  const PathScope scope(path());
  const DType dtype = weight.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const double bound = 1 / std::sqrt(static_cast<double>(inputs()));
  const auto make = [&](const char* name, auto&& init, const Shape& shape, double value) {
    const PathScope below(name);
    return add_parameter(std::string(name) + ".weight", init(shape, value, dtype, weight.device()));
  };
  lora_a = make("lora_A", init::uniform, {options.rank, inputs()}, bound);
  lora_b = make("lora_B", init::constant, {outputs(), options.rank}, 0);
  adapter_ = options;
}

Tensor Linear::with_adapter(const Tensor& x, const Tensor& addend) {
  Tensor z;
  if (is_training() && adapter_->dropout > 0) {
    const PathScope scope("lora_dropout");
    z = dropout(x, adapter_->dropout);
  }
  const double scale = adapter_->alpha / static_cast<double>(adapter_->rank);
  const Tensor y = lora_linear(x, as_operand(weight, compute_), addend, z, cast(lora_a, x.dtype()),
                               cast(lora_b, x.dtype()), scale, options_.weight_is_in_out);
  switch (options_.activation) {
    case kernels::Activation::relu:
      return relu(y);
    case kernels::Activation::gelu_tanh:
      return gelu(y);
    case kernels::Activation::gelu_erf:
      return gelu(y, GeluForm::erf);
    case kernels::Activation::none:
      break;
  }
  return y;
}

void Linear::check_merge() const {
  const std::string start = "linear: " + std::string(path_name(path()));
  if (!adapter_ || is_merged_) throw ValueError(start + (adapter_ ? " has its adapter merged" : " has no adapter"));
  if (is_coded_) {
    throw ValueError(start +
                     " has a coded weight, which would round the adapter to its codes; one that is not is "
                     "allowed");
  }
}

/// weight += sign alpha / r B A.
void Linear::add_to_weight(double sign) {
  const ParameterUse use;
  fetch_parameters(weight, lora_a, lora_b);
  const Tensor a = lora_a.detach(), b = lora_b.detach();
  MatmulCall call{"merge_adapter",
                  options_.weight_is_in_out ? view::transpose(a) : b,
                  options_.weight_is_in_out ? view::transpose(b) : a,
                  weight.detach(),
                  {},
                  {}};
  call.alpha = sign * adapter_->alpha / static_cast<double>(adapter_->rank);
  call.accumulate = true;
  matmul_into(call);
}

void Linear::merge_adapter() {
  check_merge();
  add_to_weight(1);
  is_merged_ = true;
}

void Linear::unmerge_adapter() {
  if (!is_merged_) throw ValueError("linear: " + std::string(path_name(path())) + " has no adapter that is merged");
  add_to_weight(-1);
  is_merged_ = false;
}

Tensor Linear::forward(const Tensor& x) {
  const Tensor operand = as_operand(x, compute_), addend = as_operand(bias, compute_);
  if (adapter_ && !is_merged_) return with_adapter(operand, addend);
  if (has_quantized_weight()) return linear_q8(operand, weight_q8, addend, options_.activation);
  if (fp8_.runs()) {
    return fp8_(operand, as_operand(weight, compute_), addend, is_training(), options_.activation,
                options_.weight_is_in_out);
  }
  return linear(operand, as_operand(weight, compute_), addend, options_.activation, options_.weight_is_in_out);
}

Conv2d::Conv2d(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv2dOptions& options, bool has_bias,
               const TensorOptions& on)
    : options_(options), compute_(on.compute), fp8_fallback_(on.fp8 ? "convolutions have no FP8 form" : "") {
  check_fp8_strict(on.fp8, fp8_fallback_);
  if (options.groups < 1 || in % options.groups != 0 || out % options.groups != 0) {
    throw ValueError("conv2d: " + std::to_string(options.groups) + " groups do not divide " + std::to_string(in) +
                     " and " + std::to_string(out) + " channels");
  }
  const Shape shape{out, kernel, kernel, in / options.groups};  // (O, KH, KW, I / groups)
  weight =
      add_parameter("weight", init::kaiming_fan_out(shape, out * kernel * kernel / options.groups, on.dtype, on.device),
                    FileLayout::oihw);
  if (has_bias) bias = add_parameter("bias", init::constant({out}, 0, on.dtype, on.device));
}

Tensor Conv2d::forward(const Tensor& x) {
  return conv2d(as_operand(x, compute_), as_operand(weight, compute_), as_operand(bias, compute_), options_);
}

BatchNorm2d::BatchNorm2d(std::int64_t channels, const TensorOptions& on, double momentum, double epsilon)
    : momentum_(momentum), epsilon_(epsilon) {
  const DType dtype = on.norm_dtype(), statistics = dtype == DType::f64 ? DType::f64 : DType::f32;
  weight = add_parameter("weight", init::constant({channels}, 1, dtype, on.device));
  bias = add_parameter("bias", init::constant({channels}, 0, dtype, on.device));
  running_mean = add_buffer("running_mean", init::constant({channels}, 0, statistics, on.device));
  running_var = add_buffer("running_var", init::constant({channels}, 1, statistics, on.device));
  num_batches_tracked = add_buffer("num_batches_tracked", init::constant({}, 0, DType::i64, on.device));
}

void BatchNorm2d::count_batch() {
  if (!is_training() || context().is_recomputing) return;
  StateUpdate update;
  update.state[0] = num_batches_tracked;
  update.apply = [](const StateUpdate& u) {
    const NoGrad off;
    const Tensor count = writable_state(u.state[0]);
    copy_into(count, add(count, 1.0));
  };
  if (Transaction* const later = deferring_transaction()) return later->defer(std::move(update));
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

Tensor BatchNorm2d::with_add_relu(const Tensor& x, const Tensor& residual) {
  const PathScope scope(path());
  const EvaluationScope mode(!is_training());
  count_batch();
  return batch_norm_add_relu(x, residual, weight, bias, running_mean, running_var,
                             {is_training(), momentum_, epsilon_});
}

LayerNorm::LayerNorm(std::int64_t width, const TensorOptions& on, double epsilon) : epsilon_(epsilon) {
  weight = add_parameter("weight", init::constant({width}, 1, on.norm_dtype(), on.device));
  bias = add_parameter("bias", init::constant({width}, 0, on.norm_dtype(), on.device));
}

Tensor LayerNorm::forward(const Tensor& x) { return layer_norm(x, weight, bias, epsilon_); }

RmsNorm::RmsNorm(std::int64_t width, const TensorOptions& on, double epsilon) : epsilon_(epsilon) {
  weight = add_parameter("weight", init::constant({width}, 1, on.norm_dtype(), on.device));
}

Tensor RmsNorm::forward(const Tensor& x) { return rms_norm(x, weight, epsilon_); }

GroupNorm::GroupNorm(std::int64_t groups, std::int64_t channels, const TensorOptions& on, double epsilon)
    : groups_(groups), epsilon_(epsilon) {
  weight = add_parameter("weight", init::constant({channels}, 1, on.norm_dtype(), on.device));
  bias = add_parameter("bias", init::constant({channels}, 0, on.norm_dtype(), on.device));
}

Tensor GroupNorm::forward(const Tensor& x) { return group_norm(x, groups_, weight, bias, epsilon_); }

Embedding::Embedding(std::int64_t count, std::int64_t width, const TensorOptions& on, double deviation,
                     const std::optional<TablePart>& part)
    : part_(part) {
  const Shape whole{count, width};
  if (!part) {
    weight = add_parameter("weight", init::normal(whole, deviation, on.dtype, on.device));
    return;
  }
  all_ = count;
  weight = add_parameter(
      "weight", init::normal_part({whole, 0, part->parts, part->part}, deviation, on.dtype, on.device, part->weight));
}

std::optional<PlaceInWhole> Embedding::place_in_whole(const Tensor&) const {
  if (!part_) return {};
  return PlaceInWhole{{{all_, weight.size(1)}, 0, part_->parts, part_->part}};
}

Tensor Embedding::forward(const Tensor& ids) {
  const std::int64_t first = part_ ? dist::part_begin(all_, part_->parts, part_->part) : 0;
  return apply(ops::Embedding{first, all_}, weight, ids);
}

Dropout::Dropout(double p, bool is_textbook) : p_(p), is_textbook_(is_textbook) {
  if (!(p >= 0 && p < 1)) throw ValueError("dropout: probability " + std::to_string(p) + " is not in [0, 1)");
}

Tensor Dropout::forward(const Tensor& x) {
  if (!is_training() || p_ == 0) return x;
  return is_textbook_ ? dropout_textbook(x, p_) : dropout(x, p_);
}

}  // namespace thimble::nn
