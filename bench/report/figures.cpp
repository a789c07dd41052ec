#include <thimble/bench/report/figures.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include <thimble/bench/report/drawing.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/units.h>

namespace thimble::report {

// ---- Line and scatter plots.

namespace {

struct SeriesStyle {
  Paint paint;
  Marker marker = Marker::circle;
};

struct PlotLayout {
  Frame frame;
  double height = 0;
  AxisTicks x, y;
  std::vector<SeriesStyle> styles;
  std::vector<LegendEntry> legend;
  std::vector<Level> levels;
};

// A colour and a marker per group; series without a group are groups of their own. Theory alone is drawn like text.
std::vector<SeriesStyle> style_series(const Plot& plot) {
  std::vector<SeriesStyle> styles;
  std::vector<std::string> groups;
  for (const Series& series : plot.series) {
    if (series.role == Role::theory && series.group.empty()) {
      styles.push_back({paints::ink, Marker::circle});
      continue;
    }
    auto found = series.group.empty() ? groups.end() : std::find(groups.begin(), groups.end(), series.group);
    if (found == groups.end()) {
      groups.push_back(series.group);
      found = groups.end() - 1;
    }
    const auto index = static_cast<std::size_t>(found - groups.begin());
    // When the colours have been through, each comes back with the next marker.
    const std::size_t turn = index / series_paints.size();
    styles.push_back({series_paints[index % series_paints.size()], static_cast<Marker>((index + turn) % marker_count)});
  }
  return styles;
}

// Theory, prediction and measurement of the same value stay visible on top of each other: a thin dashed line on a wide
// pale one, under an open marker.
Look line_look(Role role, const Paint& paint) {
  if (role == Role::theory) return {.stroke = paint, .stroke_width = 1.75, .dashes = "6 5"};
  if (role == Role::predicted) return {.stroke = paint, .stroke_width = 6, .opacity = 0.35};
  return {.stroke = paint, .stroke_width = 2};
}

Look marker_look(Role role, const Paint& paint) {
  if (role == Role::measured) return {.fill = paints::surface, .stroke = paint, .stroke_width = 2};
  return {.fill = paint, .stroke = paints::surface, .stroke_width = 1.25};
}

bool has_line(const Series& series) { return series.role != Role::measured && series.points.size() > 1; }
bool has_markers(const Series& series) {
  constexpr std::size_t crowded = 80;  // a dense curve is read as a line
  return series.role == Role::measured || series.points.size() == 1 ||
         (series.role == Role::other && series.points.size() <= crowded);
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

PlotLayout make_layout(const Plot& plot, Medium medium) {
  Range x, y;
  for (const Series& series : plot.series) {
    for (const Point& point : series.points) {
      x.include(point.x);
      y.include(point.y);
    }
  }
  if (!(x.high >= x.low)) {  // an empty plot still has axes
    x = y = {1, 2};
  }
  PlotLayout layout;
  layout.levels = make_levels(plot.budget_bytes);
  x.high = reach(x.high, layout.levels);
  layout.styles = style_series(plot);
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    const Series& series = plot.series[i];
    if (series.name.empty()) continue;
    LegendEntry entry{.name = series.name, .has_line = has_line(series), .has_marker = has_markers(series)};
    entry.line = line_look(series.role, layout.styles[i].paint);
    entry.marker_look = marker_look(series.role, layout.styles[i].paint);
    entry.marker = layout.styles[i].marker;
    layout.legend.push_back(entry);
  }
  add_levels(layout.legend, layout.levels, x.high);
  layout.y = make_ticks(y.low, y.high, plot.y, 6);
  const double legend = layout.legend.empty() ? 0 : legend_width(layout.legend) + 28;
  layout.frame.left = left_margin(medium) + std::max(28.0, 10 + label_width(layout.y));
  layout.frame.right = figure_width - 24 - legend;
  layout.frame.top = title_height(medium) + 34;
  layout.frame.bottom = layout.frame.top + std::max(300.0, legend_height(layout.legend));
  layout.height = layout.frame.bottom + 56;
  layout.x = make_x_ticks(x.low, x.high, plot.x, layout.frame.width());
  return layout;
}

// Lines first, then markers; within each, predictions lie lowest, then theory's thin dashes, measurements on top.
int depth(Role role) {
  if (role == Role::predicted) return 0;
  if (role == Role::other) return 1;
  return role == Role::theory ? 2 : 3;
}

std::string point_text(const Plot& plot, const Series& series, const Point& point) {
  return series.name + (series.name.empty() ? "" : ": ") + format_exact(point.y, plot.y.unit) + " at " +
         (plot.x.title.empty() ? "" : plot.x.title + " ") + format_exact(point.x, plot.x.unit);
}

std::string draw(const Plot& plot, const PlotLayout& layout, Medium medium) {
  Svg svg(medium, figure_width, layout.height, plot.title, plot.caption);
  draw_title(svg, plot.title);
  draw_y_axis(svg, layout.frame, layout.y, plot.y.title);
  draw_x_axis(svg, layout.frame, layout.x, plot.x.title, true);
  const AxisMap to_x(layout.x, layout.frame.left, layout.frame.right);
  const AxisMap to_y(layout.y, layout.frame.bottom, layout.frame.top);
  draw_levels(svg, layout.frame, layout.x, layout.levels, true);
  std::vector<std::size_t> order(plot.series.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return depth(plot.series[a].role) < depth(plot.series[b].role);
  });
  for (const std::size_t i : order) {
    const Series& series = plot.series[i];
    if (!has_line(series)) continue;
    SvgPath path;
    for (std::size_t k = 0; k < series.points.size(); ++k) {
      const Point& point = series.points[k];
      if (k > 0 && series.is_staircase) path.horizontal(to_x(point.x));
      k == 0 ? path.move(to_x(point.x), to_y(point.y)) : path.line(to_x(point.x), to_y(point.y));
    }
    svg.path(path, line_look(series.role, layout.styles[i].paint));
  }
  for (const std::size_t i : order) {
    const Series& series = plot.series[i];
    if (!has_markers(series)) continue;
    for (const Point& point : series.points) {
      draw_marker(svg, layout.styles[i].marker, to_x(point.x), to_y(point.y),
                  marker_look(series.role, layout.styles[i].paint), point_text(plot, series, point));
    }
  }
  draw_legend(svg, layout.frame.right + 28, layout.frame.top - 4, layout.legend);
  return svg.finish();
}

// {"kind":"plot","frame","x":title,"series":[{"name","paint",
//  "points":[[x px, y px, x text, y text, [[name, text] of its details,...]],...]},...]}
std::string hover(const Plot& plot, const PlotLayout& layout) {
  const AxisMap to_x(layout.x, layout.frame.left, layout.frame.right);
  const AxisMap to_y(layout.y, layout.frame.bottom, layout.frame.top);
  const auto rounded = [](double value) { return std::round(value * 100) / 100; };
  nlohmann::ordered_json data;
  data["kind"] = "plot";
  data["frame"] = layout.frame.corners();
  data["x"] = plot.x.title;
  data["series"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    nlohmann::ordered_json points = nlohmann::ordered_json::array();
    for (const Point& point : plot.series[i].points) {
      points.push_back({rounded(to_x(point.x)), rounded(to_y(point.y)), format_exact(point.x, plot.x.unit),
                        format_exact(point.y, plot.y.unit), point.details});
    }
    data["series"].push_back(
        {{"name", plot.series[i].name}, {"paint", layout.styles[i].paint.name}, {"points", points}});
  }
  return data.dump();
}

}  // namespace

