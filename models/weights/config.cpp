#include <thimble/models/weights/config.h>

#include <cmath>
#include <optional>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/memory/units.h>

namespace thimble::models {
namespace {

using nn::JsonKeys;

/// For every family: names, tokens, training and generation around the model.
constexpr std::string_view common_keys =
    "_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path _num_labels architectures "
    "attn_implementation auto_map bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward "
    "cls_token_id decoder_start_token_id diversity_penalty do_sample dtype early_stopping "
    "encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id "
    "forced_eos_token_id gradient_checkpointing id2label initializer_range label2id length_penalty mask_token_id "
    "max_length min_length name_or_path no_repeat_ngram_size num_beam_groups num_beams num_labels "
    "num_return_sequences output_attentions output_hidden_states output_past output_scores pad_token_id prefix "
    "problem_type remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id "
    "suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype "
    "torchscript transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache";
constexpr std::string_view gpt_keys =
    "n_ctx n_special predict_special_tokens reorder_and_upcast_attn summary_activation summary_first_dropout "
    "summary_proj_to_labels summary_type summary_use_proj";
/// `sliding_window` and `max_window_layers` are read if the type has windows.
constexpr std::string_view llama_keys =
    "is_llama_config max_window_layers pretraining_tp sliding_window transformers.js_config";
constexpr std::string_view bert_keys =
    "classifier_dropout directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
    "pooler_size_per_head pooler_type";
constexpr std::string_view vit_keys = "encoder_stride pooler_act pooler_output_size";

struct FamilyKeys {
  std::string_view family;
  std::vector<std::string_view> keys;
};

std::vector<std::string_view> with_common(std::string_view own) {
  std::vector<std::string_view> keys = split(common_keys, ' ');
  for (const std::string_view key : split(own, ' ')) keys.push_back(key);
  return keys;
}

constexpr double least_epsilon = 1e-30, most_epsilon = 1, most_rate = 0.999;

/// A size under either of two names; if both exist, they must agree.
std::int64_t aliased_size(const JsonKeys& keys, const char* name, const char* other, std::int64_t otherwise) {
  const auto of_other = keys.size_if_there(other);
  const std::int64_t size = keys.size(name, of_other.value_or(otherwise));
  if (of_other && *of_other != size) keys.refuse(other, "as " + std::string(name) + " has it, " + std::to_string(size));
  return size;
}

GeluForm activation(const JsonKeys& keys, const char* key, GeluForm otherwise) {
  constexpr std::string_view names[] = {"gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"};
  const std::size_t of_gelu = 0, of_tanh = 2;
  const std::size_t found = keys.choice(key, names, otherwise == GeluForm::erf ? of_gelu : of_tanh);
  return found < of_tanh ? GeluForm::erf : GeluForm::tanh;
}

/// Rates of dropout in several places; the models here have one rate.
void read_dropout(const JsonKeys& keys, std::span<const char* const> places, double otherwise, ModelConfig& config) {
  std::string all;
  for (const char* const place : places) {
    const double rate = keys.number(place, otherwise, 0, most_rate);
    all += (all.empty() ? "" : ", ") + std::string(place) + " " + format_real(rate);
    if (place == places[0]) config.sizes.dropout = rate;
    if (rate == config.sizes.dropout) continue;
    config.why_no_dropout = keys.path() + ": expected one rate of dropout, got " + all;
  }
}

void require_inner(const JsonKeys& keys, const char* key, std::int64_t otherwise, std::int64_t width) {
  const std::int64_t four = 4 * width;
  if (keys.size(key, otherwise == 0 ? four : otherwise) != four) {
    keys.refuse(key, "4 times the width, " + std::to_string(four));
  }
}

void require_heads(const JsonKeys& keys, const char* key, const ModelOptions& sizes) {
  if (sizes.width % sizes.heads != 0) keys.refuse(key, "a divisor of the width, " + std::to_string(sizes.width));
}

ModelConfig read_gpt(const JsonKeys& keys) {
  ModelConfig config;
  ModelOptions& sizes = config.sizes;
  sizes.vocabulary = keys.size("vocab_size", 50257);
  sizes.sequence = aliased_size(keys, "n_positions", "max_position_embeddings", 1024);
  sizes.width = aliased_size(keys, "n_embd", "hidden_size", 768);
  sizes.layers = aliased_size(keys, "n_layer", "num_hidden_layers", 12);
  sizes.heads = aliased_size(keys, "n_head", "num_attention_heads", 12);
  require_heads(keys, "n_head", sizes);
  require_inner(keys, "n_inner", 0, sizes.width);
  sizes.function.epsilon = keys.number("layer_norm_epsilon", 1e-5, least_epsilon, most_epsilon);
  sizes.function.gelu = activation(keys, "activation_function", GeluForm::tanh);
  constexpr const char* places[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop"};
  read_dropout(keys, places, 0.1, config);
  keys.require_flag("scale_attn_weights", true);
  keys.require_flag("is_causal", true);
  keys.require_flag("tie_word_embeddings", true);
  return config;
}

ModelConfig read_bert(const JsonKeys& keys) {
  ModelConfig config;
  ModelOptions& sizes = config.sizes;
  sizes.vocabulary = keys.size("vocab_size", 30522);
  sizes.sequence = keys.size("max_position_embeddings", 512);
  sizes.width = keys.size("hidden_size", 768), sizes.layers = keys.size("num_hidden_layers", 12);
  sizes.heads = keys.size("num_attention_heads", 12);
  require_heads(keys, "num_attention_heads", sizes);
  require_inner(keys, "intermediate_size", 3072, sizes.width);
  if (keys.size("type_vocab_size", 2) != 2) keys.refuse("type_vocab_size", "2");
  sizes.function.epsilon = keys.number("layer_norm_eps", 1e-12, least_epsilon, most_epsilon);
  sizes.function.gelu = activation(keys, "hidden_act", GeluForm::erf);
  constexpr const char* places[] = {"hidden_dropout_prob", "attention_probs_dropout_prob"};
  read_dropout(keys, places, 0.1, config);
  if (keys.text("position_embedding_type", "absolute") != "absolute") {
    keys.refuse("position_embedding_type", "\"absolute\"");
  }
  keys.require_flag("is_decoder", false);
  keys.require_flag("tie_word_embeddings", true);
  return config;
}

/// A number, or an equal one for each of two axes.
std::int64_t side(const JsonKeys& keys, const char* key, std::int64_t otherwise) {
  if (!keys.has(key)) return otherwise;
  const std::vector<std::int64_t> sides = keys.sizes(key);
  const bool is_square = sides.size() == 1 || (sides.size() == 2 && sides[0] == sides[1]);
  if (!is_square) keys.refuse(key, "a size, or the same one twice");
  return sides[0];
}

ModelConfig read_vit(const JsonKeys& keys) {
  ModelConfig config;
  ModelOptions& sizes = config.sizes;
  constexpr std::int64_t patch = 16;
  sizes.image = side(keys, "image_size", 224), sizes.channels = keys.size("num_channels", 3);
  if (side(keys, "patch_size", patch) != patch) keys.refuse("patch_size", std::to_string(patch));
  if (sizes.image % patch != 0) keys.refuse("image_size", "a multiple of " + std::to_string(patch));
  sizes.width = keys.size("hidden_size", 768), sizes.layers = keys.size("num_hidden_layers", 12);
  sizes.heads = keys.size("num_attention_heads", 12);
  require_heads(keys, "num_attention_heads", sizes);
  require_inner(keys, "intermediate_size", 3072, sizes.width);
  if (keys.has("id2label")) {
    sizes.classes = static_cast<std::int64_t>(keys.text_map("id2label").size());
    if (sizes.classes == 0) keys.refuse("id2label", "an object of classes and their names");
  }
  const std::int64_t labels = keys.size("num_labels", sizes.classes > 0 ? sizes.classes : 2);
  if (sizes.classes > 0 && labels != sizes.classes) {
    keys.refuse("num_labels", "as many as id2label has, " + std::to_string(sizes.classes));
  }
  sizes.classes = labels;
  sizes.function.epsilon = keys.number("layer_norm_eps", 1e-12, least_epsilon, most_epsilon);
  sizes.function.gelu = activation(keys, "hidden_act", GeluForm::erf);
  sizes.dropout = keys.number("hidden_dropout_prob", 0, 0, most_rate);
  if (const double rate = keys.number("attention_probs_dropout_prob", 0, 0, most_rate); rate != 0) {
    config.why_no_dropout = keys.path() + ": expected attention_probs_dropout_prob 0, got " + format_real(rate);
  }
  keys.require_flag("qkv_bias", true);
  return config;
}

/// The window of all layers, or 0.
std::int64_t read_window(const JsonKeys& keys, std::string_view type, std::int64_t layers) {
  constexpr std::int64_t usual = 4096;
  std::int64_t window = 0;
  if (type == "mistral") {
    window = keys.is_null("sliding_window") ? 0 : keys.size("sliding_window", usual);
  } else if (type == "qwen2" && keys.flag("use_sliding_window", false)) {
    window = keys.is_null("sliding_window") ? 0 : keys.size("sliding_window", usual);
    const std::int64_t first = keys.size("max_window_layers", 28, 0);
    if (first >= layers) {
      if (!keys.has("layer_types")) window = 0;
    } else if (first > 0 && !keys.has("layer_types")) {
      keys.refuse("max_window_layers", "0, for a window in every layer, or no fewer than num_hidden_layers");
    }
  }
  if (!keys.has("layer_types")) return window;
  const std::vector<std::string> kinds = keys.texts("layer_types");
  if (kinds.size() != static_cast<std::size_t>(layers)) {
    keys.refuse("layer_types", "a kind for each of " + std::to_string(layers) + " layers");
  }
  std::size_t slide = 0, full = 0;
  for (const std::string& kind : kinds)
    slide += kind == "sliding_attention" ? 1 : 0, full += kind == "full_attention" ? 1 : 0;
  // Qwen reads layer_types; other types do not, so there they must agree with the window.
  if (type == "qwen2" && full == kinds.size()) return 0;
  if (slide == kinds.size() && window > 0) return window;
  if (full == kinds.size() && window == 0) return 0;
  keys.refuse("layer_types", window > 0 ? "\"sliding_attention\" of every layer" : "\"full_attention\" of every layer");
}

ModelConfig read_llama(const JsonKeys& keys) {
  ModelConfig config;
  ModelOptions& sizes = config.sizes;
  const std::string type = keys.text("model_type", "");
  const bool is_llama = type == "llama", is_mistral = type == "mistral";
  sizes.vocabulary = keys.size("vocab_size", type == "qwen2" ? 151936 : 32000);
  sizes.layers = keys.size("num_hidden_layers", 32), sizes.width = keys.size("hidden_size", 4096);
  sizes.hidden = keys.size("intermediate_size", is_llama ? 11008 : is_mistral ? 14336 : 22016);
  sizes.heads = keys.size("num_attention_heads", 32);
  require_heads(keys, "num_attention_heads", sizes);
  const std::int64_t usual_keys = is_llama || keys.is_null("num_key_value_heads") ? sizes.heads : is_mistral ? 8 : 32;
  sizes.key_heads = keys.size("num_key_value_heads", usual_keys);
  if (sizes.heads % sizes.key_heads != 0) {
    keys.refuse("num_key_value_heads",
                "a divisor of num_attention_heads, " + std::to_string(sizes.heads) +
                    (keys.has("num_key_value_heads")
                         ? ""
                         : "; " + type + " has " + std::to_string(usual_keys) + " where it is missing"));
  }
  const std::int64_t width = sizes.width / sizes.heads;
  if (keys.size("head_dim", width) != width) {
    keys.refuse("head_dim", "hidden_size / num_attention_heads, " + std::to_string(width));
  }
  constexpr std::string_view activations[] = {"silu", "swish"};
  keys.choice("hidden_act", activations, 0);
  keys.require_flag("attention_bias", false);
  keys.require_flag("mlp_bias", false);
  keys.require_flag("is_causal", true);
  sizes.window = read_window(keys, type, sizes.layers);
  sizes.sequence = keys.size("max_position_embeddings", is_llama ? 2048 : is_mistral ? 131072 : 32768);
  sizes.dropout = 0;
  if (const double rate = keys.number("attention_dropout", 0, 0, most_rate); rate != 0) {
    config.why_no_dropout = keys.path() + ": expected attention_dropout 0, got " + format_real(rate);
  }
  sizes.function.epsilon = keys.number("rms_norm_eps", 1e-6, least_epsilon, most_epsilon);
  sizes.function.is_tied = keys.flag("tie_word_embeddings", false);
  sizes.function.has_bias = type == "qwen2";
  sizes.function.positions = sizes.sequence;
  sizes.function.rotary = read_positions(keys, sizes.sequence);
  return config;
}

struct Reader {
  std::string_view family, types;
  ModelConfig (*read)(const JsonKeys& keys);
};
constexpr Reader readers[] = {{"gpt", "\"gpt2\"", read_gpt},
                              {"llama", "\"llama\", \"mistral\" or \"qwen2\"", read_llama},
                              {"bert", "\"bert\"", read_bert},
                              {"vit", "\"vit\"", read_vit}};

}  // namespace

std::string_view family_of_type(std::string_view model_type) noexcept {
  if (model_type == "gpt2") return "gpt";
  if (model_type == "llama" || model_type == "mistral" || model_type == "qwen2") return "llama";
  if (model_type == "bert") return "bert";
  return model_type == "vit" ? "vit" : std::string_view();
}

std::span<const std::string_view> config_keys_without_effect(std::string_view family) {
  static const FamilyKeys lists[] = {{"gpt", with_common(gpt_keys)},
                                     {"llama", with_common(llama_keys)},
                                     {"bert", with_common(bert_keys)},
                                     {"vit", with_common(vit_keys)}};
  for (const FamilyKeys& list : lists) {
    if (list.family == family) return list.keys;
  }
  return {};
}

ModelConfig read_model_config(const std::string& path, std::string_view family) {
  const JsonKeys keys(path);
  for (const Reader& reader : readers) {
    if (reader.family != family) continue;
    const std::string type = keys.text("model_type", "");
    // Early files have no type.
    const bool may_lack_type = family != "llama" && !keys.has("model_type");
    if (!may_lack_type && family_of_type(type) != family) keys.refuse("model_type", std::string(reader.types));
    if (keys.has("quantization_config")) keys.refuse("quantization_config", "weights that are not quantized");
    ModelConfig config = reader.read(keys);
    keys.refuse_unknown(config_keys_without_effect(family));
    return config;
  }
  throw ValueError(path + ": expected no config.json beside weights of " + std::string(family) +
                   "; the GPT, Llama, BERT and ViT families read one");
}

namespace {

using nn::JsonKeys;

constexpr double least_theta = 1, most_theta = 1e15, least_factor = 1e-6, most_factor = 1e6;
constexpr std::string_view position_kinds[] = {"default", "linear", "dynamic", "yarn", "llama3"};
constexpr std::string_view without_effect[] = {"finetuned"};

std::optional<double> theta_of(const JsonKeys& keys) {
  if (!keys.has("rope_theta")) return std::nullopt;
  return keys.number("rope_theta", least_theta, most_theta);
}

/// An index into `position_kinds`; older files have the key `type`.
std::size_t kind_of(const JsonKeys& rope) {
  const std::size_t older = rope.choice("type", position_kinds, 0),
                    kind = rope.choice("rope_type", position_kinds, older);
  if (rope.has("type") && kind != older)
    rope.refuse("type", "as rope_type has it, \"" + std::string(position_kinds[kind]) + "\"");
  return kind;
}

void require_whole(const JsonKeys& keys) {
  if (keys.number("partial_rotary_factor", 1, 0, 1) != 1) keys.refuse("partial_rotary_factor", "1");
}

/// The factor of yarn's sines and cosines: the file's, or computed from `factor` and its mscale keys.
double attention_factor(const JsonKeys& rope, double factor) {
  const auto scale = [](double by, double times) { return by <= 1 ? 1 : 0.1 * times * std::log(by) + 1; };
  const double most = 1e6;
  const double above = rope.number("mscale", 0, 0, most), below = rope.number("mscale_all_dim", 0, 0, most);
  const double own = above > 0 && below > 0 ? scale(factor, above) / scale(factor, below) : scale(factor, 1);
  return rope.number("attention_factor", own, least_factor, most);
}

std::optional<RotaryScaling> scaling_of(const JsonKeys& keys, const JsonKeys& rope, std::int64_t positions) {
  require_whole(rope);
  const std::string_view kind = position_kinds[kind_of(rope)];
  if (kind == "default") return std::nullopt;
  RotaryScaling scaling;
  scaling.original_length = positions;
  if (kind == "llama3" || kind == "yarn") {
    const char* const key = "original_max_position_embeddings";
    const auto beside = keys.size_if_there(key);
    scaling.original_length = rope.size(key, beside.value_or(positions));
    if (beside && *beside != scaling.original_length) {
      keys.refuse(key, "as the scaling has it, " + std::to_string(scaling.original_length));
    }
  }
  if (kind == "yarn" && rope.is_null("factor")) {
    scaling.factor = static_cast<double>(positions) / static_cast<double>(scaling.original_length);
  } else {
    scaling.factor = rope.number("factor", least_factor, most_factor);
  }
  if (kind == "linear") scaling.kind = RotaryKind::linear;
  if (kind == "dynamic") scaling.kind = RotaryKind::dynamic;
  if (kind == "llama3") {
    scaling.low = rope.number("low_freq_factor", least_factor, most_factor);
    scaling.high = rope.number("high_freq_factor", least_factor, most_factor);
    if (scaling.high <= scaling.low) rope.refuse("high_freq_factor", "a number above low_freq_factor");
  }
  if (kind == "yarn") {
    scaling.kind = RotaryKind::yarn;
    const auto turns = [&](const char* key, double otherwise) {
      const double value = rope.number(key, otherwise, 0, most_factor);
      return value == 0 ? otherwise : value;  // as in transformers
    };
    scaling.low = turns("beta_slow", 1), scaling.high = turns("beta_fast", 32);
    if (scaling.high <= scaling.low) rope.refuse("beta_fast", "a number above beta_slow, " + format_real(scaling.low));
    scaling.attention_factor = attention_factor(rope, scaling.factor);
    scaling.rounds_pairs = rope.flag("truncate", true);
  }
  return scaling;
}

}  // namespace

RotaryPositions read_positions(const nn::JsonKeys& keys, std::int64_t positions) {
  require_whole(keys);
  RotaryPositions rotary;
  std::optional<double> theta = theta_of(keys);
  const char* first = nullptr;
  for (const char* const key : {"rope_scaling", "rope_parameters"}) {
    if (!keys.has(key)) continue;
    const JsonKeys rope = keys.object(key);
    if (const auto own = theta_of(rope)) {
      if (theta && *theta != *own) rope.refuse("rope_theta", "as it is beside, " + format_real(*theta));
      theta = own;
    }
    const auto scaling = scaling_of(keys, rope, positions);
    rope.refuse_unknown(without_effect);
    if (first != nullptr && scaling != rotary.scaling) keys.refuse(key, "the same as " + std::string(first) + " has");
    rotary.scaling = scaling;
    first = key;
  }
  rotary.theta = theta.value_or(rotary.theta);
  if (rotary.scaling && rotary.scaling->kind == RotaryKind::yarn && rotary.theta == 1) {
    keys.refuse("rope_theta", "a number above 1 with yarn");
  }
  return rotary;
}

}  // namespace thimble::models
