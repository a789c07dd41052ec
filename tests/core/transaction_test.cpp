// A transaction and random numbers: neither an abandoned step nor draws before a step change a later draw.

#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/policies/ledger.h>

#include "support/catch.h"

using namespace thimble;

namespace {

std::tuple<std::uint64_t, std::uint32_t> drawn(const RandomSite& site) { return {site.step, site.site}; }

std::vector<float> mask() { return to_host<float>(dropout(full({64}, 1), 0.5)); }

}  // namespace

TEST_CASE("transaction: a pass of random numbers begins with it and ends with it", "[step]") {
  RandomGenerator generator(5);
  const GeneratorScope scope(generator);
  using Site = std::tuple<std::uint64_t, std::uint32_t>;
  const Site before = drawn(next_random_site());
  Site first, second;
  {
    const tape::Transaction given_up;
    first = drawn(next_random_site());
    second = drawn(next_random_site());
  }
  const Site between = drawn(next_random_site());
  CHECK(std::set<Site>{before, first, second, between}.size() == 4);
  {
    tape::Transaction kept;  // draws the numbers of the abandoned one
    CHECK(drawn(next_random_site()) == first);
    CHECK(drawn(next_random_site()) == second);
    kept.commit();
  }
  const auto [step, site] = drawn(next_random_site());  // outside again, in the next step
  CHECK(step == std::get<0>(before) + 1);
  CHECK(site == std::get<1>(before));
}

TEST_CASE("transaction: state written in places keeps one copy of all of it", "[step]") {
  const auto own = std::make_shared<memory::Ledger>(default_resource(cpu));
  const ResourceScope scope(own);
  const Tensor queue = Tensor::empty({8, 16}, DType::f32, cpu, memory::Category::parameter);
  fill(queue, 3);
  {
    const tape::Transaction given_up;
    fill(view::slice(queue, 0, 2, 3), 5);
    const std::size_t bytes = own->bytes(memory::Category::temporary);
    CHECK(bytes == queue.bytes());
    fill(view::slice(queue, 0, 6, 8), 7);
    CHECK(own->bytes(memory::Category::temporary) == bytes);
  }
  CHECK(to_host<float>(queue) == std::vector<float>(8 * 16, 3));
}

TEST_CASE("transaction: a throw after dropout leaves the masks of a run without it", "[step]") {
  const auto masks = [](bool has_failure) {
    RandomGenerator generator(7);
    const GeneratorScope scope(generator);
    std::vector<std::vector<float>> list;
    for (int step = 0; step < 3; ++step) {
      if (has_failure) {
        try {
          const tape::Transaction given_up;
          mask(), mask();
          throw step;
        } catch (int) {
        }
      }
      list.push_back(mask());  // outside a step, like an evaluation with dropout
      tape::Transaction kept;
      list.push_back(mask());
      kept.commit();
    }
    return list;
  };
  CHECK(masks(true) == masks(false));
  CHECK(masks(false)[1] != masks(false)[3]);
}

TEST_CASE("transaction: what is staged is written when it is committed, and only then", "[step]") {
  const Tensor statistic = full({3}, 1);
  {
    tape::Transaction given_up;
    const Tensor pending = given_up.staged(statistic);
    fill(pending, 5);
    CHECK(given_up.staged(statistic).storage() == pending.storage());
    CHECK(to_host<float>(statistic) == std::vector<float>(3, 1));
  }
  CHECK(to_host<float>(statistic) == std::vector<float>(3, 1));
  tape::Transaction kept;
  fill(writable_state(statistic), 5);
  CHECK(to_host<float>(statistic) == std::vector<float>(3, 1));
  kept.commit();
  CHECK(to_host<float>(statistic) == std::vector<float>(3, 5));
  CHECK(kept.staged_count() == 0);
}

TEST_CASE("transaction: parameters written in windows that overlap are put back as they were", "[step]") {
  struct Window {
    std::int64_t begin, end;
  };
  const std::vector<float> before{1, 2, 3, 4, 5, 6};
  for (const std::vector<Window>& windows :
       {std::vector<Window>{{0, 4}, {2, 6}}, std::vector<Window>{{2, 6}, {0, 4}}, std::vector<Window>{{0, 6}, {1, 3}},
        std::vector<Window>{{1, 3}, {0, 6}, {2, 5}, {1, 3}}, std::vector<Window>{{0, 2}, {2, 4}, {4, 6}}}) {
    const Tensor parameter = from_host(before, {6}, cpu, memory::Category::parameter);
    const auto write = [&] {
      double value = 10;
      for (const Window& w : windows) {
        const Tensor part = view::slice(parameter, 0, w.begin, w.end);
        w.begin % 2 == 0 ? fill(part, value++) : copy_into(part, full(part.shape(), value++));
      }
    };
    {
      const tape::Transaction given_up;
      write();
      CHECK(to_host<float>(parameter) != before);
    }
    CHECK(to_host<float>(parameter) == before);
    tape::Transaction kept;
    write();
    const auto written = to_host<float>(parameter);
    kept.commit();
    CHECK(to_host<float>(parameter) == written);
  }
}
