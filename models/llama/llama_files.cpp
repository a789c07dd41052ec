#include <thimble/models/llama/llama_files.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/nn/files/weights.h>

namespace thimble::models {
namespace llama_files_detail {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t most_bytes = 1 << 24;

/// One object of a config.json.
class Keys {
 public:
  Keys(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  [[noreturn]] void refuse(const char* key, const std::string& allowed) const {
    const std::string value = json_.contains(key) ? json_.at(key).dump() : "missing";
    throw ValueError(path_ + ": " + key + " is " + value + "; allowed is " + allowed);
  }
  std::int64_t size(const char* key) const {
    constexpr std::int64_t most = std::int64_t{1} << 40;
    if (has(key) && json_.at(key).is_number_integer()) {
      const auto value = json_.at(key).get<std::int64_t>();
      if (value > 0 && value <= most) return value;
    }
    refuse(key, "an integer from 1 to 2^40");
  }
  std::int64_t size(const char* key, std::int64_t otherwise) const { return has(key) ? size(key) : otherwise; }
  double number(const char* key) const {
    if (has(key) && json_.at(key).is_number() && json_.at(key).get<double>() > 0) return json_.at(key).get<double>();
    refuse(key, "a number above 0");
  }
  double number(const char* key, double otherwise) const { return has(key) ? number(key) : otherwise; }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!json_.at(key).is_boolean()) refuse(key, "true or false");
    return json_.at(key).get<bool>();
  }
  std::string text(const char* key, const char* otherwise) const {
    if (!has(key)) return otherwise;
    if (!json_.at(key).is_string()) refuse(key, "a text");
    return json_.at(key).get<std::string>();
  }
  Keys object(const char* key) const {
    if (!has(key) || !json_.at(key).is_object()) refuse(key, "an object");
    return {json_.at(key), path_ + ": " + key};
  }
  void require_zero(const char* key) const {
    if (!json_.contains(key) || json_.at(key) != 0) refuse(key, "0");
  }
  void require_flag(const char* key, bool value) const {
    if (flag(key, value) != value) refuse(key, value ? "true" : "false");
  }

 private:
  const Json& json_;
  std::string path_;
};

// What transformers 4 has beside the other keys as rope_theta and rope_scaling, and 5 as rope_parameters.
void read_positions(const Keys& keys, LlamaConfig& config) {
  const bool is_newer = keys.has("rope_parameters");
  config.theta =
      is_newer ? keys.object("rope_parameters").number("rope_theta", 10000) : keys.number("rope_theta", 10000);
  const char* const key = is_newer ? "rope_parameters" : "rope_scaling";
  if (!keys.has(key)) return;
  const Keys rope = keys.object(key);
  const std::string type = rope.text("rope_type", rope.text("type", "default").c_str());
  if (type == "default") return;
  if (type != "llama3") rope.refuse("rope_type", "default or llama3");
  RotaryScaling scaling;
  scaling.factor = rope.number("factor");
  scaling.low = rope.number("low_freq_factor"), scaling.high = rope.number("high_freq_factor");
  if (scaling.high <= scaling.low) rope.refuse("high_freq_factor", "a number above low_freq_factor");
  scaling.original_length = rope.size("original_max_position_embeddings");
  config.scaling = scaling;
}

// Mistral's, where it is a number, and Qwen's, where it is used: by the layers from `max_window_layers` on.
std::int64_t read_window(const Keys& keys, const std::string& type) {
  if (type == "mistral") return keys.has("sliding_window") ? keys.size("sliding_window") : 0;
  if (!keys.flag("use_sliding_window", false)) return 0;
  if (type != "qwen2") keys.refuse("use_sliding_window", "false");
  keys.require_zero("max_window_layers");  // a window in every layer
  return keys.size("sliding_window");
}

LlamaConfig read(const Keys& keys, const ModelOptions& options, const std::string& path) {
  LlamaConfig config;
  ModelOptions& sizes = config.sizes;
  sizes = {.sequence = options.sequence,
           .dropout = options.dropout,
           .build = options.build,
           .head = options.head,
           .feed_forward = options.feed_forward};
  const std::string type = keys.text("model_type", "");
  if (type != "llama" && type != "mistral" && type != "qwen2") {
    keys.refuse("model_type", "\"llama\", \"mistral\" or \"qwen2\"");
  }
  config.has_bias = type == "qwen2";
  if (keys.text("hidden_act", "silu") != "silu") keys.refuse("hidden_act", "\"silu\"");
  keys.require_flag("attention_bias", false);
  keys.require_flag("mlp_bias", false);
  sizes.window = read_window(keys, type);
  sizes.vocabulary = keys.size("vocab_size"), sizes.layers = keys.size("num_hidden_layers");
  sizes.width = keys.size("hidden_size"), sizes.hidden = keys.size("intermediate_size");
  sizes.heads = keys.size("num_attention_heads");
  sizes.key_heads = keys.size("num_key_value_heads", sizes.heads);
  if (keys.size("head_dim", sizes.width / sizes.heads) != sizes.width / sizes.heads) {
    keys.refuse("head_dim", "hidden_size / num_attention_heads, " + std::to_string(sizes.width / sizes.heads));
  }
  config.positions = keys.size("max_position_embeddings", 2048);
  if (sizes.sequence == 0) sizes.sequence = config.positions;
  sizes.dropout = std::max(sizes.dropout, 0.0);
  config.epsilon = keys.number("rms_norm_eps", 1e-6);
  config.is_tied = keys.flag("tie_word_embeddings", false);
  read_positions(keys, config);
  require_llama_sizes(path, sizes);
  return config;
}

void refuse_sizes(const ModelOptions& options) {
  ModelOptions rest = options;
  rest.sequence = 0, rest.build = Build::fused, rest.head = Head::full, rest.dropout = -1;
  rest.feed_forward = FeedForward::full;
  const ModelOptions none;
  const auto sizes = [](const ModelOptions& o) {
    return std::array{o.image, o.channels, o.classes,   o.vocabulary, o.layers,
                      o.heads, o.width,    o.key_heads, o.hidden,     o.window};
  };
  if (sizes(rest) == sizes(none) && rest.shares_kernels) return;
  throw ValueError("llama: sizes beside those of config.json; sequence, build, head and feed_forward are allowed");
}

}  // namespace llama_files_detail

