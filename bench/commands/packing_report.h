#pragma once
// Printing of bytes by category, of packed tensors, and of the error that packing causes in gradients.

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <thimble/nn/fit/fit.h>
#include <thimble/nn/precision/gradient_report.h>

namespace thimble::bench {

/// Prints a table line with the exact bytes and a rounded size.
void print_bytes(const std::string& name, std::size_t bytes);

/// {"parameter": bytes, ...}, all categories.
nlohmann::ordered_json categories_json(const memory::CategoryBytes& bytes);

/// As JSON: [{"operator", "dtype", "tensors", "bytes", "packed_bytes"}] for one recording (a step or a micro-batch).
std::string to_json_text(const std::vector<nn::PackedResults>& packed);

/// As JSON: {"loss", "loss_packed", "relative_error", "cosine", "parameters": [{"name", "norm", "relative_error",
/// "cosine"}]}. A value that is not finite, such as the relative error of a zero gradient, is null.
std::string to_json_text(const nn::GradientReport& report);

/// As a table with a line per parameter and one for all.
std::string to_lines(const nn::GradientReport& report);

}  // namespace thimble::bench
