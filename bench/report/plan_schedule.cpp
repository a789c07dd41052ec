// A plan: what it keeps of every operator, and how it compares with the others.

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/autograd/node.h>
#include <thimble/bench/report/legend.h>
#include <thimble/bench/report/plan_figures.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/units.h>

namespace thimble::report {
namespace plan_schedule_detail {

/// What becomes of a node's result and extras: "fate" of the page.
enum class Shown : std::uint8_t { kept, result_kept, saved_kept, dropped, not_needed };

struct NodeBytes {
  std::size_t made = 0, kept = 0;
  Shown fate = Shown::not_needed;
};

/// Result and extras of a node: bytes that it makes, and those that stand until its backward.
NodeBytes bytes_of_node(const TapeGraph& graph, const TapeGraph::Node& node, const std::set<std::uint32_t>& saved,
                        bool is_in_segment, Fate fate) {
  const auto storage_of = [&](std::uint32_t value) {
    return value == TapeGraph::none ? TapeGraph::none : graph.values[value].storage;
  };
  const auto is_operand = [&](std::uint32_t value) {
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](std::uint32_t input) {
      return input == value || (storage_of(input) == storage_of(value) && storage_of(value) != TapeGraph::none);
    });
  };
  const std::size_t result = is_operand(node.output) ? 0 : graph.bytes_of(node.output);
  std::size_t extras = 0;
  for (const std::uint32_t value : node.saved) {
    if (value != node.output && !is_operand(value)) extras += graph.bytes_of(value);
  }
  const bool keeps_result = is_in_segment ? keeps_output(fate) : saved.count(storage_of(node.output)) != 0;
  const bool keeps_extras = !is_in_segment || keeps_saved(fate);
  NodeBytes bytes;
  bytes.made = result + extras;
  bytes.kept = (keeps_result ? result : 0) + (keeps_extras ? extras : 0);
  if (is_in_segment) {
    // A fate says what may be kept; of an operator without extras the result alone decides.
    const bool is_split = extras > 0 && keeps_result != keeps_extras;
    bytes.fate = is_split ? (keeps_result ? Shown::result_kept : Shown::saved_kept)
                          : (keeps_result ? Shown::kept : Shown::dropped);
  } else if (bytes.kept > 0) {
    bytes.fate = Shown::kept;
  }
  return bytes;
}

struct Nodes {
  std::vector<NodeBytes> bytes;
  std::vector<std::int32_t> segment;  // the innermost, or TapePlan::none
};

Nodes nodes_of(const models::PlanReport& report) {
  const TapeGraph& graph = report.planner->graph();
  std::set<std::uint32_t> saved;
  for (const TapeGraph::Node& node : graph.nodes) {
    for (const std::uint32_t value : node.saved) {
      if (value != TapeGraph::none) saved.insert(graph.values[value].storage);
    }
  }
  saved.erase(TapeGraph::none);
  Nodes nodes;
  nodes.segment.assign(graph.nodes.size(), TapePlan::none);
  if (report.plan.tape) nodes.segment = report.plan.tape->innermost();
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const bool is_in_segment = nodes.segment[n] != TapePlan::none;
    const Fate fate = is_in_segment ? report.plan.tape->fates[n] : Fate::keep;
    nodes.bytes.push_back(bytes_of_node(graph, graph.nodes[n], saved, is_in_segment, fate));
  }
  return nodes;
}

// ---- The picture ----

struct FateStyle {
  std::string_view label;
  Look look;
};

// Indexed by Shown.
constexpr std::array<FateStyle, 5> fate_styles = {
    {{"kept", {.fill = series_paints[0]}},
     {"result kept, extras recomputed", {.fill = series_paints[2]}},
     {"what backward reads kept, result recomputed", {.fill = series_paints[1]}},
     {"dropped, runs again", {.fill = paints::hairline, .stroke = paints::axis}},
     {"backward does not need it", {.stroke = paints::axis, .dashes = "1 2"}}}};

constexpr double strip_top = 12, strip_height = 10, row_height = 13;  // below the frame: fates, then a row per depth

