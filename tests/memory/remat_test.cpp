// The exact solver for chains: against every persistent schedule of short chains, and its guarantees for long chains.

#include <thimble/memory/remat/frontier.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include <thimble/memory/remat/interval_classes.h>
#include <thimble/memory/remat/interval_table.h>
#include <thimble/memory/remat/schedule.h>

#include "remat_chains.h"
#include "support/catch.h"

namespace {

using namespace thimble::remat;
using remat_test::Enumeration;
using remat_test::Random;
using remat_test::random_chain;
using thimble::PlanError;
using thimble::ValueError;

constexpr SolveLimits unlimited{0};

/// The smallest budget, exactly: from a table with one breakpoint per interval.
Bytes least_of(const Chain& chain) {
  const IntervalClasses classes(chain);
  return IntervalTable(chain, classes, {1, false, false, 0}).whole().front().bytes + chain.input_bytes;
}

/// The first error in the plans of a frontier; empty if there is none.
std::string first_problem(const Chain& chain, const Frontier& solved) {
  const Frontier::Point* before = nullptr;
  for (const Frontier::Point& point : solved.points()) {
    const ScheduleCost cost = simulate(chain, solved.plan(point.budget_bytes));
    const std::string at = "budget " + std::to_string(point.budget_bytes) + ": ";
    if (cost.peak_bytes > point.budget_bytes) return at + "peak " + std::to_string(cost.peak_bytes);
    if (cost.time != point.time) return at + "time " + std::to_string(cost.time) + " not " + std::to_string(point.time);
    if (point.lower_bound > point.time) return at + "lower bound above time";
    if (before != nullptr && (before->time <= point.time || before->budget_bytes >= point.budget_bytes)) {
      return at + "not monotone";
    }
    before = &point;
  }
  return {};
}

/// Blocks as in a transformer: equal blocks between an embedding and a head, six options each.
Chain transformer_like(std::size_t blocks) {
  Random random(7);
  Chain chain = random_chain(random, 3, 6, {1 << 20, 1000, true});
  chain.stages.insert(chain.stages.begin() + 1, blocks - 2, chain.stages[1]);
  chain.stages.pop_back();
  return chain;
}

}  // namespace

