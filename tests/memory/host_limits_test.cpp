// The machine's memory limits for a process, read from fake kernel files and from a real limit.

#include <thimble/memory/process/host_limits.h>

#include <sys/resource.h>

#include <filesystem>

#include <thimble/core/error.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/stack.h>

#include "program/spawned.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/sanitizer.h"

using namespace thimble;
using namespace files_test;
using spawned_test::in_child;

namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr std::size_t counting = 64 * 4096;  // the kernel's counters may lag behind by this much

/// A tree of fake files for /proc and control groups.
struct Tree {
  Tree() {
    paths.proc = folder / "proc";
    paths.cgroups = folder / "cgroup";
    paths.has_rlimits = false;
    write("proc/self/status", "Name:\tx\nRssAnon:\t    2048 kB\n");  // 2 MiB
  }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
    write_text_file(folder / name, text);
  }
  /// A control group of version 2; "" is the root.
  void group(const std::string& path, const std::string& most, std::size_t anonymous, std::size_t shared) const {
    const std::string at = "cgroup" + path + "/";
    write(at + "memory.max", most + "\n");
    write(at + "memory.stat",
          "anon " + std::to_string(anonymous) + "\nfile 99999999\nkernel 3\nshmem " + std::to_string(shared) + "\n");
  }
  /// A control group of version 1.
  void old_group(const std::string& path, const std::string& most, std::size_t anonymous, std::size_t shared) const {
    const std::string at = "cgroup/memory" + path + "/";
    write(at + "memory.limit_in_bytes", most + "\n");
    write(at + "memory.stat", "cache 1\nrss 7\ntotal_cache 99999999\ntotal_rss " + std::to_string(anonymous) +
                                  "\ntotal_shmem " + std::to_string(shared) + "\n");
  }

  TemporaryFolder folder;
  memory::HostPaths paths;
};

[[maybe_unused]] const memory::HostLimit* find(const std::vector<memory::HostLimit>& limits, const std::string& part) {
  for (const memory::HostLimit& limit : limits) {
    if (limit.name.find(part) != std::string::npos) return &limit;
  }
  return nullptr;
}

memory::HostNeed need_of(std::size_t arena_bytes) {
  memory::OutsideBytes outside;
  outside.code = 6 * MiB, outside.heap = 3 * MiB, outside.threads = 1 * MiB;
  return {arena_bytes, outside};
}

