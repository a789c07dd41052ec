#include <thimble/nn/lora/adapter_files.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <regex>
#include <string_view>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/file.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/nn/files/json_file.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::nn {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view of_peft = "base_model.model.", suffix_a = ".lora_A.weight", suffix_b = ".lora_B.weight";

bool is_same(const AdapterOptions& a, const AdapterOptions& b) { return a.rank == b.rank && a.alpha == b.alpha; }

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

/// Keys of PEFT that do not affect the result: tensors' shapes tell the order of weights.
constexpr std::string_view without_effect[] = {
    "auto_mapping", "base_model_name_or_path", "fan_in_fan_out", "inference_mode", "megatron_core",
    "peft_version", "qalora_group_size",       "revision",       "runtime_config", "task_type"};

/// Accepted initializations. Others also changed the base (pissa, olora, corda, loftq), or the ranks.
constexpr std::string_view beginnings[] = {"gaussian", "orthogonal"};

struct Halves {
  std::string name;  ///< of the layer in the file, with the prefix, if any
  const SafetensorsEntry *a = nullptr, *b = nullptr;
};
using Layers = std::map<std::string, Halves>;

/// Module names as PEFT matches them (check_target_module_exists in tuners/tuners_utils.py): a list of whole names or
/// of their last parts, or a regular expression for the whole name.
class Names {
 public:
  Names() = default;
  Names(const JsonKeys& keys, const char* key, const char* expected) {
    if (!keys.is_text(key)) {
      if (keys.has(key)) names_ = keys.texts(key);
      return;
    }
    const std::string text = keys.text(key, "");
    constexpr std::size_t max_length = 1024;
    try {
      // Bounds time and stack for hostile patterns: the polynomial matcher, which has no back-references; no counts,
      // which multiply its depth.
      if (text.size() > max_length || text.find('{') != text.npos)
        throw std::regex_error(std::regex_constants::error_space);
      pattern_.emplace(text, std::regex_constants::ECMAScript | std::regex_constants::__polynomial);
    } catch (const std::regex_error&) {
      keys.refuse(key, expected);
    }
  }

  const std::vector<std::string>& list() const noexcept { return names_; }
  static bool ends_with(const std::string& layer, const std::string& name) {
    return layer == name || layer.ends_with("." + name);
  }
  bool have_whole(const std::string& layer) const {
    return pattern_ || std::find(names_.begin(), names_.end(), layer) != names_.end();
  }
  bool mean(const std::string& layer) const {
    if (pattern_) return std::regex_match(layer, *pattern_);
    return std::any_of(names_.begin(), names_.end(), [&](const std::string& n) { return ends_with(layer, n); });
  }

 private:
  std::vector<std::string> names_;
  std::optional<std::regex> pattern_;
};

/// The layers that target_modules (names or "all-linear") selects and exclude_modules does not. Last parts of names
/// select only in the blocks of layers_to_transform.
class Targets {
 public:
  explicit Targets(const JsonKeys& keys)
      : path_(keys.path()),
        excluded_(keys, "exclude_modules",
                  "names, or at most 1024 bytes of a regular expression without { } and back-references") {
    if (keys.has("layers_to_transform")) blocks_ = keys.sizes("layers_to_transform", 0);
    if (!blocks_.empty() && keys.is_text("target_modules")) {
      keys.refuse("layers_to_transform", "null beside a text of target_modules");
    }
    if (keys.is_text("layers_pattern")) {
      lists_ = {keys.text("layers_pattern", "")};
    } else if (keys.has("layers_pattern")) {
      lists_ = keys.texts("layers_pattern");
    }
    if (!keys.has("target_modules")) return;  // PEFT then selects layers by the model's type
    is_given_ = true;
    std::string lower = keys.is_text("target_modules") ? keys.text("target_modules", "") : "";
    for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    is_all_ = lower == "all-linear";
    if (is_all_) return;
    names_ = Names(keys, "target_modules",
                   "names, \"all-linear\", or at most 1024 bytes of a regular expression without { } and "
                   "back-references");
  }

  /// Throws ValueError for a layer of the file that is not selected, and for a name that selects none of them.
  void check(const Layers& in_file) const {
    for (const auto& [name, halves] : in_file) {
      const std::string has = "layer " + quote(halves.name) + ", which has tensors";
      if (const char* const key = left_out_by(halves.name)) refuse(key, "all but " + has, "it");
      if (is_given_ && !is_all_ && !names_.mean(halves.name)) refuse("target_modules", "one that means " + has);
    }
    for (const std::string& target : names_.list()) {
      const auto is_it = [&](const auto& layer) { return Names::ends_with(layer.second.name, target); };
      if (std::none_of(in_file.begin(), in_file.end(), is_it)) {
        refuse("target_modules", "tensors of a layer " + quote(target));
      }
    }
  }