TEST_CASE("remat: the frontier of short chains is that of all persistent schedules", "[remat][slow]") {
  // From round 2000 on, options span up to all stages; from 4000 on, some options serve only the first visit.
  Random random(1);
  std::size_t schedules = 0, with_spans = 0;
  for (int round = 0; round < 6000; ++round) {
    const std::int64_t longest = round < 2000 ? 1 : 5;
    const std::size_t options = 1 + static_cast<std::size_t>(random.below(longest > 1 ? 4 : 3));
    const std::size_t n = 1 + static_cast<std::size_t>(random.below(options >= 3 && round % 8 != 0 ? 4 : 5));
    const Chain chain = random_chain(random, n, options, {20, 10, round % 2 == 0, longest, round >= 4000});
    const Enumeration all(chain);
    schedules += all.count();
    const Frontier solved(chain, unlimited);
    INFO("round " << round << ", n " << n << ", options " << options);
    REQUIRE(solved.is_exact());
    std::map<Bytes, Time> least;
    for (const Frontier::Point& point : solved.points()) least.emplace(point.budget_bytes, point.time);
    REQUIRE(least == all.least_time());
    REQUIRE(first_problem(chain, solved) == "");
    REQUIRE(solved.minimum_budget() == all.least_time().begin()->first);
    for (const Frontier::Point& point : solved.points()) {
      const ScheduleTree plan = solved.plan(point.budget_bytes);
      with_spans += std::any_of(plan.items.begin(), plan.items.end(), [](const ScheduleTree::Item& item) {
        return !item.is_dropped() && item.end > item.begin + 1;
      });
    }
  }
  CHECK(schedules > 500'000);
  CHECK(with_spans > 1000);
}

TEST_CASE("remat: a tensor shared with the next stage is a part of the activation between them", "[remat]") {
  Random random(11);
  for (int round = 0; round < 400; ++round) {
    const std::size_t n = 2 + static_cast<std::size_t>(random.below(6));
    Chain whole = random_chain(random, n, 3, {50, 10, true, 4});
    for (Stage& stage : whole.stages) {  // an input that another option keeps is not given up, a shared tensor is
      for (Option& option : stage.options) (round % 2 == 0 ? option.keeps_input : option.keeps_output) = round % 2 == 0;
    }
    Chain cut = whole;
    for (std::uint32_t m = 0; m + 1 < n; ++m) {
      if (random.one_in(3)) continue;
      Stage& stage = cut.stages[m];
      const Bytes bytes = random.below(stage.output_bytes + 1),
                  of_gradient = random.below(stage.output_gradient_bytes + 1);
      const auto number = static_cast<std::uint32_t>(cut.shared.size());
      stage.output_bytes -= bytes, stage.output_gradient_bytes -= of_gradient;
      cut.shared.push_back({m, {m + 1}, bytes, of_gradient});
      for (std::size_t i = 0; i <= m; ++i) {
        for (Option& option : cut.stages[i].options) {
          if (option.keeps_output && i + option.span == m + 1) option.kept_shared.push_back(number);
        }
      }
      for (Option& option : cut.stages[m + 1].options) {
        if (!option.keeps_input) option.unread_shared.push_back(number);
      }
    }
    const Frontier one(whole, unlimited), other(cut, unlimited);
    INFO("round " << round << ", n " << n);
    REQUIRE(one.points().size() == other.points().size());
    for (std::size_t i = 0; i < one.points().size(); ++i) {
      REQUIRE(one.points()[i].budget_bytes == other.points()[i].budget_bytes);
      REQUIRE(one.points()[i].time == other.points()[i].time);
    }
  }
}

TEST_CASE("remat: a tensor that passes over a stage, by hand", "[remat]") {
  // Stage 0 makes 100 bytes with a gradient of 7 for stage 2. Stage 1's backward has only the 7.
  Chain chain = homogeneous_chain(4, 0, 10, 1, 0);
  chain.shared = {{0, {2}, 100, 7}};
  chain.stages[1].options[0].kept_bytes = 500;
  chain.stages[1].options[0].backward_peak_bytes = 1100;
  chain.stages[3].options[0].backward_peak_bytes = 1000;
  const Frontier solved(chain, unlimited);
  std::map<Bytes, Time> points;
  for (const Frontier::Point& point : solved.points()) points[point.budget_bytes] = point.time;
  // All recorded: 10 + 500 + 10 + 10 + 100 + 1000 in stage 3. Else 10 + 500 + 7 + 1100 in stage 1; without stage 0's.
  CHECK(points == std::map<Bytes, Time>{{1607, 6}, {1617, 5}, {1630, 4}});
}

TEST_CASE("remat: solve keeps the budget and refuses less than the smallest", "[remat]") {
  Random random(2);
  const Chain chain = random_chain(random, 12, 3);
  const Frontier solved(chain);
  const Bytes least = solved.minimum_budget();
  const ScheduleCost cost = simulate(chain, solved.plan(least));
  CHECK(cost.peak_bytes == least);
  CHECK(cost.time == solved.lower_bound(least));
  try {
    solved.plan(least - 1);
    FAIL("a budget below the smallest was accepted");
  } catch (const InfeasibleBudget& error) {
    CHECK(error.budget_bytes() == least - 1);
    CHECK(error.smallest_bytes() == least);
    CHECK(std::string(error.what()).find(std::to_string(least)) != std::string::npos);
  }
  CHECK_THROWS_AS(Frontier(chain, SolveLimits{-1}), ValueError);
  CHECK_THROWS_AS(Frontier(homogeneous_chain(2049, 1, 1, 1, 1)), PlanError);
  CHECK_NOTHROW(Frontier(homogeneous_chain(2048, 1, 1, 1, 1), SolveLimits{1}));
}

TEST_CASE("remat: thinned frontiers are feasible, bounded and monotone", "[remat]") {
  Random random(3);
  for (int round = 0; round < 20; ++round) {
    const Chain chain = random_chain(random, 12, 4, {1000, 100, true});
    const Frontier exact(chain, unlimited);
    const Frontier thinned(chain, SolveLimits{8 * 78 * 12});
    INFO("round " << round);
    REQUIRE(exact.is_exact());
    REQUIRE_FALSE(thinned.is_exact());
    CHECK(thinned.minimum_budget() == exact.minimum_budget());
    CHECK(thinned.points().back().time == exact.points().back().time);
    CHECK(first_problem(chain, thinned) == "");
    for (const Frontier::Point& point : exact.points()) {
      REQUIRE(thinned.at(point.budget_bytes).time >= point.time);
      REQUIRE(thinned.lower_bound(point.budget_bytes) <= point.time);
    }
  }
}

TEST_CASE("remat: with room for one recorded stage the exact solver is Revolve", "[remat]") {
  // Recording costs 1000 activations, so that c slots and one recorded stage leave no room for a second. Besides the
  // slots live the output being made or, in a backward, two gradients.
  for (const std::size_t n : {1U, 2U, 7U, 10U, 35U, 60U}) {
    const Chain chain = homogeneous_chain(n, 1, 1000, 1, 0);
    const Frontier solved(chain, unlimited);
    for (std::size_t slots = 1; slots <= std::min<std::size_t>(n, 5); ++slots) {
      const ScheduleCost revolve = simulate(chain, binomial(n, slots));
      INFO("n " << n << ", slots " << slots);
      CHECK(solved.at(revolve.peak_bytes).time == revolve.time);
      CHECK(revolve.time == static_cast<Time>(n) + revolve_forward_count(n, slots));
    }
  }
}

TEST_CASE("remat: long chains are solved and proven", "[remat]") {
  const Chain equal = transformer_like(100);
  const Frontier solved(equal);
  CHECK(solved.interval_count() < 1000);
  CHECK(first_problem(equal, solved) == "");

  Random random(5);
  const Chain uneven = random_chain(random, 100, 6, {1 << 20, 1000, true});
  const Frontier thinned(uneven);
  CHECK(first_problem(uneven, thinned) == "");
  CHECK(thinned.minimum_budget() == least_of(uneven));
}

TEST_CASE("remat: solve times", "[.benchmark]") {
  Random random(5);
  struct Case {
    const char* name;
    Chain chain;
  };
  std::vector<Case> cases;
  cases.push_back({"100 uneven stages, 6 options", random_chain(random, 100, 6, {1 << 20, 1000, false})});
  cases.push_back({"the same with all flags", random_chain(random, 100, 6, {1 << 20, 1000, true})});
  cases.push_back({"100 equal blocks, 6 options", transformer_like(100)});
  cases.push_back({"24 equal blocks, 6 options", transformer_like(24)});
  cases.push_back({"20 uneven stages, 6 options", random_chain(random, 20, 6, {1 << 20, 1000, true})});
  cases.push_back({"12 uneven stages, 6 options", random_chain(random, 12, 6, {1 << 20, 1000, true})});
  cases.push_back({"17 uneven, 60 options, span 6", random_chain(random, 17, 60, {1 << 20, 1000, false, 6})});
  cases.push_back({"40 uneven, 60 options, span 6", random_chain(random, 40, 60, {1 << 20, 1000, false, 6})});
  std::printf("%-30s %9s %9s %9s %8s %8s %8s\n", "chain", "ms", "classes", "front", "exact", "gap max", "gap mean");
  for (const Case& c : cases) {
    const std::clock_t start = std::clock();  // CPU time of this process: the machine may be busy
    const Frontier solved(c.chain);
    const double ms = 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    double worst = 0;
    double sum = 0;
    for (const Frontier::Point& point : solved.points()) {
      const double gap = static_cast<double>(point.time) / static_cast<double>(point.lower_bound) - 1;
      worst = std::max(worst, gap);
      sum += gap;
    }
    std::printf("%-30s %9.1f %9zu %9zu %8s %7.2f%% %7.2f%%\n", c.name, ms, solved.interval_count(),
                solved.points().size(), solved.is_exact() ? "yes" : "no", 100 * worst,
                100 * sum / static_cast<double>(solved.points().size()));
  }
}
