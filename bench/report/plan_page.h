#pragma once
// Seeing a plan: one self-contained page, and exports for other programs.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <thimble/bench/report/step_trace.h>
#include <thimble/models/planning/planning.h>

namespace thimble::bench {

/// A plan with the steps it is about.
struct PlanView {
  models::Setup setup;  ///< of the report
  models::PlanReport report;
  std::vector<StepTrace> steps;  ///< the step that keeps everything, then the planned one where it is another

  std::vector<nn::Plan> plans;  ///< all of the planner's; none for a forward
  /// What the textbook build holds when backward begins, by formula; none for a forward or without a closed form.
  std::optional<std::int64_t> theory_bytes;

  /// The step that the plan makes.
  const StepTrace& planned() const noexcept { return steps.back(); }
};

/// Traces the steps of a plan that make_plan(options) made, on dry devices. Throws what the dry runs throw.
PlanView see_plan(const models::PlanOptions& options, const models::PlanReport& report);

/// The techniques of the report's setup: " in 2 micro-batches, chunked head"; empty: none.
std::string techniques_in_words(const models::PlanReport& report);

}  // namespace thimble::bench

namespace thimble::report {

/// A page that needs nothing beside itself: the figures in words, a timeline of bytes by category, maps of the arena's
/// addresses before and after placement, the schedule of segments, and bytes against time for all plans. Of steps with
/// many events the page holds `hover_events_max` moments (figures.h), the highest of each stretch, and
/// `mapped_blocks_max` blocks, those with the most bytes times events; the page says what is left out. The peak is
/// always among them.
std::string write_plan_page(const bench::PlanView& view);

inline constexpr std::size_t mapped_blocks_max = 12'000;

/// Chrome's trace event format, for Perfetto (ui.perfetto.dev) and chrome://tracing: a process per step of the view, in
/// each a counter of bytes by category and nested slices of the module path that allocates or frees. One microsecond
/// stands for one event.
std::string write_chrome_trace(const bench::PlanView& view);

/// The memory snapshot that pytorch.org/memory_viz opens: a pickle (protocol 2) of {"segments", "device_traces"} with
/// the planned step's allocations and frees at the dynamic arena's addresses, each with its module path as frame. What
/// lives at the step's begin is allocated first. Sizes of events are those requested.
std::string write_snapshot(const bench::PlanView& view);

}  // namespace thimble::report
