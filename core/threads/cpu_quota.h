#pragma once
// How many processors this process may keep busy.

#include <optional>
#include <string>
#include <string_view>

namespace thimble {

/// Processors' worth of time in a line of a control group's cpu.max, "<quota> <period>" in microseconds, rounded up;
/// nullopt for "max" and for malformed text.
std::optional<int> parse_cpu_max(std::string_view text);

/// The least quota, in processors, of the control group that `self` (as /proc/self/cgroup) names and of its parents;
/// nullopt without one. `root` is where the groups are mounted. Reads cpu.max of version 2, and of version 1
/// cpu.cfs_quota_us and cpu.cfs_period_us under <root>/cpu.
std::optional<int> cpu_quota(const std::string& self = "/proc/self/cgroup", const std::string& root = "/sys/fs/cgroup");

/// The processors of the process's affinity mask, or of the machine where there is none; at most its quota, at least 1.
int available_processors();

}  // namespace thimble
