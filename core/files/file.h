#pragma once
// Files that are either written whole or not at all.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

/// A file under construction. Bytes go to a temporary file in the target's folder; `commit` makes them durable and
/// replaces the target in one step (write, fsync, rename, fsync of the folder): a reader, a crash or a full disk sees
/// the old file or the new one, never a mixture. Without `commit` the destructor removes the temporary file and the
/// target stays unchanged.
///
/// The temporary file has a random name and is locked while it is written; the constructor removes temporary files of
/// the same target that dead processes left behind.
///
/// An existing target keeps its permission bits. A symbolic link is followed: its target is replaced. Not thread-safe.
class AtomicFile {
 public:
  /// Opens the temporary file. Throws FileError when the folder does not exist or cannot be written, or when `path`
  /// exists and is not a regular file (a folder, a device, a pipe).
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// The path as given.
  const std::string& path() const noexcept { return path_; }

  /// Appends. Throws FileError with the offset at which writing stopped; the file can no longer be committed.
  void write(std::span<const std::byte> bytes) { write(size_, bytes); }
  void write(std::string_view text);
  /// Writes at `offset`; gaps between written ranges read as zeros. Throws FileError.
  void write(std::uint64_t offset, std::span<const std::byte> bytes);

  /// End of the furthest write.
  std::uint64_t size() const noexcept { return size_; }

  /// Replaces the target; no writes after it. Throws FileError and leaves the old file, unless the message names the
  /// folder's fsync: then the new file is in place but may not survive a power failure.
  void commit();

 private:
  [[noreturn]] void fail(const std::string& what, int error) const;

  std::string path_;       // as given, for messages
  std::string target_;     // with symbolic links resolved
  std::string temporary_;  // empty once it is renamed or removed
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// Removes the file, durably, before files that it names are replaced. Does nothing where there is none. Throws
/// FileError.
void remove_file(const std::string& path);

/// Writes `bytes` to `path` through an AtomicFile. Throws FileError.
void write_file_atomically(const std::string& path, std::span<const std::byte> bytes);
void write_file_atomically(const std::string& path, std::string_view text);

// Temporary files beside their target: `<name>.<16 random hexadecimal digits>.tmp`.
//
// - The writer holds a lock (flock) while the file is open, and the system drops the lock when the process ends,
//   however it ends. A file that can be locked is therefore stale; process ids play no part.
// - On file systems without such locks no file counts as stale.

struct TemporaryFile {
  std::string path;
  int descriptor = -1;  ///< open for writing, locked; -1 on failure
  int error = 0;        ///< then errno
};

/// Makes a new file beside `target`, whose name is cut to leave room for the suffix. Skips names in use. `random` gives
/// the digits and defaults to the system's random numbers.
TemporaryFile make_temporary_file(const std::string& target, const std::function<std::uint64_t()>& random = {});

/// A random name of that kind, so that no file has it yet.
std::string free_temporary_name(const std::string& target);

/// Removes the temporary files of `target` that no process holds. Returns how many; leaves files that it cannot remove.
int remove_stale_temporary_files(const std::string& target) noexcept;

/// The folder of a path: "." where it names none.
std::string folder_of(const std::string& path);

}  // namespace thimble
