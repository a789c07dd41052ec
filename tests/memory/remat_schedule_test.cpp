// Schedules on plain data: the simulator's rules, plans and their lists, and the known schedules against theory.

#include <thimble/memory/remat/schedule.h>

#include <cstdio>

#include "remat_chains.h"
#include "support/catch.h"
#include "support/refusal.h"

namespace {

using namespace thimble::remat;
using Kind = Operation::Kind;
using thimble::PlanError;
using thimble::ValueError;

/// Forwards that record nothing: each stage is recorded once.
std::int64_t advances(const ScheduleCost& cost) {
  std::int64_t sum = 0;
  for (const std::uint32_t count : cost.forward_counts) sum += count - 1;
  return sum;
}

/// The least number of advances for n stages with c slots, from the recurrence that binomial schedules solve.
std::int64_t least_advances(std::size_t n, std::size_t slots) {
  std::vector<std::vector<std::int64_t>> t(slots + 1, std::vector<std::int64_t>(n + 1, 0));
  for (std::size_t c = 1; c <= slots; ++c) {
    for (std::size_t l = 2; l <= n; ++l) {
      std::int64_t best = -1;
      for (std::size_t j = 1; j < l; ++j) {
        if (c == 1 && j + 1 < l) continue;  // the rest needs the only slot
        const std::int64_t cost = static_cast<std::int64_t>(j) + (l - j > 1 ? t[c - 1][l - j] : 0) + t[c][j];
        if (best < 0 || cost < best) best = cost;
      }
      t[c][l] = best;
    }
  }
  return t[slots][n];
}

/// Three stages; stage 1 may give up its input (option 1) or read its output (option 2).
Chain small_chain() {
  Chain chain = homogeneous_chain(3, 10, 100, 1, 2);
  Stage& stage = chain.stages[1];
  stage.options.push_back(stage.options[0]);
  stage.options[1].keeps_input = false;
  stage.options[1].backward_peak_bytes = 10;
  stage.options.push_back(stage.options[0]);
  stage.options[2].keeps_output = true;
  return chain;
}

}  // namespace

TEST_CASE("remat schedule: the simulator counts bytes and time by hand", "[remat]") {
  // Two stages with activations of 10, kept tensors of 100, gradients of 10. Both recorded: a0 a1 a2 and 200 kept.
  const Chain chain = homogeneous_chain(2, 10, 100, 3, 5);
  const ScheduleCost all = simulate(chain, keep_all(2));
  CHECK(all.time == 16);
  CHECK(all.extra_time == 0);
  CHECK(all.phase_peak_bytes == std::array<Bytes, phase_count>{230, 0, 0, 240});  // a0 a1 kept kept d2 d1
  CHECK(all.peak_bytes == 240);
  CHECK(all.peak_operation == 3);  // record 0, record 1, drop a_2, backward 1
  CHECK(all.forward_counts == std::vector<std::uint32_t>{1, 1});

  Chain flat = homogeneous_chain(2, 10, 0, 1, 1);  // the first record and the last backward reach 40
  flat.stages[0].options[0].forward_peak_bytes = 20;
  CHECK(simulate(flat, keep_all(2)).peak_bytes == 40);
  CHECK(simulate(flat, keep_all(2)).peak_operation == 0);

  const ScheduleCost dropped = simulate(chain, every_kth(2, 1));
  CHECK(dropped.time == 19);
  CHECK(dropped.extra_time == 3);
  CHECK(dropped.phase_peak_bytes == std::array<Bytes, phase_count>{130, 130, 0, 140});
  CHECK(dropped.forward_counts == std::vector<std::uint32_t>{2, 1});

  Chain rich = chain;  // keeps parameters' gradients; adds peaks for temporaries and recomputes
  rich.stages[1].parameter_gradient_bytes = 7;
  rich.stages[0].options[0].recompute_time = 4;
  rich.stages[0].options[0].forward_time = 9;
  rich.stages[0].options[0].recompute_peak_bytes = 1000;
  rich.stages[0].options[0].backward_peak_bytes = 500;
  const ScheduleCost cost = simulate(rich, keep_all(2));
  CHECK(cost.time == 26);
  CHECK(cost.extra_time == 4);
  CHECK(simulate(rich, every_kth(2, 1)).extra_time == 13);  // stage 0 is recorded in its second visit
  CHECK(cost.phase_peak_bytes == std::array<Bytes, phase_count>{230, 0, 1127, 637});  // a0 kept d1 7, then d0
  for (const auto& [time, peak] : {std::pair<Time, Bytes>{4, 0}, {0, 1000}, {0, 0}}) {
    rich.stages[0].options[0].recompute_time = time, rich.stages[0].options[0].recompute_peak_bytes = peak;
    CHECK(simulate(rich, keep_all(2)).phase_peak_bytes[2] == (time + peak > 0 ? 127 + peak : 0));
  }
}

