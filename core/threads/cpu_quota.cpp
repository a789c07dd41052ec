#include <thimble/core/threads/cpu_quota.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace thimble {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<int> least(std::optional<int> a, std::optional<int> b) { return a && b ? std::min(*a, *b) : a ? a : b; }

// The least quota of a group and its parents, up to the mount. Inside a container the path may be the host's, so
// missing folders are ignored.
template <class Read>
std::optional<int> least_on_the_way(const std::string& mount, std::string group, Read&& read) {
  std::optional<int> quota;
  while (true) {
    quota = least(quota, read(mount + group + "/"));
    const std::size_t slash = group.rfind('/');
    if (slash == std::string::npos) return quota;
    group.resize(slash);
  }
}

bool names_cpu(std::string_view controllers) {
  const std::string list = "," + std::string(controllers) + ",";
  return list.find(",cpu,") != std::string::npos;
}

int machine_processors() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

std::optional<int> parse_cpu_max(std::string_view text) {
  std::int64_t quota = 0, period = 0;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, quota);
  if (error != std::errc{} || after == end || *after != ' ') return std::nullopt;
  const auto [last, second_error] = std::from_chars(after + 1, end, period);
  if (second_error != std::errc{} || last != end || quota <= 0 || period <= 0) return std::nullopt;
  constexpr std::int64_t most = 1 << 20;
  return static_cast<int>(std::min(most, (quota - 1) / period + 1));
}

std::optional<int> cpu_quota(const std::string& self, const std::string& root) {
  std::optional<int> quota;
  std::ifstream groups(self);
  for (std::string line; std::getline(groups, line);) {  // "<number>:<controllers>:<path>"
    const std::size_t first = line.find(':'), second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) {
      quota = least(quota, least_on_the_way(root, group, [](const std::string& folder) {
                      return parse_cpu_max(first_line(folder + "cpu.max"));
                    }));
    } else if (names_cpu(controllers)) {
      quota = least(quota, least_on_the_way(root + "/cpu", group, [](const std::string& folder) {
                      return parse_cpu_max(first_line(folder + "cpu.cfs_quota_us") + " " +
                                           first_line(folder + "cpu.cfs_period_us"));
                    }));
    }
  }
  return quota;
}

int available_processors() {
  const int processors = machine_processors();
  return std::min(processors, cpu_quota().value_or(processors));
}

}  // namespace thimble