std::string svg_plot(const Plot& plot) {
  check(plot);
  return draw(plot, make_layout(plot, Medium::file), Medium::file);
}

Figure page_figure(const Plot& plot) {
  check(plot);
  const PlotLayout layout = make_layout(plot, Medium::page);
  return {draw(plot, layout, Medium::page), hover(plot, layout)};
}

// ---- Stacked horizontal bars: labels of any length stay readable, and amounts grow to the right.

namespace {

constexpr double bar_height = 22;
constexpr double bar_pitch = 35;
constexpr double widest_label = 250;

struct BarsLayout {
  Frame frame;
  double height = 0;
  double room = 0;  // for amounts behind the longest bar
  AxisTicks x;
  std::vector<LegendEntry> legend;
};

std::vector<std::string> label_lines(const Bar& bar) { return wrap_text(bar.label, small_text, widest_label, 2); }

std::int64_t amount_of(const Bar& bar) {
  std::int64_t sum = 0;
  for (const BarPart& part : bar.parts) sum += part.amount;
  return sum;
}

std::string exact_amount(std::int64_t amount, Unit unit) {
  return format_grouped(amount) + (unit == Unit::bytes ? " B" : "");
}
std::string text_behind(const Bars& bars, const Bar& bar) {
  return (bars.is_exact ? exact_amount(amount_of(bar), bars.unit) : format_bytes(amount_of(bar))) + bar.note;
}

// The kinds of parts, where bars have several: the outermost comes first, as the eye meets it.
std::vector<LegendEntry> legend_of(const Bars& bars) {
  std::vector<LegendEntry> legend;
  std::size_t most_parts = 0;
  for (const Bar& bar : bars.bars) {
    most_parts = std::max(most_parts, bar.parts.size());
    for (const BarPart& part : bar.parts) {
      const auto is_same = [&](const LegendEntry& entry) { return entry.name == part.name; };
      if (std::any_of(legend.begin(), legend.end(), is_same)) continue;
      legend.push_back({.name = part.name, .is_area = true, .line = {.fill = part.paint}});
    }
  }
  if (most_parts < 2) return {};
  std::erase_if(legend, [&](const LegendEntry& entry) {
    return std::none_of(bars.bars.begin(), bars.bars.end(), [&](const Bar& bar) {
      return std::any_of(bar.parts.begin(), bar.parts.end(),
                         [&](const BarPart& part) { return part.name == entry.name && part.amount > 0; });
    });
  });
  std::reverse(legend.begin(), legend.end());
  return legend;
}

BarsLayout make_layout(const Bars& bars, Medium medium) {
  BarsLayout layout;
  double widest = 0;
  std::int64_t largest = 0;
  layout.room = 84;  // "1023.99 GiB"
  for (const Bar& bar : bars.bars) {
    for (const std::string& line : label_lines(bar)) widest = std::max(widest, text_width(line, small_text));
    largest = std::max(largest, bar.from + amount_of(bar));
    if (bars.is_exact) layout.room = std::max(layout.room, text_width(text_behind(bars, bar), small_text, true) + 8);
  }
  layout.legend = legend_of(bars);
  const double legend = layout.legend.empty() ? 0 : legend_width(layout.legend) + 28;
  layout.frame.left = left_margin(medium) + 12 + widest;
  layout.frame.right = figure_width - 24 - layout.room - legend;
  layout.frame.top = title_height(medium) + 8;
  layout.frame.bottom = layout.frame.top + bar_pitch * static_cast<double>(bars.bars.size()) + 6;
  layout.height = std::max(layout.frame.bottom + 34, layout.frame.top + legend_height(layout.legend) + 8);
  layout.x = make_x_ticks(0, static_cast<double>(largest), {.title = "", .unit = bars.unit}, layout.frame.width());
  return layout;
}

void draw_bar(Svg& svg, const Bars& bars, const Bar& bar, const AxisMap& to_x, double y) {
  const double baseline = y + bar_height / 2 + 4.5;
  std::int64_t from = bar.from;
  for (const BarPart& part : bar.parts) {
    if (part.amount == 0) continue;
    const double left = to_x(static_cast<double>(from)), right = to_x(static_cast<double>(from += part.amount));
    const std::string name = bar.parts.size() > 1 ? bar.label + ", " + part.name : part.name;
    svg.rectangle(left, y, std::max(bar.parts.size() > 1 ? 0 : 1.5, right - left), bar_height, {.fill = part.paint}, 0,
                  name + ": " + format_exact(static_cast<double>(part.amount), bars.unit));
    const std::string text = exact_amount(part.amount, bars.unit);
    const double needed = text_width(text, 11.5) + 10;
    if (!bars.is_exact || bar.parts.size() < 2 || needed + 6 > right - left) continue;
    // In the part, on a plate of the surface's colour, which is legible on every paint.
    svg.rectangle((left + right - needed) / 2, y + 3, needed, 16, {.fill = paints::surface}, 3);
    svg.text((left + right) / 2, y + 15, text, {.size = 11.5, .anchor = "middle"});
  }
  svg.text(to_x(static_cast<double>(from)) + 8, baseline, text_behind(bars, bar),
           {.size = small_text, .is_bold = true, .has_halo = true});
}

std::string draw(const Bars& bars, const BarsLayout& layout, Medium medium) {
  Svg svg(medium, figure_width, layout.height, bars.title, bars.caption);
  draw_title(svg, bars.title);
  draw_x_axis(svg, layout.frame, layout.x, "", true);
  const AxisMap to_x(layout.x, layout.frame.left, layout.frame.right);
  double y = layout.frame.top + 6;
  for (const Bar& bar : bars.bars) {
    const double baseline = y + bar_height / 2 + 4.5;
    const std::vector<std::string> label = label_lines(bar);
    for (std::size_t k = 0; k < label.size(); ++k) {
      const double offset = label.size() == 1 ? 0 : k == 0 ? -7.5 : 7.5;
      svg.text(layout.frame.left - 12, baseline + offset, label[k], {.size = small_text, .anchor = "end"});
    }
    draw_bar(svg, bars, bar, to_x, y);
    y += bar_pitch;
  }
  draw_legend(svg, layout.frame.right + layout.room + 28, layout.frame.top, layout.legend);
  return svg.finish();
}

// {"kind":"bars","frame","pitch","bars":[{"label","total":text,"parts":[[name, paint, text],...]},...]}
std::string hover(const Bars& bars, const BarsLayout& layout) {
  nlohmann::ordered_json data;
  data["kind"] = "bars";
  data["frame"] = layout.frame.corners();
  data["pitch"] = bar_pitch;
  data["bars"] = nlohmann::ordered_json::array();
  const auto exact = [&](std::int64_t amount) { return format_exact(static_cast<double>(amount), bars.unit); };
  for (const Bar& bar : bars.bars) {
    nlohmann::ordered_json parts = nlohmann::ordered_json::array();
    for (auto part = bar.parts.rbegin(); part != bar.parts.rend(); ++part) {
      if (part->amount > 0) parts.push_back({part->name, part->paint.name, exact(part->amount)});
    }
    data["bars"].push_back({{"label", bar.label}, {"total", exact(amount_of(bar))}, {"parts", parts}});
  }
  return data.dump();
}

}  // namespace

