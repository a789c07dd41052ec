#pragma once
// The bytes that the machine and its limits let this process hold. A run that needs more is refused before its first
// step instead of killed in the middle.
//
// Policy
// - The limits are RLIMIT_DATA, RLIMIT_AS, the memory limits of the process's control group and of every group above
//   it, in both versions of the interface, and the machine's free memory. Swap does not count: a run that swaps crawls.
// - Each limit is a total for this process, in arenas and outside. Bytes of other processes in the group or machine are
//   subtracted; the kernel's cache of files is not, because the kernel gives it up.
// - A control group also pays for page tables, at most 8 bytes for each 4 KiB. They may displace half of the code,
//   which the kernel drops and reads again; page tables beyond that are added to the need.
// - A limit that cannot be read does not count.
//
// Terms
//   need    bytes in the arena and outside it (memory/process/outside.h), at the peak
//   limit   bytes that the process may hold

#include <cstddef>
#include <string>
#include <vector>

#include <thimble/memory/process/outside.h>

namespace thimble::memory {

struct HostLimit {
  std::string name;            ///< "RLIMIT_DATA", "memory.max of the control group /a/b", "free memory (MemAvailable)"
  std::size_t most_bytes = 0;  ///< total that this process may hold
  bool counts_tables = false;  ///< whether page tables count against it
};

/// The folders of the kernel's files; tests name another tree.
struct HostPaths {
  std::string proc = "/proc";              ///< self/cgroup, self/status, meminfo
  std::string cgroups = "/sys/fs/cgroup";  ///< version 2, or version 1 with its folder `memory`
  bool has_rlimits = true;                 ///< false skips RLIMIT_DATA and RLIMIT_AS
};

/// The existing limits, smallest first.
std::vector<HostLimit> host_limits(const HostPaths& paths = {});

/// Whether RLIMIT_AS bounds this process; arenas should then reserve only their need.
bool has_address_limit() noexcept;

struct HostNeed {
  std::size_t arena_bytes = 0;
  OutsideBytes outside;
  std::size_t total() const noexcept { return arena_bytes + outside.total(); }
};

/// Throws OutOfMemory if the need exceeds a limit, naming the limit, the need, its parts, and the largest arena that
/// fits.
void require_room(const HostNeed& need, const std::vector<HostLimit>& limits);
inline void require_room(const HostNeed& need) { require_room(need, host_limits()); }

/// The control group's peak so far (memory.peak, memory.max_usage_in_bytes), other processes and cached files included;
/// 0 if it cannot be read.
std::size_t control_group_peak_bytes(const HostPaths& paths = {});

}  // namespace thimble::memory
