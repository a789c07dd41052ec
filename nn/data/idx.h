#pragma once
// The IDX files of MNIST and its relatives: a big-endian u32 magic, 0x803 (images) or 0x801 (labels), then three sizes
// or one, then bytes. The first bytes tell plain files from gzip.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <thimble/nn/data/images.h>

namespace thimble::data {

/// The most bytes a file may hold once decompressed: several times the largest set in use (EMNIST, 0.55 GB).
inline constexpr std::uint64_t idx_limit_bytes = std::uint64_t{1} << 32;

struct IdxArray {
  std::vector<std::int64_t> shape;  ///< (N, H, W) or (N)
  std::vector<std::uint8_t> values;
};

/// The header of a plain file of images.
struct IdxHeader {
  std::vector<std::int64_t> shape;  ///< (N, H, W)
};
/// Reads the first 16 bytes of a plain file of `file_bytes` bytes. Throws FileError as parse_idx, and for labels.
IdxHeader parse_idx_header(std::span<const std::byte> start, std::uint64_t file_bytes, const std::string& path);

/// Reads a whole file; `path` is for messages. Throws FileError for another magic, for sizes that differ from the
/// number of bytes or promise more than idx_limit_bytes or (gzip) than deflate could hold, and for gzip data that are
/// corrupt, cut short, longer than the header says, or followed by other bytes.
IdxArray parse_idx(std::span<const std::byte> file, const std::string& path);

/// Pairs images (N, H, W) with labels (N): one channel. Throws FileError, naming the file, when `images` are labels or
/// `labels` images, the counts differ, or a label is not below `classes`; ValueError unless 0 <= classes <= 256. With 0
/// the labels set the number of classes, at least 10: 27 for EMNIST's letters, whose labels are 1 to 26.
Images pair_idx(IdxArray images, const IdxArray& labels, std::int64_t classes, const std::string& images_path,
                const std::string& labels_path);

/// Reads two files, each plain or gzip. Throws as parse_idx and pair_idx.
Images read_idx(const std::string& images_path, const std::string& labels_path, std::int64_t classes = 0);

// ---- Reads untrusted gzip files (RFC 1952) of one or several members.

/// deflate's best: a match of 258 bytes takes at least two bits (zlib.net/zlib_tech.html).
inline constexpr std::size_t largest_deflate_ratio = 1032;

/// Whether the bytes begin like a gzip file.
bool is_gzip(std::span<const std::byte> file) noexcept;

/// Decompresses a gzip file in memory, never more than the caller asks for: it reads a header, computes the number of
/// bytes that follow and reads them; finish() checks that nothing else follows.
class GzipReader {
 public:
  /// `file` and `path` (for messages) must outlive the reader. Throws FileError when zlib does not start.
  GzipReader(std::span<const std::byte> file, const std::string& path);
  GzipReader(GzipReader&&) noexcept;
  ~GzipReader();

  /// Fills `out` with the next decompressed bytes. Throws FileError when the data are corrupt or too short.
  void read(std::span<std::byte> out);

  /// Throws FileError unless data and file end here and checksum and length are right.
  void finish();

 private:
  struct State;

  std::span<const std::byte> file_;
  const std::string& path_;
  std::unique_ptr<State> state_;
};

}  // namespace thimble::data
