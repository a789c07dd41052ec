#include <thimble/memory/process/process.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <string>

#include <thimble/core/error.h>

namespace thimble::process {
namespace {

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

/// The first 8 KiB of a kernel file; empty when it cannot be read. Allocates nothing, so that it works inside a failing
/// allocation.
struct SmallFile {
  explicit SmallFile(const char* path) noexcept {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    std::size_t length = 0;
    while (length + 1 < sizeof text) {
      const ssize_t got = read(file, text + length, sizeof text - 1 - length);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      length += static_cast<std::size_t>(got);
    }
    close(file);
    text[length] = '\0';
  }
  char text[8192] = {};
};

/// The number after `key` at the start of a line of `text`; false without one.
bool find_number(const char* text, const char* key, std::size_t& number) noexcept {
  const std::size_t key_length = std::strlen(key);
  for (const char* line = text; line != nullptr && *line != '\0';) {
    if (std::strncmp(line, key, key_length) == 0) {
      number = std::strtoull(line + key_length, nullptr, 10);
      return true;
    }
    line = std::strchr(line, '\n');
    if (line != nullptr) ++line;
  }
  return false;
}

/// Bytes of the figure after `key` in a file of /proc that counts in KiB.
std::size_t kernel_bytes(const char* path, const char* key) {
  const SmallFile file(path);
  std::size_t kib = 0;
  if (!find_number(file.text, key, kib)) {
    throw Error(std::string("process: no '") + key + "' in " + path + "; these figures need Linux's /proc");
  }
  return kib * 1024;
}

/// The memory files of the process's control group, in either version of the interface.
struct ControlGroup {
  char limit[512] = {}, usage[512] = {}, statistics[512] = {};
  const char* cache_key = "";

  ControlGroup() noexcept {
    const SmallFile groups("/proc/self/cgroup");
    for (const char* line = groups.text; line != nullptr && *line != '\0';) {
      const char* end = std::strchr(line, '\n');
      const auto length = static_cast<int>(end != nullptr ? end - line : std::strlen(line));
      const char* const memory = std::strstr(line, ":memory:");
      if (std::strncmp(line, "0::/", 4) == 0 && limit[0] == '\0') {
        name("/sys/fs/cgroup", line + 3, length - 3, "memory.max", "memory.current", "file ");
      } else if (memory != nullptr && memory < line + length) {
        const char* const path = memory + std::strlen(":memory:");
        name("/sys/fs/cgroup/memory", path, length - static_cast<int>(path - line), "memory.limit_in_bytes",
             "memory.usage_in_bytes", "total_cache ");
      }
      line = end != nullptr ? end + 1 : nullptr;
    }
  }

 private:
  void name(const char* root, const char* path, int length, const char* limit_name, const char* usage_name,
            const char* key) noexcept {
    char candidate[512];
    // Inside a container the path is the host's, and the group is mounted as the root.
    for (const int shown : {length, 0}) {
      std::snprintf(candidate, sizeof candidate, "%s%.*s/%s", root, shown, path, limit_name);
      if (access(candidate, R_OK) != 0) continue;
      std::memcpy(limit, candidate, sizeof limit);
      std::snprintf(usage, sizeof usage, "%s%.*s/%s", root, shown, path, usage_name);
      std::snprintf(statistics, sizeof statistics, "%s%.*s/memory.stat", root, shown, path);
      cache_key = key;
      return;
    }
  }
};

std::size_t control_group_bytes() noexcept {
  static const ControlGroup group;
  if (group.limit[0] == '\0') return unlimited;
  const SmallFile limit(group.limit);
  if (limit.text[0] < '0' || limit.text[0] > '9') return unlimited;  // "max", or unreadable
  const std::size_t limit_bytes = std::strtoull(limit.text, nullptr, 10);
  if (limit_bytes >= unlimited / 4) return unlimited;  // version 1 writes "no limit" as a huge number of whole pages
  const std::size_t usage_bytes = std::strtoull(SmallFile(group.usage).text, nullptr, 10);
  std::size_t cache_bytes = 0;  // file pages: reclaimed before the limit hurts
  find_number(SmallFile(group.statistics).text, group.cache_key, cache_bytes);
  const std::size_t held_bytes = usage_bytes - std::min(usage_bytes, cache_bytes);
  return limit_bytes - std::min(limit_bytes, held_bytes);
}

}  // namespace

std::size_t rss_bytes() { return kernel_bytes("/proc/self/status", "VmRSS:"); }
std::size_t anonymous_rss_bytes() { return kernel_bytes("/proc/self/smaps_rollup", "Anonymous:"); }
std::size_t peak_rss_bytes() { return kernel_bytes("/proc/self/status", "VmHWM:"); }
std::size_t data_bytes() { return kernel_bytes("/proc/self/status", "VmData:"); }

std::size_t address_space_bytes() { return kernel_bytes("/proc/self/status", "VmSize:"); }

bool reset_peak_rss() noexcept {
  const int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool is_written = write(file, "5", 1) == 1;
  close(file);
  return is_written;
}

std::size_t file_mapped_bytes() {
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) throw Error("process: cannot read /proc/self/maps; these figures need Linux's /proc");
  std::size_t bytes = 0;
  char line[4608];  // ends in a path
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long long first = 0, last = 0, inode = 0;
    char rights[5] = {};
    if (std::sscanf(line, "%llx-%llx %4s %*x %*s %llu", &first, &last, rights, &inode) != 4) continue;
    if (inode != 0 && rights[0] == 'r') bytes += static_cast<std::size_t>(last - first);
  }
  std::fclose(maps);
  return bytes;
}

