#include <thimble/bench/dataset.h>

namespace thimble::bench {

std::unique_ptr<Dataset> open_dataset(const std::string& path, const models::Model& model, std::string_view name,
                                      std::uint64_t seed) {
  return model.is_text() ? open_text(path, name, model.is_masked(), seed) : open_images(path, model.options(), seed);
}

}  // namespace thimble::bench