  /// Throws ValueError for a layer of the module that is selected and has no tensors.
  void check(const Layers& in_file, const std::vector<NamedLinear>& module) const {
    if (!is_given_) return;
    const auto& [name, halves] = *in_file.begin();
    const std::string prefix = halves.name.substr(0, halves.name.size() - name.size());
    for (const NamedLinear& l : module) {
      const std::string whole = prefix + l.name;
      if (in_file.contains(l.name) || !(is_all_ ? l.layer->is_in_block() : names_.mean(whole))) continue;
      if (left_out_by(whole) == nullptr) {
        refuse("target_modules", "tensors of layer " + quote(whole) + ", which it means");
      }
    }
  }

 private:
  [[noreturn]] void refuse(const char* key, const std::string& expected, const char* got = "none") const {
    throw ValueError(path_ + ": " + key + ": expected " + expected + ", got " + got);
  }

  /// The key that leaves a layer out, or null.
  const char* left_out_by(const std::string& layer) const {
    if (excluded_.mean(layer)) return "exclude_modules";
    if (blocks_.empty() || names_.have_whole(layer)) return nullptr;
    const auto block = block_of(layer);
    const bool is_in = block && std::find(blocks_.begin(), blocks_.end(), *block) != blocks_.end();
    return is_in ? nullptr : "layers_to_transform";
  }

  /// The block in PEFT's `.*\.LIST\.(\d+)\.`, with LIST one of layers_pattern, or any word if that is empty.
  std::optional<std::int64_t> block_of(std::string_view layer) const {
    const std::vector<std::string_view> words = split(layer, '.');
    for (std::size_t i = words.size() < 2 ? 0 : words.size() - 2; i >= 2; --i) {
      std::int64_t number = 0;
      const auto [stop, error] = std::from_chars(words[i].data(), words[i].data() + words[i].size(), number);
      if (error != std::errc{} || stop != words[i].data() + words[i].size() || number < 0) continue;
      if (lists_.empty() || std::find(lists_.begin(), lists_.end(), words[i - 1]) != lists_.end()) return number;
    }
    return std::nullopt;
  }

  std::string path_;
  bool is_given_ = false, is_all_ = false;
  Names names_, excluded_;
  std::vector<std::int64_t> blocks_;
  std::vector<std::string> lists_;
};

struct Config {
  AdapterOptions options;
  Targets targets;
};

/// Reads a configuration. Throws ValueError for unsupported features.
Config read_config(const std::string& path) {
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
  Targets targets(keys);
  keys.refuse_unknown(without_effect);
  return {options, std::move(targets)};
}

/// The layers with adapters in a file, by their names in the module.
Layers layers_of(const SafetensorsReader& file, const std::string& prefix) {
  Layers layers;
  for (const SafetensorsEntry& entry : file.header().tensors) {
    std::string_view name = entry.name;
    const bool is_a = name.ends_with(suffix_a), is_b = name.ends_with(suffix_b);
    if (!name.starts_with(of_peft) || !(is_a || is_b)) {
      throw ValueError(file.path() + ": tensor '" + entry.name +
                       "'; expected base_model.model.<layer>.lora_A.weight and .lora_B.weight");
    }
    name.remove_prefix(of_peft.size());
    name.remove_suffix(suffix_a.size());
    const std::string whole(name);
    if (!prefix.empty() && name.starts_with(prefix)) name.remove_prefix(prefix.size());
    Halves& halves = layers[std::string(name)];
    halves.name = whole;
    (is_a ? halves.a : halves.b) = &entry;
  }
  for (const auto& [name, halves] : layers) {
    if (halves.a == nullptr || halves.b == nullptr) {
      throw ValueError(file.path() + ": layer '" + name + "' has only " + (halves.a != nullptr ? "A" : "B") +
                       "; expected both");
    }
  }
  return layers;
}

