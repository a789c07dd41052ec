#include <thimble/nn/data/store_open.h>

#include <array>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/nn/data/cifar.h>
#include <thimble/nn/data/gzip.h>
#include <thimble/nn/data/idx.h>
#include <thimble/nn/data/tokens.h>

namespace thimble::data {
namespace store_open_detail {

constexpr std::size_t idx_images_header = 16;

/// Whether a file begins like a gzip file; what is too short for that is read as a plain one.
bool is_compressed(const InputFile& file) {
  std::array<std::byte, 2> start{};
  if (file.bytes() < start.size()) return false;
  file.read(0, start);
  return is_gzip(start);
}

}  // namespace store_open_detail

ImageStore open_idx(const std::string& images_path, const std::string& labels_path, std::int64_t classes) {
  const auto file = std::make_shared<const InputFile>(images_path);
  // What is no plain file of images is read, and refused, as a whole.
  if (store_open_detail::is_compressed(*file) || file->bytes() < store_open_detail::idx_images_header) {
    return ImageStore(read_idx(images_path, labels_path, classes));
  }
  std::array<std::byte, store_open_detail::idx_images_header> header{};
  file->read(0, header);
  const IdxHeader sizes = parse_idx_header(header, file->bytes(), images_path);
  const IdxArray labels = parse_idx(read_whole_file(labels_path, idx_limit_bytes), labels_path);
  IdxArray images{sizes.shape, {}};
  const std::uint64_t bytes = file->bytes() - store_open_detail::idx_images_header;
  Images facts = pair_idx(std::move(images), labels, classes, images_path, labels_path);
  ImageStore store(std::move(facts));
  store.parts_.front().bytes = ByteStore(file, store_open_detail::idx_images_header, bytes);
  return store;
}

ImageStore open_cifar10(std::span<const std::string> paths) {
  constexpr std::uint64_t record = 1 + 3 * 32 * 32;
  ImageStore all;
  for (const std::string& path : paths) {
    const auto file = std::make_shared<const InputFile>(path);
    ImageStore store;
    if (file->bytes() == 0 || file->bytes() % record != 0) {
      throw FileError(path, file->bytes() - file->bytes() % record,
                      std::to_string(file->bytes()) + " bytes; a CIFAR-10 batch has one or more records of " +
                          std::to_string(record));
    }
    const auto count = static_cast<std::int64_t>(file->bytes() / record);
    store.count = count;
    store.height = store.width = 32;
    store.channels = 3;
    store.classes = 10;
    store.labels_.reserve(static_cast<std::size_t>(count));
    for (std::int64_t n = 0; n < count; ++n) {
      const std::uint64_t at = static_cast<std::uint64_t>(n) * record;
      std::array<std::byte, 1> label{};
      file->read(at, label);
      const auto value = std::to_integer<std::uint16_t>(label[0]);
      if (value >= store.classes) {
        throw FileError(path, at, "label " + std::to_string(value) + "; allowed: 0 to 9");
      }
      store.labels_.push_back(value);
    }
    store.parts_.push_back({ByteStore(file, 0, file->bytes()), 0, count, record, 1, true});
    all.append(store);
  }
  return all;
}

TokenStore open_tokens(const std::string& path) {
  const auto file = std::make_shared<const InputFile>(path);
  const std::uint64_t count = token_count(*file);
  return TokenStore(ByteStore(file, tokens_header_bytes, 2 * count), 2);
}

}  // namespace thimble::data
