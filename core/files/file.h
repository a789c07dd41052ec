#pragma once
// Files that are written whole or not at all.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

/// A file under construction. Bytes go to a temporary file in the target's folder. `commit` makes them durable and
/// replaces the target in one step (write, fsync, rename, fsync of the folder), so readers see the old file or the new
/// one, even after a crash or on a full disk. Without `commit` the destructor removes the temporary file, and the
/// target stays unchanged.
///
/// The temporary file has a random name and is locked while it is written. The constructor removes temporary files of
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

  /// Appends. Throws FileError with the offset at which writing stopped; the file can then no longer be committed.
  void write(std::span<const std::byte> bytes) { write(size_, bytes); }
  void write(std::string_view text);
  /// Writes at `offset`; gaps between written ranges read as zeros. Throws FileError.
  void write(std::uint64_t offset, std::span<const std::byte> bytes);

  /// End of the furthest write.
  std::uint64_t size() const noexcept { return size_; }

  /// Replaces the target and ends the writes. Throws FileError and leaves the old file, unless the message names the
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

/// Removes the file durably, if it exists; for an index, before the files that it lists are replaced. Throws FileError.
void remove_file(const std::string& path);

/// Writes `bytes` to `path` through an AtomicFile. Throws FileError.
void write_file_atomically(const std::string& path, std::span<const std::byte> bytes);
void write_file_atomically(const std::string& path, std::string_view text);

// Temporary files in the target's folder: `<name>.<16 random hexadecimal digits>.tmp`.
//
// - The writer holds a lock (flock) while the file is open, and the system drops it however the process ends. So a file
//   that can be locked is stale; process ids play no part.
// - On file systems without these locks no file counts as stale.

struct TemporaryFile {
  std::string path;
  int descriptor = -1;  ///< open for writing, locked; -1 on failure
  int error = 0;        ///< errno on failure
};

/// Makes a new file in `target`'s folder, with the name cut to leave room for the suffix. Skips names in use. `random`
/// gives the digits and defaults to the system's random numbers.
TemporaryFile make_temporary_file(const std::string& target, const std::function<std::uint64_t()>& random = {});

/// A random name of this form, which no file is likely to have.
std::string free_temporary_name(const std::string& target);

/// Removes the temporary files of `target` that no process holds, if it can. Returns their number.
int remove_stale_temporary_files(const std::string& target) noexcept;

/// The folder of a path, or "." if it names none.
std::string folder_of(const std::string& path);

}  // namespace thimble
