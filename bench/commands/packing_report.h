#pragma once
// Bytes by category, what plans pack, and what that does to gradients, as the commands print it.

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <thimble/nn/fit/fit.h>
#include <thimble/nn/precision/gradient_report.h>

namespace thimble::bench {

/// A line of a table: bytes, exactly and in words.
void print_bytes(const std::string& name, std::size_t bytes);

/// {"parameter": bytes, ...}, all categories.
nlohmann::ordered_json categories_json(const CategoryBytes& bytes);

/// As JSON: [{"operator", "dtype", "tensors", "bytes", "packed_bytes"}], of a recording: a step or a micro-batch.
std::string to_json_text(const std::vector<nn::PackedResults>& packed);

/// As JSON: {"loss", "loss_packed", "relative_error", "cosine", "parameters": [{"name", "norm", "relative_error",
/// "cosine"}]}; an error of a gradient that is zero without packing is null.
std::string to_json_text(const nn::GradientReport& report);

/// As a table, one line for each parameter and one for all.
std::string to_lines(const nn::GradientReport& report);

}  // namespace thimble::bench