Bar category_bar(const std::string& label, const CategoryBytes& bytes) {
  Bar bar{label, {}};
  for (const Category category : stacking_order) {
    bar.parts.push_back(
        {std::string(label_of(category)), bytes[static_cast<std::size_t>(category)], paint_of(category)});
  }
  return bar;
}

std::vector<Bar> stair(const std::vector<BarPart>& parts, const std::vector<std::string>& notes,
                       const std::string& total_name) {
  std::vector<Bar> bars;
  std::int64_t from = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    bars.push_back({parts[i].name, {parts[i]}, from, i < notes.size() ? "  " + notes[i] : ""});
    from += parts[i].amount;
  }
  bars.push_back({total_name, {{total_name, from, paints::ink}}});
  return bars;
}

std::string svg_bars(const Bars& bars) {
  check(bars);
  return draw(bars, make_layout(bars, Medium::file), Medium::file);
}

Figure page_figure(const Bars& bars) {
  check(bars);
  const BarsLayout layout = make_layout(bars, Medium::page);
  return {draw(bars, layout, Medium::page), hover(bars, layout)};
}

// ---- Stacked area over the events of a step.

namespace {

struct TimelineLayout {
  Frame frame;
  double height = 0;
  AxisTicks x, y;
  std::vector<Category> categories;  // with bytes at some time, in stacking order
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

TimelineLayout make_layout(const Timeline& timeline, Medium medium) {
  TimelineLayout layout;
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
SvgPath outline(const TimelineLayout& layout, const Timeline& timeline, std::size_t depth) {
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

void draw_peak(Svg& svg, const TimelineLayout& layout, const Timeline& timeline) {
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

std::string draw(const Timeline& timeline, const TimelineLayout& layout, Medium medium) {
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
std::string hover(const Timeline& timeline, const TimelineLayout& layout) {
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

}  // namespace

std::size_t peak_event(const Timeline& timeline) noexcept {
  std::size_t peak = 0;
  for (std::size_t i = 1; i < timeline.events.size(); ++i) {
    if (total(timeline.events[i].bytes) > total(timeline.events[peak].bytes)) peak = i;
  }
  return peak;
}

std::string svg_stacked_area(const Timeline& timeline) {
  check(timeline);
  return draw(timeline, make_layout(timeline, Medium::file), Medium::file);
}

Figure page_figure(const Timeline& timeline) {
  check(timeline);
  const TimelineLayout layout = make_layout(timeline, Medium::page);
  return {draw(timeline, layout, Medium::page), hover(timeline, layout)};
}

}  // namespace thimble::report