std::size_t mapping_rss_bytes(const void* begin, std::size_t bytes) {
  std::FILE* smaps = std::fopen("/proc/self/smaps", "re");
  if (smaps == nullptr) throw Error("process: cannot read /proc/self/smaps; these figures need Linux's /proc");
  const auto range_first = reinterpret_cast<std::uintptr_t>(begin);
  std::size_t rss = 0;
  bool is_inside = false;
  char line[4608];  // a mapping's line ends in a path
  while (std::fgets(line, sizeof line, smaps) != nullptr) {
    unsigned long long first = 0, last = 0;
    std::size_t kib = 0;
    if (std::sscanf(line, "%llx-%llx ", &first, &last) == 2) {
      is_inside = first >= range_first && last <= range_first + bytes;
    } else if (is_inside && find_number(line, "Rss:", kib)) {
      rss += kib * 1024;
    }
  }
  std::fclose(smaps);
  return rss;
}

std::size_t physical_bytes() noexcept {
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(page_bytes) : 0;
}

std::size_t available_bytes() noexcept {
  std::size_t machine = unlimited;
  std::size_t kib = 0;
  if (find_number(SmallFile("/proc/meminfo").text, "MemAvailable:", kib)) machine = kib * 1024;
  return std::min(machine, control_group_bytes());
}

double processor_ms() noexcept {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

}  // namespace thimble::process

namespace thimble::memory {
namespace {

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();
/// A sanitizer's shadow is private and writable, and exceeds any bound.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool is_bounded = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
constexpr bool is_bounded = false;
#else
constexpr bool is_bounded = true;
#endif
#else
constexpr bool is_bounded = true;
#endif
/// Page tables, kernel stacks, pages that the kernel counts late.
constexpr std::size_t kernel_bytes = std::size_t{1} << 20;

std::size_t soft_limit() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_DATA, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return unlimited;
  return static_cast<std::size_t>(limit.rlim_cur);
}

void set_soft_limit(std::size_t bytes) noexcept {
  rlimit limit{};
  if (!is_bounded || getrlimit(RLIMIT_DATA, &limit) != 0) return;
  limit.rlim_cur = bytes == unlimited ? RLIM_INFINITY : static_cast<rlim_t>(bytes);
  setrlimit(RLIMIT_DATA, &limit);
}

}  // namespace

std::size_t heap_room(const std::vector<HostLimit>& limits) {
  std::size_t most = unlimited;
  for (const HostLimit& limit : limits) most = std::min(most, limit.most_bytes);
  if (most == unlimited) return most;
  const std::size_t others = process::file_mapped_bytes() / 2 + kernel_bytes;
  return most - std::min(most, others);
}

HeapBound::HeapBound(std::size_t bytes) noexcept : bytes_(std::min(bytes, soft_limit())), before_(soft_limit()) {
  if (bytes_ < before_) set_soft_limit(bytes_);
}

HeapBound::~HeapBound() {
  if (bytes_ < before_) set_soft_limit(before_);
}

}  // namespace thimble::memory
