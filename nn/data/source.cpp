#include <thimble/nn/data/source.h>

#include <cmath>
#include <numeric>
#include <string>

#include <thimble/core/error.h>
#include <thimble/nn/data/require.h>

namespace thimble::data {

namespace source_detail {

void require_size(const char* what, std::size_t given, std::size_t wanted) {
  if (given != wanted)
    throw ShapeError("data source: " + std::string(what) + " has " + std::to_string(given) +
                     " elements, the batch has " + std::to_string(wanted));
}

void require_range(const Images& images, std::int64_t first, std::int64_t count) {
  require_between("data source: first image", first, 0, images.count - 1);
  require_between("data source: number of images", count, 1, images.count - first);
}

}  // namespace source_detail

Normalization measure_normalization(const Images& images, std::int64_t first, std::int64_t count) {
  source_detail::require_range(images, first, count);
  const auto channels = static_cast<std::size_t>(images.channels);
  std::vector<std::uint64_t> sum(channels), squares(channels);
  const std::uint8_t* pixel = images.pixels.data() + first * images.image_elements();
  const std::int64_t pixels = count * images.height * images.width;
  for (std::int64_t i = 0; i < pixels; ++i, pixel += channels)
    for (std::size_t c = 0; c < channels; ++c) {
      sum[c] += pixel[c];
      squares[c] += static_cast<std::uint64_t>(pixel[c]) * pixel[c];
    }
  Normalization out;
  for (std::size_t c = 0; c < channels; ++c) {
    const double n = static_cast<double>(pixels) * 255.0;
    const double mean = static_cast<double>(sum[c]) / n;
    const double variance = static_cast<double>(squares[c]) / (n * 255.0) - mean * mean;
    // Below this the channel is constant and what is left is rounding: one byte value in a million would give more.
    const bool is_constant = variance < 1e-12;
    out.mean.push_back(static_cast<float>(mean));
    out.deviation.push_back(is_constant ? 1.0f : static_cast<float>(std::sqrt(variance)));
  }
  return out;
}

ImageSource::ImageSource(const Images& images, std::int64_t first, std::int64_t count, std::int64_t batch,
                         std::uint64_t seed, const Normalization& normalization)
    : images_(&images),
      first_((source_detail::require_range(images, first, count), first)),
      sampler_(count, batch, seed),
      values_(static_cast<std::size_t>(images.channels) * 256) {
  require_between("data source: number of means", static_cast<std::int64_t>(normalization.mean.size()), images.channels,
                  images.channels);
  require_between("data source: number of deviations", static_cast<std::int64_t>(normalization.deviation.size()),
                  images.channels, images.channels);
  for (std::size_t c = 0; c < normalization.mean.size(); ++c) {
    const float mean = normalization.mean[c], deviation = normalization.deviation[c];
    if (!(deviation > 0))
      throw ValueError("data source: deviation of channel " + std::to_string(c) + " is " + std::to_string(deviation) +
                       "; allowed: above 0");
    for (std::size_t byte = 0; byte < 256; ++byte)
      values_[c * 256 + byte] = (static_cast<float>(byte) / 255.0f - mean) / deviation;
  }
}

std::vector<std::int64_t> ImageSource::in_order(std::int64_t from, std::size_t count) const {
  const auto number = static_cast<std::int64_t>(count);
  require_between("data source: number of images", number, 0, sampler_.count());
  require_between("data source: first image", from, 0, sampler_.count() - number);
  std::vector<std::int64_t> indices(count);
  std::iota(indices.begin(), indices.end(), from);
  return indices;
}

void ImageSource::copy_pixels(std::span<const std::int64_t> indices, std::span<float> pixels) const {
  const auto channels = static_cast<std::size_t>(images_->channels);
  const auto elements = static_cast<std::size_t>(images_->image_elements());
  source_detail::require_size("pixels", pixels.size(), indices.size() * elements);
  float* out = pixels.data();
  for (const std::int64_t index : indices) {
    const std::uint8_t* in = images_->pixels.data() + static_cast<std::size_t>(first_ + index) * elements;
    for (std::size_t i = 0; i < elements; i += channels)
      for (std::size_t c = 0; c < channels; ++c) *out++ = values_[c * 256 + in[i + c]];
  }
}

}  // namespace thimble::data
