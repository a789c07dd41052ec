#pragma once
// What open_dataset opens for models over tokens.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <thimble/models/datasets/dataset.h>

namespace thimble::models {

/// See open_dataset.
std::unique_ptr<Dataset> open_text(const std::string& path, std::string_view model, bool is_masked, std::uint64_t seed,
                                   const std::string& tokenizer);

}  // namespace thimble::models
