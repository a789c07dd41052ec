// Pipeline schedules: bytes in flight on each stage and the time of a step against formulas and a separate simulation,
// broken schedules, and bad arguments.

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/dist/pipeline/schedule.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/refusal.h"

using namespace thimble;
using namespace thimble::dist;
using files_test::contains;
using refusal_test::refusal;

namespace {

std::string text_of(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) text += (text.empty() ? "" : " ") + to_string(action);
  return text;
}

// The longest path through all dependencies, searched backwards from each action: a second method for the step's time.
double longest_way(const Schedule& schedule, const PipelineCosts& costs) {
  struct Place {
    int stage;
    std::size_t at;
  };
  std::map<std::tuple<Pass, int, int>, Place> places;  // pass, piece, micro-batch
  const auto piece_of = [&](const Action& a, int stage) { return a.chunk * schedule.stages + stage; };
  for (int s = 0; s < schedule.stages; ++s) {
    const std::vector<Action>& list = schedule.of_stage[static_cast<std::size_t>(s)];
    for (std::size_t i = 0; i < list.size(); ++i) {
      places[{list[i].pass, piece_of(list[i], s), list[i].micro_batch}] = {s, i};
    }
  }
  std::map<std::pair<int, std::size_t>, double> known;
  const std::function<double(Place)> end_of = [&](Place place) -> double {
    if (const auto found = known.find({place.stage, place.at}); found != known.end()) return found->second;
    const Action& action = schedule.of_stage[static_cast<std::size_t>(place.stage)][place.at];
    const int piece = piece_of(action, place.stage), last = schedule.pieces() - 1;
    double begin = place.at == 0 ? 0 : end_of({place.stage, place.at - 1});
    const auto wait_for = [&](Pass pass, int other, double link) {
      begin = std::max(begin, end_of(places.at({pass, other, action.micro_batch})) + link);
    };
    const double link = schedule.stages > 1 ? costs.link_s : 0;
    if (action.pass == Pass::forward && piece > 0) wait_for(Pass::forward, piece - 1, link);
    if (action.pass == Pass::backward && piece == last) wait_for(Pass::forward, piece, 0);
    if (action.pass == Pass::backward && piece < last) wait_for(Pass::backward, piece + 1, link);
    const std::vector<double>& times = action.pass == Pass::forward ? costs.forward_s : costs.backward_s;
    return known[{place.stage, place.at}] = begin + times[times.size() == 1 ? 0 : static_cast<std::size_t>(piece)];
  };
  double longest = 0;
  for (const auto& [key, place] : places) longest = std::max(longest, end_of(place));
  return longest;
}

}  // namespace

TEST_CASE("pipeline: the lists of the worked example", "[dist][pipeline]") {
  const Schedule one = one_forward_one_backward(2, 3), all = gpipe(2, 3);
  CHECK(text_of(one.of_stage[0]) == "F0 F1 B0 F2 B1 B2");
  CHECK(text_of(one.of_stage[1]) == "F0 B0 F1 B1 F2 B2");
  for (const auto& stage : all.of_stage) CHECK(text_of(stage) == "F0 F1 F2 B0 B1 B2");
  // Narayanan et al. 2021, figure 4, lower half: four stages of two chunks, the last stage from its first backward on.
  const Schedule two = interleaved(4, 8, 2);
  CHECK(text_of(two.of_stage[3]).starts_with("F0 F1 F2 F3 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4 B0 F5 B1"));
}

TEST_CASE("pipeline: what stages hold, and bubbles, are the formulas'", "[dist][pipeline]") {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 13; ++m) {
      INFO(p << " stages, " << m << " micro-batches");
      const PipelineCosts costs{{1}, {2}, 0};
      const PipelineRun all = simulate(gpipe(p, m), costs), one = simulate(one_forward_one_backward(p, m), costs);
      for (int r = 0; r < p; ++r) {
        CHECK(all.in_flight[static_cast<std::size_t>(r)] == m);
        CHECK(one.in_flight[static_cast<std::size_t>(r)] == std::min(p - r, m));
      }
      for (const PipelineRun* run : {&all, &one}) {
        CHECK(run->step_s == Approx(3 * (m + p - 1)));
        CHECK(run->bubble == Approx(static_cast<double>(p - 1) / m));
      }
      for (int v = 2; v <= 4 && m % p == 0; ++v) {
        const PipelineRun some = simulate(interleaved(p, m, v), {{1.0 / v}, {2.0 / v}, 0});
        CHECK(some.bubble == Approx(static_cast<double>(p - 1) / (v * m)));
        for (int r = 0; r < p; ++r) {
          CHECK(some.in_flight[static_cast<std::size_t>(r)] == std::min(2 * (p - r - 1) + (v - 1) * p + 1, v * m));
        }
        // The first stage, in whole stages: p + (p - 1) / v, given enough micro-batches.
        if (m > 2 * p) CHECK(some.in_flight[0] == v * p + p - 1);
      }
    }
  }
}

