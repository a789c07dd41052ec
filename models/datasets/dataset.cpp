#include <thimble/models/datasets/dataset.h>

#include <algorithm>
#include <cstdio>

#include <thimble/core/error.h>
#include <thimble/core/tensor/view.h>
#include <thimble/models/datasets/dataset_text.h>
#include <thimble/nn/step/read.h>

namespace thimble::models {

std::unique_ptr<Dataset> open_dataset(const std::string& path, const Model& model, std::string_view name,
                                      std::uint64_t seed, const std::string& tokenizer) {
  if (!tokenizer.empty() && (!model.is_text() || model.is_masked())) {
    throw ValueError("`tokenizer`: '" + tokenizer + "': not for " + std::string(name) +
                     "; expected a GPT or Llama model");
  }
  std::unique_ptr<Dataset> data = model.is_text() ? open_text(path, name, model.is_masked(), seed, tokenizer)
                                                  : open_images(path, model.options(), seed);
  data->path = path;
  return data;
}

std::int64_t count_correct(const Tensor& scores, const Tensor& target) {
  const std::int64_t rows = scores.size(0), classes = scores.size(1),
                     block = std::max<std::int64_t>(1, 65536 / classes);
  std::int64_t correct = 0;
  for (std::int64_t begin = 0; begin < rows; begin += block) {
    const std::int64_t end = std::min(begin + block, rows);
    const std::vector<float> values = nn::read_values<float>(view::slice(scores, 0, begin, end));
    for (auto row = values.begin();
         const auto one : nn::read_values<std::int64_t>(view::slice(target, 0, begin, end))) {
      correct += std::max_element(row, row + classes) - row == one ? 1 : 0;
      row += classes;
    }
  }
  return correct;
}

std::string sum_text(std::uint32_t sum) {
  char text[24];
  std::snprintf(text, sizeof text, "crc32c %08x", sum);
  return text;
}

}  // namespace thimble::models