TEST_CASE("remat schedule: the simulator refuses what is not legal", "[remat]") {
  const Chain chain = small_chain();
  const Operation record0{Kind::record, 0, 0}, record1{Kind::record, 1, 0}, record2{Kind::record, 2, 0};
  const Operation drop3{Kind::drop, 3, 0}, backward2{Kind::backward, 2, 0}, backward1{Kind::backward, 1, 0};
  const Operation backward0{Kind::backward, 0, 0};
  struct Case {
    const char* what;
    Schedule schedule;
  };
  const Case cases[] = {
      {"its input is not held", {{Kind::pass, 1, 0}}},
      {"its output is held already", {{Kind::checkpoint, 0, 0}, {Kind::checkpoint, 0, 0}}},
      {"stages", {{Kind::pass, 3, 0}}},
      {"stages", {{Kind::drop, 4, 0}}},
      {"options", {{Kind::record, 0, 1}}},
      {"it is not held", {{Kind::drop, 1, 0}}},
      {"the stage that read it needs it", {record0, {Kind::drop, 0, 0}}},
      {"the stage that made it needs it", {record0, {Kind::record, 1, 2}, {Kind::drop, 2, 0}}},
      {"the input that it drops", {record0, {Kind::record, 1, 2}, {Kind::pass, 2, 0}}},
      {"the backward of stage 2 is due", {record0, backward0}},
      {"the stage is not recorded", {record0, record1, backward2}},
      {"its input is not held", {record0, {Kind::pass, 1, 0}, record2, drop3, backward2, backward1}},
      {"its backward has run already",
       {record0, record1, record2, drop3, backward2, {Kind::checkpoint, 1, 0}, {Kind::pass, 2, 0}}},
      {"it is recorded already", {record0, {Kind::drop, 1, 0}, record0}},
      {"all backwards have run", {record0, record1, record2, drop3, backward2, backward1, backward0, backward0}},
      {"before the backward of stage 1", {record0, record1, record2, drop3, backward2}},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    try {
      simulate(chain, c.schedule);
      FAIL_CHECK("accepted");
    } catch (const PlanError& error) {
      if (std::string(c.what) != "its input is not held" || c.schedule.size() == 1) {
        CHECK(std::string(error.what()).find(c.what) != std::string::npos);
      }
    }
  }
  // A stage that gives up its input frees it after its forward; a stage that reads its output holds it.
  const Schedule given_up{record0, {Kind::record, 1, 1}, record2, drop3, backward2, backward1, backward0};
  const Schedule kept{record0, record1, record2, drop3, backward2, backward1, backward0};
  const Schedule pinned{record0, {Kind::record, 1, 2}, record2, drop3, backward2, backward1, backward0};
  CHECK(simulate(chain, kept).peak_bytes == 350);      // a0 a1 a2, 300 kept, d3, d2
  CHECK(simulate(chain, given_up).peak_bytes == 340);  // without a1
  Simulator simulator(chain);
  for (std::size_t i = 0; i < 5; ++i) simulator.apply(pinned[i]);
  CHECK(simulator.holds_activation(2));
  CHECK(simulator.held_bytes() == 10 + 10 + 10 + 200 + 10);  // a0 a1 a2, kept of 0 and 1, d2
  for (std::size_t i = 5; i < 7; ++i) simulator.apply(pinned[i]);
  CHECK(simulator.held_bytes() == 10);  // d0
}