TEST_CASE("pipeline: times are the longest way through what waits for what", "[dist][pipeline]") {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> seconds(0, 2);
  for (int round = 0; round < 60; ++round) {
    const int p = 1 + static_cast<int>(random() % 5), v = 1 + static_cast<int>(random() % 3);
    const int m = p * (1 + static_cast<int>(random() % 3));
    const Schedule schedule = v > 1            ? interleaved(p, m, v)
                              : round % 2 == 0 ? gpipe(p, m)
                                               : one_forward_one_backward(p, m);
    PipelineCosts costs{{}, {}, seconds(random) / 4};
    for (int piece = 0; piece < schedule.pieces(); ++piece) {
      costs.forward_s.push_back(seconds(random));
      costs.backward_s.push_back(seconds(random));
    }
    const PipelineRun run = simulate(schedule, costs);
    INFO("round " << round);
    CHECK(run.step_s == Approx(longest_way(schedule, costs)));
    for (int s = 0; s < p; ++s) {
      const auto& list = run.of_stage[static_cast<std::size_t>(s)];
      double busy = 0;
      for (std::size_t i = 0; i < list.size(); ++i) {
        CHECK(list[i].action == schedule.of_stage[static_cast<std::size_t>(s)][i]);
        CHECK((i == 0 || list[i].begin_s >= list[i - 1].end_s));
        busy += list[i].end_s - list[i].begin_s;
      }
      CHECK(run.busy_s[static_cast<std::size_t>(s)] == Approx(busy));
    }
  }
}

TEST_CASE("pipeline: broken schedules are told with their place", "[dist][pipeline]") {
  const auto broken = [](const std::function<void(Schedule&)>& change) {
    Schedule schedule = one_forward_one_backward(2, 3);
    change(schedule);
    return refusal<PlanError>([&] { check_schedule(schedule); });
  };
  CHECK(broken([](Schedule&) {}) == "");
  CHECK(contains(broken([](Schedule& s) { s.of_stage.pop_back(); }), "1 lists for 2 stages"));
  CHECK(contains(broken([](Schedule& s) { s.of_stage[1].pop_back(); }), "stage 1, B2: is missing"));
  CHECK(contains(broken([](Schedule& s) { s.of_stage[0][1].micro_batch = 0; }), "stage 0, F0: twice"));
  CHECK(contains(broken([](Schedule& s) { s.of_stage[0][1].micro_batch = 3; }), "micro-batches 0 to 2"));
  CHECK(contains(broken([](Schedule& s) { s.of_stage[0][1].chunk = 1; }), "there are chunks 0 to 0 and"));
  CHECK(contains(broken([](Schedule& s) { std::swap(s.of_stage[1][0], s.of_stage[1][1]); }),
                 "stage 1, B0: before its forward"));
  CHECK(contains(broken([](Schedule& s) { std::swap(s.of_stage[0][4], s.of_stage[0][5]); }),
                 "stage 0, B2: micro-batch 1 is next, in order"));
  // Stage 0 waits for B0 before it sends F1, and stage 1 for F1 before it sends B0.
  CHECK(contains(broken([](Schedule& s) {
                   std::swap(s.of_stage[0][1], s.of_stage[0][2]);
                   std::swap(s.of_stage[1][1], s.of_stage[1][2]);
                 }),
                 "waits for ever for another stage"));
}

