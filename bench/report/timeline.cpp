// Stacked area over the events of a step.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/bench/report/figures.h>
#include <thimble/bench/report/legend.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/units.h>

namespace thimble::report {
namespace timeline_detail {

struct Layout {
  Frame frame;
  double height = 0;
  AxisTicks x, y;
  std::vector<Category> categories;  // those that ever hold bytes, in stacking order
  std::vector<std::size_t> columns;  // the event that each column of the picture shows
  std::vector<LegendEntry> legend;
  std::vector<Level> levels;
  std::size_t peak = 0;
  bool is_label_right = true;  // the side of the peak on which its label stands
};

// Events in `count` stretches at most, by the event with the most bytes of each.
std::vector<std::size_t> highest_of_stretches(const std::vector<Event>& events, std::size_t count) {
  count = std::min(events.size(), count);
  std::vector<std::size_t> highest(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t end = (i + 1) * events.size() / count;
    highest[i] = i * events.size() / count;
    for (std::size_t k = highest[i] + 1; k < end; ++k) {
      if (total(events[k].bytes) > total(events[highest[i]].bytes)) highest[i] = k;
    }
  }
  return highest;
}

Layout make_layout(const Timeline& timeline, Medium medium) {
  Layout layout;
  layout.peak = peak_event(timeline);
  layout.levels = make_levels(timeline.budget_bytes, timeline.bounds);
  layout.categories = categories_with([&](std::size_t category) {
    const auto has_bytes = [&](const Event& event) { return event.bytes[category] > 0; };
    return std::any_of(timeline.events.begin(), timeline.events.end(), has_bytes);
  });
  const CategoryBytes& at_peak = timeline.events[layout.peak].bytes;
  layout.legend = category_legend(layout.categories);
  for (std::size_t i = 0; i < layout.legend.size(); ++i) {
    const Category category = layout.categories[layout.legend.size() - 1 - i];
    layout.legend[i].detail = format_bytes(at_peak[static_cast<std::size_t>(category)]) + " at the peak";
  }
  const double high = reach(static_cast<double>(std::max(timeline.scale_bytes, total(at_peak))), layout.levels);
  add_levels(layout.legend, layout.levels, high);
  layout.y = make_ticks(0, high * 1.02, {.title = "", .unit = Unit::bytes}, 6);
  const double legend = layout.legend.empty() ? 0 : legend_width(layout.legend) + 28;
  layout.frame.left = left_margin(medium) + std::max(28.0, 10 + label_width(layout.y));
  layout.frame.right = figure_width - 24 - legend;
  layout.frame.top = title_height(medium) + 34;
  layout.frame.bottom =
      layout.frame.top + std::max(timeline.step.empty() ? 330.0 : 420.0, legend_height(layout.legend));
  // Above all that is drawn there is room for the peak's label.
  layout.y.high = std::max(layout.y.ticks.back().value, high / (1 - 50 / layout.frame.height()));
  layout.height = layout.frame.bottom + 56;
  const std::size_t count = timeline.events.size();
  layout.is_label_right = 2 * layout.peak + 1 < count;
  const double detail = medium == Medium::page ? 4 : 1;  // a page looks closer
  layout.columns = highest_of_stretches(timeline.events, static_cast<std::size_t>(detail * layout.frame.width()));
  layout.x = make_event_ticks(count, layout.frame.width());
  return layout;
}

// What stands at an event time moves with the axis.
void begin_group_at(Svg& svg, double time) { svg.begin_group("data-time=\"" + coordinate(time) + "\""); }

// The outline of the lowest `depth` categories together. Each layer is drawn down to the axis with the next one on top
// of it, so that no light shows between neighbours.
SvgPath outline(const Layout& layout, const Timeline& timeline, std::size_t depth) {
  const AxisMap to_y(layout.y, layout.frame.bottom, layout.frame.top);
  SvgPath path;
  path.move(0, layout.frame.bottom);
  std::int64_t previous = -1;
  const std::size_t events = timeline.events.size(), columns = layout.columns.size();
  for (std::size_t i = 0; i < layout.columns.size(); ++i) {
    std::int64_t sum = 0;
    for (std::size_t k = 0; k < depth; ++k) {
      sum += timeline.events[layout.columns[i]].bytes[static_cast<std::size_t>(layout.categories[k])];
    }
    if (sum == previous) continue;
    path.horizontal(static_cast<double>(i * events / columns)).vertical(to_y(static_cast<double>(sum)));
    previous = sum;
  }
  path.horizontal(static_cast<double>(events)).vertical(layout.frame.bottom).close();
  return path;
}

void draw_peak(Svg& svg, const Layout& layout, const Timeline& timeline) {
  const Event& peak = timeline.events[layout.peak];
  const std::int64_t bytes = total(peak.bytes);
  const double time = static_cast<double>(layout.peak) + 0.5;
  const double x = AxisMap(layout.x, layout.frame.left, layout.frame.right)(time);
  const double y = AxisMap(layout.y, layout.frame.bottom, layout.frame.top)(static_cast<double>(bytes));
  begin_group_at(svg, time);
  svg.line(x, y, x, layout.frame.top + 3, {.stroke = paints::ink});
  svg.circle(x, y, 4, {.fill = paints::ink, .stroke = paints::surface, .stroke_width = 1.5});
  std::string where = "event " + format_grouped(layout.peak);
  if (!peak.path.empty()) where += " \xC2\xB7 " + peak.path;
  const double room = (layout.is_label_right ? layout.frame.right - x : x - layout.frame.left) - 12;
  const double label_x = x + (layout.is_label_right ? 9 : -9);
  const std::string_view anchor = layout.is_label_right ? "start" : "end";
  const std::string what = "peak " + format_bytes(bytes), at = fit_text(where, small_text, room);
  // No line of the grid runs through the words.
  const double width = std::max(text_width(what, 13.5, true), text_width(at, small_text)) + 8;
  svg.rectangle(layout.is_label_right ? label_x - 4 : label_x + 4 - width, layout.frame.top + 1, width, 37,
                {.fill = paints::surface});
  svg.text(label_x, layout.frame.top + 14, what, {.size = 13.5, .anchor = anchor, .is_bold = true, .has_halo = true});
  svg.text(label_x, layout.frame.top + 33, at, {.size = small_text, .anchor = anchor, .has_halo = true});
  svg.end();
}

std::string draw(const Timeline& timeline, const Layout& layout, Medium medium) {
  Svg svg(medium, figure_width, layout.height, timeline.title, timeline.caption);
  draw_title(svg, timeline.title);
  draw_y_axis(svg, layout.frame, layout.y, "live bytes");
  svg.begin_window(layout.frame.left, layout.frame.top, layout.frame.right, layout.frame.bottom, layout.x.high);
  for (std::size_t depth = layout.categories.size(); depth > 0; --depth) {
    svg.path(outline(layout, timeline, depth), {.fill = paint_of(layout.categories[depth - 1])});
  }
  svg.end();
  draw_levels(svg, layout.frame, layout.y, layout.levels);
  draw_x_axis(svg, layout.frame, layout.x, "allocation events", false);
  draw_peak(svg, layout, timeline);
  draw_legend(svg, layout.frame.right + 28, layout.frame.top - 4, layout.legend);
  return svg.finish();
}

// {"kind":"timeline","frame","high": bytes at the frame's top,"count": events of the step,"step",
//  "before": begins_before,"categories":[[label, paint],...], outermost first,
//  "paths":[...], and one entry per event told of: "event":[...],"path":[index into paths,...],
//  "bytes":[[per category],...]} with "event" and "bytes" as differences to the entry before, which are mostly short.
std::string hover(const Timeline& timeline, const Layout& layout) {
  const std::vector<std::size_t> told = highest_of_stretches(timeline.events, hover_events_max);
  nlohmann::ordered_json data;
  data["kind"] = "timeline";
  data["frame"] = layout.frame.corners();
  data["high"] = layout.y.high;
  data["count"] = timeline.events.size();
  data["step"] = timeline.step;
  data["before"] = timeline.begins_before;
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
  Texts paths;
  std::size_t previous = 0;
  for (const std::size_t event : told) {
    events.push_back(event - previous);
    previous = event;
    path.push_back(paths.index(timeline.events[event].path));
  }
  data["event"] = std::move(events);
  data["paths"] = paths.list();
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
  return timeline_detail::draw(timeline, timeline_detail::make_layout(timeline, Medium::file), Medium::file);
}

Figure page_figure(const Timeline& timeline) {
  check(timeline);
  const timeline_detail::Layout layout = timeline_detail::make_layout(timeline, Medium::page);
  return {timeline_detail::draw(timeline, layout, Medium::page), timeline_detail::hover(timeline, layout)};
}

}  // namespace thimble::report
