#pragma once
// safetensors files (huggingface.co/docs/safetensors): a u64 N, N bytes of JSON that name every tensor's dtype, shape
// and byte range, then the bytes. This reader works on plain bytes and never reads a whole file.
//
// A valid file: N <= 100,000,000 and within the file; the JSON is one object and begins with '{'; no key repeats; each
// range has the bytes of its shape and dtype; the ranges, sorted, cover the rest of the file without a hole or an
// overlap. Any other file throws a FileError that names the file, the byte and the reason.
//
// Files written here contain checksums of the header and of every tensor, which reading verifies. Files of other
// programs have none.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/core/dtype.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/file_stream.h>

namespace thimble {

/// The format's element types, by growing alignment (the reverse order of a file).
enum class SafetensorsDType : std::uint8_t {
  boolean,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  f64,
  i64,
  u64
};

/// "BOOL", "U8", "F8_E4M3", "BF16", ...: the name in the file.
std::string_view to_string(SafetensorsDType dtype) noexcept;
/// Bytes of one element.
std::size_t size_of(SafetensorsDType dtype) noexcept;
/// Every DType has a type in files.
SafetensorsDType to_safetensors_dtype(DType dtype) noexcept;
/// nullopt for I16, U16, U32 and U64, which can be inspected but not loaded.
std::optional<DType> to_dtype(SafetensorsDType dtype) noexcept;

/// Most bytes of a header's JSON, as in the format, and most sizes of a shape, as in NumPy and PyTorch, so that a
/// header cannot request much more memory than it has bytes.
inline constexpr std::uint64_t safetensors_header_limit = 100'000'000;
inline constexpr std::size_t safetensors_rank_limit = 64;

/// One tensor of a file.
struct SafetensorsEntry {
  std::string name;
  SafetensorsDType dtype = SafetensorsDType::f32;
  std::vector<std::int64_t> shape;           ///< at most 64 sizes
  std::uint64_t begin = 0;                   ///< first byte, counted from SafetensorsHeader::data_offset
  std::uint64_t end = 0;                     ///< one past the last byte
  std::optional<std::uint32_t> crc32c = {};  ///< of its bytes (core/files/crc32c.h), if the file has checksums

  std::uint64_t bytes() const noexcept { return end - begin; }
  friend bool operator==(const SafetensorsEntry&, const SafetensorsEntry&) = default;
};

/// The header of a file.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;        ///< in the order of their bytes
  std::map<std::string, std::string> metadata;  ///< `__metadata__`, without the checksums
  std::uint64_t data_offset = 0;                ///< offset of the tensors' bytes in the file: 8 + N

  /// The tensor with this name, or nullptr. Takes O(log tensors).
  const SafetensorsEntry* find(std::string_view name) const noexcept;

  /// Builds the index of find() after `tensors` was filled. Returns a repeated name, or nullptr.
  const std::string* index_names();

 private:
  std::vector<std::uint32_t> by_name_;  // indices into `tensors`, sorted by name
};

/// to_dtype() of an entry. Throws DTypeError naming the tensor and its dtype for I16, U16, U32 and U64.
DType loadable_dtype(const SafetensorsEntry& entry);

/// 8 + N for a file of `file_bytes` bytes, from its first eight bytes. Throws FileError.
std::uint64_t safetensors_header_bytes(std::span<const std::byte> start, std::uint64_t file_bytes,
                                       const std::string& path);

/// Reads the header from at least the first 8 + N bytes of a file of `file_bytes` bytes. `path` is for messages only.
/// Throws FileError for an invalid file.
SafetensorsHeader parse_safetensors(std::span<const std::byte> start, std::uint64_t file_bytes,
                                    const std::string& path);

/// Lays tensors out for writing: largest dtype first, then by name, without gaps. Ignores begin and end of `tensors`.
/// Throws ValueError for a name that is repeated, is `__metadata__` or is not UTF-8, ShapeError for a shape that is
/// negative, has more than 64 sizes or more than 2^63 - 1 bytes.
SafetensorsHeader lay_out_safetensors(std::vector<SafetensorsEntry> tensors,
                                      std::map<std::string, std::string> metadata);

/// The 8 + N bytes in front of the data: compact JSON, metadata first and sorted, padded with spaces to a multiple
/// of 8. Contains checksums if all tensors have one. Throws ValueError for text that is not UTF-8, for a key
/// `thimble.crc32c` in the metadata, and when N would exceed 100,000,000.
std::string format_safetensors_header(const SafetensorsHeader& header);

