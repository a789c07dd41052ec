// The emulated device, tested with kernels that are wrong in one known way each.

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <thimble/cuda/kernel/tensor_core.h>

#include "emulated/as_team.h"
#include "support/catch.h"

using namespace thimble;
using namespace thimble::cuda_kernels;
using emulated::BankCount;
using Turn = emulated::Order;
using thimble::testing::as_team;

namespace emulated_block_test {

/// The findings in a block of 64 threads with 256 bytes of shared memory.
std::vector<std::string> findings(const std::function<void(Team<64>&)>& body, Turn order = Turn::descending) {
  const emulated::SettingsScope scope;
  std::vector<std::string> found;
  emulated::settings() = {order, 1, nullptr, nullptr, nullptr, &found};
  as_team<64>(256, body);
  return found;
}

/// The first finding has all of these parts.
void check_found(const std::vector<std::string>& found, const std::vector<std::string>& parts) {
  REQUIRE(!found.empty());
  for (const std::string& part : parts) {
    INFO(found.front());
    CHECK(found.front().find(part) != std::string::npos);
  }
}

/// Banks of one access per lane of a warp: at(lane) in elements of T.
template <class T>
BankCount banks(const std::function<int(int)>& at) {
  const emulated::SettingsScope scope;
  std::map<std::string, BankCount> counts;
  emulated::settings().banks = &counts;
  as_team<32>(64 * 1024, [&](Team<32>& team) { static_cast<void>(static_cast<T>(team.shared<T>()[at(team.rank())])); });
  REQUIRE(counts.size() == 1);
  return counts.begin()->second;
}

}  // namespace emulated_block_test

using namespace emulated_block_test;

TEST_CASE("emulated: races name the kernel, the place and both threads", "[cuda][emulated]") {
  for (const Turn order : {Turn::ascending, Turn::descending, Turn::random}) {
    // Reads the neighbour's value before it is written, and after.
    const auto found = findings(
        [](Team<64>& team) {
          const Shared<float> all = team.shared<float>();
          all[team.rank()] = 1;
          if (team.rank() == 5) static_cast<void>(static_cast<float>(all[9]));
        },
        order);
    check_found(found, {"TeamCall", "race: thread ", "byte 36 of shared memory", "thread 5", "thread 9",
                        "since the block began"});
    CHECK(found.size() == 1);
  }
  check_found(
      findings([](Team<64>& team) {
        team.sync();
        if (team.rank() < 2) team.shared<double>()[3] = 1;
      }),
      {"race: thread 0 writes byte 24", "which thread 1 wrote since the barrier at cuda/emulated_block_test.cpp:"});
  check_found(findings([](Team<64>& team) {
                const Shared<float> all = team.shared<float>();
                if (team.rank() == 0) all[0] = 2;
                team.sync();
                static_cast<void>(static_cast<float>(all[0]));  // read by many
                if (team.rank() == 7) all[0] = 3;
              }),
              {"race: ", "byte 0 of shared memory", "thread 7"});
  // Bytes of one word with different threads, and one word with many readers, are no race.
  CHECK(findings([](Team<64>& team) {
          const Shared<std::uint8_t> all = team.shared<std::uint8_t>();
          all[team.rank()] = 1;
          team.sync();
          CHECK(load_as<std::uint32_t>(all + 8) == 0x01010101u);
          const float sum = team.sum(1.0f), again = team.sum(2.0f);
          CHECK(sum + again == 192);
        }).empty());
}

TEST_CASE("emulated: accesses behind shared memory are found", "[cuda][emulated]") {
  check_found(findings([](Team<64>& team) { team.shared<float>()[team.rank() + 1] = 1; }),
              {"thread 63 writes 4 bytes at 256 of 256"});
  check_found(findings([](Team<64>& team) {
                if (team.rank() == 3) CHECK(std::isnan(static_cast<float>(team.shared<float>()[-1])));
              }),
              {"thread 3 reads 4 bytes"});
  check_found(findings([](Team<64>& team) {
                if (team.rank() == 0) static_cast<void>(load_as<std::uint32_t>(team.shared<std::uint8_t>() + 2));
              }),
              {"not aligned"});
  // A write past the checks changes the guard.
  check_found(findings([](Team<64>& team) {
                if (team.rank() == 0) emulated::Block::current().write(252, 4)[7] = std::byte{1};
              }),
              {"byte behind shared memory was written"});
  // Shared memory begins as NaN.
  CHECK(findings([](Team<64>& team) {
          CHECK(std::isnan(static_cast<float>(team.shared<float>()[team.rank()])));
        }).empty());
}

TEST_CASE("emulated: threads that do not come together are found", "[cuda][emulated]") {
  check_found(findings([](Team<64>& team) {
                if (team.rank() < 32) {
                  team.sync();
                } else {
                  team.sync();
                }
              }),
              {"thread 0 waits at cuda/emulated_block_test.cpp:", ", thread 32 at "});
  check_found(findings([](Team<64>& team) {
                if (team.rank() != 9) team.sync();
              }),
              {"thread 0 waits at", "thread 9 at cuda/kernel/kernel.h:"});
  check_found(findings([](Team<64>& team) {
                if (team.rank() != 40) exchange(1.0f, 1);
              }),
              {"lanes of a warp wait"});
  check_found(findings([](Team<64>& team) {
                if (team.rank() == 40) {
                  exchange(1.0f, 1);
                } else {
                  exchange(1, 1);
                }
              }),
              {"different instructions"});
}

