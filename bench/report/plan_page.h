#pragma once
// Seeing a plan: one self-contained page, and exports for other programs.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include <thimble/autograd/plan.h>
#include <thimble/memory/policies/trace.h>
#include <thimble/models/planning/planning.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/step/profile.h>

namespace thimble::bench {

// ---- One steady training step, event by event, with the place of every block: the data of a plan's
// pictures.
//
// Policy
// - A run makes two steps on a dry device, and its trace starts again with the second, steady one: first an allocation
//   for each block that lives when it begins.
// - It runs once with blocks placed on demand and once with their planned offsets. Both make the same requests.
//
// Terms
//   event time   0 is the moment before the step; t is the state after its t-th event
//   layout       where the blocks of the step lie: as the arena places them on demand, or as they were placed offline

/// Offsets of a step's blocks in one arena.
struct StepLayout {
  std::vector<std::size_t> offsets;  ///< in bytes from the arena's base, by block id
  std::size_t height_bytes = 0;      ///< end of the highest block during the step
  std::size_t committed_bytes = 0;   ///< by the arena at most, over the whole run
};

struct StepTrace {
  std::string name;                          ///< "keep everything", "planned", "forward"
  std::vector<memory::Trace::Event> events;  ///< of the step, after `before` allocations of blocks that lived before it
  std::size_t before = 0;
  std::size_t live_peak_bytes = 0;  ///< largest sum of requested bytes in the step
  StepLayout dynamic;               ///< as the arena places blocks on demand
  StepLayout placed;                ///< the step's own blocks placed offline
};

/// Dry-runs two steps of `make`'s run on the dry twin of `device` under `plan`, which keeps everything by default, and
/// copies the second one. Places the steps where the plan does not. Passes on the run's exceptions.
StepTrace trace_step(const std::string& name, memory::Device device, const nn::MakeRun& make,
                     const nn::Plan& plan = {});

/// A plan with the steps it is about.
struct PlanView {
  models::Setup setup;  ///< of the report
  models::PlanReport report;
  std::vector<StepTrace> steps;  ///< the step that keeps everything, then the planned one where it is another

  std::vector<nn::Plan> plans;  ///< all of the planner's; a forward has no plans
  /// Bytes that the textbook build holds when backward begins, by formula. A forward has no such formula.
  std::optional<std::int64_t> theory_bytes;

  /// The step that the plan makes.
  const StepTrace& planned() const noexcept { return steps.back(); }
};

/// Traces the steps of a plan that make_plan(options) made, on dry devices. Passes on exceptions of the dry runs.
PlanView see_plan(const models::RunOptions& options, const models::PlanReport& report);

/// The techniques of the report's setup, " in 2 micro-batches, chunked head", or "".
std::string techniques_in_words(const models::PlanReport& report);

}  // namespace thimble::bench

namespace thimble::report {

/// A page that needs nothing beside itself: the figures in words, a timeline of bytes by category, maps of the arena's
/// addresses before and after placement, the schedule of segments, and bytes against time for all plans. Of steps with
/// many events the page holds `hover_events_max` moments (figures.h), the highest of each stretch, and
/// the `mapped_blocks_max` blocks with the most bytes times events; the page names the rest. The peak is
/// always among them.
std::string write_plan_page(const bench::PlanView& view);

inline constexpr std::size_t mapped_blocks_max = 12'000;

/// Chrome's trace event format, for Perfetto (ui.perfetto.dev) and chrome://tracing: a process per step of the view, in
/// each a counter of bytes by category and nested slices of the module path that allocates or frees. One microsecond
/// stands for one event.
std::string write_chrome_trace(const bench::PlanView& view);

/// The memory snapshot that pytorch.org/memory_viz opens: a pickle (protocol 2) of {"segments", "device_traces"} with
/// the planned step's allocations and frees at the dynamic arena's addresses, each with its module path as frame.
/// Blocks that live when the step begins are allocated first. Events have the requested sizes.
std::string write_snapshot(const bench::PlanView& view);

/// The Python pickle, protocol 2 (PEP 307), of objects (dictionaries), arrays (lists), integers of 64 bits and text.
/// Text is written once and referred to after that (the pickle's memo). Throws ValueError for other values.
std::string write_pickle(const nlohmann::ordered_json& value);

}  // namespace thimble::report
