// Schedules of a chain: stages upwards, time across, and below them what is held.

#include <algorithm>
#include <string>

#include <thimble/bench/book/drawing.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>
#include <thimble/memory/units.h>

namespace thimble::report {
namespace schedules_detail {

using Kind = remat::Operation::Kind;

struct Step {
  remat::Operation operation;
  remat::Time begin = 0, end = 0;
  remat::Bytes during = 0, after = 0;  // bytes held while it runs, and when it is done
  std::uint32_t first = 0, last = 0;   // stages
};

struct Run {
  std::vector<Step> steps;
  remat::ScheduleCost cost;
};

// Runs the operations one by one. The bytes during an operation are counted here by the chain's own rules (who pays for
// what: memory/remat/chain.h); their maximum must be the simulator's peak.
Run run_of(const remat::Chain& chain, const remat::Schedule& schedule) {
  remat::Simulator simulator(chain);
  Run run;
  std::vector<std::uint32_t> options(chain.size(), 0);
  remat::Time now = 0;
  bool is_first_backward = true;
  remat::Bytes most = simulator.held_bytes();
  for (const remat::Operation& operation : schedule) {
    Step step{operation, now, now, simulator.held_bytes(), 0, operation.stage, operation.stage};
    if (operation.kind == Kind::pass || operation.kind == Kind::checkpoint) {
      const remat::Stage& stage = chain.stages[operation.stage];
      step.end += stage.forward_time;
      step.during += stage.output_bytes + stage.forward_peak_bytes;
    } else if (operation.kind == Kind::record) {
      const remat::Option& option = chain.stages[operation.stage].options[operation.option];
      options[operation.stage] = operation.option;
      step.last = operation.stage + option.span - 1;
      step.end += option.forward_time;
      step.during +=
          chain.activation_bytes(operation.stage + option.span) + option.kept_bytes + option.forward_peak_bytes;
    } else if (operation.kind == Kind::backward) {
      step.first = static_cast<std::uint32_t>(simulator.recorded_from(simulator.next_backward() - 1));
      const remat::Option& option = chain.stages[step.first].options[options[step.first]];
      step.last = step.first + option.span - 1;
      step.end += option.recompute_time + option.backward_time;
      if (is_first_backward) step.during += chain.gradient_bytes(chain.size());
      is_first_backward = false;
      remat::Bytes made = chain.gradient_bytes(step.first);
      for (std::uint32_t i = step.first; i <= step.last; ++i) made += chain.stages[i].parameter_gradient_bytes;
      step.during += std::max(option.recompute_peak_bytes, made + option.backward_peak_bytes);
    }
    simulator.apply(operation);
    step.after = simulator.held_bytes();
    most = std::max(most, step.during);
    now = step.end;
    run.steps.push_back(step);
  }
  run.cost = remat::simulate(chain, schedule);
  if (most != run.cost.peak_bytes) throw Error("svg_schedules: the picture's peak is not the simulator's");
  return run;
}

struct Style {
  Paint paint;
  double opacity;
  const char* name;
};
Style style_of(Kind kind) {
  if (kind == Kind::backward) return {series_paints[1], 1, "backward"};
  if (kind == Kind::record) return {series_paints[0], 1, "forward that keeps its inside"};
  return {series_paints[0], 0.35, "forward that keeps nothing inside"};
}

}  // namespace schedules_detail

std::string svg_schedules(const std::string& title, const std::string& description, const remat::Chain& chain,
                          const std::vector<ShownSchedule>& schedules, const std::string& unit_name) {
  using namespace schedules_detail;
  std::vector<Run> runs;
  remat::Time longest = 1;
  remat::Bytes highest = 1;
  for (const ShownSchedule& schedule : schedules) {
    runs.push_back(run_of(chain, schedule.operations));
    longest = std::max(longest, runs.back().cost.time);
    highest = std::max(highest, runs.back().cost.peak_bytes);
  }
  const double left = 92, right = figure_width - 32, held = 54;
  const double row = std::clamp(150.0 / static_cast<double>(chain.size()), 5.0, 22.0);
  const double stages = row * static_cast<double>(chain.size());
  const double pitch = 30 + stages + 12 + held + 34, top = title_height(Medium::file) + 34;
  Svg svg(Medium::file, figure_width, top + pitch * static_cast<double>(runs.size()) + 14, title, description);
  draw_title(svg, title);
  double kind_x = left;
  for (const Kind kind : {Kind::record, Kind::pass, Kind::backward}) {
    const Style style = style_of(kind);
    svg.rectangle(kind_x, top - 24, 14, 12, {.fill = style.paint, .opacity = style.opacity}, 2);
    svg.text(kind_x + 20, top - 14, style.name, {.size = small_text});
    kind_x += 20 + text_width(style.name, small_text) + 26;
  }
  svg.text(right, top - 14, "time \xE2\x86\x92", {.fill = paints::muted, .size = small_text, .anchor = "end"});
  const auto to_x = [&](remat::Time time) {
    return left + (right - left) * static_cast<double>(time) / static_cast<double>(longest);
  };
  double y = top;
  for (std::size_t i = 0; i < runs.size(); ++i, y += pitch) {
    const remat::ScheduleCost& cost = runs[i].cost;
    svg.text(left, y + 18,
             schedules[i].name + ": time " + format_grouped(cost.time) + ", peak " + format_grouped(cost.peak_bytes) +
                 " " + unit_name,
             {.size = 13.5, .is_bold = true});
    const double floor = y + 30 + stages;
    svg.text(left - 10, y + 30 + row / 2 + 4, "stage " + std::to_string(chain.size() - 1),
             {.fill = paints::muted, .size = small_text, .anchor = "end"});
    if (chain.size() > 1) {
      svg.text(left - 10, floor - row / 2 + 4, "stage 0", {.fill = paints::muted, .size = small_text, .anchor = "end"});
    }
    svg.line(left, floor, right, floor, {.stroke = paints::hairline});
    const double base = floor + 12 + held;
    const auto to_y = [&](remat::Bytes bytes) {
      return base - held * static_cast<double>(bytes) / static_cast<double>(highest);
    };
    SvgPath area;
    area.move(left, base);
    for (const Step& step : runs[i].steps) {
      if (step.end > step.begin) {
        const Style style = style_of(step.operation.kind);
        svg.rectangle(to_x(step.begin), floor - row * static_cast<double>(step.last + 1),
                      to_x(step.end) - to_x(step.begin), row * static_cast<double>(step.last + 1 - step.first),
                      {.fill = style.paint, .stroke = paints::surface, .stroke_width = 0.5, .opacity = style.opacity},
                      0, remat::to_string(step.operation));
        area.horizontal(to_x(step.begin)).vertical(to_y(step.during)).horizontal(to_x(step.end));
      }
      area.vertical(to_y(step.after));
    }
    area.vertical(base).close();
    svg.path(area, {.fill = paint_of(Category::activation), .opacity = 0.8});
    svg.line(left, base, right, base, {.stroke = paints::axis});
    svg.line(left, to_y(cost.peak_bytes), right, to_y(cost.peak_bytes), {.stroke = paints::ink, .dashes = "4 4"});
    svg.text(left - 10, to_y(cost.peak_bytes) + 4, format_grouped(cost.peak_bytes),
             {.size = small_text, .anchor = "end"});
    svg.text(left - 10, std::max(base + 4, to_y(cost.peak_bytes) + 18), "held",
             {.fill = paints::muted, .size = small_text, .anchor = "end"});
  }
  return svg.finish();
}

}  // namespace thimble::report
