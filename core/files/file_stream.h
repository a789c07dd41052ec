#pragma once
// Reads files at any offset. Writing is in core/files/file.h.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace thimble {

/// A regular file open for reading at any offset; threads may read concurrently.
class InputFile {
 public:
  /// Throws FileError when the file cannot be opened or is not a regular file.
  explicit InputFile(std::string path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  const std::string& path() const noexcept { return path_; }
  /// Size in bytes when the file was opened.
  std::uint64_t bytes() const noexcept { return bytes_; }

  /// Fills `out` with the bytes from `offset` on. Throws FileError when the file ends before `out` is full.
  void read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  std::uint64_t bytes_ = 0;
  int descriptor_ = -1;
};

/// The names in a folder, sorted. Throws FileError when it cannot be read.
std::vector<std::string> names_in(const std::string& folder);

/// The whole of a file. Throws FileError when it cannot be read or has more than `most_bytes`.
std::vector<std::byte> read_whole_file(const std::string& path, std::uint64_t most_bytes);

}  // namespace thimble
