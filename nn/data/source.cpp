#include <thimble/nn/data/source.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/numbers/convert.h>

namespace thimble::data {

namespace source_detail {

void require_size(const char* what, std::size_t given, std::size_t wanted) {
  if (given != wanted)
    throw ShapeError("data source: " + std::string(what) + " has " + std::to_string(given) +
                     " elements, the batch has " + std::to_string(wanted));
}

void require_range(const ImageStore& images, std::int64_t first, std::int64_t count) {
  require_between("data source: first image", first, 0, images.count - 1);
  require_between("data source: number of images", count, 1, images.count - first);
}

/// Calls body(first value, values) for the values of an image, in pieces of whole pixels on the stack.
template <class Body>
void each_piece(const ImageStore& images, std::int64_t image, Body&& body) {
  std::array<std::uint8_t, 4096> piece;
  const auto channels = static_cast<std::size_t>(images.channels);
  const auto elements = static_cast<std::size_t>(images.image_elements());
  const std::size_t most = piece.size() / channels * channels;
  for (std::size_t first = 0; first < elements; first += most) {
    const auto values = std::span(piece).first(std::min(most, elements - first));
    images.read(image, static_cast<std::int64_t>(first), values);
    body(first, std::span<const std::uint8_t>(values));
  }
}

}  // namespace source_detail

Normalization measure_normalization(const ImageStore& images, std::int64_t first, std::int64_t count) {
  source_detail::require_range(images, first, count);
  const auto channels = static_cast<std::size_t>(images.channels);
  std::vector<std::uint64_t> sum(channels), squares(channels);
  const std::int64_t pixels = count * images.height * images.width;
  for (std::int64_t i = first; i < first + count; ++i) {
    source_detail::each_piece(images, i, [&](std::size_t, std::span<const std::uint8_t> values) {
      for (std::size_t v = 0; v < values.size(); v += channels) {
        for (std::size_t c = 0; c < channels; ++c) {
          const std::uint64_t value = values[v + c];
          sum[c] += value;
          squares[c] += value * value;
        }
      }
    });
  }
  Normalization out;
  for (std::size_t c = 0; c < channels; ++c) {
    const double n = static_cast<double>(pixels) * 255.0;
    const double mean = static_cast<double>(sum[c]) / n;
    const double variance = static_cast<double>(squares[c]) / (n * 255.0) - mean * mean;
    // A smaller variance is rounding of a constant channel: one different byte in a million gives more.
    const bool is_constant = variance < 1e-12;
    out.mean.push_back(static_cast<float>(mean));
    out.deviation.push_back(is_constant ? 1.0f : static_cast<float>(std::sqrt(variance)));
  }
  return out;
}

Normalization measure_normalization(const Images& images, std::int64_t first, std::int64_t count) {
  return measure_normalization(ImageStore(images), first, count);
}

ImageSource::ImageSource(const Images& images, std::int64_t first, std::int64_t count, std::int64_t batch,
                         std::uint64_t seed, const Normalization& normalization)
    : ImageSource(std::make_shared<const ImageStore>(images), first, count, batch, seed, normalization) {}

ImageSource::ImageSource(std::shared_ptr<const ImageStore> images, std::int64_t first, std::int64_t count,
                         std::int64_t batch, std::uint64_t seed, const Normalization& normalization)
    : images_(std::move(images)),
      first_((source_detail::require_range(*images_, first, count), first)),
      sampler_(count, batch, seed),
      values_(static_cast<std::size_t>(images_->channels) * 256) {
  const std::int64_t channels = images_->channels;
  require_between("data source: number of means", static_cast<std::int64_t>(normalization.mean.size()), channels,
                  channels);
  require_between("data source: number of deviations", static_cast<std::int64_t>(normalization.deviation.size()),
                  channels, channels);
  for (std::size_t c = 0; c < normalization.mean.size(); ++c) {
    const float mean = normalization.mean[c], deviation = normalization.deviation[c];
    if (!(deviation > 0))
      throw ValueError("data source: deviation of channel " + std::to_string(c) + " is " + std::to_string(deviation) +
                       "; expected a number above 0");
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

void ImageSource::copy_image(std::int64_t index, DType dtype, std::byte* pixels) const {
  const auto channels = static_cast<std::size_t>(images_->channels);
  source_detail::each_piece(*images_, first_ + index, [&](std::size_t first, std::span<const std::uint8_t> bytes) {
    std::array<float, 4096> values;
    for (std::size_t i = 0; i < bytes.size(); i += channels) {
      for (std::size_t c = 0; c < channels; ++c) values[i + c] = values_[c * 256 + bytes[i + c]];
    }
    convert(values.data(), DType::f32, pixels + first * size_of(dtype), dtype, static_cast<std::int64_t>(bytes.size()));
  });
}

void ImageSource::copy_pixels(std::span<const std::int64_t> indices, std::span<float> pixels) const {
  const auto elements = static_cast<std::size_t>(images_->image_elements());
  source_detail::require_size("pixels", pixels.size(), indices.size() * elements);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    copy_image(indices[i], DType::f32, std::as_writable_bytes(pixels).data() + i * elements * sizeof(float));
  }
}

// Replaces the indices with labels.
void ImageSource::copy_into(DType dtype, std::byte* pixels, std::span<std::int64_t> indices) const {
  if (!is_floating(dtype)) {
    throw DTypeError("data: images in " + std::string(to_string(dtype)) + "; expected a floating dtype");
  }
  const std::size_t image_bytes = static_cast<std::size_t>(images_->image_elements()) * size_of(dtype);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    copy_image(indices[i], dtype, pixels + i * image_bytes);
    indices[i] = images_->label(first_ + indices[i]);
  }
}

void ImageSource::batch_into(std::int64_t step, DType dtype, std::byte* pixels, std::span<std::int64_t> labels) const {
  sampler_.indices(step, labels);
  copy_into(dtype, pixels, labels);
}

void ImageSource::sequential_into(std::int64_t from, DType dtype, std::byte* pixels,
                                  std::span<std::int64_t> labels) const {
  const auto number = static_cast<std::int64_t>(labels.size());
  require_between("data source: number of images", number, 0, sampler_.count());
  require_between("data source: first image", from, 0, sampler_.count() - number);
  std::iota(labels.begin(), labels.end(), from);
  copy_into(dtype, pixels, labels);
}

}  // namespace thimble::data
