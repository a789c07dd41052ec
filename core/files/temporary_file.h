#pragma once
// Temporary files beside the file that they are to replace: `<name>.<16 hexadecimal digits>.tmp`, the digits random.
//
// - Whoever writes one holds a lock on it (flock) for as long as it is open, and the system drops that lock when the
//   process ends, however it ends. One that can be locked is therefore stale, whatever process ids say.
// - Where a file system has no such locks nothing is taken for stale.

#include <cstdint>
#include <functional>
#include <string>

namespace thimble {

struct TemporaryFile {
  std::string path;
  int descriptor = -1;  ///< open for writing, locked; -1: none
  int error = 0;        ///< then errno
};

/// Makes a new file beside `target`, whose name is cut where the suffix would make it too long. A name that is taken
/// is passed over for another. `random` gives the digits; none: the system's random numbers.
TemporaryFile make_temporary_file(const std::string& target, const std::function<std::uint64_t()>& random = {});

/// A name of that kind: random, so that nothing has it yet.
std::string free_temporary_name(const std::string& target);

/// Removes the temporary files of `target` that no process holds. Returns how many; what cannot be removed is left.
int remove_stale_temporary_files(const std::string& target) noexcept;

/// The folder that a path's last part is in: "." where it names none.
std::string folder_of(const std::string& path);

}  // namespace thimble
