#pragma once
// config.json, as transformers 4 and 5 write it next to weights. The readers apply a key, know that it does not change
// the model's results, or refuse it by name.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <thimble/models/function.h>
#include <thimble/models/model.h>
#include <thimble/nn/files/json_file.h>

namespace thimble::models {

struct ModelConfig {
  /// Sizes and function, with all values of the family. `sequence` is the number of trained positions, `dropout` the
  /// rate of training.
  ModelOptions sizes;
  /// If not empty, why no model here trains with the file's rates of dropout: they differ from place to place.
  std::string why_no_dropout = {};
};

/// Reads the config.json of a model of the family "gpt" (`model_type` gpt2), "llama" (llama, mistral, qwen2), "bert" or
/// "vit". Missing keys have the defaults of transformers 5. Throws FileError if the file cannot be read or is no JSON;
/// ValueError, "FILE: KEY: expected ..., got ...", for a value out of range, a value that no model here computes
/// (another activation or kind of positions, an untied head in GPT or BERT, windows in some layers), two keys that
/// contradict each other, and an unknown key whose value is not null, false or empty; and for another family.
ModelConfig read_model_config(const std::string& path, std::string_view family);

/// The family whose config.json has this `model_type`, or empty.
std::string_view family_of_type(std::string_view model_type) noexcept;

/// Keys of the family's config.json that the readers skip, because they do not change the model's results.
std::span<const std::string_view> config_keys_without_effect(std::string_view family);

// ---- Rotary positions in a config.json.

/// Theta and scaling: `rope_theta` and `rope_scaling` of transformers 4, `rope_parameters` of 5, with theta inside or
/// next to it. `positions` is max_position_embeddings. Throws ValueError for another kind than default, linear,
/// dynamic, llama3 and yarn, for values out of range, keys that the kind lacks, and places that contradict each other.
RotaryPositions read_positions(const nn::JsonKeys& keys, std::int64_t positions);

}  // namespace thimble::models
