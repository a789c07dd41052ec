#include <thimble/nn/data/cifar.h>

#include <thimble/core/error.h>
#include <thimble/core/files/file_stream.h>

namespace thimble::data {

void CifarForm::check_size(const std::string& path, std::uint64_t bytes) const {
  if (bytes != 0 && bytes % record() == 0) return;
  throw FileError(path, bytes - bytes % record(),
                  std::to_string(bytes) + " bytes; a " + std::string(name) + " batch has one or more records of " +
                      std::to_string(record()));
}

std::uint16_t CifarForm::check_label(const std::string& path, std::uint64_t at, std::byte label) const {
  const auto value = std::to_integer<std::uint16_t>(label);
  if (value < classes) return value;
  throw FileError(path, at, "label " + std::to_string(value) + "; allowed: 0 to " + std::to_string(classes - 1));
}

void append_cifar(const CifarForm& form, std::span<const std::byte> file, const std::string& path, Images& images) {
  constexpr std::size_t plane = CifarForm::plane, channels = CifarForm::channels, side = CifarForm::side;
  const std::size_t record = form.record(), class_at = form.labels - 1;
  form.check_size(path, file.size());
  if (images.count != 0 && (images.height != side || images.width != side || images.channels != channels))
    throw ShapeError("cifar: appended to images that are not 32x32 with 3 channels");
  const std::size_t count = file.size() / record;
  for (std::size_t n = 0; n < count; ++n) form.check_label(path, n * record + class_at, file[n * record + class_at]);

  images.pixels.reserve(images.pixels.size() + count * channels * plane);
  images.labels.reserve(images.labels.size() + count);
  images.height = images.width = side;
  images.channels = channels;
  images.classes = form.classes;
  images.count += static_cast<std::int64_t>(count);
  for (std::size_t n = 0; n < count; ++n) {
    const auto bytes = file.subspan(n * record, record);
    images.labels.push_back(std::to_integer<std::uint16_t>(bytes[class_at]));
    for (std::size_t i = 0; i < plane; ++i)
      for (std::size_t c = 0; c < channels; ++c)
        images.pixels.push_back(std::to_integer<std::uint8_t>(bytes[form.labels + c * plane + i]));
  }
}

Images read_cifar(const CifarForm& form, std::span<const std::string> paths) {
  constexpr std::uint64_t most_bytes = std::uint64_t{1} << 32;
  Images images;
  for (const std::string& path : paths) append_cifar(form, read_whole_file(path, most_bytes), path, images);
  return images;
}

void append_cifar10(std::span<const std::byte> file, const std::string& path, Images& images) {
  append_cifar(cifar10, file, path, images);
}

Images read_cifar10(std::span<const std::string> paths) { return read_cifar(cifar10, paths); }

}  // namespace thimble::data