TEST_CASE("remat schedule: chains are checked", "[remat]") {
  const auto broken = [](auto&& change) {
    Chain chain = homogeneous_chain(3, 10, 100, 1, 2);
    change(chain);
    return chain;
  };
  const Chain chains[] = {
      Chain{},
      broken([](Chain& c) { c.input_bytes = -1; }),
      broken([](Chain& c) { c.stages[1].options.clear(); }),
      broken([](Chain& c) { c.stages[2].output_bytes = -4; }),
      broken([](Chain& c) { c.stages[2].output_bytes = largest_total; }),
      broken([](Chain& c) { c.stages[0].forward_time = largest_total / 4; }),
      broken([](Chain& c) { c.stages[1].options[0].recompute_time = -1; }),
      broken([](Chain& c) { c.stages[1].options[0].span = 2; }),  // the only one
      broken([](Chain& c) {
        c.stages[1].options.push_back(c.stages[1].options[0]);
        c.stages[1].options[1].span = 0;
      }),
      broken([](Chain& c) {
        c.stages[1].options.push_back(c.stages[1].options[0]);
        c.stages[1].options[1].span = 3;
      }),
      broken([](Chain& c) { c.shared = {{.maker = 0, .readers = {1}, .bytes = 8, .gradient_bytes = -1}}; }),
      broken([](Chain& c) { c.shared = {{.maker = 0, .readers = {3}, .bytes = 8}}; }),
      broken([](Chain& c) {
        c.shared = {{.maker = 0, .readers = {1}, .bytes = 8}};
        c.stages[2].options[0].unread_shared = {0};
      }),
  };
  for (std::size_t i = 0; i < std::size(chains); ++i) {
    INFO("chain " << i);
    CHECK_THROWS_AS(validate(chains[i]), ValueError);
  }
  Chain named = homogeneous_chain(2, 1, 1, 1, 1);
  named.stages[1].name = "block.1";
  named.stages[1].options[0].name = "all";
  named.stages[1].options[0].kept_bytes = -3;
  CHECK(refusal_test::refusal<ValueError>([&] { validate(named); }) ==
        "remat chain: stage 1 (block.1), option 0 (all): kept_bytes is -3, must be >= 0");
}

TEST_CASE("remat schedule: an option that spans stages counts as one", "[remat]") {
  // Stages 1 and 2 of four as one: 130 kept replace 200 and a_2; parameters' gradients are 3 and 4.
  Chain chain = homogeneous_chain(4, 10, 100, 3, 5);
  chain.stages[1].parameter_gradient_bytes = 3;
  chain.stages[2].parameter_gradient_bytes = 4;
  Option both = chain.stages[1].options[0];
  both.span = 2;
  both.kept_bytes = 130;
  both.forward_time = 6;
  both.recompute_time = 2;
  both.backward_time = 10;
  both.recompute_peak_bytes = 60;
  both.backward_peak_bytes = 50;
  chain.stages[1].options.push_back(both);
  const ScheduleTree plan{{{0, 1, 0, 0}, {1, 3, 1, 0}, {3, 4, 0, 0}}};
  CHECK(to_string(plan) == "[0 1-2.1 3]");
  const ScheduleCost cost = simulate(chain, plan);
  CHECK(cost.time == 4 * 8 + 2);
  CHECK(cost.extra_time == 2);
  CHECK(cost.forward_counts == std::vector<std::uint32_t>{1, 1, 1, 1});
  // Forward: a_0 a_1 a_3 a_4, kept 100 + 130 + 100. Recompute: a_0 a_1, d_3, kept 230, 60; its backward replaces 60 by
  // d_1, 3 + 4 and 50. The backward of stage 3 is highest: d_4 and d_3 live.
  CHECK(cost.phase_peak_bytes == std::array<Bytes, phase_count>{370, 0, 320, 380});

  Simulator simulator(chain);
  simulator.apply({Kind::record, 0, 0});
  simulator.apply({Kind::record, 1, 1});
  CHECK(simulator.held_bytes() == 10 + 100 + 10 + 130 + 10);
  CHECK_FALSE(simulator.holds_activation(2));
  CHECK(simulator.is_recorded(2));
  CHECK(simulator.recorded_from(2) == 1);
  simulator.apply({Kind::record, 3, 0});
  simulator.apply({Kind::drop, 4, 0});
  simulator.apply({Kind::backward, 3, 0});
  CHECK_THROWS_AS(simulator.apply({Kind::backward, 2, 0}), PlanError);
  simulator.apply({Kind::backward, 1, 0});
  CHECK(simulator.next_backward() == 1);
  CHECK(simulator.held_bytes() == 10 + 100 + 10 + 7);  // a_0, kept, d_1, parameters' gradients

  const ScheduleTree plans[] = {
      ScheduleTree{{{0, 1, 0, 0}, {1, 2, 1, 0}, {2, 3, 0, 0}, {3, 4, 0, 0}}},  // the option spans two
      ScheduleTree{{{0, 1, 0, 0}, {1, 3, 0, 0}, {3, 4, 0, 0}}},                // the option spans one
      ScheduleTree{{{0, 2, 0, 2}, {0, 1, 0, 0}, {1, 3, 1, 0}, {3, 4, 0, 0}}},  // across the end of a dropped segment
  };
  for (std::size_t i = 0; i < std::size(plans); ++i) {
    INFO("plan " << i);
    CHECK_THROWS_AS(validate(plans[i], chain), PlanError);
  }
}

