#include <thimble/nn/data/store_open.h>

#include <array>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/npy.h>
#include <thimble/nn/data/idx.h>
#include <thimble/nn/data/tokens.h>

namespace thimble::data {
namespace {

constexpr std::size_t idx_images_header = 16;

/// Whether a file begins like a gzip file; what is too short for that is read as a plain one.
bool is_compressed(const InputFile& file) {
  std::array<std::byte, 2> start{};
  if (file.bytes() < start.size()) return false;
  file.read(0, start);
  return is_gzip(start);
}

}  // namespace

ImageStore open_idx(const std::string& images_path, const std::string& labels_path, std::int64_t classes) {
  const auto file = std::make_shared<const InputFile>(images_path);
  // What is no plain file of images is read, and refused, as a whole.
  if (is_compressed(*file) || file->bytes() < idx_images_header) {
    return ImageStore(read_idx(images_path, labels_path, classes));
  }
  std::array<std::byte, idx_images_header> header{};
  file->read(0, header);
  const IdxHeader sizes = parse_idx_header(header, file->bytes(), images_path);
  const IdxArray labels = parse_idx(read_whole_file(labels_path, idx_limit_bytes), labels_path);
  IdxArray images{sizes.shape, {}};
  const std::uint64_t bytes = file->bytes() - idx_images_header;
  Images facts = pair_idx(std::move(images), labels, classes, images_path, labels_path);
  ImageStore store(std::move(facts));
  store.parts_.front().bytes = ByteStore(file, idx_images_header, bytes);
  return store;
}

ImageStore open_cifar(const CifarForm& form, std::span<const std::string> paths) {
  const std::uint64_t record = form.record();
  ImageStore all;
  for (const std::string& path : paths) {
    const auto file = std::make_shared<const InputFile>(path);
    ImageStore store;
    if (file->bytes() == 0 || file->bytes() % record != 0) {
      throw FileError(path, file->bytes() / record * record,
                      std::to_string(file->bytes()) + " bytes; a " + std::string(form.name) +
                          " batch has one or more records of " + std::to_string(record));
    }
    const auto count = static_cast<std::int64_t>(file->bytes() / record);
    store.count = count;
    store.height = store.width = 32;
    store.channels = 3;
    store.classes = form.classes;
    store.labels_.reserve(static_cast<std::size_t>(count));
    for (std::int64_t n = 0; n < count; ++n) {
      const std::uint64_t at = static_cast<std::uint64_t>(n) * record + form.labels - 1;
      std::byte label{};
      file->read(at, std::span(&label, 1));
      store.labels_.push_back(std::to_integer<std::uint16_t>(label));
      if (store.labels_.back() >= form.classes) {
        throw FileError(
            path, at,
            "label " + std::to_string(store.labels_.back()) + "; expected 0 to " + std::to_string(form.classes - 1));
      }
    }
    store.parts_.push_back({ByteStore(file, 0, file->bytes()), 0, count, record, form.labels, true});
    all.append(store);
  }
  return all;
}

TokenStore open_tokens(const std::string& path) {
  const auto file = std::make_shared<const InputFile>(path);
  if (path.ends_with(".npy")) {
    const NpyHeader header = read_npy_header(path);
    const bool is_narrow = header.is_unsigned() && header.dtype == DType::i32;
    if (header.shape.size() != 1 || (!header.is_unsigned() && header.dtype != DType::i32)) {
      throw FileError(path, 0, "the array is not a line of tokens; expected one axis of '<u2', '<u4' or '<i4'");
    }
    TokenStore store(ByteStore(file, header.data_offset, header.file_bytes), is_narrow ? 2 : 4);
    constexpr std::int64_t too_many = std::int64_t{1} << 31;  // from here on '<i4' means negative numbers
    if (const std::int64_t largest = header.is_unsigned() ? 0 : store.largest(); largest >= too_many) {
      throw FileError(
          path, header.data_offset,
          "token " + std::to_string(largest - 2 * too_many) + "; expected 0 to " + std::to_string(too_many - 1));
    }
    return store;
  }
  const std::uint64_t count = token_count(*file);
  return TokenStore(ByteStore(file, tokens_header_bytes, 2 * count), 2);
}

}  // namespace thimble::data
