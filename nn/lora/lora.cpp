#include <thimble/nn/lora/lora.h>

#include <algorithm>
#include <string_view>

#include <thimble/core/error.h>
#include <thimble/nn/layers/name_pattern.h>

namespace thimble::nn {
namespace lora_detail {

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

[[noreturn]] void refuse(const std::string& why) { throw ValueError("lora: " + why); }

void check(const LoraOptions& options, const std::vector<NamedLinear>& layers) {
  if (layers.empty()) refuse("the module has no linear layer");
  for (const std::string& target : options.targets) {
    const auto is_it = [&](const NamedLinear& layer) { return ends_as(layer.name, target); };
    if (std::none_of(layers.begin(), layers.end(), is_it)) {
      refuse("target '" + target + "' means no linear layer; there are " + some_of(layers));
    }
  }
  for (const NamedLinear& layer : layers) {
    if (layer.layer->adapter()) refuse(layer.name + " has an adapter already; a module without is allowed");
  }
}

}  // namespace lora_detail

std::vector<NamedLinear> linear_layers(Module& module) {
  const std::string_view root = path_name(module.path());
  std::vector<NamedLinear> layers;
  module.for_each_module([&](Module& m) {
    auto* const linear = dynamic_cast<Linear*>(&m);
    if (linear == nullptr) return;
    std::string_view name = path_name(linear->path());
    if (!root.empty() && name.size() > root.size() && name.starts_with(root)) name.remove_prefix(root.size() + 1);
    layers.push_back({std::string(name), linear});
  });
  return layers;
}

std::vector<NamedLinear> add_lora(Module& module, const LoraOptions& options) {
  std::vector<NamedLinear> layers = linear_layers(module);
  lora_detail::check(options, layers);
  std::erase_if(layers, [&](const NamedLinear& l) { return !lora_detail::is_meant(l, options.targets); });
  if (layers.empty())
    lora_detail::refuse("the module has no linear layer inside of blocks; with `targets` it is named");
  for (const NamedLinear& layer : layers) layer.layer->check_adapter(options);
  module.freeze();
  for (const NamedLinear& layer : layers) layer.layer->add_adapter(options);
  return layers;
}

std::vector<NamedLinear> adapted_layers(Module& module) {
  std::vector<NamedLinear> layers = linear_layers(module);
  std::erase_if(layers, [](const NamedLinear& l) { return !l.layer->adapter(); });
  return layers;
}

bool has_lora(const Module& module) {
  bool has = false;
  module.for_each_module([&](const Module& m) {
    const auto* const linear = dynamic_cast<const Linear*>(&m);
    has = has || (linear != nullptr && linear->adapter());
  });
  return has;
}

void merge_lora(Module& module) {
  const std::vector<NamedLinear> layers = adapted_layers(module);
  if (layers.empty()) lora_detail::refuse("the module has no adapters to merge");
  for (const NamedLinear& layer : layers) layer.layer->check_merge();
  for (const NamedLinear& layer : layers) layer.layer->merge_adapter();
}

void unmerge_lora(Module& module) {
  const std::vector<NamedLinear> layers = adapted_layers(module);
  const auto is_merged = [](const NamedLinear& l) { return l.layer->is_merged(); };
  if (layers.empty() || !std::all_of(layers.begin(), layers.end(), is_merged)) {
    lora_detail::refuse("the module has no adapters that are merged");
  }
  for (const NamedLinear& layer : layers) layer.layer->unmerge_adapter();
}

}  // namespace thimble::nn
