#pragma once
// What a run does in FP8, and what not, as the commands print it (models/techniques/setup.h: fp8_layers).

#include <string>

#include <thimble/nn/layers/fp8.h>

namespace thimble::bench {

/// As lines: the layers in FP8 and their products' operands, the fallbacks and why, and what stays in higher precision.
std::string to_lines(const nn::Fp8Layers& layers);

/// As JSON: {"layers": [path], "fallbacks": [{"layer", "reason"}], "higher_precision": [path],
/// "products": text}.
std::string to_json_text(const nn::Fp8Layers& layers);

}  // namespace thimble::bench