std::string refusal_of(const memory::HostNeed& need, const std::vector<memory::HostLimit>& limits) {
  try {
    memory::require_room(need, limits);
  } catch (const OutOfMemory& error) {
    CHECK(error.facts().requested_bytes == need.total());
    CHECK(error.facts().capacity_bytes < need.total());
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("host limits: control groups of version 2, and those above", "[host_limits]") {
  Tree tree;
  tree.write("proc/self/cgroup", "0::/a/b\n1:name=systemd:/c\n");
  tree.write("cgroup/cgroup.controllers", "cpu memory\n");
  // The root group has no memory files.
  tree.group("/a", std::to_string(500 * MiB), 90 * MiB, 10 * MiB);
  tree.group("/a/b", "max", 20 * MiB, 0);
  auto limits = memory::host_limits(tree.paths);
  REQUIRE(limits.size() == 1);
  CHECK(limits[0].name == "memory.max of the control group /a");
  CHECK(limits[0].counts_tables);
  // The group uses 90 + 10 MiB, of which 2 MiB belong to this process.
  CHECK(limits[0].most_bytes == (500 - 98) * MiB + counting);

  tree.group("/a/b", std::to_string(100 * MiB), 1 * MiB, 0);  // uses less than the process does
  limits = memory::host_limits(tree.paths);
  REQUIRE(limits.size() == 2);
  CHECK(limits[0].name == "memory.max of the control group /a/b");  // smallest first
  CHECK(limits[0].most_bytes == 100 * MiB);

  // In a container the path is the host's, while the group is mounted as the root.
  Tree container;
  container.write("proc/self/cgroup", "0::/docker/0123\n");
  container.write("cgroup/cgroup.controllers", "memory\n");
  container.group("", std::to_string(64 * MiB), 10 * MiB, 0);
  limits = memory::host_limits(container.paths);
  REQUIRE(limits.size() == 1);
  CHECK(limits[0].name == "memory.max of the control group /");
  CHECK(limits[0].most_bytes == 56 * MiB + counting);
  container.write("proc/self/cgroup", "0::/../outside\n");
  CHECK(memory::host_limits(container.paths).size() == 1);

  container.write("cgroup/memory.peak", "12345\n");
  CHECK(memory::control_group_peak_bytes(container.paths) == 12345);
}

TEST_CASE("host limits: control groups of version 1, beside an empty version 2", "[host_limits]") {
  Tree tree;
  tree.write("proc/self/cgroup", "9:name=systemd:/\n5:cpu,cpuacct:/x\n4:memory:/x/y\n0::/\n");
  tree.old_group("/x/y", std::to_string(300 * MiB), 32 * MiB, 10 * MiB);
  tree.old_group("/x", "4611686018427387903", 50 * MiB, 0);  // values from here on mean no limit
  tree.old_group("", std::to_string(200 * MiB), 50 * MiB, 0);
  tree.write("cgroup/memory/x/y/memory.max_usage_in_bytes", "777\n");
  const auto limits = memory::host_limits(tree.paths);
  REQUIRE(limits.size() == 2);
  CHECK(limits[0].name == "memory.limit_in_bytes of the control group /");
  CHECK(limits[0].most_bytes == 152 * MiB + counting);
  CHECK(limits[1].name == "memory.limit_in_bytes of the control group /x/y");
  CHECK(limits[1].most_bytes == 260 * MiB + counting);
  CHECK(memory::control_group_peak_bytes(tree.paths) == 777);
}

TEST_CASE("host limits: free memory, and nothing where nothing can be read", "[host_limits]") {
  Tree tree;
  CHECK(memory::host_limits(tree.paths).empty());
  CHECK(memory::control_group_peak_bytes(tree.paths) == 0);
  tree.write("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   10240 kB\n");
  const auto limits = memory::host_limits(tree.paths);
  REQUIRE(limits.size() == 1);
  CHECK(limits[0].name == "free memory (MemAvailable)");
  CHECK(limits[0].most_bytes == 12 * MiB);  // includes the memory that this process already holds
}

TEST_CASE("host limits: a need above a limit is refused in words", "[host_limits]") {
  const std::vector<memory::HostLimit> limits{{"RLIMIT_DATA", 110 * MiB}, {"free memory (MemAvailable)", 150 * MiB}};
  CHECK(refusal_of(need_of(100 * MiB), limits).empty());  // an exact fit
  const std::string text = refusal_of(need_of(100 * MiB + 1), limits);
  for (const char* part :
       {"RLIMIT_DATA allows 110.00 MiB", "needs 110.00 MiB (115343361 B)", "code 6.00 MiB", "heap 3.00 MiB",
        "threads 1.00 MiB", "an arena of 100.00 MiB (104857600 B) would fit", "nothing was begun"}) {
    INFO(part << " in " << text);
    CHECK(text.find(part) != std::string::npos);
  }
  // Page tables of 2 GiB take 4 MiB; 3 of them may replace code.
  const std::size_t large = 2048 * MiB;
  const std::size_t sum = need_of(large).total();
  CHECK(refusal_of(need_of(large), {{"memory.max", sum}}).empty());
  CHECK_THROWS_AS(memory::require_room(need_of(large), {{"memory.max", sum + MiB - 1, true}}), OutOfMemory);
  CHECK_NOTHROW(memory::require_room(need_of(large), {{"memory.max", sum + MiB, true}}));
  const std::string none = refusal_of(need_of(1), {{"memory.max of the control group /a", 10 * MiB}});
  CHECK(none.find("less than the process takes outside of an arena") != std::string::npos);
}

#ifndef THIMBLE_TEST_HAS_SANITIZER
TEST_CASE("host limits: limits of this process", "[host_limits]") {
  const std::size_t most = process::data_bytes() + 64 * MiB;
  const int result = in_child([most] {
    const rlimit limit{most, most};
    if (setrlimit(RLIMIT_DATA, &limit) != 0) return 1;
    const memory::HostLimit* const data = find(memory::host_limits(), "RLIMIT_DATA");
    if (data == nullptr || data->most_bytes != most + process::file_mapped_bytes()) return 2;
    const std::size_t addresses = process::address_space_bytes() + 256 * MiB;
    const rlimit more{addresses, addresses};
    if (memory::has_address_limit()) return 3;
    if (setrlimit(RLIMIT_AS, &more) != 0) return 4;
    if (!memory::has_address_limit()) return 5;
    const memory::HostLimit* const space = find(memory::host_limits(), "RLIMIT_AS");
    // An arena's guards take 6 of the remaining 256 MiB.
    const std::size_t held = process::data_bytes() + process::file_mapped_bytes();
    if (space == nullptr || space->most_bytes != held + 250 * MiB) return 6;
    return 0;
  });
  CHECK(result == 0);
}

TEST_CASE("host limits: what is promised to fit a limit fits it, and one page less is refused", "[host_limits]") {
  const int result = in_child([] {
    constexpr std::size_t arena_bytes = 40 * MiB;
    const memory::OutsideBytes outside = memory::outside_bytes(memory::ProcessBase::measure(), {});
    const std::size_t sum = arena_bytes + outside.total();
    const std::size_t beside_code = sum - outside.code;  // RLIMIT_DATA does not count code
    const rlimit tight{beside_code - 4096, RLIM_INFINITY};
    if (setrlimit(RLIMIT_DATA, &tight) != 0) return 1;
    try {
      memory::require_room({arena_bytes, outside});
      return 2;
    } catch (const OutOfMemory&) {
    }
    const rlimit limit{beside_code, beside_code};
    if (setrlimit(RLIMIT_DATA, &limit) != 0) return 3;
    memory::require_room({arena_bytes, outside});
    const memory::Stack stack = memory::make_resource(cpu);
    memory::Block* const block = stack.top->allocate({.bytes = arena_bytes});
    stack.top->deallocate(block, nullptr);
    return 0;
  });
  CHECK(result == 0);
}
#endif
