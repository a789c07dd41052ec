#include <thimble/bench/report/plan_figures.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <thimble/autograd/node.h>
#include <thimble/bench/report/drawing.h>
#include <thimble/bench/report/hover.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/units.h>

namespace thimble::report {

// ---- The events of a plan's steps: live bytes, and blocks at their addresses.

namespace {

using bench::StepTrace;
std::size_t event_time(const StepTrace& step, std::size_t index) {
  return index < step.before ? 0 : index + 1 - step.before;
}

// Ids of the blocks that a map shows, ascending: the ones with the most bytes times events.
std::vector<std::uint64_t> mapped(const StepTrace& step, const std::vector<memory::Trace::Lifetime>& blocks) {
  std::vector<std::uint64_t> ids(blocks.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (ids.size() <= mapped_blocks_max) return ids;
  const auto area = [&](std::uint64_t id) {
    return static_cast<double>(blocks[id].bytes) *
           static_cast<double>(event_time(step, blocks[id].upper) - event_time(step, blocks[id].lower));
  };
  std::stable_sort(ids.begin(), ids.end(), [&](std::uint64_t a, std::uint64_t b) { return area(a) > area(b); });
  ids.resize(mapped_blocks_max);
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::optional<std::int64_t> budget_of(const bench::PlanView& view) {
  if (view.report.budget_bytes == 0) return std::nullopt;
  return static_cast<std::int64_t>(view.report.budget_bytes);
}

// The lines of a picture besides the budget. The textbook keeps everything.
std::vector<std::pair<std::string, std::int64_t>> bounds_of(const bench::PlanView& view, const StepTrace& step,
                                                            const std::string& name, std::size_t bytes) {
  std::vector<std::pair<std::string, std::int64_t>> bounds = {{name, static_cast<std::int64_t>(bytes)}};
  if (view.theory_bytes && step.name == "keep everything") {
    bounds.emplace_back("textbook, by formula", *view.theory_bytes);
  }
  return bounds;
}

// Where the bytes of every step's picture end: at the highest of all, or a level near it.
double scale_of(const bench::PlanView& view, std::size_t highest) {
  const auto textbook = view.theory_bytes.value_or(0);
  return reach(static_cast<double>(highest), make_levels(budget_of(view), {{"textbook", textbook}}));
}

std::vector<Level> levels_of(const bench::PlanView& view, const StepTrace& step, const bench::StepLayout& layout) {
  return make_levels(budget_of(view), bounds_of(view, step, "height of the blocks", layout.height_bytes));
}

// An entry per block, or per category that it had, in the place of each map.
std::string hover(const StepTrace& step, const Chart& chart, const std::array<AddressMap, 2>& maps) {
  const std::vector<memory::Trace::Lifetime> blocks = lifetimes(step.events);
  const std::vector<std::uint64_t> ids = mapped(step, blocks);
  const std::string last = format_grouped(step.events.size() - step.before);
  Hover hover("map", chart.frame, chart.x.high, chart.y.high);
  Hover::Column paints, bytes, lives, other_lows;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const MapBlock& block = maps[0].blocks[i];
    const memory::Trace::Lifetime& life = blocks[ids[i]];
    const std::size_t begin = event_time(step, life.lower);
    const bool is_left = life.upper == step.events.size();
    const std::string lives_text =
        begin == 0 && is_left ? "the whole step"
                              : (begin == 0 ? "from before the step" : "event " + format_grouped(begin)) + " to " +
                                    (is_left ? "after it" : format_grouped(event_time(step, life.upper)));
    for (std::size_t k = 0; k < block.pieces.size(); ++k) {
      const auto& [from, paint] = block.pieces[k];
      hover.add({from, k + 1 < block.pieces.size() ? block.pieces[k + 1].first : block.end, block.offset, block.size,
                 label_of(paint), path_name(step.events[life.lower].path)});
      paints.push_back(hover.text(paint.name));
      bytes.push_back(static_cast<std::int64_t>(life.bytes));
      lives.push_back(hover.text(lives_text));
      other_lows.push_back(static_cast<std::int64_t>(maps[1].blocks[i].offset));
    }
  }
  hover["step"] = step.name;
  hover["other_low"] = Hover::differences(other_lows);
  hover.add_row("size", paints, bytes);
  hover.add_row("offset", {hover.text("")}, {});
  hover.add_row("lives", {hover.text("")}, lives, true);
  return hover.json();
}

}  // namespace

Timeline step_timeline(const bench::PlanView& view, const bench::StepTrace& step) {
  const bool is_planned = &step == &view.planned();
  Timeline line;
  line.title = step.name;
  line.caption = "live bytes by category over the events of the step";
  line.step = step.name;
  line.begins_before = true;
  line.budget_bytes = budget_of(view);
  const std::size_t load =
      is_planned ? view.report.plan.lower_bound_bytes : view.report.planner->keep_everything().lower_bound_bytes;
  line.bounds = bounds_of(view, step, "lower bound", load);
  std::size_t highest = 0;
  for (const bench::StepTrace& one : view.steps) highest = std::max(highest, one.live_peak_bytes);
  line.scale_bytes = std::llround(scale_of(view, highest));
  const std::vector<thimble::memory::CategoryBytes> states = timeline(step.events);
  line.events.push_back({step.before == 0 ? CategoryBytes{} : report_bytes(states[step.before - 1]), ""});
  for (std::size_t i = step.before; i < states.size(); ++i) {
    line.events.push_back({report_bytes(states[i]), std::string(path_name(step.events[i].path))});
  }
  return line;
}

AddressMap step_blocks(const bench::StepTrace& step, const bench::StepLayout& layout, const std::string& name) {
  AddressMap map{name, {}, {}};
  const std::vector<memory::Trace::Lifetime> blocks = lifetimes(step.events);
  std::map<std::uint64_t, std::size_t> index;
  for (const std::uint64_t id : mapped(step, blocks)) {
    const memory::Trace::Lifetime& block = blocks[id];
    index.emplace(id, map.blocks.size());
    map.blocks.push_back(
        {{{static_cast<double>(event_time(step, block.lower)), paint_of(step.events[block.lower].category)}},
         static_cast<double>(event_time(step, block.upper)),
         static_cast<double>(layout.offsets[id]),
         static_cast<double>(block.bytes)});
  }
  for (std::size_t i = step.before; i < step.events.size(); ++i) {
    const memory::Trace::Event& event = step.events[i];
    const auto found = index.find(event.block);
    if (event.action != memory::Trace::Action::relabel || found == index.end()) continue;
    map.blocks[found->second].pieces.emplace_back(static_cast<double>(event_time(step, i)), paint_of(event.category));
  }
  return map;
}

Figure step_map(const bench::PlanView& view, const bench::StepTrace& step) {
  std::set<memory::Category> shown;
  std::size_t highest = 0;
  for (const StepTrace& one : view.steps) {
    highest = std::max({highest, one.dynamic.height_bytes, one.placed.height_bytes});
    for (const memory::Trace::Event& event : one.events) shown.insert(event.category);
  }
  const auto categories =
      categories_with([&](std::size_t i) { return shown.count(static_cast<memory::Category>(i)) != 0; });
  const double high = scale_of(view, highest);  // one scale for all steps of the view
  const AxisTicks ticks = make_ticks(0, high, {.title = "", .unit = Unit::bytes}, 6);
  std::array<AddressMap, 2> maps = {step_blocks(step, step.dynamic, "placed on demand by the dynamic arena"),
                                    step_blocks(step, step.placed, "placed offline, with all lifetimes known")};
  maps[0].levels = levels_of(view, step, step.dynamic);
  maps[1].levels = levels_of(view, step, step.placed);
  const bool is_above = view.report.budget_bytes > 0 && step.dynamic.committed_bytes > view.report.budget_bytes &&
                        step.placed.committed_bytes <= view.report.budget_bytes;
  const char* const remarks[] = {
      is_above ? ": above the budget, for comparison; the run trains with the placement below" : "", ""};
  std::vector<LegendEntry> legend = category_legend(categories);
  add_levels(legend, maps[0].levels, ticks.high);
  Figure figure{"map", "", ""};
  for (std::size_t i = 0; i < maps.size(); ++i) {
    Chart chart({.medium = Medium::page,
                 .title = maps[i].name,
                 .description = "addresses of blocks over a step's events",
                 .legend = legend,
                 .labels = 10 + label_width(ticks),
                 .height = 302});
    chart.y = ticks;
    chart.x = make_event_ticks(step.events.size() - step.before + 1, chart.frame.width());
    chart.draw_y("addresses, from the arena's base");
    draw_map(chart.svg, chart.frame, chart.x, chart.y, maps[i]);
    chart.draw_x("allocation events", false);
    if (i == 0) {
      figure.hover_json = hover(step, chart, maps);
    } else {  // it has the colours of the first
      chart.form.legend.clear();
      add_levels(chart.form.legend, maps[i].levels, ticks.high);
    }
    figure.svg += "<h4>" + maps[i].name + remarks[i] + "</h4>" + chart.finish();
  }
  return figure;
}

LeftOut left_out_of_map(const bench::StepTrace& step) {
  const std::vector<memory::Trace::Lifetime> blocks = lifetimes(step.events);
  const std::vector<std::uint64_t> ids = mapped(step, blocks);
  LeftOut left{blocks.size() - ids.size(), 0};
  std::vector<bool> is_mapped(blocks.size());
  for (const std::uint64_t id : ids) is_mapped[id] = true;
  for (std::size_t id = 0; id < blocks.size(); ++id) {
    if (!is_mapped[id]) left.largest_bytes = std::max(left.largest_bytes, blocks[id].bytes);
  }
  return left;
}

// ---- The fate of each operator's result in a plan, and the plan among the other plans.

namespace {

/// The fate of a node's result and extras.
enum class Shown : std::uint8_t { kept, result_kept, saved_kept, dropped, not_needed, offloaded, packed };

struct NodeBytes {
  std::size_t made = 0, kept = 0;
  std::size_t spilled = 0;  // of `kept`: offloaded or packed until backward reads them
  Shown fate = Shown::not_needed;
};

/// Result and extras of a node: the bytes that it makes, and the bytes kept until its backward.
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
    // A fate allows keeping. For an operator without extras only the result counts.
    const bool is_split = extras > 0 && keeps_result != keeps_extras;
    bytes.fate = is_split ? (keeps_result ? Shown::result_kept : Shown::saved_kept)
                          : (keeps_result ? Shown::kept : Shown::dropped);
  } else if (bytes.kept > 0) {
    bytes.fate = Shown::kept;
  }
  return bytes;
}

/// An offloaded tensor: made by `node`, written from `write` to `gone`, and read from the backward of `back` on for the
/// backward of `reader`, the last node that saves it.
struct Transfer {
  std::uint32_t node, write, gone, reader, back;
};

struct Nodes {
  std::vector<NodeBytes> bytes;
  std::vector<Transfer> transfers;
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
  if (!report.plan.tape) return nodes;
  for (const TapePlan::Spill& spill : report.plan.tape->spills) {
    const TapeGraph::Node& maker = graph.nodes[spill.node];
    const std::uint32_t value =
        spill.which == TapePlan::Spill::result ? maker.output : maker.saved[static_cast<std::size_t>(spill.which)];
    NodeBytes& bytes = nodes.bytes[spill.node];
    bytes.spilled = std::min(bytes.kept, bytes.spilled + graph.bytes_of(value));
    if (spill.form == TapePlan::Spill::Form::pack) {
      if (bytes.fate != Shown::offloaded) bytes.fate = Shown::packed;
      continue;
    }
    bytes.fate = Shown::offloaded;
    std::uint32_t reader = spill.node;
    for (std::uint32_t n = spill.node; n < graph.nodes.size(); ++n) {
      const auto is_same = [&](std::uint32_t v) {
        return v != TapeGraph::none && graph.values[v].storage == graph.values[value].storage;
      };
      if (std::any_of(graph.nodes[n].saved.begin(), graph.nodes[n].saved.end(), is_same)) reader = n;
    }
    nodes.transfers.push_back({spill.node, spill.away_after, spill.gone_after, reader, spill.back_before});
  }
  return nodes;
}

struct FateStyle {
  std::string_view label;
  Look look;
};

// Indexed by Shown.
constexpr std::array<FateStyle, 7> fate_styles = {
    {{"kept", {.fill = series_paints[0]}},
     {"result kept, extras recomputed", {.fill = series_paints[2]}},
     {"what backward reads kept, result recomputed", {.fill = series_paints[1]}},
     {"dropped, runs again", {.fill = paints::hairline, .stroke = paints::axis}},
     {"backward does not need it", {.stroke = paints::axis, .dashes = "1 2"}},
     {"offloaded", {.fill = series_paints[3]}},
     {"packed", {.fill = series_paints[4]}}}};

constexpr double strip_top = 12, strip_height = 10, row_height = 13;  // below the frame: fates, then a row per depth

// An entry per operator, through all rows.
std::string hover(const models::PlanReport& report, const Nodes& nodes, Frame frame, double bottom) {
  frame.bottom = bottom;
  Hover hover("schedule", frame, static_cast<double>(nodes.bytes.size()), 1);
  Hover::Column paints, fates, made, kept;
  for (std::size_t n = 0; n < nodes.bytes.size(); ++n) {
    const TapeGraph::Node& node = report.planner->graph().nodes[n];
    const NodeBytes& bytes = nodes.bytes[n];
    const FateStyle& style = fate_styles[static_cast<std::size_t>(bytes.fate)];
    const std::string heading = std::string(node.type->name) + " \xC2\xB7 operator " + format_grouped(n);
    hover.add({static_cast<double>(n), static_cast<double>(n + 1), 0, 1, heading, path_name(node.path)});
    paints.push_back(hover.text(style.look.fill.name));
    fates.push_back(hover.text(style.label));
    made.push_back(static_cast<std::int64_t>(bytes.made));
    kept.push_back(static_cast<std::int64_t>(bytes.kept));
  }
  const Hover::Column none = {hover.text("")};
  hover.add_row("fate", paints, fates, true);
  hover.add_row("makes", none, made);
  hover.add_row("keeps", none, kept);
  for (const nn::PlannedSegment& s : report.segments) {
    hover.add_span(s.first, s.end, paints::muted.name,
                   "segment of " + std::to_string(s.first) + "\xE2\x80\x93" + std::to_string(s.end - 1),
                   "keeps " + format_grouped(s.kept_bytes) + " bytes (" + std::to_string(s.dropped) + " of " +
                       std::to_string(s.end - s.first) + " dropped)");
  }
  for (const Transfer& t : nodes.transfers) {
    hover.add_span(t.node, t.node + 1, series_paints[3].name, "offloaded",
                   "written during operators " + std::to_string(t.write) + "\xE2\x80\x93" + std::to_string(t.gone) +
                       ", read from the backward of " + std::to_string(t.back) + " on, for that of " +
                       std::to_string(t.reader));
  }
  return hover.json();
}

Point point_of(const nn::Plan& plan) {
  const std::size_t segments = plan.tape ? plan.tape->segments.size() : 0;
  return {static_cast<double>(plan.peak_bytes),
          plan.time_overhead,
          {{"lower bound", format_exact(static_cast<double>(plan.lower_bound_bytes), Unit::bytes)},
           {"step", format_exact(1e3 * plan.step_s, Unit::milliseconds)},
           {"segments", segments == 0 ? "none: all is kept" : std::to_string(segments)}}};
}

}  // namespace

