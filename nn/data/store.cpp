#include <thimble/nn/data/store.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/crc32c.h>
#include <thimble/core/files/npy.h>
#include <thimble/nn/data/idx.h>
#include <thimble/nn/data/require.h>
#include <thimble/nn/data/tokens.h>

namespace thimble::data {
namespace {

/// Bytes read at a time, on the stack.
constexpr std::size_t piece_bytes = 4096;

}  // namespace

ByteStore::ByteStore(std::vector<std::uint8_t> bytes)
    : owned_(std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes))),
      view_(*owned_),
      bytes_(owned_->size()) {}

ByteStore::ByteStore(std::shared_ptr<const InputFile> file, std::uint64_t offset, std::uint64_t bytes)
    : file_(std::move(file)), offset_(offset), bytes_(bytes) {
  if (offset > file_->bytes() || bytes > file_->bytes() - offset) {
    throw FileError(file_->path(), file_->bytes(),
                    "the file is cut short: " + std::to_string(bytes) + " bytes wanted from byte " +
                        std::to_string(offset) + " on");
  }
}

void ByteStore::read(std::uint64_t at, std::span<std::uint8_t> out) const {
  if (file_) return file_->read(offset_ + at, std::as_writable_bytes(out));
  if (!out.empty()) std::memcpy(out.data(), view_.data() + at, out.size());
}

ImageStore::ImageStore(Images&& images)
    : count(images.count),
      height(images.height),
      width(images.width),
      channels(images.channels),
      classes(images.classes),
      labels_(std::move(images.labels)) {
  parts_.push_back({ByteStore(std::move(images.pixels)), 0, count, static_cast<std::uint64_t>(image_elements())});
}

ImageStore::ImageStore(const Images& images)
    : count(images.count),
      height(images.height),
      width(images.width),
      channels(images.channels),
      classes(images.classes),
      labels_(images.labels) {
  parts_.push_back({ByteStore(std::span<const std::uint8_t>(images.pixels)), 0, count,
                    static_cast<std::uint64_t>(image_elements())});
}

std::size_t ImageStore::heap_bytes() const noexcept {
  std::size_t bytes = labels_.capacity() * sizeof(labels_[0]);
  for (const Part& part : parts_) bytes += part.bytes.heap_bytes();
  return bytes;
}

void ImageStore::read(std::int64_t image, std::int64_t first, std::span<std::uint8_t> out) const {
  require_between("image store: image", image, 0, count - 1);
  std::size_t p = 0;
  while (p + 1 < parts_.size() && parts_[p + 1].first <= image) ++p;
  const Part& part = parts_[p];
  const std::uint64_t begin = static_cast<std::uint64_t>(image - part.first) * part.record + part.pixels;
  if (!part.is_planar) return part.bytes.read(begin + static_cast<std::uint64_t>(first), out);
  std::array<std::uint8_t, piece_bytes> piece;
  const auto planes = static_cast<std::size_t>(channels);
  const auto plane_bytes = static_cast<std::uint64_t>(height * width);
  const std::uint64_t pixel = static_cast<std::uint64_t>(first) / planes;
  const std::size_t pixels = out.size() / planes;
  for (std::size_t c = 0; c < planes; ++c) {
    for (std::size_t done = 0; done < pixels; done += piece.size()) {
      const auto some = std::span(piece).first(std::min(piece.size(), pixels - done));
      part.bytes.read(begin + c * plane_bytes + pixel + done, some);
      for (std::size_t i = 0; i < some.size(); ++i) out[(done + i) * planes + c] = some[i];
    }
  }
}

void ImageStore::append(const ImageStore& other) {
  if (count == 0) {
    *this = other;
    return;
  }
  if (height != other.height || width != other.width || channels != other.channels) {
    throw ShapeError("image store: images of other sizes cannot be appended");
  }
  for (Part part : other.parts_) {
    part.first += count;
    parts_.push_back(std::move(part));
  }
  labels_.reserve(labels_.size() + other.labels_.size());
  labels_.insert(labels_.end(), other.labels_.begin(), other.labels_.end());
  count += other.count;
  classes = std::max(classes, other.classes);
}

TokenStore::TokenStore(ByteStore bytes, int bytes_per_token)
    : bytes_(std::move(bytes)),
      bytes_per_token_(bytes_per_token),
      count_(static_cast<std::int64_t>(bytes_.size()) / bytes_per_token) {}

TokenStore::TokenStore(ByteStore text, const CharVocabulary& vocabulary) : TokenStore(std::move(text), 1) {
  tokens_.emplace().fill(-1);
  const std::string& symbols = vocabulary.symbols();
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    (*tokens_)[static_cast<unsigned char>(symbols[i])] = static_cast<std::int16_t>(i);
  }
}

