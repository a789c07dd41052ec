#pragma once
// Reading a gzip file (RFC 1952), of one member or several, without trusting it.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace thimble::data {

/// deflate cannot do better: a match of 258 bytes takes at least two bits (zlib.net/zlib_tech.html).
inline constexpr std::size_t largest_deflate_ratio = 1032;

/// True when the bytes begin like a gzip file.
bool is_gzip(std::span<const std::byte> file) noexcept;

/// Decompresses a gzip file in memory, never more than asked for: a caller reads a header, decides how many bytes it is
/// owed, reads those, and finish() makes sure that there was nothing else.
class GzipReader {
 public:
  /// `file` and `path` (for messages) must outlive the reader. Throws FileError when zlib does not start.
  GzipReader(std::span<const std::byte> file, const std::string& path);
  GzipReader(GzipReader&&) noexcept;
  ~GzipReader();

  /// Fills `out` with the next decompressed bytes. Throws FileError when the data end before, or are corrupt.
  void read(std::span<std::byte> out);

  /// Throws FileError unless the decompressed data end here, their checksum and length are right, and the file ends
  /// too.
  void finish();

 private:
  struct State;

  std::span<const std::byte> file_;
  const std::string& path_;
  std::unique_ptr<State> state_;
};

}  // namespace thimble::data