LlamaConfig read_llama_config(const std::string& path, const ModelOptions& options) {
  using namespace llama_files_detail;
  refuse_sizes(options);
  const std::vector<std::byte> bytes = read_whole_file(path, most_bytes);
  Json json;
  try {
    json = Json::parse(reinterpret_cast<const char*>(bytes.data()),
                       reinterpret_cast<const char*>(bytes.data()) + bytes.size());
  } catch (const nlohmann::json::exception& error) {
    throw FileError(path, 0, std::string("is not JSON: ") + error.what());
  }
  if (!json.is_object()) throw FileError(path, 0, "is not a JSON object");
  return read(Keys(json, path), options, path);
}

void write_llama_config(const std::string& path, const LlamaConfig& config, DType dtype) {
  using llama_files_detail::Json;
  const ModelOptions& sizes = config.sizes;
  const char* const dtype_name = dtype == DType::f64    ? "float64"
                                 : dtype == DType::bf16 ? "bfloat16"
                                 : dtype == DType::f16  ? "float16"
                                                        : "float32";
  const bool is_mistral = sizes.window > 0 && !config.has_bias;
  const char* const model = config.has_bias ? "Qwen2ForCausalLM"
                            : is_mistral    ? "MistralForCausalLM"
                                            : "LlamaForCausalLM";
  Json json{{"architectures", Json::array({model})},
            {"model_type", config.has_bias ? "qwen2"
                           : is_mistral    ? "mistral"
                                           : "llama"},
            {"hidden_act", "silu"},
            {"hidden_size", sizes.width},
            {"intermediate_size", sizes.hidden},
            {"max_position_embeddings", config.positions},
            {"num_attention_heads", sizes.heads},
            {"num_hidden_layers", sizes.layers},
            {"num_key_value_heads", sizes.key_heads},
            {"rms_norm_eps", config.epsilon},
            {"rope_theta", config.theta}};
  if (config.scaling) {
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", config.scaling->factor},
                            {"low_freq_factor", config.scaling->low},
                            {"high_freq_factor", config.scaling->high},
                            {"original_max_position_embeddings", config.scaling->original_length}};
  }
  if (sizes.window > 0) json["sliding_window"] = sizes.window;
  if (sizes.window > 0 && config.has_bias) json["use_sliding_window"] = true, json["max_window_layers"] = 0;
  json["tie_word_embeddings"] = config.is_tied;
  json["torch_dtype"] = dtype_name;
  json["vocab_size"] = sizes.vocabulary;
  write_file_atomically(path, json.dump(2) + "\n");
}

std::unique_ptr<Llama> load_llama(const std::string& folder, const nn::TensorOptions& on, const ModelOptions& options) {
  const LlamaConfig config = read_llama_config((std::filesystem::path(folder) / "config.json").string(), options);
  const PathScope scope("llama");
  auto model = std::make_unique<Llama>(config, on);
  nn::LoadOptions load;
  load.skipped_suffixes.emplace_back("rotary_emb.inv_freq");  // of older files
  if (config.is_tied) load.skipped_suffixes.emplace_back("lm_head.weight");
  nn::load_weights(*model, folder, load);
  return model;
}

void save_llama(const Llama& model, const std::string& folder, std::uint64_t most_bytes) {
  nn::save_weight_folder(model, folder, most_bytes, {{"format", "pt"}});
  const DType dtype = model.parameters().front().tensor.dtype();
  write_llama_config((std::filesystem::path(folder) / "config.json").string(), model.config(), dtype);
}

}  // namespace thimble::models
