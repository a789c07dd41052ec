#include <thimble/nn/lora/adapter_files.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/core/files/file.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/nn/files/json_file.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::nn {
namespace adapter_files_detail {

using Json = nlohmann::ordered_json;

constexpr std::string_view of_peft = "base_model.model.", suffix_a = ".lora_A.weight", suffix_b = ".lora_B.weight";

bool is_same(const AdapterOptions& a, const AdapterOptions& b) { return a.rank == b.rank && a.alpha == b.alpha; }

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

/// Keys of PEFT's that change nothing of what is computed: the layers are those that the tensors name, and their sizes
/// tell how weights lie.
constexpr std::string_view without_effect[] = {
    "auto_mapping",   "base_model_name_or_path", "exclude_modules", "fan_in_fan_out", "inference_mode",
    "layers_pattern", "layers_to_transform",     "megatron_core",   "peft_version",   "qalora_group_size",
    "revision",       "runtime_config",          "target_modules",  "task_type"};

/// How adapters began. Others than these have changed the base as well (pissa, olora, corda, loftq), or their ranks.
constexpr std::string_view beginnings[] = {"gaussian", "orthogonal"};

/// What a configuration asks for; throws for what is not here.
AdapterOptions read_options(const std::string& path) {
  const JsonKeys keys(path);
  if (keys.text("peft_type", "") != "LORA") keys.refuse("peft_type", "\"LORA\"");
  if (keys.text("bias", "none") != "none") keys.refuse("bias", "\"none\"");
  if (keys.has("init_lora_weights") && !keys.is_flag("init_lora_weights")) {
    const std::string begins = keys.text("init_lora_weights", "");
    if (std::find(std::begin(beginnings), std::end(beginnings), begins) == std::end(beginnings)) {
      keys.refuse("init_lora_weights", "true, false, \"gaussian\" or \"orthogonal\", which leave the base as it is");
    }
  }
  constexpr std::int64_t most_rank = 1 << 20;
  const std::int64_t rank = keys.size("r", 0);
  if (rank < 1 || rank > most_rank) keys.refuse("r", "an integer from 1 to 2^20");
  constexpr double most_alpha = 1e9;
  AdapterOptions options{rank, keys.number("lora_alpha", -most_alpha, most_alpha)};
  options.dropout = keys.number("lora_dropout", 0, 0, 1);
  if (options.dropout >= 1) keys.refuse("lora_dropout", "a number from 0 to below 1");
  keys.refuse_unknown(without_effect);
  return options;
}

struct Halves {
  const SafetensorsEntry *a = nullptr, *b = nullptr;
};

/// The layers that a file has adapters of, by their names here.
std::map<std::string, Halves> layers_of(const SafetensorsReader& file, const std::string& prefix) {
  std::map<std::string, Halves> layers;
  for (const SafetensorsEntry& entry : file.header().tensors) {
    std::string_view name = entry.name;
    const bool is_a = name.ends_with(suffix_a), is_b = name.ends_with(suffix_b);
    if (!name.starts_with(of_peft) || !(is_a || is_b)) {
      throw ValueError(file.path() + ": tensor '" + entry.name +
                       "'; base_model.model.<layer>.lora_A.weight and "
                       ".lora_B.weight are allowed");
    }
    name.remove_prefix(of_peft.size());
    name.remove_suffix(suffix_a.size());
    if (!prefix.empty() && name.starts_with(prefix)) name.remove_prefix(prefix.size());
    Halves& halves = layers[std::string(name)];
    (is_a ? halves.a : halves.b) = &entry;
  }
  for (const auto& [name, halves] : layers) {
    if (halves.a == nullptr || halves.b == nullptr) {
      throw ValueError(file.path() + ": layer '" + name + "' has " + (halves.a != nullptr ? "A" : "B") +
                       " alone; both are needed");
    }
  }
  return layers;
}

/// The layers of the module that the file means, in the module's order.
std::vector<NamedLinear> meant(Module& module, const std::map<std::string, Halves>& in_file,
                               const AdapterOptions& options, const std::string& path) {
  std::vector<NamedLinear> layers = linear_layers(module);
  std::erase_if(layers, [&](const NamedLinear& l) { return !in_file.contains(l.name); });
  if (in_file.empty()) throw ValueError(path + ": there is no adapter");
  for (const auto& [name, halves] : in_file) {
    const auto is_it = [&name = name](const NamedLinear& l) { return l.name == name; };
    if (std::none_of(layers.begin(), layers.end(), is_it)) {
      throw ValueError(path + ": the module has no linear layer '" + name + "'");
    }
  }
  const std::vector<NamedLinear> adapted = adapted_layers(module);
  if (adapted.empty()) {
    for (const NamedLinear& l : layers) l.layer->check_adapter(options);
    return layers;
  }
  for (const NamedLinear& l : adapted) {
    if (!in_file.contains(l.name)) throw ValueError(path + ": layer '" + l.name + "' of the module is not there");
    if (!is_same(*l.layer->adapter(), options)) {
      throw ValueError(path + ": r " + std::to_string(options.rank) + " and lora_alpha " +
                       std::to_string(options.alpha) + "; the module's '" + l.name + "' has " +
                       std::to_string(l.layer->adapter()->rank) + " and " + std::to_string(l.layer->adapter()->alpha));
    }
  }
  if (adapted.size() != layers.size()) {
    throw ValueError(path + ": adapters of " + std::to_string(layers.size()) + " layers; the module has " +
                     std::to_string(adapted.size()));
  }
  return layers;
}

void check_shape(const std::string& operation, const SafetensorsEntry& entry, const Shape& shape) {
  if (std::equal(shape.begin(), shape.end(), entry.shape.begin(), entry.shape.end())) return;
  std::string sizes;
  for (const std::int64_t size : entry.shape) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  throw ShapeError(operation + ": tensor '" + entry.name + "' is (" + sizes + ") in the file, the module needs " +
                   to_string(shape));
}

}  // namespace adapter_files_detail

