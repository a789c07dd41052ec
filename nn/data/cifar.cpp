#include <thimble/nn/data/cifar.h>

#include <cstdint>

#include <thimble/core/error.h>
#include <thimble/core/files/file_stream.h>

namespace thimble::data {

void append_cifar10(std::span<const std::byte> file, const std::string& path, Images& images) {
  constexpr std::size_t side = 32, channels = 3, plane = side * side, record = 1 + channels * plane, classes = 10;
  if (file.empty() || file.size() % record != 0)
    throw FileError(
        path, file.size() - file.size() % record,
        std::to_string(file.size()) + " bytes; a CIFAR-10 batch has one or more records of " + std::to_string(record));
  if (images.count != 0 && (images.height != side || images.width != side || images.channels != channels))
    throw ShapeError("cifar10: appended to images that are not 32x32 with 3 channels");
  const std::size_t count = file.size() / record;
  for (std::size_t n = 0; n < count; ++n)
    if (const auto label = std::to_integer<std::size_t>(file[n * record]); label >= classes)
      throw FileError(path, n * record, "label " + std::to_string(label) + "; allowed: 0 to 9");

  images.pixels.reserve(images.pixels.size() + count * channels * plane);
  images.labels.reserve(images.labels.size() + count);
  images.height = images.width = side;
  images.channels = channels;
  images.classes = classes;
  images.count += static_cast<std::int64_t>(count);
  for (std::size_t n = 0; n < count; ++n) {
    const auto bytes = file.subspan(n * record, record);
    images.labels.push_back(std::to_integer<std::uint16_t>(bytes[0]));
    for (std::size_t i = 0; i < plane; ++i)
      for (std::size_t c = 0; c < channels; ++c)
        images.pixels.push_back(std::to_integer<std::uint8_t>(bytes[1 + c * plane + i]));
  }
}

Images read_cifar10(std::span<const std::string> paths) {
  constexpr std::uint64_t most_bytes = std::uint64_t{1} << 32;
  Images images;
  for (const std::string& path : paths) append_cifar10(read_whole_file(path, most_bytes), path, images);
  return images;
}

}  // namespace thimble::data
