#pragma once
// config.json, as transformers 4 and 5 write it beside weights. Each key is applied, is in a list of those that change
// nothing of what a model computes, or is refused by name.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <thimble/models/function.h>
#include <thimble/models/model.h>
#include <thimble/nn/files/json_file.h>

namespace thimble::models {

struct ModelConfig {
  /// Sizes and function, of which the family has all; `sequence` is the number of positions that were trained, and
  /// `dropout` that of training.
  ModelOptions sizes;
  /// Why no model here trains with its rates of dropout: they differ from place to place; empty: one does.
  std::string why_no_dropout = {};
};

/// Reads the config.json of a model of the family "gpt" (`model_type` gpt2), "llama" (llama, mistral, qwen2), "bert" or
/// "vit". What is missing is as transformers 5 has it. Throws FileError where the file cannot be read or is no JSON;
/// ValueError, "FILE: KEY: expected ..., got ...", for a value out of range, one that no model here computes (another
/// activation or kind of positions, a head that is not tied in GPT or BERT, windows in some layers), two keys that
/// contradict each other, and an unknown key whose value is not null, false or empty; for another family.
ModelConfig read_model_config(const std::string& path, std::string_view family);

/// The family whose config.json has this `model_type`; empty: none.
std::string_view family_of_type(std::string_view model_type) noexcept;

/// Keys that the readers pass over in a config.json of the family: they change nothing of what a model computes.
std::span<const std::string_view> config_keys_without_effect(std::string_view family);

// ---- Rotary positions in a config.json.

/// Theta and scaling: `rope_theta` and `rope_scaling` of transformers 4, `rope_parameters` of 5, whose theta may be
/// beside it. `positions`: max_position_embeddings. Throws ValueError for another kind than default, linear, dynamic,
/// llama3 and yarn, for values out of range, keys that the kind does not have, and two places that contradict each
/// other.
RotaryPositions read_positions(const nn::JsonKeys& keys, std::int64_t positions);

}  // namespace thimble::models