TEST_CASE("pipeline: bad arguments are named", "[dist][pipeline]") {
  CHECK(contains(refusal<ValueError>([] { gpipe(0, 3); }), "gpipe: 0 stages and 3 micro-batches"));
  CHECK(contains(refusal<ValueError>([] { one_forward_one_backward(2, 0); }), "1f1b: 2 stages and 0"));
  CHECK(contains(refusal<ValueError>([] { interleaved(2, 4, 1); }), "1 chunks of each stage"));
  CHECK(
      contains(refusal<ValueError>([] { interleaved(4, 6, 2); }), "6 micro-batches on 4 stages; expected a multiple"));
  const Schedule schedule = gpipe(2, 2);
  CHECK(contains(refusal<ValueError>([&] {
                   simulate(schedule, {{1, 2, 3}, {1}, 0});
                 }),
                 "times of 3 pieces; expected 1 or 2"));
  CHECK(contains(refusal<ValueError>([&] { simulate(schedule, {{-1}, {1}, 0}); }), "expected at least 0"));
  CHECK(contains(refusal<ValueError>([&] { simulate(schedule, {{1}, {1}, -1}); }), "a link of"));
}

TEST_CASE("pipeline schedule: stages that hand over to each other do not wait for ever", "[pipeline]") {
  for (int p = 1; p <= 9; ++p) {
    for (int m = 1; m <= 20; ++m) {
      INFO(p << " stages, " << m << " micro-batches");
      CHECK(dist::check_hand_over(dist::gpipe(p, m)) == 1);
      CHECK(dist::check_hand_over(dist::one_forward_one_backward(p, m)) == 1);
    }
  }
  for (int p = 2; p <= 8; ++p) {
    for (int m = p; m <= 4 * p; m += p) {
      for (int v = 2; v <= 4; ++v) {
        INFO(p << " stages in " << v << " chunks, " << m << " micro-batches");
        CHECK(dist::check_hand_over(dist::interleaved(p, m, v)) == (m == p ? 2 : 3));
      }
    }
  }
  // Stage 1 receives F1 only after B0, and stage 0 runs B0 only after F1 has been received.
  dist::Schedule schedule{2, 1, 2, {}};
  using dist::Pass;
  schedule.of_stage = {{{Pass::forward, 0}, {Pass::forward, 1}, {Pass::backward, 0}, {Pass::backward, 1}},
                       {{Pass::forward, 0}, {Pass::backward, 0}, {Pass::forward, 1}, {Pass::backward, 1}}};
  CHECK(dist::check_hand_over(schedule) == 1);
  // Two gradients are ready before the receiving stage has begun with the first: the second must not wait for that.
  schedule = {2, 1, 3, {}};
  schedule.of_stage = {{{Pass::forward, 0},
                        {Pass::forward, 1},
                        {Pass::forward, 2},
                        {Pass::backward, 0},
                        {Pass::backward, 1},
                        {Pass::backward, 2}},
                       {{Pass::forward, 0},
                        {Pass::backward, 0},
                        {Pass::forward, 1},
                        {Pass::backward, 1},
                        {Pass::forward, 2},
                        {Pass::backward, 2}}};
  CHECK_NOTHROW(dist::check_schedule(schedule));
  CHECK(dist::check_hand_over(schedule) == 2);
  // Messages between two stages keep their order: F1 would read F0's activations.
  schedule.of_stage[1] = {{Pass::forward, 1},  {Pass::forward, 0}, {Pass::backward, 0},
                          {Pass::backward, 1}, {Pass::forward, 2}, {Pass::backward, 2}};
  CHECK_NOTHROW(dist::check_schedule(schedule));
  CHECK_THROWS_WITH(dist::check_hand_over(schedule), Catch::Contains("stage 1, F1: stage 0 sends what is for F0"));
  // Stage 0 waits for B0 before it sends F1, and stage 1 for F1 before it sends B0.
  schedule = {2, 1, 2, {}};
  schedule.of_stage = {{{Pass::forward, 0}, {Pass::backward, 0}, {Pass::forward, 1}, {Pass::backward, 1}},
                       {{Pass::forward, 0}, {Pass::forward, 1}, {Pass::backward, 0}, {Pass::backward, 1}}};
  CHECK_THROWS_WITH(dist::check_hand_over(schedule), Catch::Contains("waits for ever for a stage to take"));
}
