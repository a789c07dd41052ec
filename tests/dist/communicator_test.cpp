// Communicators over threads and dry ones: bytes arrive at the right place, and every back end counts alike.

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include <pthread.h>

#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/generator.h>
#include <thimble/dist/threads.h>

#include "dist/rank_cases.h"
#include "support/catch.h"
#include "support/heap_watch.h"

namespace dist = thimble::dist;
using dist::Communicator;
using thimble_test::require;

TEST_CASE("communicator: every case on 1 to 8 threads") {
  for (const thimble_test::RankCase& row : thimble_test::rank_cases()) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      if (row.name == "large" && ranks != 2) continue;
      INFO(row.name << " on " << ranks);
      CHECK_NOTHROW(dist::run_ranks(ranks, row.run));
    }
  }
}

TEST_CASE("communicator: a rank has room for kernels on its stack, whatever the process gives other threads") {
  pthread_attr_t before, small;
  REQUIRE(pthread_getattr_default_np(&before) == 0);
  REQUIRE(pthread_getattr_default_np(&small) == 0);
  REQUIRE(pthread_attr_setstacksize(&small, std::size_t{256} << 10) == 0);
  REQUIRE(pthread_setattr_default_np(&small) == 0);
  std::atomic<int> with_room = 0;
  dist::run_ranks(3, [&](Communicator& c) {
    pthread_attr_t own;
    std::size_t bytes = 0;
    require(pthread_getattr_np(pthread_self(), &own) == 0, "attributes of a thread");
    pthread_attr_getstacksize(&own, &bytes);
    pthread_attr_destroy(&own);
    if (bytes < std::size_t{4} << 20) return;
    volatile char frame[1 << 20];  // four times other threads' stacks
    for (std::size_t i = 0; i < sizeof(frame); i += 512) frame[i] = static_cast<char>(c.rank());
    c.barrier();
    if (frame[0] == c.rank() && frame[sizeof(frame) - 512] == c.rank()) ++with_room;
  });
  pthread_setattr_default_np(&before);
  pthread_attr_destroy(&before), pthread_attr_destroy(&small);
  CHECK(with_room == 3);
}

namespace {

/// One call of each collective, and splits. A dry communicator takes no addresses.
void all_calls(Communicator& c, bool has_data) {
  std::vector<char> mine(1000 * static_cast<std::size_t>(c.size())), all(mine.size());
  char* const from = has_data ? mine.data() : nullptr;
  char* const to = has_data ? all.data() : nullptr;
  c.all_gather(from, 999, to);
  c.all_to_all(from, to, 17);
  for (int root = 0; root < c.size(); ++root) c.broadcast(from, 123, root);
  c.barrier();
  const auto row = c.split([](int rank) { return Communicator::Place{rank % 2, rank}; });
  row->all_gather(from, 5, to);
  const dist::Send send{(c.rank() + 1) % c.size(), from, 77};
  const dist::Receive receive{(c.rank() + c.size() - 1) % c.size(), to, 77};
  dist::Transfer transfer = c.exchange({&send, 1}, {&receive, 1});
  transfer.wait();
  require(transfer.is_done(), "a transfer is not done after its wait");
  require(row->volume().bytes_sent == 5U * static_cast<unsigned>(row->size() - 1), "the row's bytes");
}

}  // namespace

TEST_CASE("communicator: a dry rank counts what a thread sends, and reads nothing") {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    dist::run_ranks(ranks, [&](Communicator& c) {
      const auto dry = dist::make_dry(c.rank(), ranks);
      require(dry->is_dry() && !c.is_dry(), "which one is dry");
      require(dry->rank() == c.rank() && dry->size() == ranks, "rank and size of the dry one");
      all_calls(c, true);
      all_calls(*dry, false);
      const auto n = static_cast<std::uint64_t>(ranks), others = n - 1;
      std::uint64_t tree = 0, rounds = 0;
      for (int far = 1; far < ranks; far *= 2, ++rounds) {
        for (int v = 0; v < ranks; ++v) tree += v < far && v + far < ranks ? 1 : 0;  // one rank's, over all roots
      }
      const Communicator::Volume real = c.volume(), counted = dry->volume();
      require(real.bytes_sent == counted.bytes_sent && real.messages == counted.messages, "dry and real count alike");
      require(real.bytes_sent == others * (999 + 17 + 4) + tree * 123 + (n > 1 ? 77 : 0), "bytes by the formulas");
      require(real.messages == 3 * others + tree + rounds + (n > 1 ? 1 : 0), "messages by the formulas");
    });
  }
  CHECK_THROWS_AS(dist::make_dry(2, 2), thimble::ValueError);
  CHECK_THROWS_AS(dist::make_dry(-1, 2), thimble::ValueError);
  CHECK_THROWS_AS(dist::make_dry(0, 0), thimble::ValueError);
  CHECK_THROWS_AS(dist::make_dry(0, 2)->split(0, 0), thimble::ValueError);
  CHECK(dist::make_dry(0, 1)->split(3, 0)->size() == 1);
}

