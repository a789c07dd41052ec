// Answers to the exercises of chapter 6, docs/book/06-rotor.md.

#include <array>
#include <vector>

#include <thimble/memory/remat/frontier.h>
#include <thimble/memory/remat/schedule.h>

#include "support/catch.h"

using namespace thimble;

namespace {

using Numbers = std::vector<std::array<int, 4>>;
const Numbers toy = {{4, 8, 2, 4}, {3, 6, 6, 9}, {1, 9, 1, 3}, {2, 2, 4, 6}, {1, 5, 2, 5}};

remat::Chain chain_of(const Numbers& stages, int input) {
  remat::Chain chain;
  chain.input_bytes = chain.input_gradient_bytes = input;
  for (const auto& [output, kept, forward, backward] : stages) {
    remat::Stage stage;
    stage.output_bytes = stage.output_gradient_bytes = output;
    stage.forward_time = forward;
    remat::Option option;
    option.kept_bytes = kept, option.forward_time = forward, option.backward_time = backward;
    stage.options = {option};
    chain.stages.push_back(stage);
  }
  return chain;
}

}  // namespace

TEST_CASE("exercise 6.1: a stage that became dear", "[exercise]") {
  Numbers stages = toy;
  stages[2][2] = 7;
  const remat::Frontier cheap(chain_of(toy, 2)), dear(chain_of(stages, 2));
  // With 36 units the toy drops only stage 2, for one unit of time. Now that would cost seven: dropping stage 0 takes
  // two, and also needs less memory.
  CHECK(to_string(cheap.plan(36)) == "[0 1 {2..2 -> [2]} 3 4]");
  CHECK(to_string(dear.plan(36)) != to_string(cheap.plan(36)));
  CHECK(dear.at(45).time == 42 + 6);  // everything recorded: the stage runs once
  CHECK(dear.at(36).time - dear.at(45).time < 7);
}

TEST_CASE("exercise 6.2: the toy is right", "[exercise]") {
  // Printed by examples/toy_rotor.
  const std::vector<std::array<int, 2>> printed = {{19, 53}, {22, 51}, {27, 50}, {28, 45}, {36, 43}, {45, 42}};
  const remat::Frontier frontier(chain_of(toy, 2));
  REQUIRE(frontier.points().size() == printed.size());
  for (std::size_t i = 0; i < printed.size(); ++i) {
    CHECK(frontier.points()[i].budget_bytes == printed[i][0]);
    CHECK(frontier.points()[i].time == printed[i][1]);
  }
}

TEST_CASE("exercise 6.3: equal stages", "[exercise]") {
  const remat::Chain chain = remat::homogeneous_chain(12, 1, 4, 1, 2);
  const remat::ScheduleCost binomial = remat::simulate(chain, remat::binomial(12, 3));
  const remat::ScheduleCost rotor = remat::simulate(chain, remat::Frontier(chain).plan(binomial.peak_bytes));
  CHECK(rotor.peak_bytes <= binomial.peak_bytes);
  // The binomial schedule records one stage at a time and counts only activations. Rotor knows the bytes inside a
  // recorded stage, and uses them while they are free.
  CHECK(rotor.time <= binomial.time);
}