/// A file open for reading; only the header is in memory. Several threads may read at once.
class SafetensorsReader {
 public:
  /// Opens a file and checks its header. Throws FileError.
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const noexcept { return file_.path(); }
  const SafetensorsHeader& header() const noexcept { return header_; }
  /// The tensor with this name. Throws FileError if there is none.
  const SafetensorsEntry& entry(std::string_view name) const;

  /// Reads a whole tensor, little-endian and row-major, into `out`, which has entry.bytes() bytes (else ShapeError).
  /// Throws FileError, also for a BOOL that is neither 0 nor 1, and for a wrong checksum.
  void read(const SafetensorsEntry& entry, std::span<std::byte> out) const;

  /// Reads out.size() bytes of a tensor from its byte `first` on: a large tensor in pieces. Throws ShapeError if they
  /// are not within the tensor, FileError as read(). Verifies the checksum only if `out` covers the tensor.
  void read_part(const SafetensorsEntry& entry, std::uint64_t first, std::span<std::byte> out) const;

  /// Reads a whole tensor only to verify its checksum, if it has one. Throws FileError.
  void verify(const SafetensorsEntry& entry) const;

 private:
  InputFile file_;
  SafetensorsHeader header_;
};

/// Writes a file tensor by tensor in any order, each in any number of pieces. The file appears under its name at
/// commit(); without commit() nothing is left behind. A file written here that is read and written again keeps its
/// bytes. The writer computes checksums as the bytes pass; commit() writes them into the header.
class SafetensorsWriter {
 public:
  /// Writes the header. Throws as lay_out_safetensors and format_safetensors_header, FileError.
  SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> tensors,
                    std::map<std::string, std::string> metadata = {});

  /// The layout; header().tensors is the order in which writing is sequential on disk.
  const SafetensorsHeader& header() const noexcept { return header_; }

  /// Appends the next bytes of a tensor, little-endian and row-major. Throws ValueError for an unknown name and for
  /// more bytes than the tensor has, FileError.
  void append(std::string_view name, std::span<const std::byte> bytes);

  /// The first tensor that got a NaN or an infinity, or "".
  const std::string& not_finite() const noexcept { return not_finite_; }

  /// Gives the file its name, durably. Throws ValueError naming the first incomplete tensor, FileError.
  void commit();

 private:
  // The bytes of a tensor written so far.
  struct Progress {
    std::uint64_t bytes = 0;
    std::uint32_t crc32c = 0;
    std::array<std::byte, 8> cut{};  // the unfinished element at the end of the last piece
  };
  void look_at_numbers(const SafetensorsEntry& entry, Progress& progress, std::span<const std::byte> bytes);

  SafetensorsHeader header_;
  AtomicFile file_;
  std::vector<Progress> progress_;  // by index into header_.tensors
  std::string not_finite_;
};

// Checksums of a safetensors file, in its metadata: `thimble.crc32c` is 8 hexadecimal digits for the header and 8 for
// each tensor's bytes, sorted by the tensors' names. The header's checksum is computed with zeros in its place. Files
// without this key have no checksums.

inline constexpr std::string_view safetensors_sums_key = "thimble.crc32c";

/// Whether there are tensors and all of them have a checksum.
bool has_sums(const SafetensorsHeader& header) noexcept;

/// The value of the key, with zeros for the header's checksum.
std::string format_sums(const SafetensorsHeader& header);

/// Puts the header's checksum into a formatted header (the length and JSON), if it has the key.
void put_header_sum(std::string& formatted);

/// Moves checksums from the metadata of a parsed header to its tensors. `formatted` are the file's first 8 + N bytes.
/// Throws FileError if they are malformed, or the header has changed since it was written.
void take_sums(SafetensorsHeader& header, std::span<const std::byte> formatted, const std::string& path);

/// Throws FileError, naming the tensor, if `sum` is not its checksum in the file. Its bytes begin at `offset`.
void check_sum(const SafetensorsEntry& entry, std::uint32_t sum, const std::string& path, std::uint64_t offset);

/// Whether no element is NaN or infinite; integers always pass. `bytes` are whole elements, little-endian.
bool all_finite(SafetensorsDType dtype, std::span<const std::byte> bytes) noexcept;

}  // namespace thimble
