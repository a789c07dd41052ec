// parallel_for and parallel_threads: every block once, whole grains, nesting, thread counts.

#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/settings.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/cpu_quota.h>
#include <thimble/core/threads/parallel.h>

#include "support/catch.h"
#include "support/files.h"

using namespace thimble;

namespace parallel_test {

struct RestoreThreads {
  int saved = thread_count();
  ~RestoreThreads() { set_thread_count(saved); }
};

}  // namespace parallel_test

TEST_CASE("parallel: every element once, in whole grains", "[parallel]") {
  parallel_test::RestoreThreads restore;
  for (const int threads : {1, 2, 5, 17}) {
    set_thread_count(threads);
    for (const std::int64_t count : {0, 1, 7, 64, 1000}) {
      for (const std::int64_t grain : {1, 3, 64, 5000}) {
        INFO(threads << " threads, " << count << " elements, grain " << grain);
        std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
        std::atomic<int> broken{0};
        parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
          if (begin % grain != 0 || (end % grain != 0 && end != count) || begin >= end) ++broken;
          for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
        });
        int wrong = 0;
        for (const auto& visit : visits) wrong += visit != 1;
        CHECK(wrong == 0);
        CHECK(broken == 0);
      }
    }
  }
}

TEST_CASE("parallel: while one thread is held up, others compute the rest of its part", "[parallel]") {
  parallel_test::RestoreThreads restore;
  set_thread_count(2);
  for (const int held : {0, 1}) {  // as if its processor were busy
    constexpr std::int64_t count = 160, grain = 5;
    std::atomic<std::int64_t> left{count};
    std::atomic<bool> is_late{false};
    parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
      const bool is_held = begin == held * count / 2;
      const auto start = std::chrono::steady_clock::now();
      while (is_held && left > end - begin && !is_late) {
        is_late = std::chrono::steady_clock::now() - start > std::chrono::seconds(60);
        std::this_thread::yield();
      }
      left -= end - begin;
    });
    CHECK(left == 0);
    CHECK_FALSE(is_late);
  }
}

TEST_CASE("parallel: every thread index once, nested calls in the caller's thread", "[parallel]") {
  parallel_test::RestoreThreads restore;
  set_thread_count(6);
  std::vector<std::atomic<int>> outer(6), inner(6 * 4);
  parallel_threads(6, [&](int thread) {
    ++outer[static_cast<std::size_t>(thread)];
    int order = 0;
    parallel_threads(4, [&, caller = std::this_thread::get_id()](int nested) {
      if (nested == order++ && caller == std::this_thread::get_id())
        ++inner[static_cast<std::size_t>(thread * 4 + nested)];
    });
    parallel_for(10, 2, [&](std::int64_t begin, std::int64_t end) {
      if (begin != 0 || end != 10) inner[0] += 100;
    });
  });
  for (const auto& visit : outer) CHECK(visit == 1);
  for (const auto& visit : inner) CHECK(visit == 1);
}

TEST_CASE("parallel: thread counts are checked", "[parallel]") {
  parallel_test::RestoreThreads restore;
  CHECK(thread_count() >= 1);
  set_thread_count(1000);
  CHECK(thread_count() == 1000);
  CHECK_THROWS_AS(set_thread_count(0), ValueError);
  CHECK_THROWS_AS(set_thread_count(-3), ValueError);
  CHECK(thread_count() == 1000);
}

// ---- The team of threads: every part once, with any number of threads, in nested calls, during another caller's call,
// after a fork; and the number of processors that a process may use.

namespace {

struct Threads {
  int before = thread_count();
  ~Threads() { set_thread_count(before); }
};

// How often a call computed each part.
std::vector<int> counts(int threads) {
  std::vector<std::atomic<int>> counters(static_cast<std::size_t>(threads));
  parallel_threads(threads, [&](int part) { counters[static_cast<std::size_t>(part)].fetch_add(1); });
  return {counters.begin(), counters.end()};
}

// 0 + 1 + ... + (n - 1), in grains.
std::int64_t sum_below(std::int64_t n) {
  std::atomic<std::int64_t> sum{0};
  parallel_for(n, 7, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t part = 0;
    for (std::int64_t i = begin; i < end; ++i) part += i;
    sum.fetch_add(part);
  });
  return sum;
}

// The status of a child that runs `body`; -1 if it has not ended after ten seconds.
template <class Body>
int in_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  for (int i = 0; i < 1000; ++i) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
    usleep(10'000);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return -1;
}

}  // namespace

