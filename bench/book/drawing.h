#pragma once
// Pictures of the book that explain themselves: every part has its name beside it, so that none needs a legend.

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

/// A schedule for a chain with its name.
struct ShownSchedule {
  std::string name;
  remat::Schedule operations;
};

/// Stages upwards, time across: every operation of each schedule, and below it the bytes that are held. `unit_name` is
/// what bytes are called: "bytes", "units". Throws what remat::simulate throws.
std::string svg_schedules(const std::string& title, const std::string& description, const remat::Chain& chain,
                          const std::vector<ShownSchedule>& schedules, const std::string& unit_name);

/// A run of a pipeline with its name.
struct ShownPipeline {
  std::string name;
  int chunks = 1;  ///< of each stage
  dist::PipelineRun run;
};

/// Stages downwards, time across: what each stage does when, one pipeline below the other.
std::string svg_pipelines(const std::string& title, const std::string& description,
                          const std::vector<ShownPipeline>& pipelines);

/// Draws coloured names in one line from x on; returns where the line ends.
double draw_kinds(Svg& svg, double x, double y, const std::vector<std::pair<std::string, Paint>>& kinds);

}  // namespace thimble::report

namespace thimble::bench {

// ---- Dry runs that pictures of the book are drawn from.

/// The book's small GPT: 4 layers of width 64, 4 heads, 64 tokens, a batch of 8, AdamW.
models::Setup book_gpt();

/// A bar of what lives at the peak of a step of the setup, by a dry run.
report::Bar step_bar(const std::string& label, const models::Setup& setup);

}  // namespace thimble::bench
