#pragma once
// Files in pieces: reading at any offset, and writing a file that appears under its name only when it is complete.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace thimble {

/// A regular file open for reading at any offset; several threads may read at once.
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

/// The whole of a file. Throws FileError when it cannot be read or has more than `most_bytes`.
std::vector<std::byte> read_whole_file(const std::string& path, std::uint64_t most_bytes);

/// A file being written. Bytes go to a temporary file in the same folder; commit() gives it its name in one step, so
/// that a reader sees the old file or the new one, never a part. Without commit() nothing is left behind and an older
/// file of that name is untouched. A symbolic link is followed, and stays a link.
class AtomicFile {
 public:
  /// Throws FileError when the folder cannot be written or `path` names something that is not a regular file.
  explicit AtomicFile(std::string path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// The path as given.
  const std::string& path() const noexcept { return path_; }

  /// Writes at `offset`; what lies between written ranges reads as zeros. Throws FileError (a full disk, a limit).
  void write(std::uint64_t offset, std::span<const std::byte> bytes);

  /// fsync of the file, rename to path(), fsync of the folder. To be called once. Throws FileError; unless the folder's
  /// fsync was what failed, the old file is then still there and the temporary one is removed.
  void commit();

 private:
  void discard() noexcept;

  std::string path_;
  std::string target_;     // path_ with symbolic links resolved
  std::string temporary_;  // in the folder of target_
  int descriptor_ = -1;
};

}  // namespace thimble