struct Layout {
  Frame frame;
  double bottom = 0;  // of the last row below the frame
  AxisTicks y;
  std::vector<LegendEntry> legend;
  double column = 0;  // px per node
};

Layout make_layout(const models::PlanReport& report, const Nodes& nodes) {
  Layout layout;
  std::size_t most = 1;
  int depths = 0;
  for (const NodeBytes& node : nodes.bytes) most = std::max(most, node.made);
  for (const nn::PlannedSegment& segment : report.segments) depths = std::max(depths, segment.depth + 1);
  for (const FateStyle& style : fate_styles) {
    layout.legend.push_back({.name = std::string(style.label), .is_area = true, .line = style.look});
  }
  layout.y = make_ticks(0, static_cast<double>(most), {.title = "", .unit = Unit::bytes}, 5);
  layout.frame = {.left = 10 + std::max(label_width(layout.y), text_width("segments", small_text)),
                  .top = 34,
                  .right = figure_width - 24 - legend_width(layout.legend) - 28,
                  .bottom = 250};
  layout.bottom = layout.frame.bottom + strip_top + strip_height + 4 + row_height * depths;
  layout.column = layout.frame.width() / static_cast<double>(std::max<std::size_t>(nodes.bytes.size(), 1));
  return layout;
}

// From node `first` to `end`, with a gap between neighbours where there is room for one.
void add_box(SvgPath& path, const Layout& layout, std::size_t first, std::size_t end, double top, double bottom) {
  const double left = layout.frame.left + layout.column * static_cast<double>(first);
  const double right = layout.frame.left + layout.column * static_cast<double>(end);
  path.move(left, bottom).vertical(top).horizontal(right - (right - left > 4 ? 1 : 0)).vertical(bottom).close();
}

std::string draw(const models::PlanReport& report, const Nodes& nodes, const Layout& layout) {
  const std::string count = format_grouped(nodes.bytes.size());
  Svg svg(Medium::page, figure_width, layout.bottom + 28, "The schedule",
          "bytes kept and dropped of " + count + " operators");
  draw_y_axis(svg, layout.frame, layout.y, "made for backward");
  const AxisMap to_y(layout.y, layout.frame.bottom, layout.frame.top);
  const double strip = layout.frame.bottom + strip_top;
  std::array<SvgPath, fate_styles.size()> boxes;
  SvgPath& dropped = boxes[static_cast<std::size_t>(Shown::dropped)];
  for (std::size_t n = 0; n < nodes.bytes.size(); ++n) {
    const NodeBytes& node = nodes.bytes[n];
    SvgPath& own = boxes[static_cast<std::size_t>(node.fate)];
    const double kept = to_y(static_cast<double>(node.kept)), made = to_y(static_cast<double>(node.made));
    if (node.made > node.kept && node.fate != Shown::not_needed) add_box(dropped, layout, n, n + 1, made, kept);
    if (node.kept > 0) add_box(own, layout, n, n + 1, kept, layout.frame.bottom);
    add_box(own, layout, n, n + 1, strip, strip + strip_height);
  }
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    Look look = fate_styles[i].look;
    if (layout.column <= 2 && !look.fill.name.empty()) look.stroke = {};
    svg.path(boxes[i], look);
  }
  SvgPath segments;
  for (const nn::PlannedSegment& segment : report.segments) {
    const double top = strip + strip_height + 4 + row_height * segment.depth;
    add_box(segments, layout, segment.first, segment.end, top, top + 9);
  }
  svg.path(segments, {.fill = paints::muted});
  const TextLook small{.fill = paints::muted, .size = small_text, .anchor = "end"};
  svg.text(layout.frame.left - 10, strip + 10, "fate", small);
  if (!report.segments.empty()) svg.text(layout.frame.left - 10, strip + 25, "segments", small);
  svg.text(layout.frame.right, layout.bottom + 20, "the " + count + " operators in order of execution", small);
  draw_legend(svg, layout.frame.right + 28, layout.frame.top - 4, layout.legend);
  return svg.finish();
}

