#pragma once
// What open_dataset opens for models over images.

#include <cstdint>
#include <memory>
#include <string>

#include <thimble/models/datasets/dataset.h>

namespace thimble::models {

std::unique_ptr<Dataset> open_images(const std::string& path, const ModelOptions& model_sizes, std::uint64_t seed);

}  // namespace thimble::models
