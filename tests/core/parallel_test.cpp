// parallel_for and parallel_threads: every block once, whole grains, nesting, thread counts.

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/threads/parallel.h>

#include "support/catch.h"

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
  for (const int held : {0, 1}) {  // as if its processor had other work
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