// {"kind":"schedule","frame","names":[...],"paths":[...],"fates":[[paint, label],...] by number,"segments":[{"first",
//  "end","depth","kept","dropped","path"},...], and one entry per node of "name","path","made","kept","fate","segment"}
std::string hover(const models::PlanReport& report, const Nodes& nodes, const Layout& layout) {
  using nlohmann::ordered_json;
  ordered_json data, fates = ordered_json::array(), segments = ordered_json::array();
  for (const FateStyle& style : fate_styles) fates.push_back({style.look.fill.name, style.label});
  for (const nn::PlannedSegment& s : report.segments) {
    segments.push_back({{"first", s.first},
                        {"end", s.end},
                        {"depth", s.depth},
                        {"kept", s.kept_bytes},
                        {"dropped", s.dropped},
                        {"path", s.path}});
  }
  Texts names, paths;
  std::vector<std::size_t> name, path, made, kept, fate;
  for (std::size_t n = 0; n < nodes.bytes.size(); ++n) {
    const TapeGraph::Node& node = report.planner->graph().nodes[n];
    name.push_back(names.index(node.type->name));
    path.push_back(paths.index(path_name(node.path)));
    made.push_back(nodes.bytes[n].made);
    kept.push_back(nodes.bytes[n].kept);
    fate.push_back(static_cast<std::size_t>(nodes.bytes[n].fate));
  }
  Frame frame = layout.frame;
  frame.bottom = layout.bottom;  // what the pointer marks goes through all rows
  data["kind"] = "schedule";
  data["frame"] = frame.corners();
  data["names"] = names.list();
  data["paths"] = paths.list();
  data["fates"] = std::move(fates);
  data["segments"] = std::move(segments);
  data["name"] = name;
  data["path"] = path;
  data["made"] = made;
  data["kept"] = kept;
  data["fate"] = fate;
  data["segment"] = nodes.segment;
  return data.dump();
}

Point point_of(const nn::Plan& plan) {
  const std::size_t segments = plan.tape ? plan.tape->segments.size() : 0;
  return {static_cast<double>(plan.peak_bytes),
          plan.time_overhead,
          {{"lower bound", format_exact(static_cast<double>(plan.lower_bound_bytes), Unit::bytes)},
           {"step", format_exact(1e3 * plan.step_s, Unit::milliseconds)},
           {"segments", segments == 0 ? "none: all is kept" : std::to_string(segments)}}};
}

}  // namespace plan_schedule_detail

Figure schedule_figure(const bench::PlanView& view) {
  using namespace plan_schedule_detail;
  const Nodes nodes = nodes_of(view.report);
  const Layout layout = make_layout(view.report, nodes);
  return {draw(view.report, nodes, layout), hover(view.report, nodes, layout)};
}

Plot plans_plot(const bench::PlanView& view) {
  using plan_schedule_detail::point_of;
  Plot plot;
  plot.name = "plans";
  plot.title = "What a budget costs";
  plot.caption = "All " + format_grouped(view.plans.size()) +
                 " plans of this step: none is worse than another in both bytes and time. A budget takes the fastest "
                 "plan at its left.";
  plot.x = {.title = "bytes committed", .unit = Unit::bytes, .from_zero = false};
  plot.y = {.title = "more time than keeping everything", .unit = Unit::percent};
  if (view.report.budget_bytes > 0) plot.budget_bytes = static_cast<std::int64_t>(view.report.budget_bytes);
  Series plans{.name = "plans", .role = Role::other, .points = {}, .group = {}, .is_staircase = true};
  const Series current{
      .name = "this plan", .role = Role::measured, .points = {point_of(view.report.plan)}, .group = {}};
  for (const nn::Plan& plan : view.plans) plans.points.push_back(point_of(plan));
  // Keeping everything is no plan where another one needs less in the same time; it is shown all the same.
  if (view.plans.back().tape != nullptr) plans.points.push_back(point_of(view.report.planner->keep_everything()));
  std::stable_sort(plans.points.begin(), plans.points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
  plot.series = {plans, current};
  return plot;
}

}  // namespace thimble::report
