#include <thimble/models/datasets/dataset.h>

#include <cstdio>

#include <thimble/core/error.h>
#include <thimble/models/datasets/dataset_text.h>

namespace thimble::models {

std::unique_ptr<Dataset> open_dataset(const std::string& path, const Model& model, std::string_view name,
                                      std::uint64_t seed, const std::string& tokenizer) {
  if (!tokenizer.empty() && (!model.is_text() || model.is_masked())) {
    throw ValueError("`tokenizer`: '" + tokenizer + "': not for " + std::string(name) +
                     "; expected a GPT or Llama model");
  }
  return model.is_text() ? open_text(path, name, model.is_masked(), seed, tokenizer)
                         : open_images(path, model.options(), seed);
}

std::string sum_text(std::uint32_t sum) {
  char text[24];
  std::snprintf(text, sizeof text, "crc32c %08x", sum);
  return text;
}

}  // namespace thimble::models
