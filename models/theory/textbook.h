#pragma once
// What the textbook build of a model holds, by the closed forms, as one figure.

#include <cstdint>
#include <optional>
#include <string_view>

#include <thimble/models/model.h>

namespace thimble::models::theory {

/// Bytes when backward begins: parameters, buffers, `moments` numbers of optimizer state for each parameter (0: plain
/// SGD, 1: with momentum, 2: Adam), the batch, and what the textbook build keeps of it with nothing made again.
/// Gradients are not there yet. None for a model without a closed form (mlp). Throws ValueError as the model's options
/// do.
std::optional<std::int64_t> textbook_bytes(std::string_view model, const ModelOptions& options, std::int64_t moments,
                                           DType dtype, std::int64_t batch);

}  // namespace thimble::models::theory
