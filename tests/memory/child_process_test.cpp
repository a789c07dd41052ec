// Work in a child process: its result, its failures, and that nothing of it stays.

#include <thimble/memory/process/child_process.h>

#include <csignal>
#include <new>
#include <string>
#include <vector>

#include <unistd.h>

#include <thimble/core/error.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/process/heap_bound.h>
#include <thimble/memory/process/process.h>

#include "support/catch.h"
#include "support/sanitizer.h"

using namespace thimble;

TEST_CASE("child process: a result of any length comes back, changes do not", "[child_process]") {
  int changed = 0;
  const auto text = memory::in_child_process([&] {
    changed = 1;
    return std::string(3'000'000, 'x') + std::to_string(::getppid());
  });
  REQUIRE(text);
  CHECK(*text == std::string(3'000'000, 'x') + std::to_string(::getpid()));
  CHECK(changed == 0);
  const auto empty = memory::in_child_process([] { return std::string(); });
  REQUIRE(empty);
  CHECK(empty->empty());
}

TEST_CASE("child process: none where it throws or is killed", "[child_process]") {
  CHECK_FALSE(memory::in_child_process([]() -> std::string { throw ValueError("no"); }));
  CHECK_FALSE(memory::in_child_process([]() -> std::string {
    ::raise(SIGKILL);
    return "not reached";
  }));
  CHECK_FALSE(memory::in_child_process([]() -> std::string { ::_exit(0x1); }));
  int signal = 1;
  CHECK(memory::in_child_process([] { return std::string("done"); }, &signal));
  CHECK(signal == 0);
  memory::in_child_process(
      []() -> std::string {
        ::raise(SIGKILL);
        return "not reached";
      },
      &signal);
  CHECK(signal == SIGKILL);
}

TEST_CASE("heap room: what the smallest limit leaves beside half of the code", "[child_process]") {
  constexpr std::size_t MiB = std::size_t{1} << 20;
  const std::vector<memory::HostLimit> limits = {{"large", 5000 * MiB}, {"small", 4000 * MiB}};
  const std::size_t room = memory::heap_room(false, limits), beside = memory::heap_room(true, limits);
  CHECK(room < 4000 * MiB);
  CHECK(room >= 4000 * MiB - process::file_mapped_bytes() - 2 * MiB);
  CHECK(beside < room);
  CHECK(room - beside <= process::anonymous_rss_bytes() + MiB);
  CHECK(memory::heap_room(false, {{"tiny", 1}}) == 0);
  CHECK(memory::heap_room(true, {}) == ~std::size_t{0});
}

TEST_CASE("child process: kernels run there on several threads", "[child_process]") {
  std::vector<int> seen(64, 0);
  const auto work = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) seen[static_cast<std::size_t>(i)] = 1;
  };
  parallel_for(64, 1, work);  // the parent has its workers
  const auto text = memory::in_child_process([&] {
    seen.assign(64, 0);
    parallel_for(64, 1, work);
    std::string ones;
    for (const int one : seen) ones += one == 1 ? '1' : '0';
    return ones;
  });
  REQUIRE(text);
  CHECK(*text == std::string(64, '1'));
}

#if !defined(THIMBLE_TEST_HAS_SANITIZER)
TEST_CASE("heap bound: more is refused while it lasts, not before and not after", "[child_process]") {
  constexpr std::size_t MiB = std::size_t{1} << 20;
  const auto grow = [] {
    try {
      return std::vector<char>(64 * MiB).size() == 64 * MiB;
    } catch (const std::bad_alloc&) {
      return false;
    }
  };
  const auto text = memory::in_child_process([&]() -> std::string {
    std::string said = grow() ? "1" : "0";
    {
      const memory::HeapBound bound(process::data_bytes() + 8 * MiB);
      said += grow() ? "1" : "0";
      const memory::HeapBound inner(bound.bytes() + 512 * MiB);  // no way out of the outer one
      said += inner.bytes() == bound.bytes() && !grow() ? "0" : "1";
      said += std::vector<char>(2 * MiB).empty() ? "0" : "1";
    }
    return said + (grow() ? "1" : "0");
  });
  REQUIRE(text);
  CHECK(*text == "10011");
}

TEST_CASE("child process: what it takes from the heap goes with it", "[child_process]") {
  constexpr std::size_t MiB = std::size_t{1} << 20;
  const std::size_t before = process::data_bytes();
  const auto fill = [before] {
    std::vector<std::string> many;  // first in what the heap has free
    while (process::data_bytes() < before + 20 * MiB && many.size() < 10'000'000) {
      for (int i = 0; i < 10'000; ++i) many.emplace_back(100, 'y');
    }
    return std::to_string(process::data_bytes());
  };
  const auto inside = memory::in_child_process(fill);
  REQUIRE(inside);
  CHECK(std::stoull(*inside) >= before + 20 * MiB);
  CHECK(process::data_bytes() < before + MiB);
}
#endif
