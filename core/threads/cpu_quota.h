#pragma once
// The number of processors that this process may keep busy.

#include <optional>
#include <string>
#include <string_view>

namespace thimble {

/// The quota in a control group's cpu.max, "<quota> <period>" in microseconds, as processors, rounded up; nullopt for
/// "max" and for malformed text.
std::optional<int> parse_cpu_max(std::string_view text);

/// The least quota, in processors, of the control group named in `self` and of its parents; nullopt without one. `root`
/// is the groups' mount point. Reads cpu.max of version 2, and of version 1 cpu.cfs_quota_us and cpu.cfs_period_us
/// under <root>/cpu.
std::optional<int> cpu_quota(const std::string& self = "/proc/self/cgroup", const std::string& root = "/sys/fs/cgroup");

/// The number of processors in the process's affinity mask, else in the machine; at most its quota, at least 1.
int available_processors();

}  // namespace thimble
