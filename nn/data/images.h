#pragma once
// Labelled images in memory, eight bits per value: the format between image loaders and image sources.

#include <cstdint>
#include <vector>

namespace thimble::data {

struct Images {
  std::int64_t count = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;
  std::int64_t classes = 0;
  std::vector<std::uint8_t> pixels;   ///< (N, H, W, C)
  std::vector<std::uint16_t> labels;  ///< (N), each below classes

  /// Values of one image: H * W * C.
  std::int64_t image_elements() const noexcept { return height * width * channels; }
};

}  // namespace thimble::data