TEST_CASE("remat schedule: plans become lists, and bad plans are refused", "[remat]") {
  const Chain chain = homogeneous_chain(5, 10, 100, 1, 2);
  const ScheduleTree plan = binomial(5, 2);
  CHECK(to_string(plan) == "[{0..2 -> [{0..0 -> [0]} {1..1 -> [1]} 2]} {3..3 -> [3]} 4]");
  ScheduleTree by_options = every_kth(3, 2);
  by_options.items[1].option = 1, by_options.items[3].option = 2;
  CHECK(to_string(by_options) == "[{0..1 -> [0.1 1]} 2.2]");
  CHECK(to_string(to_schedule(keep_all(5), chain)[0]) == "record 0 (option 0)");
  ScheduleTree unknown = keep_all(5);
  unknown.items[2].option = 1;
  CHECK_THROWS_AS(simulate(chain, unknown), PlanError);

  // The whole chain as one dropped segment: legal, as in libraries that drop every segment.
  ScheduleTree whole{{{0, 5, 0, 5}}};
  for (std::uint32_t i = 0; i < 5; ++i) whole.items.push_back({i, i + 1, 0, 0});
  CHECK(advances(simulate(chain, whole)) == 5);

  const ScheduleTree plans[] = {
      ScheduleTree{},
      keep_all(4),
      keep_all(6),
      ScheduleTree{{{0, 5, 0, 0}}},
      ScheduleTree{{{0, 5, 0, 1}, {0, 5, 0, 0}}},
      ScheduleTree{{{0, 5, 0, 2}, {0, 1, 0, 0}}},
      ScheduleTree{{{0, 5, 0, 6}, {0, 5, 0, 5}, {0, 1, 0, 0}, {1, 2, 0, 0}, {2, 3, 0, 0}, {3, 4, 0, 0}, {4, 5, 0, 0}}},
      ScheduleTree{{{0, 1, 0, 0}, {2, 3, 0, 0}, {1, 2, 0, 0}, {3, 4, 0, 0}, {4, 5, 0, 0}}},
  };
  for (std::size_t i = 0; i < std::size(plans); ++i) {
    INFO("plan " << i);
    CHECK_THROWS_AS(validate(plans[i], chain), PlanError);
  }
  CHECK_THROWS_WITH(validate(plans[5], chain), Catch::Contains("a re-run of 2 items, but only 1 follow"));
}

TEST_CASE("remat schedule: binomial schedules have the forward counts of the theory", "[remat]") {
  for (std::size_t slots = 1; slots <= 6; ++slots) {
    for (std::size_t n = 1; n <= 60; ++n) {
      INFO("n " << n << ", slots " << slots);
      const ScheduleCost cost = simulate(homogeneous_chain(n, 1, 0, 1, 0), binomial(n, slots));
      REQUIRE(advances(cost) == revolve_forward_count(n, slots));
      REQUIRE(advances(cost) == least_advances(n, slots));
      // Live at the peak: the slots, the input of the recorded stage, two gradients.
      REQUIRE(cost.peak_bytes <= static_cast<Bytes>(slots) + 3);
    }
  }
  // l = C(c + r, c) exactly: r l - C(c + r, r - 1).
  for (const std::int64_t c : {1, 2, 3, 4, 8}) {
    for (const std::int64_t r : {1, 2, 3}) {
      const auto l = static_cast<std::size_t>(binomial_coefficient(c + r, c));
      CHECK(revolve_repetitions(l, static_cast<std::size_t>(c)) == r);
      CHECK(revolve_forward_count(l, static_cast<std::size_t>(c)) ==
            r * static_cast<std::int64_t>(l) - binomial_coefficient(c + r, r - 1));
    }
  }
  CHECK(binomial_coefficient(10, 3) == 120);
  CHECK(binomial_coefficient(60, 30) == 118264581564861424);
  CHECK(binomial_coefficient(200, 100) == largest_total);
  CHECK(binomial_coefficient(3, 4) == 0);
}