std::string adapter_config_path(const std::string& folder) {
  return (std::filesystem::path(folder) / "adapter_config.json").string();
}
std::string adapter_tensors_path(const std::string& folder) {
  return (std::filesystem::path(folder) / "adapter_model.safetensors").string();
}

void save_adapters(Module& module, const std::string& folder, const AdapterFiles& files) {
  using namespace adapter_files_detail;
  const std::vector<NamedLinear> layers = adapted_layers(module);
  if (layers.empty()) throw ValueError("save_adapters: the module has none");
  const Linear& first = *layers.front().layer;
  std::vector<NamedTensor> tensors;
  Json targets = Json::array();
  for (const NamedLinear& l : layers) {
    if (!is_same(*l.layer->adapter(), *first.adapter()) || l.layer->weight_is_in_out() != first.weight_is_in_out()) {
      throw ValueError("save_adapters: " + layers.front().name + " and " + l.name +
                       " differ in rank, alpha or the layout of weights; one for all is allowed");
    }
    const std::string name = files.prefix + l.name, whole = std::string(of_peft) + name;
    tensors.push_back({whole + std::string(suffix_a), l.layer->lora_a});
    tensors.push_back({whole + std::string(suffix_b), l.layer->lora_b});
    targets.push_back(name);
  }
  const Json config{{"base_model_name_or_path", text_or_null(files.base)},
                    {"bias", "none"},
                    {"fan_in_fan_out", first.weight_is_in_out()},
                    {"inference_mode", true},
                    {"init_lora_weights", true},
                    {"lora_alpha", first.adapter()->alpha},
                    {"lora_dropout", first.adapter()->dropout},
                    {"peft_type", "LORA"},
                    {"r", first.adapter()->rank},
                    {"target_modules", targets},
                    {"task_type", text_or_null(files.task)}};
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw FileError(folder, 0, "cannot be made: " + error.message());
  const ParameterUse use;
  write_tensor_file(adapter_tensors_path(folder), tensors, {{"format", "pt"}}, Numbers::finite);
  write_file_atomically(adapter_config_path(folder), config.dump(2) + "\n");
}

AdapterFolder read_adapter_folder(const std::string& folder, const AdapterFiles& files) {
  using namespace adapter_files_detail;
  AdapterFolder found{read_options(adapter_config_path(folder)), {}};
  const SafetensorsReader file(adapter_tensors_path(folder));
  for (const auto& [name, halves] : layers_of(file, files.prefix)) found.layers.push_back(name);
  if (found.layers.empty()) throw ValueError(file.path() + ": there is no adapter");
  return found;
}

void load_adapters(Module& module, const std::string& folder, const AdapterFiles& files) {
  using namespace adapter_files_detail;
  const AdapterOptions options = read_options(adapter_config_path(folder));
  const SafetensorsReader file(adapter_tensors_path(folder));
  const std::map<std::string, Halves> in_file = layers_of(file, files.prefix);
  const std::vector<NamedLinear> layers = meant(module, in_file, options, file.path());
  const std::string operation = "load_adapters: " + file.path();
  for (const NamedLinear& l : layers) {
    const Halves& halves = in_file.at(l.name);
    check_shape(operation, *halves.a, {options.rank, l.layer->inputs()});
    check_shape(operation, *halves.b, {l.layer->outputs(), options.rank});
    for (const SafetensorsEntry* const entry : {halves.a, halves.b}) {
      if (!is_floating(loadable_dtype(*entry))) {
        throw DTypeError(operation + ": tensor '" + entry->name + "' is " + std::string(to_string(entry->dtype)) +
                         "; floating dtypes are allowed");
      }
      file.verify(*entry);
    }
  }
  if (!has_lora(module)) {
    module.freeze();
    for (const NamedLinear& l : layers) l.layer->add_adapter(options);
  }
  const ParameterUse use;
  FileStaging staging;
  for (const NamedLinear& l : layers) {
    const Halves& halves = in_file.at(l.name);
    read_file_tensor(file, *halves.a, NamedTensor{halves.a->name, l.layer->lora_a}, staging);
    read_file_tensor(file, *halves.b, NamedTensor{halves.b->name, l.layer->lora_b}, staging);
  }
}

}  // namespace thimble::nn
