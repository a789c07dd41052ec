#pragma once
// Data sets in memory, or in a file that is read sample by sample, so that a run's memory does not grow with its data.
// An open file must not change.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/core/files/file_stream.h>
#include <thimble/nn/data/images.h>
#include <thimble/nn/data/text.h>

namespace thimble::data {

struct CifarForm;

/// Bytes that are read in pieces: a vector, a view, or a range of a file. Copies share them.
class ByteStore {
 public:
  ByteStore() = default;
  explicit ByteStore(std::vector<std::uint8_t> bytes);
  /// A view: `bytes` must outlive the store.
  explicit ByteStore(std::span<const std::uint8_t> bytes) : view_(bytes), bytes_(bytes.size()) {}
  /// Throws FileError when the file ends before `offset` + `bytes`.
  ByteStore(std::shared_ptr<const InputFile> file, std::uint64_t offset, std::uint64_t bytes);

  std::uint64_t size() const noexcept { return bytes_; }
  std::size_t heap_bytes() const noexcept { return owned_ ? owned_->size() : 0; }
  bool shares_heap(const ByteStore& other) const noexcept { return owned_ != nullptr && owned_ == other.owned_; }
  /// Fills `out` with the bytes from `at` on, which must exist. Throws FileError.
  void read(std::uint64_t at, std::span<std::uint8_t> out) const;
  /// The file's path, and the offset of byte `at` in the file.
  std::string path() const { return file_ ? file_->path() : std::string("data in memory"); }
  std::uint64_t offset(std::uint64_t at) const noexcept { return offset_ + at; }

 private:
  std::shared_ptr<const std::vector<std::uint8_t>> owned_;
  std::span<const std::uint8_t> view_;  // empty for a file
  std::shared_ptr<const InputFile> file_;
  std::uint64_t offset_ = 0, bytes_ = 0;
};

/// Labelled images, eight bits per value. Labels are in memory, two bytes each.
class ImageStore {
 public:
  std::int64_t count = 0, height = 0, width = 0, channels = 0, classes = 0;

  ImageStore() = default;
  explicit ImageStore(Images&& images);
  /// A view: `images` must outlive the store.
  explicit ImageStore(const Images& images);

  /// Values of one image: H * W * C.
  std::int64_t image_elements() const noexcept { return height * width * channels; }
  std::uint16_t label(std::int64_t image) const { return labels_.at(static_cast<std::size_t>(image)); }
  /// Labels, and pixels that are not in a file.
  std::size_t heap_bytes() const noexcept;

  /// Values of image `image` from `first` on in the order (H, W, C); `first` and out.size() are multiples of C. Throws
  /// FileError.
  void read(std::int64_t image, std::int64_t first, std::span<std::uint8_t> out) const;

  /// CRC-32C of all pixels and labels. Reads all of them. Throws FileError.
  std::uint32_t checksum() const;

  /// Appends the images of another store. Throws ShapeError when they have other sizes.
  void append(const ImageStore& other);

 private:
  friend ImageStore open_idx(const std::string&, const std::string&, std::int64_t);
  friend ImageStore open_cifar(const CifarForm&, std::span<const std::string>);
  /// Images one after the other: records of `record` bytes with pixels from byte `pixels` on, channel by channel if
  /// `is_planar`.
  struct Part {
    ByteStore bytes;
    std::int64_t first = 0, count = 0;
    std::uint64_t record = 0, pixels = 0;
    bool is_planar = false;
  };

  std::vector<Part> parts_;  // by `first`
  std::vector<std::uint16_t> labels_;
};

/// Tokens of a text. Copies share them.
class TokenStore {
 public:
  TokenStore() = default;
  /// Tokens of 8, 16 or 32 bits, little-endian.
  TokenStore(ByteStore bytes, int bytes_per_token);
  /// Characters, with the vocabulary's tokens.
  TokenStore(ByteStore text, const CharVocabulary& vocabulary);

  std::int64_t size() const noexcept { return count_; }
  std::size_t heap_bytes() const noexcept { return bytes_.heap_bytes(); }
  /// Whether both are parts of the same bytes in memory.
  bool shares_heap(const TokenStore& other) const noexcept { return bytes_.shares_heap(other.bytes_); }
  /// A store of tokens `first` .. `first` + `count` - 1, which must exist.
  TokenStore part(std::int64_t first, std::int64_t count) const;
  /// The largest token, or 0 without tokens. Reads all of them. Throws FileError.
  std::int64_t largest() const;
  /// CRC-32C of the tokens as 64-bit numbers, after `crc` (core/files/crc32c.h). Reads all of them. Throws FileError.
  std::uint32_t checksum(std::uint32_t crc) const;
  /// Makes read() throw FileError for tokens >= size: a file that changed cannot index beyond a model's vocabulary.
  void set_vocabulary(std::int64_t size) noexcept { vocabulary_ = size; }
  /// Fills `out` with the tokens from `at` on, which must exist. Throws FileError.
  void read(std::int64_t at, std::span<std::int64_t> out) const;

 private:
  /// Calls body(span of tokens) for all tokens in order.
  template <class Body>
  void each_piece(Body&& body) const;

  ByteStore bytes_;
  std::int64_t bytes_per_token_ = 1, first_ = 0, count_ = 0, vocabulary_ = std::int64_t{1} << 32;
  std::optional<std::array<std::int16_t, 256>> tokens_;  // by character, -1 for an unknown one
};

/// The distinct bytes of a file as a vocabulary, read in pieces. Throws FileError when it cannot be read, is empty or
/// has more than 4 GiB.
CharVocabulary vocabulary_of(const InputFile& file);

// ---- Public formats

/// The form of CIFAR's binary batches (www.cs.toronto.edu/~kriz/cifar.html): records of labels and 3072 bytes, the red,
/// green and blue planes of a 32x32 image. CIFAR-10 has one label. CIFAR-100 has a coarse label before the class, one
/// of 100.
struct CifarForm {
  std::string_view name;
  std::uint64_t labels = 1;  ///< bytes before the planes; the last one is the class
  std::int64_t classes = 10;

  constexpr std::uint64_t record() const noexcept { return labels + 3072; }
};
inline constexpr CifarForm cifar10{"CIFAR-10", 1, 10}, cifar100{"CIFAR-100", 2, 100};

/// IDX files as for read_idx (nn/data/idx.h). Checks a plain file and leaves its pixels on disk; decompresses a gzip
/// file into memory. Throws as read_idx.
ImageStore open_idx(const std::string& images_path, const std::string& labels_path, std::int64_t classes = 0);

/// One or several of CIFAR's batches, in order; pixels stay on disk. Throws FileError when a file is empty, is not a
/// whole number of records, or has a label that is no class.
ImageStore open_cifar(const CifarForm& form, std::span<const std::string> paths);

/// A file of tokens (nn/data/tokens.h), or, if its name ends in `.npy`, an array of one axis of '<u2', '<u4' or '<i4'.
/// The tokens stay on disk. Throws FileError, for a file of tokens as token_count.
TokenStore open_tokens(const std::string& path);

}  // namespace thimble::data
