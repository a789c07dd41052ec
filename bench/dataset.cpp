#include <thimble/bench/dataset.h>

namespace thimble::bench {

std::unique_ptr<Dataset> open_dataset(const std::string& path, std::string_view model, bool is_text,
                                      const models::ModelOptions& model_sizes, std::uint64_t seed) {
  return is_text ? open_text(path, model, seed) : open_images(path, model_sizes, seed);
}

}  // namespace thimble::bench
