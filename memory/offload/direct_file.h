#pragma once
// A nameless file on a disk, read and written past the page cache.
//
// Policy
// - Bytes that are offloaded to make room must not come back as cached pages: the file is opened for direct I/O
//   (O_DIRECT), and a file system that keeps its files in memory (tmpfs, ramfs) or cannot do direct I/O is refused.
//   There is no fallback.
// - The file loses its name as soon as it is open, so that nothing stays behind, however the process ends.

#include <cstddef>
#include <cstdint>
#include <string>

namespace thimble {

class DirectFile {
 public:
  /// Offsets, lengths and addresses are multiples of this.
  static constexpr std::size_t alignment = 4096;

  /// Makes the file in `folder`. Throws FileError naming the folder and the supported file systems.
  explicit DirectFile(const std::string& folder);
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  /// Allocates [offset, offset + bytes) on the disk now, not at the first write. Throws FileError when the disk (or the
  /// process's limit of a file's size) has no room.
  void reserve(std::uint64_t offset, std::uint64_t bytes);

  /// Both return 0 or an errno, and may be called by several threads at once.
  int write(std::uint64_t offset, const std::byte* from, std::size_t bytes) noexcept;
  int read(std::uint64_t offset, std::byte* to, std::size_t bytes) noexcept;

  const std::string& folder() const noexcept { return folder_; }

 private:
  std::string folder_;
  int descriptor_ = -1;
};

}  // namespace thimble