Figure schedule_figure(const bench::PlanView& view) {
  const models::PlanReport& report = view.report;
  const Nodes nodes = nodes_of(report);
  std::size_t most = 1;
  int depths = 0;
  for (const NodeBytes& node : nodes.bytes) most = std::max(most, node.made);
  for (const nn::PlannedSegment& segment : report.segments) depths = std::max(depths, segment.depth + 1);
  std::vector<LegendEntry> legend;
  std::array<bool, fate_styles.size()> is_shown{true, true, true, true, true};  // the others if there are any
  for (const NodeBytes& node : nodes.bytes) is_shown[static_cast<std::size_t>(node.fate)] = true;
  for (std::size_t i = 0; i < fate_styles.size(); ++i) {
    if (!is_shown[i]) continue;
    legend.push_back({.name = std::string(fate_styles[i].label), .is_area = true, .line = fate_styles[i].look});
  }
  const AxisTicks ticks = make_ticks(0, static_cast<double>(most), {.title = "", .unit = Unit::bytes}, 5);
  const int transfer_rows = nodes.transfers.empty() ? 0 : 2;
  const double rows = strip_top + strip_height + 4 + row_height * (depths + transfer_rows);
  const std::string count = format_grouped(nodes.bytes.size());
  Chart chart({.medium = Medium::page,
               .title = "The schedule",
               .description = "bytes kept and dropped of " + count + " operators",
               .legend = std::move(legend),
               .labels = 10 + std::max(label_width(ticks), text_width("segments", small_text)),
               .height = 216,
               .below = rows + 28});
  chart.y = ticks;
  chart.draw_y("made for backward");
  const Frame& frame = chart.frame;
  const double column = frame.width() / static_cast<double>(std::max<std::size_t>(nodes.bytes.size(), 1));
  // From node `first` to `end`, with a gap between neighbours where there is room for one.
  const auto add_box = [&](SvgPath& path, std::size_t first, std::size_t end, double top, double bottom) {
    const double left = frame.left + column * static_cast<double>(first);
    const double right = frame.left + column * static_cast<double>(end);
    path.move(left, bottom).vertical(top).horizontal(right - (right - left > 4 ? 1 : 0)).vertical(bottom).close();
  };
  const AxisMap to_y = chart.to_y();
  const double strip = frame.bottom + strip_top, bottom = frame.bottom + rows;
  std::array<SvgPath, fate_styles.size()> boxes;
  SvgPath& dropped = boxes[static_cast<std::size_t>(Shown::dropped)];
  for (std::size_t n = 0; n < nodes.bytes.size(); ++n) {
    const NodeBytes& node = nodes.bytes[n];
    SvgPath& own = boxes[static_cast<std::size_t>(node.fate)];
    const double kept = to_y(static_cast<double>(node.kept)), made = to_y(static_cast<double>(node.made));
    if (node.made > node.kept && node.fate != Shown::not_needed) add_box(dropped, n, n + 1, made, kept);
    if (node.kept > 0) add_box(own, n, n + 1, kept, frame.bottom);
    if (node.kept > node.spilled && node.spilled > 0) {
      add_box(boxes[0], n, n + 1, to_y(static_cast<double>(node.kept - node.spilled)), frame.bottom);
    }
    add_box(own, n, n + 1, strip, strip + strip_height);
  }
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    Look look = fate_styles[i].look;
    if (column <= 2 && !look.fill.name.empty()) look.stroke = {};
    chart.svg.path(boxes[i], look);
  }
  SvgPath segments;
  for (const nn::PlannedSegment& segment : report.segments) {
    const double top = strip + strip_height + 4 + row_height * segment.depth;
    add_box(segments, segment.first, segment.end, top, top + 9);
  }
  chart.svg.path(segments, {.fill = paints::muted});
  SvgPath transfers;
  const double writes = strip + strip_height + 4 + row_height * depths, reads = writes + row_height;
  for (const Transfer& t : nodes.transfers) {
    add_box(transfers, t.write, t.gone + 1, writes, writes + 9);
    add_box(transfers, t.reader, std::max(t.back, t.reader) + 1, reads, reads + 9);
  }
  if (transfer_rows > 0) chart.svg.path(transfers, {.fill = series_paints[3]});
  const TextLook small{.fill = paints::muted, .size = small_text, .anchor = "end"};
  chart.svg.text(frame.left - 10, strip + 10, "fate", small);
  if (!report.segments.empty()) chart.svg.text(frame.left - 10, strip + 25, "segments", small);
  if (transfer_rows > 0) chart.svg.text(frame.left - 10, writes + 11, "writes", small);
  if (transfer_rows > 0) chart.svg.text(frame.left - 10, reads + 11, "reads", small);
  chart.svg.text(frame.right, bottom + 20, "the " + count + " operators in order of execution", small);
  return {"schedule", chart.finish(), hover(report, nodes, frame, bottom)};
}

Plot plans_plot(const bench::PlanView& view) {
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