TEST_CASE("emulated: asynchronous loads are nobody's before they are waited for", "[cuda][emulated]") {
  static const float from[64] = {3};
  for (const bool waits : {false, true}) {
    for (const bool syncs : {false, true}) {
      const auto found = findings([&](Team<64>& team) {
        const Shared<float> all = team.shared<float>();
        AsyncLoads loads;
        if (team.rank() == 4) loads.load<16>(shared_address(all), from, true);
        if (waits) loads.wait();
        if (syncs) team.sync();
        if (team.rank() == 3) static_cast<void>(static_cast<float>(all[0]));
        team.sync();
        loads.wait();
      });
      INFO(waits << syncs);
      if (waits && syncs) {
        CHECK(found.empty());
      } else {
        check_found(found, {"race: ", "thread 4", "thread 3"});
      }
    }
  }
}

TEST_CASE("emulated: orders differ in what has none on a GPU, and come to everything once", "[cuda][emulated]") {
  for (const Turn order : {Turn::ascending, Turn::descending, Turn::random}) {
    const emulated::SettingsScope scope;
    for (const std::uint64_t seed : {1u, 2u, 77u}) {
      emulated::settings().order = order, emulated::settings().seed = seed;
      for (std::int64_t n = 1; n < 70; ++n) {
        std::vector<int> visits(static_cast<std::size_t>(n));
        for_each_item(n, [&](std::int64_t i) { ++visits[static_cast<std::size_t>(i)]; });
        CHECK(visits == std::vector<int>(static_cast<std::size_t>(n), 1));
      }
    }
    // Thread 0 tells the others through memory that no barrier guards.
    int told = 0, heard = 0;
    findings(
        [&](Team<64>& team) {
          if (team.rank() == 0) told = 1;
          heard += told;
        },
        order);
    CHECK(heard == (order == Turn::ascending ? 64 : order == Turn::descending ? 1 : heard));
    if (order == Turn::random) CHECK((heard > 1 && heard < 64));
  }
}

TEST_CASE("emulated: sums of a team are taken lane by lane pairwise, then warp by warp", "[cuda][emulated]") {
  float value[256];
  for (int i = 0; i < 256; ++i) value[i] = std::sin(static_cast<float>(i)) * (i % 7 == 0 ? 1e4f : 1.0f);
  float expected = 0;
  for (int warp = 0; warp < 8; ++warp) {
    float lanes[32];
    for (int lane = 0; lane < 32; ++lane) lanes[lane] = value[32 * warp + lane];
    for (int step = 16; step > 0; step /= 2) {
      for (int lane = 0; lane < step; ++lane) lanes[lane] += lanes[lane + step];
    }
    expected = warp == 0 ? lanes[0] : expected + lanes[0];
  }
  as_team<256>(0, [&](Team<256>& team) {
    CHECK(team.sum(value[team.rank()]) == expected);
    CHECK(team.max(team.rank() == 77 ? 3 : -team.rank()) == 3);
  });
}

TEST_CASE("emulated: NaN of 16 bits keeps its sign, whatever an instruction makes of it", "[cuda][emulated]") {
  const auto check = []<class S>(S) {
    const float nan = std::numeric_limits<float>::quiet_NaN(), one = 1.0f;
    const std::uint32_t same = S::Format::nan_code, other = same | 0x8000u;
    CHECK(with_signed_nan<S>(0x7FFF7FFFu, nan, -nan) == (same | other << 16));
    CHECK(with_signed_nan<S>(0x7FFF7FFFu, -nan, nan) == (other | same << 16));
    CHECK(with_signed_nan<S>(0x12347FFFu, -nan, one) == (0x12340000u | other));
    CHECK(with_signed_nan<S>(0x7FFF1234u, one, -nan) == (0x1234u | other << 16));
    const float values[8] = {one, -nan, nan, -0.0f, 1e30f, -1e-30f, 0.3f, -nan};
    const Words<S, 8> words = narrowed<S>(values);
    for (int e = 0; e < 8; ++e) CHECK(words.values[e].bits == convert_value<S>(values[e]).bits);
  };
  check(bf16());
  check(f16());
}

TEST_CASE("emulated: passes of an access are the words that lie in one bank", "[cuda][emulated]") {
  struct Row {
    BankCount count;
    std::uint64_t passes, fewest;
  };
  const Row rows[] = {{banks<float>([](int lane) { return lane; }), 1, 1},
                      {banks<float>([](int lane) { return 32 * lane; }), 32, 1},
                      {banks<float>([](int lane) { return 33 * lane; }), 1, 1},
                      {banks<float>([](int lane) { return 16 * lane; }), 16, 1},
                      {banks<float>([](int lane) { return lane % 4 * 32; }), 4, 1},  // equal words count once
                      {banks<double>([](int lane) { return lane; }), 2, 2},
                      {banks<double>([](int lane) { return 16 * lane; }), 32, 2}};
  for (const Row& row : rows) {
    INFO("row " << (&row - rows));
    CHECK(row.count.accesses == 1);
    CHECK(row.count.passes == row.passes);
    CHECK(row.count.fewest == row.fewest);
  }
}
