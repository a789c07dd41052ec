#include <thimble/nn/lora/lora.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/view.h>
#include <thimble/nn/layers/module.h>
#include <thimble/nn/quant/weight_only.h>

namespace thimble::nn {
namespace {

std::string some_of(const std::vector<NamedLinear>& layers) {
  constexpr std::size_t most = 8;
  std::string text;
  for (std::size_t i = 0; i < layers.size() && i < most; ++i) text += (i > 0 ? ", " : "") + layers[i].name;
  return text + (layers.size() > most ? ", ..." : "");
}

bool is_meant(const NamedLinear& layer, const std::vector<std::string>& targets) {
  if (targets.empty()) return layer.layer->is_in_block();
  return std::any_of(targets.begin(), targets.end(), [&](const std::string& t) { return ends_as(layer.name, t); });
}

[[noreturn]] void refuse_lora(const std::string& why) { throw ValueError("lora: " + why); }

void check(const LoraOptions& options, const std::vector<NamedLinear>& layers) {
  if (layers.empty()) refuse_lora("the module has no linear layer");
  for (const std::string& target : options.targets) {
    const auto is_it = [&](const NamedLinear& layer) { return ends_as(layer.name, target); };
    if (std::none_of(layers.begin(), layers.end(), is_it)) {
      refuse_lora("target '" + target + "' means no linear layer; there are " + some_of(layers));
    }
  }
  for (const NamedLinear& layer : layers) {
    if (layer.adapter != nullptr) refuse_lora(layer.name + " has an adapter already; expected a module without");
  }
}

}  // namespace

LoraLinear::LoraLinear(Linear& base, const AdapterOptions& options) : base_(base), options_(options) {
  check(base, options);
  const DType dtype = base.weight.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const double bound = 1 / std::sqrt(static_cast<double>(base.inputs()));
  const auto make = [&](const char* name, auto&& init, const Shape& shape, double value) {
    const PathScope below(name);
    return add_parameter(std::string(name) + ".weight", init(shape, value, dtype, base.weight.device()));
  };
  lora_a = make("lora_A", init::uniform, {options.rank, base.inputs()}, bound);
  lora_b = make("lora_B", init::constant, {base.outputs(), options.rank}, 0);
}

void LoraLinear::check(const Linear& base, const AdapterOptions& options) {
  const auto refuse_lora = [&](const std::string& why) {
    throw ValueError("lora: an adapter of " + std::string(path_name(base.path())) + ": " + why);
  };
  if (const Layer* const other = base.replacement(); other != nullptr && !other->difference().empty()) {
    refuse_lora("expected a plain layer, got one that " + std::string(other->difference()));
  }
  if (options.rank < 1) refuse_lora("rank " + std::to_string(options.rank) + "; expected at least 1");
  if (!std::isfinite(options.alpha))
    refuse_lora("alpha " + std::to_string(options.alpha) + "; expected a finite number");
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    refuse_lora("dropout " + std::to_string(options.dropout) + " is not in [0, 1)");
  }
}

Tensor LoraLinear::forward(const Tensor& in) {
  if (is_merged_) return forward_of(base_, in);
  const Tensor x = as_operand(in, base_.compute()), addend = as_operand(base_.bias, base_.compute());
  Tensor z;
  if (is_training() && options_.dropout > 0) {
    const PathScope scope("lora_dropout");
    z = dropout(x, options_.dropout);
  }
  const double scale = options_.alpha / static_cast<double>(options_.rank);
  const Tensor y = lora_linear(x, as_operand(base_.weight, base_.compute()), addend, z, cast(lora_a, x.dtype()),
                               cast(lora_b, x.dtype()), scale, base_.weight_is_in_out());
  switch (base_.activation()) {
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

void LoraLinear::check_merge() const {
  const std::string start = "lora: " + std::string(path_name(path()));
  if (is_merged_) throw ValueError(start + " has its adapter merged");
  if (dynamic_cast<const quant::CodedStore*>(base_.weight.storage()->store().get()) != nullptr) {
    throw ValueError(start +
                     " has a coded weight, which would round the adapter to its codes; merge into one without codes");
  }
}

/// weight += sign alpha / r B A.
void LoraLinear::add_to_weight(double sign) {
  const ParameterUse use;
  fetch_parameters(base_.weight, lora_a, lora_b);
  const Tensor a = lora_a.detach(), b = lora_b.detach();
  const bool is_in_out = base_.weight_is_in_out();
  MatmulCall call{"merge_adapter",
                  is_in_out ? view::transpose(a) : b,
                  is_in_out ? view::transpose(b) : a,
                  base_.weight.detach(),
                  {},
                  {}};
  call.alpha = sign * options_.alpha / static_cast<double>(options_.rank);
  call.accumulate = true;
  matmul_into(call);
}

void LoraLinear::merge() {
  check_merge();
  add_to_weight(1);
  is_merged_ = true;
}

void LoraLinear::unmerge() {
  if (!is_merged_) throw ValueError("lora: " + std::string(path_name(path())) + " has no adapter that is merged");
  add_to_weight(-1);
  is_merged_ = false;
}

std::vector<NamedLinear> linear_layers(Module& module) {
  const std::string_view root = path_name(module.path());
  std::vector<NamedLinear> layers;
  module.for_each_module([&](Module& m) {
    auto* const linear = dynamic_cast<Linear*>(&m);
    if (linear == nullptr || !linear->options().prefix.empty()) return;
    std::string_view name = path_name(linear->path());
    if (!root.empty() && name.size() > root.size() && name.starts_with(root)) name.remove_prefix(root.size() + 1);
    layers.push_back({std::string(name), linear, dynamic_cast<LoraLinear*>(linear->replacement())});
  });
  return layers;
}

std::vector<NamedLinear> add_lora(Module& module, const LoraOptions& options) {
  std::vector<NamedLinear> layers = linear_layers(module);
  check(options, layers);
  std::erase_if(layers, [&](const NamedLinear& l) { return !is_meant(l, options.targets); });
  if (layers.empty()) refuse_lora("the module has no linear layer inside of blocks; with `targets` it is named");
  for (const NamedLinear& layer : layers) LoraLinear::check(*layer.layer, options);
  module.freeze();
  for (NamedLinear& layer : layers) layer.adapter = &replace<LoraLinear>(*layer.layer, options);
  return layers;
}

std::vector<NamedLinear> adapted_layers(Module& module) {
  std::vector<NamedLinear> layers = linear_layers(module);
  std::erase_if(layers, [](const NamedLinear& l) { return l.adapter == nullptr; });
  return layers;
}

void merge_lora(Module& module) {
  const std::vector<NamedLinear> layers = adapted_layers(module);
  if (layers.empty()) refuse_lora("the module has no adapters to merge");
  for (const NamedLinear& layer : layers) layer.adapter->check_merge();
  for (const NamedLinear& layer : layers) layer.adapter->merge();
}

void unmerge_lora(Module& module) {
  const std::vector<NamedLinear> layers = adapted_layers(module);
  const auto is_merged = [](const NamedLinear& l) { return l.adapter->is_merged(); };
  if (layers.empty() || !std::all_of(layers.begin(), layers.end(), is_merged)) {
    refuse_lora("the module has no adapters that are merged");
  }
  for (const NamedLinear& layer : layers) layer.adapter->unmerge();
}

}  // namespace thimble::nn
