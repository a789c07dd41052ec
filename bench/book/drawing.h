#pragma once
// Drawing routines and dry runs for the book's pictures.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <thimble/bench/report/drawing.h>
#include <thimble/bench/report/experiment.h>
#include <thimble/bench/report/palette.h>
#include <thimble/dist/pipeline/schedule.h>
#include <thimble/memory/remat/schedule.h>
#include <thimble/models/techniques/setup.h>

namespace thimble::report {

/// A chain's schedule with its name.
struct ShownSchedule {
  std::string name;
  remat::Schedule operations;
};

/// Stages upwards, time across: the operations of each schedule, with the held bytes below. `unit_name` names the unit
/// of bytes: "bytes", "units". Exceptions of remat::simulate pass through.
std::string svg_schedules(const std::string& title, const std::string& description, const remat::Chain& chain,
                          const std::vector<ShownSchedule>& schedules, const std::string& unit_name);

/// A pipeline's simulated run with its name.
struct ShownPipeline {
  std::string name;
  int chunks = 1;  ///< per stage
  dist::PipelineRun run;
};

/// Stages downwards, time across: the passes of each stage, one pipeline below the other.
std::string svg_pipelines(const std::string& title, const std::string& description,
                          const std::vector<ShownPipeline>& pipelines);

/// Draws a legend of coloured names in one line from x on; returns the x at its end.
double draw_kinds(Svg& svg, double x, double y, const std::vector<std::pair<std::string, Paint>>& kinds);

}  // namespace thimble::report

namespace thimble::bench {

// ---- Dry runs behind the pictures.

/// The book's small GPT: 4 layers of width 64, 4 heads, 64 tokens, batch 8, AdamW, no dropout.
models::Setup book_gpt();

/// A bar of the live bytes by category at the peak of a step, from a dry run.
report::Bar step_bar(const std::string& label, const models::Setup& setup);

}  // namespace thimble::bench
