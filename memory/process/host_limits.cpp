#include <thimble/memory/process/host_limits.h>

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>

#include <thimble/core/error.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/units.h>

namespace thimble::memory {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();
/// Version 1 of control groups writes "no limit" as a huge number of whole pages.
constexpr std::size_t huge = no_limit / 4;

/// The kernel updates counts in batches of up to 64 pages: a group's and a process's counts differ by so much.
constexpr std::size_t counting_bytes = 64 * 4096;

/// An arena's mapping beyond its range: a guard granule on each side, and less than one for aligning it.
constexpr std::size_t guard_bytes = std::size_t{6} << 20;

/// The whole number at the start of a file; nullopt for "max" or an unreadable file.
std::optional<std::size_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word) || word.empty() || word[0] < '0' || word[0] > '9') return std::nullopt;
  return std::stoull(word);
}

/// The number after `key` at the start of a line.
std::optional<std::size_t> number_after(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    std::istringstream rest(line.substr(key.size()));
    std::size_t number = 0;
    if (rest >> number) return number;
  }
  return std::nullopt;
}

std::size_t less(std::size_t from, std::size_t bytes) noexcept { return from - std::min(from, bytes); }

/// One version of the control groups' interface: its root folder and its file names.
struct Interface {
  fs::path root;
  const char *limit, *peak, *anonymous_key, *shared_key;  // the keys are memory.stat's
};

struct Group {
  Interface interface;
  std::string path;  ///< "/a/b", as the kernel names it
};

std::optional<Interface> version_2(const HostPaths& paths) {
  std::error_code error;
  // Where both versions are in use, version 2 is mounted below version 1, without a memory controller.
  const fs::path root = fs::path(paths.cgroups);
  if (!fs::exists(root / "cgroup.controllers", error)) return std::nullopt;
  return Interface{root, "memory.max", "memory.peak", "anon ", "shmem "};
}

/// The group that counts this process's memory; nullopt without one.
std::optional<Group> memory_group(const HostPaths& paths) {
  std::ifstream file(fs::path(paths.proc) / "self" / "cgroup");
  std::optional<Group> second;
  for (std::string line; std::getline(file, line);) {  // ID:controllers:path
    const std::size_t first = line.find(':'), next = line.find(':', first + 1);
    if (first == std::string::npos || next == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, next - first - 1) + ",";
    const std::string path = line.substr(next + 1);
    if (controllers.find(",memory,") != std::string::npos) {
      return Group{{fs::path(paths.cgroups) / "memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes",
                    "total_rss ", "total_shmem "},
                   path};
    }
    if (controllers != ",,") continue;
    if (const auto interface = version_2(paths)) second = Group{*interface, path};
  }
  return second;
}

/// The existing folders of the group and all groups above it, innermost first. Inside a container the path is the
/// host's, and the group is mounted as the root.
std::vector<std::pair<std::string, fs::path>> folders_of(const Group& group) {
  std::vector<std::pair<std::string, fs::path>> list;
  std::error_code error;
  fs::path path = fs::path(group.path).lexically_normal();
  const bool is_seen = group.path.find("..") == std::string::npos &&
                       fs::is_directory(group.interface.root / path.relative_path(), error);
  if (!is_seen) path = "/";
  while (true) {
    list.emplace_back(path.string(), group.interface.root / path.relative_path());
    if (!path.has_relative_path()) return list;
    path = path.parent_path();
  }
}

/// Bytes that a group's limit leaves to this process: the limit less the bytes of the group's other processes.
std::optional<std::size_t> most_of(const Interface& interface, const fs::path& folder, std::size_t own_bytes) {
  const std::optional<std::size_t> limit = number_in(folder / interface.limit);
  if (!limit || *limit >= huge) return std::nullopt;
  const fs::path statistics = folder / "memory.stat";
  const std::size_t held = number_after(statistics, interface.anonymous_key).value_or(0) +
                           number_after(statistics, interface.shared_key).value_or(0);
  return less(*limit, less(held, own_bytes + counting_bytes));
}

void add_rlimits(std::vector<HostLimit>& list) {
  rlimit limit{};
  if (getrlimit(RLIMIT_DATA, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const auto bytes = static_cast<std::size_t>(limit.rlim_cur);
    list.push_back({"RLIMIT_DATA of " + exact_bytes(bytes) + " beside code", bytes + process::file_mapped_bytes()});
  }
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    // Reserved addresses count too.
    const std::size_t held = process::data_bytes() + process::file_mapped_bytes();
    const std::size_t reserved = less(process::address_space_bytes(), held);
    list.push_back({"RLIMIT_AS", less(static_cast<std::size_t>(limit.rlim_cur), reserved + guard_bytes)});
  }
}

}  // namespace

std::vector<HostLimit> host_limits(const HostPaths& paths) {
  std::vector<HostLimit> list;
  if (paths.has_rlimits) add_rlimits(list);
  const fs::path proc(paths.proc);
  const std::size_t own_bytes = 1024 * number_after(proc / "self" / "status", "RssAnon:").value_or(0);
  if (const auto group = memory_group(paths)) {
    for (const auto& [name, folder] : folders_of(*group)) {
      const auto most = most_of(group->interface, folder, own_bytes);
      if (most) list.push_back({std::string(group->interface.limit) + " of the control group " + name, *most, true});
    }
  }
  if (const auto available = number_after(proc / "meminfo", "MemAvailable:")) {
    list.push_back({"free memory (MemAvailable)", 1024 * *available + own_bytes});
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const HostLimit& a, const HostLimit& b) { return a.most_bytes < b.most_bytes; });
  return list;
}

bool has_address_limit() noexcept {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

void require_room(const HostNeed& need, const std::vector<HostLimit>& limits) {
  for (const HostLimit& limit : limits) {
    const std::size_t tables = limit.counts_tables ? need.arena_bytes / 512 : 0;
    const std::size_t total = need.total() + less(tables, need.outside.code / 2);
    if (total <= limit.most_bytes) continue;
    const std::size_t left = less(limit.most_bytes, total - need.arena_bytes);
    const std::string room = left > 0 ? "an arena of " + exact_bytes(left) + " would fit (a budget, if a plan keeps it)"
                                      : "which is less than the process takes outside of an arena";
    throw OutOfMemory("memory: the run needs " + exact_bytes(total) + ", the arena " + exact_bytes(need.arena_bytes) +
                          " and outside of it " + to_string(need.outside) + "; " + limit.name + " allows " +
                          exact_bytes(limit.most_bytes) + ", " + room + "; nothing was begun",
                      {total, 0, 0, limit.most_bytes, left});
  }
}

std::size_t control_group_peak_bytes(const HostPaths& paths) {
  const auto group = memory_group(paths);
  if (!group) return 0;
  return number_in(folders_of(*group).front().second / group->interface.peak).value_or(0);
}

}  // namespace thimble::memory
