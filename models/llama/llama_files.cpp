#include <thimble/models/llama/llama_files.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/core/files/file.h>
#include <thimble/models/weights/config.h>
#include <thimble/models/weights/follow_weights.h>
#include <thimble/nn/files/weights.h>

namespace thimble::models {
namespace {

using Json = nlohmann::ordered_json;

Json scaling_json(const RotaryScaling& s) {
  switch (s.kind) {
    case RotaryKind::linear:
      return {{"rope_type", "linear"}, {"factor", s.factor}};
    case RotaryKind::dynamic:
      return {{"rope_type", "dynamic"}, {"factor", s.factor}};
    case RotaryKind::yarn:
      return {{"rope_type", "yarn"},
              {"factor", s.factor},
              {"beta_slow", s.low},
              {"beta_fast", s.high},
              {"attention_factor", s.attention_factor},
              {"truncate", s.rounds_pairs},
              {"original_max_position_embeddings", s.original_length}};
    case RotaryKind::llama3:
      break;
  }
  return {{"rope_type", "llama3"},
          {"factor", s.factor},
          {"low_freq_factor", s.low},
          {"high_freq_factor", s.high},
          {"original_max_position_embeddings", s.original_length}};
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
  throw ValueError("llama: sizes beside those of config.json; expected only sequence, build, head and feed_forward");
}

}  // namespace

LlamaConfig read_llama_config(const std::string& path, const ModelOptions& options) {
  refuse_sizes(options);
  const ModelConfig found = read_model_config(path, "llama");
  if (options.dropout < 0 && !found.why_no_dropout.empty()) {
    throw ValueError(found.why_no_dropout + "; options with dropout 0 set another");
  }
  ModelOptions sizes = found.sizes;
  if (options.sequence > 0) sizes.sequence = options.sequence;
  sizes.dropout = std::max(options.dropout, 0.0);
  sizes.build = options.build, sizes.head = options.head, sizes.feed_forward = options.feed_forward;
  require_llama_sizes(path, sizes);
  return llama_config(sizes);
}

void write_llama_config(const std::string& path, const LlamaConfig& config, DType dtype) {
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
  if (config.scaling) json["rope_scaling"] = scaling_json(*config.scaling);
  if (sizes.window > 0) json["sliding_window"] = sizes.window;
  if (sizes.window > 0 && config.has_bias) json["use_sliding_window"] = true, json["max_window_layers"] = 0;
  json["tie_word_embeddings"] = config.is_tied;
  json["torch_dtype"] = dtype_name;
  json["vocab_size"] = sizes.vocabulary;
  write_file_atomically(path, json.dump(2) + "\n");
}

std::unique_ptr<Llama> load_llama(const std::string& folder, const nn::TensorOptions& on, const ModelOptions& options) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  LlamaConfig config = read_llama_config(path, options);
  ModelOptions sizes;
  sizes.sequence = config.sizes.sequence, sizes.dropout = config.sizes.dropout;
  follow_weights("tiny-llama", sizes, read_weight_facts(folder), WeightUse::writing);  // throws unless tensors match
  const PathScope scope("llama");
  auto model = std::make_unique<Llama>(config, on);
  nn::load_weights(*model, folder);
  return model;
}

void save_llama(const Llama& model, const std::string& folder, std::uint64_t most_bytes) {
  nn::save_weight_folder(model, folder, most_bytes, {{"format", "pt"}});
  const DType dtype = model.parameters().front().tensor.dtype();
  write_llama_config((std::filesystem::path(folder) / "config.json").string(), model.config(), dtype);
}

}  // namespace thimble::models
