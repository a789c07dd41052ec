#pragma once
// The figures of a plan's page: a step's timeline and its blocks, the fate of its operators, and the cost of budgets.

#include <cstddef>
#include <string>

#include <thimble/bench/report/figures.h>
#include <thimble/bench/report/maps.h>
#include <thimble/bench/report/plan_page.h>

namespace thimble::report {

/// Live bytes over the events of a step, at one scale for all steps of the view. Its event 0 is the state before the
/// step's first event.
Timeline step_timeline(const bench::PlanView& view, const bench::StepTrace& step);

/// The blocks of a step at the places of a layout, at most `mapped_blocks_max`.
AddressMap step_blocks(const bench::StepTrace& step, const bench::StepLayout& layout, const std::string& name);

/// Two pictures of one step: its blocks as the arena places them on demand, and as they were placed offline.
Figure step_map(const bench::PlanView& view, const bench::StepTrace& step);

/// How many blocks of a step the maps leave out, and their largest size.
struct LeftOut {
  std::size_t blocks = 0, largest_bytes = 0;
};
LeftOut left_out_of_map(const bench::StepTrace& step);

/// Bytes kept of every operator, and the segments that backward runs again. For views of a plan, not of a forward.
Figure schedule_figure(const bench::PlanView& view);

/// Time against bytes for all plans of the view. For views of a plan, not of a forward.
Plot plans_plot(const bench::PlanView& view);

}  // namespace thimble::report
