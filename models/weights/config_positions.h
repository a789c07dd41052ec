#pragma once
// Rotary positions in a config.json.

#include <cstdint>

#include <thimble/models/function.h>
#include <thimble/nn/files/json_file.h>

namespace thimble::models {

/// Theta and scaling: `rope_theta` and `rope_scaling` of transformers 4, `rope_parameters` of 5, whose theta may be
/// beside it. `positions`: max_position_embeddings. Throws ValueError for another kind than default, linear, dynamic,
/// llama3 and yarn, for values out of range, keys that the kind does not have, and two places that contradict each
/// other.
RotaryPositions read_positions(const nn::JsonKeys& keys, std::int64_t positions);

}  // namespace thimble::models
