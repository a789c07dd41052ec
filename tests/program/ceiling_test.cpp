// The machine's ceiling: the loops make the multiply-adds that they count.

#include <algorithm>
#include <cmath>

#include <thimble/bench/timing/ceiling.h>
#include <thimble/bench/timing/timing.h>
#include <thimble/core/error.h>
#include <thimble/core/threads/parallel.h>

#include "support/catch.h"

using namespace thimble;
using kernels::Isa;

TEST_CASE("ceiling: every chain of every instruction set makes every round", "[ceiling]") {
  for (const auto& [isa, lanes] : {std::pair{Isa::generic, 4}, {Isa::avx2, 8}, {Isa::avx512, 16}}) {
    CAPTURE(to_string(isa));
    if (!kernels::is_supported(isa)) {
      CHECK_THROWS_AS(bench::fma_chains(isa, 1, 1, 1), ValueError);
      continue;
    }
    const double start = bench::fma_chains(isa, 0, 1, 1);
    CHECK(start == (0 + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10 + 11) * lanes);
    CHECK(bench::fma_chains(isa, 1000, 1, 1) - start == 1000 * 12 * lanes);
    // From i to 2 i + 3, 4 i + 9, 8 i + 21, 16 i + 45: a multiplication that the sums above would not miss.
    CHECK(bench::fma_chains(isa, 4, 2, 3) == 16 * start + 45 * 12 * lanes);
  }
}

TEST_CASE("ceiling: rates of instruction sets and threads", "[ceiling]") {
  for (const Isa isa : {Isa::generic, kernels::best_isa()}) CHECK(bench::ceiling_gflops(isa, 1, 0.01) > 0);
  CHECK_THROWS_AS(bench::ceiling_gflops(Isa::generic, 0, 0), ValueError);
  CHECK_THROWS_AS(bench::ceiling_gflops(Isa::generic, thread_count() + 1, 0), ValueError);
}

TEST_CASE("ceiling: the triad of every instruction set computes what it is counted for", "[ceiling]") {
  constexpr std::int64_t n = 48;
  bench::Lines a = bench::lines(n * sizeof(float)), b = a, c = a;
  for (std::int64_t i = 0; i < n; ++i) {
    bench::floats(b)[i] = static_cast<float>(std::sin(i));
    bench::floats(c)[i] = static_cast<float>(std::cos(3 * i));
  }
  for (const Isa isa : {Isa::generic, Isa::avx2, Isa::avx512}) {
    CAPTURE(to_string(isa));
    for (const bool streams : {false, true}) {
      if (!kernels::is_supported(isa)) {
        CHECK_THROWS_AS(bench::triad(isa, bench::floats(a), bench::floats(b), bench::floats(c), 3, n, streams),
                        ValueError);
        continue;
      }
      std::fill_n(bench::floats(a), n, 0.0f);
      // One vector of the widest stays as it was.
      bench::triad(isa, bench::floats(a), bench::floats(b), bench::floats(c), 3, n - 16, streams);
      for (std::int64_t i = 0; i < n; ++i) {
        const float product = 3 * bench::floats(c)[i];
        CHECK(bench::floats(a)[i] == (i < n - 16 ? bench::floats(b)[i] + product : 0));
      }
    }
  }
  CHECK(bench::memory_gbs(kernels::best_isa(), 1, 1000, 0.001) > 0);
  CHECK(bench::memory_gbs(Isa::generic, thread_count(), 1, 0) > 0);
  CHECK_THROWS_AS(bench::memory_gbs(Isa::generic, thread_count() + 1, 16, 0), ValueError);
  CHECK_THROWS_AS(bench::memory_gbs(Isa::generic, 1, 0, 0), ValueError);
}

TEST_CASE("ceiling: reading sums every float once", "[ceiling]") {
  constexpr std::int64_t n = 1280;
  bench::Lines x = bench::lines(n * sizeof(float));
  for (std::int64_t i = 0; i < n; ++i) bench::floats(x)[i] = static_cast<float>(i + 1);
  for (const Isa isa : {Isa::generic, Isa::avx2, Isa::avx512}) {
    CAPTURE(to_string(isa));
    if (!kernels::is_supported(isa)) {
      CHECK_THROWS_AS(bench::read_sum(isa, bench::floats(x), n), ValueError);
      continue;
    }
    CHECK(bench::read_sum(isa, bench::floats(x), n) == n * (n + 1) / 2);  // whole numbers below 2^24
    CHECK(bench::read_sum(isa, bench::floats(x), 0) == 0);
  }
  CHECK_THROWS_AS(bench::read_sum(Isa::generic, bench::floats(x), 100), ValueError);
}
