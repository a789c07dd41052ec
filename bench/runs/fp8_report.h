#pragma once
// What a run does in FP8, and what not: for the commands to print.

#include <optional>
#include <string>

#include <thimble/bench/runs/setup.h>
#include <thimble/nn/precision/fp8.h>

namespace thimble::bench {

/// Of the setup's model, made on the dry twin of the device; none where its policy has no FP8. Throws what make_model
/// throws, with fp8_strict a ValueError at the first layer that falls back.
std::optional<nn::Fp8Layers> fp8_report(const Setup& setup, Device device);

/// As lines: what runs in FP8, of what its products are, what falls back and why, what stays in a higher precision.
std::string to_lines(const nn::Fp8Layers& layers);

/// As JSON: {"layers": [path], "fallbacks": [{"layer", "reason"}], "higher_precision": [path],
/// "products": text}.
std::string to_json_text(const nn::Fp8Layers& layers);

}  // namespace thimble::bench