TEST_CASE("communicator: each recorded transfer has its call, its bytes and its times") {
  dist::run_ranks(3, [](Communicator& c) {
    std::vector<dist::TransferTimes> times;
    std::int64_t all[3] = {};
    c.all_gather(&all[c.rank()], sizeof(std::int64_t), all);  // before it records
    c.record(&times);
    c.all_gather(&all[c.rank()], sizeof(std::int64_t), all);
    c.broadcast(all, 5, 1);
    c.barrier();
    c.record(nullptr);
    c.barrier();
    std::string calls;
    double before = 0;
    for (const dist::TransferTimes& t : times) {
      calls += std::string(t.call) + " " + std::to_string(t.bytes) + ", ";
      require(before <= t.begun && t.begun <= t.waited && t.waited <= t.done, "times rise");
      before = t.done;
    }
    const std::string sent = c.rank() == 1 ? "10" : "0";
    require(calls == "all_gather 16, broadcast " + sent + ", barrier 0, barrier 0, ", calls);
  });
}

TEST_CASE("communicator: each rank is a thread with its own context") {
  thimble::RandomGenerator generator(3);
  const thimble::GeneratorScope scope(generator);
  std::atomic<int> sum{0};
  const std::thread::id own = std::this_thread::get_id();
  dist::run_ranks(64, [&](Communicator& c) {
    require(thimble::context().generator == nullptr, "a rank begins with a fresh context");
    require(std::this_thread::get_id() != own, "a rank has a thread of its own");
    sum += c.rank();
    c.barrier();
    require(sum == 64 * 63 / 2, "all ranks run at the same time");
  });
  CHECK_THROWS_AS(dist::run_ranks(0, [](Communicator&) {}), thimble::ValueError);
}

namespace {

/// Ranks compute for random times between random calls, with transfers always in flight.
void stress(int ranks, int rounds, unsigned seed) {
  dist::run_ranks(ranks, [=](Communicator& c) {
    std::mt19937 calls(seed), delays(seed + 1 + static_cast<unsigned>(c.rank()));  // the same calls on all ranks
    const auto n = static_cast<std::size_t>(c.size());
    const auto halves = c.split(c.rank() % 2, c.rank());
    std::vector<int> out(n), in(n), late_in(n), all(n);
    for (int round = 0; round < rounds; ++round) {
      const auto delay = [&] { std::this_thread::sleep_for(std::chrono::microseconds(delays() % 200)); };
      std::vector<dist::Send> sends;
      std::vector<dist::Receive> receives;
      std::vector<int> late_out(n, round + c.rank());
      for (int r = 0; r < c.size(); ++r) {
        sends.push_back({r, &late_out[static_cast<std::size_t>(r)], sizeof(int)});
        receives.push_back({r, &late_in[static_cast<std::size_t>(r)], sizeof(int)});
      }
      delay();
      dist::Transfer late = c.exchange(sends, receives);
      Communicator& on = calls() % 2 == 0 ? c : *halves;
      const auto count = static_cast<std::size_t>(on.size());
      switch (calls() % 3) {
        case 0:
          for (std::size_t r = 0; r < count; ++r) out[r] = on.rank() * 1000 + static_cast<int>(r) + round;
          delay();
          on.all_to_all(out.data(), in.data(), sizeof(int));
          for (std::size_t r = 0; r < count; ++r) {
            require(in[r] == static_cast<int>(r) * 1000 + on.rank() + round, "all_to_all under delays");
          }
          break;
        case 1: {
          const int own = on.rank() * 3 + round;
          on.all_gather(&own, sizeof(int), all.data());
          for (std::size_t r = 0; r < count; ++r) require(all[r] == static_cast<int>(r) * 3 + round, "all_gather");
          break;
        }
        default: {
          const int root = round % on.size();
          int data = on.rank() == root ? round : -1;
          delay();
          on.broadcast(&data, sizeof(int), root);
          require(data == round, "broadcast under delays");
        }
      }
      late.wait();
      for (std::size_t r = 0; r < n; ++r) require(late_in[r] == round + static_cast<int>(r), "the late exchange");
    }
  });
}

}  // namespace

TEST_CASE("communicator: threads under random delays") {
  for (unsigned seed = 0; seed < 6; ++seed) CHECK_NOTHROW(stress(2 + static_cast<int>(seed), 120, seed));
  CHECK_NOTHROW(stress(64, 6, 99));
}

#if defined(THIMBLE_TEST_WATCHES_HEAP)
TEST_CASE("communicator: a steady step asks the heap for nothing") {
  long calls = -1;
  dist::run_ranks(4, [&](Communicator& c) {
    std::vector<char> out(4000), in(4000);
    const auto step = [&] {
      c.all_gather(out.data(), 1000, in.data());
      c.all_to_all(out.data(), in.data(), 1000);
      c.broadcast(out.data(), 4000, 2);
      const dist::Send send{(c.rank() + 1) % 4, out.data(), 4000};
      const dist::Receive receive{(c.rank() + 3) % 4, in.data(), 4000};
      dist::Transfer first = c.exchange({&send, 1}, {&receive, 1});
      c.barrier();
      first.wait();
      c.barrier();
    };
    // A queue grows with the lead of one rank over another; the first round brings each to its greatest length.
    for (int i = 0; i < 50; ++i) step();
    const long before = heap_watch::heap_calls();
    for (int i = 0; i < 50; ++i) step();
    if (c.rank() == 0) calls = heap_watch::heap_calls() - before;
    c.barrier();
  });
  CHECK(calls == 0);
}
#endif