TEST_CASE("remat schedule: 100 equal blocks under the known schedules", "[remat]") {
  // Activation 1 KiB, kept 16 KiB, forward 1, backward 2. Live at each schedule's peak: activations left behind, the
  // stages recorded together, and two gradients.
  constexpr Bytes a = 1024, kept = 16 * a;
  const Chain chain = homogeneous_chain(100, a, kept, 1, 2);
  struct Case {
    const char* name;
    ScheduleTree plan;
    std::int64_t advances;
    Bytes peak;
  };
  const Case cases[] = {
      // a_0..a_99, all kept, d_100 and d_99 in the backward of stage 99
      {"keep all", keep_all(100), 0, 100 * kept + 102 * a},
      // 9 segments dropped: a_0, a_10, .., a_90, then a_91..a_99, kept of ten, two gradients
      {"every 10th", every_kth(100, 10), 90, 10 * kept + (9 + 10 + 2) * a},
      {"sqrt(n)", square_root(100), 90, 10 * kept + (9 + 10 + 2) * a},
      // 4 activations remain before the last segment of 20
      {"every 20th", every_kth(100, 20), 80, 20 * kept + (4 + 20 + 2) * a},
      // One stage is recorded at a time; 99 activations remain, then a_99
      {"every 1st", every_kth(100, 1), 99, kept + (99 + 1 + 2) * a},
      // a_0, a_50, a_75, a_88, a_94, a_97 remain. A(n) = h + A(h) + A(n - h) with h = ceil(n / 2) passes: A(3) = 3,
      // A(6) = 9, A(7) = 11, A(12) = 24, A(13) = 27, A(25) = 64, A(50) = 153
      {"recursive", recursive_halves(100), 356, kept + (6 + 1 + 2) * a},
      // The slots, the input of the recorded stage, two gradients. C(10, 3) = 120: r = 7; C(13, 10) = 286: r = 3
      {"binomial, 3 slots", binomial(100, 3), 7 * 100 - 210, kept + (3 + 1 + 2) * a},
      {"binomial, 10 slots", binomial(100, 10), 3 * 100 - 78, kept + (10 + 1 + 2) * a},
      {"binomial, 1 slot", binomial(100, 1), 100 * 99 / 2, kept + (1 + 1 + 2) * a},
  };
  for (const Case& c : cases) {
    const ScheduleCost cost = simulate(chain, c.plan);
    INFO(c.name);
    CHECK(advances(cost) == c.advances);
    CHECK(cost.peak_bytes == c.peak);
    CHECK(cost.time == 300 + c.advances);
  }
  CHECK(revolve_forward_count(100, 3) == 490);
  CHECK(revolve_forward_count(100, 10) == 222);
  CHECK_THROWS_AS(keep_all(0), ValueError);
  CHECK_THROWS_AS(every_kth(5, 0), ValueError);
  CHECK_THROWS_AS(binomial(5, 0), ValueError);
  CHECK_THROWS_AS(revolve_repetitions(5, 0), ValueError);
}

TEST_CASE("remat schedule: table of known schedules", "[.benchmark]") {
  const Chain chain = homogeneous_chain(100, 1, 16, 1, 2);
  std::printf("%-12s %9s %6s %6s\n", "100 blocks", "forwards", "time", "peak");
  const auto row = [&](const std::string& name, const ScheduleTree& plan) {
    const ScheduleCost cost = simulate(chain, plan);
    std::printf("%-12s %9lld %6lld %6lld\n", name.c_str(), static_cast<long long>(100 + advances(cost)),
                static_cast<long long>(cost.time), static_cast<long long>(cost.peak_bytes));
  };
  row("keep all", keep_all(100));
  row("every 20th", every_kth(100, 20));
  row("sqrt(n)", square_root(100));
  row("every 1st", every_kth(100, 1));
  row("recursive", recursive_halves(100));
  for (const std::size_t slots : {1U, 2U, 3U, 5U, 10U, 20U})
    row("binomial " + std::to_string(slots), binomial(100, slots));
}