TokenStore TokenStore::part(std::int64_t first, std::int64_t count) const {
  TokenStore part = *this;
  part.first_ += first;
  part.count_ = count;
  return part;
}

void TokenStore::read(std::int64_t at, std::span<std::int64_t> out) const {
  std::array<std::uint8_t, piece_bytes> piece;
  const auto size = static_cast<std::size_t>(bytes_per_token_);
  std::uint64_t byte = static_cast<std::uint64_t>(first_ + at) * size;
  for (std::size_t done = 0; done < out.size();) {
    const std::size_t count = std::min(piece.size() / size, out.size() - done);
    bytes_.read(byte, std::span(piece).first(count * size));
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint8_t* const raw = piece.data() + i * size;
      std::int64_t token = 0;
      for (std::size_t b = 0; b < size; ++b) token |= std::int64_t{raw[b]} << (8 * b);
      if (tokens_) token = (*tokens_)[*raw];
      if (token < 0 || token >= vocabulary_) {
        throw FileError(bytes_.path(), bytes_.offset(byte + i * size),
                        "a token that was not there when the file was opened; it must not change meanwhile");
      }
      out[done + i] = token;
    }
    done += count;
    byte += count * size;
  }
}

template <class Body>
void TokenStore::each_piece(Body&& body) const {
  std::array<std::int64_t, piece_bytes / 8> piece;
  for (std::int64_t at = 0; at < count_;) {
    const auto some = std::span(piece).first(std::min(piece.size(), static_cast<std::size_t>(count_ - at)));
    read(at, some);
    body(std::span<const std::int64_t>(some));
    at += static_cast<std::int64_t>(some.size());
  }
}

std::int64_t TokenStore::largest() const {
  std::int64_t largest = 0;
  each_piece([&](std::span<const std::int64_t> some) {
    largest = std::max(largest, *std::max_element(some.begin(), some.end()));
  });
  return largest;
}

std::uint32_t TokenStore::checksum(std::uint32_t crc) const {
  each_piece([&](std::span<const std::int64_t> some) { crc = crc32c(std::as_bytes(some), crc); });
  return crc;
}

std::uint32_t ImageStore::checksum() const {
  std::uint32_t crc = crc32c(std::as_bytes(std::span(labels_)));
  std::vector<std::uint8_t> image(static_cast<std::size_t>(image_elements()));
  for (std::int64_t i = 0; i < count; ++i) {
    read(i, 0, std::span(image));
    crc = crc32c(std::as_bytes(std::span(image)), crc);
  }
  return crc;
}

CharVocabulary vocabulary_of(const InputFile& file) {
  constexpr std::uint64_t most_bytes = std::uint64_t{1} << 32;
  if (file.bytes() > most_bytes) {
    throw FileError(
        file.path(), most_bytes,
        "the file has " + std::to_string(file.bytes()) + " bytes; expected at most " + std::to_string(most_bytes));
  }
  if (file.bytes() == 0) throw FileError(file.path(), 0, "the file is empty");
  std::array<bool, 256> is_used{};
  std::vector<std::byte> piece(1 << 16);
  for (std::uint64_t at = 0; at < file.bytes(); at += piece.size()) {
    const auto some =
        std::span(piece).first(static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), file.bytes() - at)));
    file.read(at, some);
    for (const std::byte b : some) is_used[std::to_integer<std::size_t>(b)] = true;
  }
  std::string symbols;
  for (std::size_t b = 0; b < is_used.size(); ++b) {
    if (is_used[b]) symbols += static_cast<char>(b);
  }
  return CharVocabulary(symbols);
}

namespace {

constexpr std::size_t idx_images_header = 16;

/// Whether a file begins like a gzip file.
bool is_compressed(const InputFile& file) {
  std::array<std::byte, 2> start{};
  if (file.bytes() < start.size()) return false;
  file.read(0, start);
  return is_gzip(start);
}

}  // namespace

ImageStore open_idx(const std::string& images_path, const std::string& labels_path, std::int64_t classes) {
  const auto file = std::make_shared<const InputFile>(images_path);
  // read_idx decompresses gzip files and rejects short ones.
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
    const bool is_narrow = header.is_unsigned && header.dtype == DType::i32;
    if (header.shape.size() != 1 || (!header.is_unsigned && header.dtype != DType::i32)) {
      throw FileError(path, 0, "the array is not a line of tokens; expected one axis of '<u2', '<u4' or '<i4'");
    }
    TokenStore store(ByteStore(file, header.data_offset, header.file_bytes), is_narrow ? 2 : 4);
    constexpr std::int64_t too_many = std::int64_t{1} << 31;  // from here on '<i4' is negative
    if (const std::int64_t largest = header.is_unsigned ? 0 : store.largest(); largest >= too_many) {
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
