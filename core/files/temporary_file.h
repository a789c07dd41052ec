#pragma once
// Temporary files beside their target: `<name>.<16 random hexadecimal digits>.tmp`.
//
// - The writer holds a lock (flock) while the file is open, and the system drops the lock when the process ends,
//   however it ends. A file that can be locked is therefore stale; process ids play no part.
// - On file systems without such locks no file counts as stale.

#include <cstdint>
#include <functional>
#include <string>

namespace thimble {

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
