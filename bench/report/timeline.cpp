// Stacked area over the events of a step.

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/bench/report/figures.h>
#include <thimble/bench/report/legend.h>
#include <thimble/bench/report/text.h>
#include <thimble/bench/runs/units.h>

namespace thimble::report {
namespace timeline_detail {

struct Layout {
  Frame frame;
  double height = 0;
  AxisTicks x, y;
  std::vector<Category> categories;  // those that ever hold bytes, in stacking order
  std::vector<std::size_t> columns;  // the event that each column of the picture shows
  std::vector<LegendEntry> legend;
  std::size_t peak = 0;
  bool is_budget_shown = false;  // false also when it lies far above the peak
  bool is_label_right = true;    // the side of the peak on which its label stands
};

// Events in columns of at least `least` px; a column that covers several shows the one with the most bytes.
std::vector<std::size_t> pick_columns(const std::vector<Event>& events, double width, double least) {
  const auto count = std::min(events.size(), static_cast<std::size_t>(width / least));
  std::vector<std::size_t> columns(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = i * events.size() / count;
    const std::size_t end = (i + 1) * events.size() / count;
    columns[i] = begin;
    for (std::size_t k = begin + 1; k < end; ++k) {
      if (total(events[k].bytes) > total(events[columns[i]].bytes)) columns[i] = k;
    }
  }
  return columns;
}

// What lies outermost in the picture comes first, as the eye meets it.
std::vector<LegendEntry> make_legend(const Layout& layout, const Event& peak) {
  std::vector<LegendEntry> legend;
  for (auto category = layout.categories.rbegin(); category != layout.categories.rend(); ++category) {
    const std::int64_t bytes = peak.bytes[static_cast<std::size_t>(*category)];
    LegendEntry entry{
        .name = std::string(label_of(*category)), .detail = format_bytes(bytes) + " at the peak", .is_area = true};
    entry.line = {.fill = paint_of(*category)};
    legend.push_back(entry);
  }
  return legend;
}

Layout make_layout(const Timeline& timeline, Medium medium) {
  Layout layout;
  layout.peak = peak_event(timeline);
  for (const Category category : stacking_order) {
    const auto index = static_cast<std::size_t>(category);
    const auto has_bytes = [&](const Event& event) { return event.bytes[index] > 0; };
    if (std::any_of(timeline.events.begin(), timeline.events.end(), has_bytes)) layout.categories.push_back(category);
  }
  layout.legend = make_legend(layout, timeline.events[layout.peak]);
  auto high = static_cast<double>(total(timeline.events[layout.peak].bytes));
  layout.is_budget_shown = timeline.budget_bytes && static_cast<double>(*timeline.budget_bytes) <= 2 * high;
  if (layout.is_budget_shown) high = std::max(high, static_cast<double>(*timeline.budget_bytes));
  layout.y = make_ticks(0, high * 1.02, {.title = "", .unit = Unit::bytes}, 6);
  const double legend = layout.legend.empty() ? 0 : legend_width(layout.legend) + 28;
  layout.frame.left = left_margin(medium) + std::max(28.0, 10 + label_width(layout.y));
  layout.frame.right = figure_width - 24 - legend;
  // Above the frame: the axis title, the phases, and the peak's label with room to stand clear of the budget.
  layout.frame.top = title_height(medium) + 34 + (timeline.phases.empty() ? 0 : 22);
  layout.frame.bottom = layout.frame.top + std::max(330.0, legend_height(layout.legend));
  // At least 62 px above the peak and the budget are left for their labels.
  layout.y.high = std::max(layout.y.ticks.back().value, high / (1 - 62 / layout.frame.height()));
  layout.height = layout.frame.bottom + 56;
  layout.is_label_right = layout.peak < timeline.events.size() / 2;
  layout.columns = pick_columns(timeline.events, layout.frame.width(), 1);
  const auto last = static_cast<double>(timeline.events.size());
  layout.x = make_x_ticks(0, last, {.title = ""}, layout.frame.width());
  layout.x.high = last;  // no empty space after the last event
  while (layout.x.ticks.back().value > last) layout.x.ticks.pop_back();
  return layout;
}

// The left edge of an event's place on the axis.
double event_x(const Layout& layout, const Timeline& timeline, double event) {
  return layout.frame.left + layout.frame.width() * event / static_cast<double>(timeline.events.size());
}

// The outline of the lowest `depth` categories together. Each layer is drawn down to the axis with the next one on top
// of it, so that no light shows between neighbours.
SvgPath outline(const Layout& layout, const Timeline& timeline, std::size_t depth) {
  const AxisMap to_y(layout.y, layout.frame.bottom, layout.frame.top);
  SvgPath path;
  path.move(layout.frame.left, layout.frame.bottom);
  std::int64_t previous = -1;
  const double width = layout.frame.width() / static_cast<double>(layout.columns.size());
  for (std::size_t i = 0; i < layout.columns.size(); ++i) {
    std::int64_t sum = 0;
    for (std::size_t k = 0; k < depth; ++k) {
      sum += timeline.events[layout.columns[i]].bytes[static_cast<std::size_t>(layout.categories[k])];
    }
    if (sum == previous) continue;
    path.horizontal(layout.frame.left + width * static_cast<double>(i)).vertical(to_y(static_cast<double>(sum)));
    previous = sum;
  }
  path.horizontal(layout.frame.right).vertical(layout.frame.bottom).close();
  return path;
}

void draw_phases(Svg& svg, const Layout& layout, const Timeline& timeline) {
  for (std::size_t i = 0; i < timeline.phases.size(); ++i) {
    const bool is_last = i + 1 == timeline.phases.size();
    const auto begin = static_cast<double>(timeline.phases[i].first_event);
    const auto end = static_cast<double>(is_last ? timeline.events.size() : timeline.phases[i + 1].first_event);
    const double left = event_x(layout, timeline, begin);
    const double right = event_x(layout, timeline, end);
    if (begin > 0) {
      svg.line(left, layout.frame.top - 22, left, layout.frame.bottom, {.stroke = paints::ink, .opacity = 0.3});
    }
    if (text_width(timeline.phases[i].name, small_text) + 8 > right - left) continue;  // the pointer names it
    svg.text((left + right) / 2, layout.frame.top - 8, timeline.phases[i].name,
             {.size = small_text, .anchor = "middle"});
  }
}

std::string budget_label(const Layout& layout, std::int64_t budget_bytes) {
  return "budget " + format_bytes(budget_bytes) + (layout.is_budget_shown ? "" : " (beyond the axis)");
}

double peak_x(const Layout& layout, const Timeline& timeline) {
  return event_x(layout, timeline, static_cast<double>(layout.peak) + 0.5);
}

// The budget is named at the end of its line that the peak's label leaves free: behind that label, unless the peak is
// too close to that end.
bool is_budget_left(const Layout& layout, const Timeline& timeline) {
  const double x = peak_x(layout, timeline);
  const double behind = layout.is_label_right ? x - layout.frame.left : layout.frame.right - x;
  const bool has_room = behind > text_width(budget_label(layout, *timeline.budget_bytes), small_text) + 24;
  return has_room == layout.is_label_right;
}

void draw_budget(Svg& svg, const Layout& layout, const Timeline& timeline) {
  const std::int64_t budget_bytes = *timeline.budget_bytes;
  const bool is_left = is_budget_left(layout, timeline);
  const double x = is_left ? layout.frame.left + 8 : layout.frame.right - 8;
  double y = layout.frame.top + 20;
  if (layout.is_budget_shown) {
    y = AxisMap(layout.y, layout.frame.bottom, layout.frame.top)(static_cast<double>(budget_bytes));
    svg.line(layout.frame.left, y, layout.frame.right, y,
             {.stroke = paints::alarm, .stroke_width = 1.5, .dashes = "7 5"});
  }
  svg.text(x, y - 7, budget_label(layout, budget_bytes),
           {.fill = paints::alarm, .size = small_text, .anchor = is_left ? "start" : "end", .has_halo = true});
}

void draw_peak(Svg& svg, const Layout& layout, const Timeline& timeline) {
  const Event& peak = timeline.events[layout.peak];
  const std::int64_t bytes = total(peak.bytes);
  const double x = peak_x(layout, timeline);
  const AxisMap to_y(layout.y, layout.frame.bottom, layout.frame.top);
  const double y = to_y(static_cast<double>(bytes));
  // Two lines, clear of the budget's line when that runs just above the peak.
  double label_y = y - 24;
  if (layout.is_budget_shown) {
    const double budget_y = to_y(static_cast<double>(*timeline.budget_bytes));
    if (budget_y <= y && budget_y > label_y - 36) label_y = budget_y - 16;
  }
  svg.line(x, y, x, label_y - 27, {.stroke = paints::ink});
  svg.circle(x, y, 4, {.fill = paints::ink, .stroke = paints::surface, .stroke_width = 1.5});
  std::string where = "event " + format_grouped(static_cast<std::int64_t>(layout.peak));
  if (!peak.path.empty()) where += " \xC2\xB7 " + peak.path;
  double room = (layout.is_label_right ? layout.frame.right - x : x - layout.frame.left) - 12;
  if (timeline.budget_bytes && is_budget_left(layout, timeline) != layout.is_label_right) {
    room -= text_width(budget_label(layout, *timeline.budget_bytes), small_text) + 24;
  }
  const double label_x = x + (layout.is_label_right ? 9 : -9);
  const std::string_view anchor = layout.is_label_right ? "start" : "end";
  svg.text(label_x, label_y - 16, "peak " + format_bytes(bytes),
           {.size = 13.5, .anchor = anchor, .is_bold = true, .has_halo = true});
  svg.text(label_x, label_y, fit_text(where, small_text, room),
           {.size = small_text, .anchor = anchor, .has_halo = true});
}

std::string draw(const Timeline& timeline, Medium medium) {
  const Layout layout = make_layout(timeline, medium);
  Svg svg(medium, figure_width, layout.height, timeline.title, timeline.caption);
  draw_title(svg, timeline.title);
  Frame title_frame = layout.frame;
  if (!timeline.phases.empty()) title_frame.top -= 22;
  draw_y_axis(svg, layout.frame, layout.y, "");
  svg.text(left_margin(medium), title_frame.top - 16, "live bytes", {.fill = paints::muted, .size = small_text});
  for (std::size_t depth = layout.categories.size(); depth > 0; --depth) {
    svg.path(outline(layout, timeline, depth), {.fill = paint_of(layout.categories[depth - 1])});
  }
  draw_phases(svg, layout, timeline);
  draw_x_axis(svg, layout.frame, layout.x, "allocation events", false);
  if (timeline.budget_bytes) draw_budget(svg, layout, timeline);
  draw_peak(svg, layout, timeline);
  draw_legend(svg, layout.frame.right + 28, layout.frame.top - 4, layout.legend);
  return svg.finish();
}

// {"kind":"timeline","left","right","top","bottom","count":events of the step,"phases":[[name, first],...],
//  "categories":[[label, paint],...], outermost first, "paths":[...], and one entry per event told of:
//  "event":[...],"path":[index into paths,...],"bytes":[[per category],...]} with "event" and "bytes" as differences to
// the entry before, which are mostly short.
std::string hover(const Timeline& timeline) {
  const Layout layout = make_layout(timeline, Medium::page);
  std::vector<std::size_t> told = layout.columns;
  if (timeline.events.size() <= hover_events_max) {
    told.resize(timeline.events.size());
    for (std::size_t i = 0; i < told.size(); ++i) told[i] = i;
  }
  nlohmann::ordered_json data;
  data["kind"] = "timeline";
  data["left"] = layout.frame.left;
  data["right"] = layout.frame.right;
  data["top"] = layout.frame.top;
  data["bottom"] = layout.frame.bottom;
  data["count"] = timeline.events.size();
  data["phases"] = nlohmann::ordered_json::array();
  for (const Phase& phase : timeline.phases) data["phases"].push_back({phase.name, phase.first_event});
  data["categories"] = nlohmann::ordered_json::array();
  data["bytes"] = nlohmann::ordered_json::array();
  for (auto category = layout.categories.rbegin(); category != layout.categories.rend(); ++category) {
    data["categories"].push_back({label_of(*category), paint_of(*category).name});
    nlohmann::ordered_json differences = nlohmann::ordered_json::array();
    std::int64_t previous = 0;
    for (const std::size_t event : told) {
      const std::int64_t bytes = timeline.events[event].bytes[static_cast<std::size_t>(*category)];
      differences.push_back(bytes - previous);
      previous = bytes;
    }
    data["bytes"].push_back(std::move(differences));
  }
  nlohmann::ordered_json events = nlohmann::ordered_json::array(), path = nlohmann::ordered_json::array();
  std::vector<std::string> paths;
  std::map<std::string, std::size_t> index;
  std::size_t previous = 0;
  for (const std::size_t event : told) {
    events.push_back(event - previous);
    previous = event;
    const auto [found, is_new] = index.try_emplace(timeline.events[event].path, paths.size());
    if (is_new) paths.push_back(found->first);
    path.push_back(found->second);
  }
  data["event"] = std::move(events);
  data["paths"] = paths;
  data["path"] = std::move(path);
  return data.dump();
}

}  // namespace timeline_detail

std::size_t peak_event(const Timeline& timeline) noexcept {
  std::size_t peak = 0;
  for (std::size_t i = 1; i < timeline.events.size(); ++i) {
    if (total(timeline.events[i].bytes) > total(timeline.events[peak].bytes)) peak = i;
  }
  return peak;
}

std::string svg_stacked_area(const Timeline& timeline) {
  check(timeline);
  return timeline_detail::draw(timeline, Medium::file);
}

Figure page_figure(const Timeline& timeline) {
  check(timeline);
  return {timeline_detail::draw(timeline, Medium::page), timeline_detail::hover(timeline)};
}

}  // namespace thimble::report