/// The module's layers that have adapters in the file, in the module's order.
std::vector<NamedLinear> meant(Module& module, const Layers& in_file, const AdapterOptions& options,
                               const std::string& path) {
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
    for (const NamedLinear& l : layers) LoraLinear::check(*l.layer, options);
    return layers;
  }
  for (const NamedLinear& l : adapted) {
    if (!in_file.contains(l.name)) throw ValueError(path + ": layer '" + l.name + "' of the module is not there");
    if (!is_same(l.adapter->options(), options)) {
      throw ValueError(path + ": r " + std::to_string(options.rank) + " and lora_alpha " +
                       std::to_string(options.alpha) + "; the module's '" + l.name + "' has " +
                       std::to_string(l.adapter->options().rank) + " and " +
                       std::to_string(l.adapter->options().alpha));
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

}  // namespace

std::string adapter_config_path(const std::string& folder) {
  return (std::filesystem::path(folder) / "adapter_config.json").string();
}
std::string adapter_tensors_path(const std::string& folder) {
  return (std::filesystem::path(folder) / "adapter_model.safetensors").string();
}

void save_adapters(Module& module, const std::string& folder, const AdapterFiles& files) {
  const std::vector<NamedLinear> layers = adapted_layers(module);
  if (layers.empty()) throw ValueError("save_adapters: the module has none");
  const Linear& first = *layers.front().layer;
  const AdapterOptions& options = layers.front().adapter->options();
  std::vector<NamedTensor> tensors;
  Json targets = Json::array();
  for (const NamedLinear& l : layers) {
    if (!is_same(l.adapter->options(), options) || l.layer->weight_is_in_out() != first.weight_is_in_out()) {
      throw ValueError("save_adapters: " + layers.front().name + " and " + l.name +
                       " differ in rank, alpha or the layout of weights; expected one for all");
    }
    const std::string name = files.prefix + l.name, whole = std::string(of_peft) + name;
    tensors.push_back({whole + std::string(suffix_a), l.adapter->lora_a});
    tensors.push_back({whole + std::string(suffix_b), l.adapter->lora_b});
    targets.push_back(name);
  }
  const Json config{{"base_model_name_or_path", text_or_null(files.base)},
                    {"bias", "none"},
                    {"fan_in_fan_out", first.weight_is_in_out()},
                    {"inference_mode", true},
                    {"init_lora_weights", true},
                    {"lora_alpha", options.alpha},
                    {"lora_dropout", options.dropout},
                    {"peft_type", "LORA"},
                    {"r", options.rank},
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
  const Config config = read_config(adapter_config_path(folder));
  const SafetensorsReader file(adapter_tensors_path(folder));
  const Layers in_file = layers_of(file, files.prefix);
  if (in_file.empty()) throw ValueError(file.path() + ": there is no adapter");
  config.targets.check(in_file);
  AdapterFolder found{config.options, {}};
  for (const auto& [name, halves] : in_file) found.layers.push_back(name);
  return found;
}

void load_adapters(Module& module, const std::string& folder, const AdapterFiles& files) {
  const Config config = read_config(adapter_config_path(folder));
  const AdapterOptions& options = config.options;
  const SafetensorsReader file(adapter_tensors_path(folder));
  const Layers in_file = layers_of(file, files.prefix);
  std::vector<NamedLinear> layers = meant(module, in_file, options, file.path());
  config.targets.check(in_file);
  config.targets.check(in_file, linear_layers(module));
  const std::string operation = "load_adapters: " + file.path();
  for (const NamedLinear& l : layers) {
    const Halves& halves = in_file.at(l.name);
    check_shape(operation, *halves.a, {options.rank, l.layer->inputs()});
    check_shape(operation, *halves.b, {l.layer->outputs(), options.rank});
    for (const SafetensorsEntry* const entry : {halves.a, halves.b}) {
      if (!is_floating(loadable_dtype(*entry))) {
        throw DTypeError(operation + ": tensor '" + entry->name + "' is " + std::string(to_string(entry->dtype)) +
                         "; expected floating dtypes");
      }
      file.verify(*entry);
    }
  }
  if (!has_adapters(module)) {
    module.freeze();
    for (NamedLinear& l : layers) l.adapter = &replace<LoraLinear>(*l.layer, options);
  }
  const ParameterUse use;
  FileStaging staging;
  for (const NamedLinear& l : layers) {
    const Halves& halves = in_file.at(l.name);
    read_file_tensor(file, *halves.a, NamedTensor{halves.a->name, l.adapter->lora_a}, staging);
    read_file_tensor(file, *halves.b, NamedTensor{halves.b->name, l.adapter->lora_b}, staging);
  }
}

}  // namespace thimble::nn
