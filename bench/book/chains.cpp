// Pictures of schedules for chains.

#include <thimble/bench/book/drawing.h>
#include <thimble/bench/book/figures.h>
#include <thimble/bench/report/figures.h>
#include <thimble/memory/remat/frontier.h>
#include <thimble/memory/remat/known.h>

namespace thimble::bench {
namespace chains_detail {

using report::ShownSchedule;

/// The chain of examples/toy_rotor.cpp.
remat::Chain toy_chain() {
  const int stages[5][4] = {{4, 8, 2, 4}, {3, 6, 6, 9}, {1, 9, 1, 3}, {2, 2, 4, 6}, {1, 5, 2, 5}};
  remat::Chain chain;
  chain.input_bytes = chain.input_gradient_bytes = 2;
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

}  // namespace chains_detail

std::string draw_known_schedules() {
  const std::size_t n = 12;
  const remat::Chain chain = remat::homogeneous_chain(n, 1, 4, 1, 2);
  const auto shown = [&](const char* name, const remat::ScheduleTree& tree) {
    return chains_detail::ShownSchedule{name, remat::to_schedule(tree, chain)};
  };
  return report::svg_schedules(
      "Twelve equal stages, four schedules",
      "Each operation as a box at its stage and time; below, the units that are held.", chain,
      {shown("keep all", remat::keep_all(n)), shown("square root", remat::square_root(n)),
       shown("halves of halves", remat::recursive_halves(n)), shown("binomial, 3 slots", remat::binomial(n, 3))},
      "units");
}

std::string draw_rotor_schedules() {
  const remat::Chain chain = chains_detail::toy_chain();
  const remat::Frontier frontier(chain);
  std::vector<report::ShownSchedule> shown;
  for (const remat::Bytes budget : {45, 28, 19}) {
    shown.push_back(
        {"the best in " + std::to_string(budget) + " units", remat::to_schedule(frontier.plan(budget), chain)});
  }
  return report::svg_schedules("Five unequal stages, three budgets",
                               "The fastest schedules that Rotor finds for three budgets.", chain, shown, "units");
}

std::string draw_rotor_staircase() {
  const remat::Frontier frontier(chains_detail::toy_chain());
  report::Plot plot;
  plot.name = "rotor";
  plot.title = "What memory buys: five unequal stages";
  plot.caption = "Time of the fastest schedule against the units of memory it may use.";
  plot.x = {.title = "units of memory", .from_zero = false};
  plot.y = {.title = "time", .from_zero = false};
  report::Series best{"Rotor, exact", report::Role::other, {}, "best", true};
  for (const remat::Frontier::Point& point : frontier.points()) {
    best.points.push_back({static_cast<double>(point.budget_bytes), static_cast<double>(point.time)});
  }
  report::Series known{"known schedules", report::Role::measured, {}, "known"};
  for (const remat::ScheduleTree& tree :
       {remat::keep_all(5), remat::square_root(5), remat::recursive_halves(5), remat::binomial(5, 2)}) {
    const remat::ScheduleCost cost = remat::simulate(frontier.chain(), tree);
    known.points.push_back({static_cast<double>(cost.peak_bytes), static_cast<double>(cost.time)});
  }
  plot.series = {best, known};
  return report::svg_plot(plot);
}

}  // namespace thimble::bench
