// Pictures of schedules for chains and pipelines: stages against time.

#include <algorithm>
#include <string>

#include <thimble/bench/book/drawing.h>
#include <thimble/bench/book/figures.h>
#include <thimble/bench/report/figures.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>
#include <thimble/memory/remat/frontier.h>
#include <thimble/memory/remat/schedule.h>
#include <thimble/memory/units.h>

namespace thimble::bench {

// ---- Chains: choice of schedules.

namespace {

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

}  // namespace

std::string draw_known_schedules() {
  const std::size_t n = 12;
  const remat::Chain chain = remat::homogeneous_chain(n, 1, 4, 1, 2);
  const auto shown = [&](const char* name, const remat::ScheduleTree& tree) {
    return ShownSchedule{name, remat::to_schedule(tree, chain)};
  };
  return report::svg_schedules(
      "Twelve equal stages, four schedules",
      "Each operation as a box at its stage and time; below, the units that are held.", chain,
      {shown("keep all", remat::keep_all(n)), shown("square root", remat::square_root(n)),
       shown("halves of halves", remat::recursive_halves(n)), shown("binomial, 3 slots", remat::binomial(n, 3))},
      "units");
}

std::string draw_rotor_schedules() {
  const remat::Chain chain = toy_chain();
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
  const remat::Frontier frontier(toy_chain());
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
  return report::svg_file(plot);
}

}  // namespace thimble::bench

// ---- Pipelines.

namespace thimble::report {
namespace {

constexpr double left = 92, row = 22, above = 30, below = 22;

Paint pass_paint(dist::Pass pass) { return series_paints[pass == dist::Pass::forward ? 0 : 1]; }

}  // namespace

double draw_kinds(Svg& svg, double x, double y, const std::vector<std::pair<std::string, Paint>>& kinds) {
  for (const auto& [name, paint] : kinds) {
    svg.rectangle(x, y - 10, 12, 12, {.fill = paint}, 2);
    svg.text(x + 18, y, name, {.size = small_text});
    x += 18 + text_width(name, small_text) + 26;
  }
  return x;
}

std::string svg_pipelines(const std::string& title, const std::string& description,
                          const std::vector<ShownPipeline>& pipelines) {
  double longest = 0, height = title_height(Medium::file) + 34;
  const double top = height, right = figure_width - 32;
  for (const ShownPipeline& shown : pipelines) {
    longest = std::max(longest, shown.run.step_s);
    height += above + row * static_cast<double>(shown.run.of_stage.size()) + below;
  }
  Svg svg(Medium::file, figure_width, height + 8, title, description);
  draw_title(svg, title);
  draw_kinds(svg, left, top - 14,
             {{"forward, with the micro-batch's number", pass_paint(dist::Pass::forward)},
              {"backward", pass_paint(dist::Pass::backward)}});
  svg.text(right, top - 14, "time \xE2\x86\x92", {.fill = paints::muted, .size = small_text, .anchor = "end"});
  const auto to_x = [&](double seconds) { return left + (right - left) * (longest > 0 ? seconds / longest : 0); };
  double y = top;
  for (const ShownPipeline& shown : pipelines) {
    svg.text(
        left, y + 18,
        shown.name + ": time " + format_trimmed(shown.run.step_s, 2) + ", bubble " + format_percent(shown.run.bubble),
        {.size = 13.5, .is_bold = true});
    y += above;
    for (std::size_t s = 0; s < shown.run.of_stage.size(); ++s, y += row) {
      svg.text(left - 10, y + row / 2 + 4, "stage " + std::to_string(s),
               {.fill = paints::muted, .size = small_text, .anchor = "end"});
      for (const dist::TimedAction& timed : shown.run.of_stage[s]) {
        const double x = to_x(timed.begin_s), width = to_x(timed.end_s) - x;
        const bool is_later = timed.action.chunk % 2 != 0;  // odd chunks are drawn lighter
        svg.rectangle(x, y, width, row - 3,
                      {.fill = pass_paint(timed.action.pass),
                       .stroke = paints::surface,
                       .stroke_width = 0.75,
                       .opacity = is_later ? 0.6 : 1},
                      0, to_string(timed.action));
        const std::string number = std::to_string(timed.action.micro_batch);
        if (text_width(number, small_text) + 2 > width) continue;
        svg.text(x + width / 2, y + row / 2 + 2.5, number,
                 {.fill = paints::surface, .size = small_text, .anchor = "middle"});
      }
    }
    y += below;
  }
  return svg.finish();
}

}  // namespace thimble::report

namespace thimble::bench {

std::string draw_pipelines() {
  constexpr int stages = 4, micro_batches = 8, chunks = 2;
  const dist::PipelineCosts whole{{1}, {2}, 0}, piece{{1.0 / chunks}, {2.0 / chunks}, 0};
  return report::svg_pipelines(
      "Eight micro-batches through four stages",
      "What each stage does when, in three schedules; backward takes twice the time of forward.",
      {{"GPipe", 1, dist::simulate(dist::gpipe(stages, micro_batches), whole)},
       {"1F1B", 1, dist::simulate(dist::one_forward_one_backward(stages, micro_batches), whole)},
       {"interleaved, 2 chunks", chunks, dist::simulate(dist::interleaved(stages, micro_batches, chunks), piece)}});
}

}  // namespace thimble::bench

namespace thimble::report {

namespace {

using Kind = remat::Operation::Kind;

struct Step {
  remat::Operation operation;
  remat::Time begin = 0, end = 0;
  remat::Bytes during = 0, after = 0;  // bytes held while it runs and afterwards
  std::uint32_t first = 0, last = 0;   // stages
};

struct Run {
  std::vector<Step> steps;
  remat::ScheduleCost cost;
};

// Runs the operations one by one and counts the bytes during each by the rules of memory/remat/chain.h. Throws Error if
// the maximum differs from the simulator's peak.
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

}  // namespace

std::string svg_schedules(const std::string& title, const std::string& description, const remat::Chain& chain,
                          const std::vector<ShownSchedule>& schedules, const std::string& unit_name) {
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
    svg.path(area, {.fill = paint_of(memory::Category::activation), .opacity = 0.8});
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