TEST_CASE("parallel: every part is computed once, whatever the number of threads", "[parallel]") {
  const Threads restore;
  for (int round = 0; round < 200; ++round) {
    for (const int threads : {1, 2, 3, 5, 16, 2, 1, 9}) {
      REQUIRE(counts(threads) == std::vector<int>(static_cast<std::size_t>(threads), 1));
    }
  }
  CHECK(counts(1500) == std::vector<int>(1500, 1));  // more than a team's threads
  for (const int threads : {1, 2, 7}) {
    set_thread_count(threads);
    for (const std::int64_t n : {0, 1, 6, 7, 8, 1000, 12345}) CHECK(sum_below(n) == n * (n - 1) / 2);
  }
}

TEST_CASE("parallel: several threads call at once", "[parallel]") {
  const Threads restore;
  set_thread_count(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 500; ++round) wrong.fetch_add(sum_below(500) != 500 * 499 / 2);
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(wrong == 0);
}

TEST_CASE("parallel: a forked child has a team of its own", "[parallel]") {
  const Threads restore;
  set_thread_count(3);
  REQUIRE(sum_below(1000) == 499'500);  // the parent has a team
  CHECK(in_child([] { return sum_below(1000) == 499'500 ? 7 : 8; }) == 7);
  // So does the child's child, and a child that is forked while another thread is inside a call.
  CHECK(in_child([] {
          if (sum_below(1000) != 499'500) return 8;
          return in_child([] { return sum_below(1000) == 499'500 ? 7 : 8; });
        }) == 7);
  std::atomic<bool> is_over{false}, is_computing{false};
  std::thread other([&] {
    parallel_threads(2, [&](int) {
      is_computing = true;
      while (!is_over) std::this_thread::yield();
    });
  });
  while (!is_computing) std::this_thread::yield();
  CHECK(in_child([] { return sum_below(1000) == 499'500 ? 7 : 8; }) == 7);
  is_over = true;
  other.join();
  CHECK(sum_below(1000) == 499'500);
}

TEST_CASE("parallel: OMP_NUM_THREADS is a number or a list of them", "[parallel]") {
  const std::tuple<const char*, std::optional<int>> rows[] = {
      {"1", 1},       {"16", 16},     {"4,2", 4},
      {" 4 , 2 ", 4}, {"1024", 1024}, {"1025", {}},
      {"abc", {}},    {"0", {}},      {"-3", {}},
      {"+3", {}},     {"2x", {}},     {"2.5", {}},
      {"4,", {}},     {",4", {}},     {"4,0", {}},
      {"4,abc", {}},  {"4 2", {}},    {" ", {}},
      {"0x10", {}},   {"4;2", {}},    {"99999999999999999999", {}}};
  for (const auto& [text, expected] : rows) {
    INFO(text);
    CHECK(read_thread_count(text) == expected);
  }
  // A program that sets no number of threads learns of it from its first tensor.
  parallel_test::RestoreThreads restore;
  settings().threads = Settings::unreadable_threads;
  CHECK(thread_count() == 1);
  CHECK_THROWS_WITH(Tensor::empty({8}, DType::f32), Catch::Contains("OMP_NUM_THREADS: expected a number of threads"));
  set_thread_count(2);
  CHECK_NOTHROW(Tensor::empty({8}, DType::f32));
}

TEST_CASE("parallel: quotas of control groups", "[parallel]") {
  CHECK(parse_cpu_max("200000 100000") == 2);
  CHECK(parse_cpu_max("150000 100000") == 2);  // one and a half round up to two threads
  CHECK(parse_cpu_max("1000 100000") == 1);
  for (const char* none :
       {"", "max", "max 100000", "-1 100000", "0 100000", "100000", "100000 ", "100000 0", "1 2 3", "x 1"}) {
    INFO(none);
    CHECK_FALSE(parse_cpu_max(none));
  }
  const files_test::TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories((std::filesystem::path(folder / name)).parent_path());
    std::ofstream(folder / name) << text << "\n";
  };
  const std::string self = folder / "self", root = folder / "groups";
  write("self", "0::/outer/inner");
  CHECK_FALSE(cpu_quota(self, root));
  write("groups/outer/inner/cpu.max", "max 100000");
  CHECK_FALSE(cpu_quota(self, root));
  write("groups/outer/cpu.max", "300000 100000");  // outer groups count, too
  CHECK(cpu_quota(self, root) == 3);
  write("groups/outer/inner/cpu.max", "800000 100000");
  CHECK(cpu_quota(self, root) == 3);
  write("groups/cpu.max", "50000 100000");
  CHECK(cpu_quota(self, root) == 1);
  // Version 1, in a container whose path is the host's.
  write("self", "7:memory:/host\n4:cpu,cpuacct:/host/path");
  CHECK_FALSE(cpu_quota(self, root));
  write("groups/cpu/cpu.cfs_quota_us", "400000");
  write("groups/cpu/cpu.cfs_period_us", "100000");
  CHECK(cpu_quota(self, root) == 4);
  CHECK_FALSE(cpu_quota(folder / "nowhere", root));
  CHECK(available_processors() >= 1);
  CHECK(available_processors() <= static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
}
