#include <thimble/bench/report/figures.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include <thimble/bench/report/drawing.h>
#include <thimble/bench/report/hover.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/units.h>

namespace thimble::report {

// ---- Line and scatter plots.

namespace {

struct SeriesStyle {
  Paint paint;
  Marker marker = Marker::circle;
};

// A colour and a marker per group. A series without a group is one, but theory without a group is drawn like text.
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

void draw_series(Chart& chart, const Plot& plot, const std::vector<SeriesStyle>& styles) {
  const AxisMap to_x = chart.to_x(), to_y = chart.to_y();
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
    chart.svg.path(path, line_look(series.role, styles[i].paint));
  }
  for (const std::size_t i : order) {
    const Series& series = plot.series[i];
    if (!has_markers(series)) continue;
    for (const Point& point : series.points) {
      draw_marker(chart.svg, styles[i].marker, to_x(point.x), to_y(point.y), marker_look(series.role, styles[i].paint),
                  point_text(plot, series, point));
    }
  }
}

// An entry per point, from the left. Points at one x share their rows.
std::string hover(const Chart& chart, const Plot& plot, const std::vector<SeriesStyle>& styles) {
  constexpr double units = 1e4, reach = 90;
  struct Shown {
    double x, y;
    std::size_t series;
    const Point* point;
  };
  std::vector<Shown> points;
  const AxisMap to_x(chart.x, 0, units), to_y(chart.y, 0, units);
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    for (const Point& point : plot.series[i].points) points.push_back({to_x(point.x), to_y(point.y), i, &point});
  }
  std::stable_sort(points.begin(), points.end(), [](const Shown& a, const Shown& b) { return a.x < b.x; });
  Hover hover("plot", chart.frame, units, units, reach);
  const std::string before = plot.x.title.empty() ? "" : plot.x.title + " ";
  for (std::size_t first = 0, end; first < points.size(); first = end) {
    const std::string x = format_exact(points[first].point->x, plot.x.unit);
    for (end = first; end < points.size() && points[end].point->x == points[first].point->x; ++end) {
      const Shown& at = points[end];
      hover.add({at.x, at.x, at.y, 0, before + x, plot.series[at.series].name});
    }
    for (std::size_t i = first; i < end; ++i) {
      hover.add_span(first, end, styles[points[i].series].paint.name, plot.series[points[i].series].name,
                     format_exact(points[i].point->y, plot.y.unit));
      for (const auto& [name, value] : points[i].point->details) hover.add_span(i, i + 1, "", name, value);
    }
  }
  return hover.json();
}

}  // namespace

Figure draw(const Plot& plot, Medium medium) {
  check(plot);
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
  const std::vector<Level> levels = make_levels(plot.budget_bytes);
  x.high = reach(x.high, levels);
  const std::vector<SeriesStyle> styles = style_series(plot);
  std::vector<LegendEntry> legend;
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    const Series& series = plot.series[i];
    if (series.name.empty()) continue;
    legend.push_back({.name = series.name,
                      .has_line = has_line(series),
                      .has_marker = has_markers(series),
                      .line = line_look(series.role, styles[i].paint),
                      .marker_look = marker_look(series.role, styles[i].paint),
                      .marker = styles[i].marker});
  }
  add_levels(legend, levels, x.high);
  const AxisTicks ticks = make_ticks(y.low, y.high, plot.y, 6);
  Chart chart({.medium = medium,
               .title = plot.title,
               .description = plot.caption,
               .legend = legend,
               .labels = std::max(28.0, 10 + label_width(ticks)),
               .height = 300});
  chart.y = ticks;
  chart.x = make_x_ticks(x.low, x.high, plot.x, chart.frame.width());
  chart.draw_y(plot.y.title);
  chart.draw_x(plot.x.title, true);
  draw_levels(chart.svg, chart.frame, chart.x, levels, true);
  draw_series(chart, plot, styles);
  return {"plot", chart.finish(), medium == Medium::page ? hover(chart, plot, styles) : ""};
}

// ---- Stacked horizontal bars: labels of any length stay readable, and amounts grow to the right.

namespace {

constexpr double bar_height = 22;
constexpr double bar_pitch = 35;
constexpr double widest_label = 250;

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

// An entry per bar, over its label and its amount, too.
std::string hover(const Chart& chart, const Bars& bars) {
  const Frame& frame = chart.frame;
  Hover hover("bars", frame, frame.width(), frame.height());
  const auto exact = [&](std::int64_t amount) { return format_exact(static_cast<double>(amount), bars.unit); };
  for (std::size_t i = 0; i < bars.bars.size(); ++i) {
    const Bar& bar = bars.bars[i];
    hover.add({-frame.left, frame.width() + chart.form.room, frame.height() - bar_pitch * static_cast<double>(i + 1),
               bar_pitch, bar.label});
    for (auto part = bar.parts.rbegin(); part != bar.parts.rend(); ++part) {
      if (part->amount > 0) hover.add_span(i, i + 1, part->paint.name, part->name, exact(part->amount));
    }
    hover.add_span(i, i + 1, "", "total", exact(amount_of(bar)));
  }
  return hover.json();
}

}  // namespace

Bar category_bar(const std::string& label, const CategoryBytes& bytes) {
  Bar bar{label, {}};
  for (const memory::Category category : stacking_order) {
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

Figure draw(const Bars& bars, Medium medium) {
  check(bars);
  double widest = 0, room = 84;  // "1023.99 GiB"
  std::int64_t largest = 0;
  for (const Bar& bar : bars.bars) {
    for (const std::string& line : label_lines(bar)) widest = std::max(widest, text_width(line, small_text));
    largest = std::max(largest, bar.from + amount_of(bar));
    if (bars.is_exact) room = std::max(room, text_width(text_behind(bars, bar), small_text, true) + 8);
  }
  Chart chart({.medium = medium,
               .title = bars.title,
               .description = bars.caption,
               .legend = legend_of(bars),
               .labels = 12 + widest,
               .height = bar_pitch * static_cast<double>(bars.bars.size()) + 6,
               .above = 8,
               .below = 34,
               .room = room,
               .is_tight = true});
  chart.x = make_x_ticks(0, static_cast<double>(largest), {.title = "", .unit = bars.unit}, chart.frame.width());
  chart.draw_x("", true);
  double y = chart.frame.top + 6;
  for (const Bar& bar : bars.bars) {
    const double baseline = y + bar_height / 2 + 4.5;
    const std::vector<std::string> label = label_lines(bar);
    for (std::size_t k = 0; k < label.size(); ++k) {
      const double offset = label.size() == 1 ? 0 : k == 0 ? -7.5 : 7.5;
      chart.svg.text(chart.frame.left - 12, baseline + offset, label[k], {.size = small_text, .anchor = "end"});
    }
    draw_bar(chart.svg, bars, bar, chart.to_x(), y);
    y += bar_pitch;
  }
  return {"bars", chart.finish(), medium == Medium::page ? hover(chart, bars) : ""};
}

// ---- Stacked area over the events of a step.

namespace {

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

// A group at an event time moves with the axis.
void begin_group_at(Svg& svg, double time) { svg.begin_group("data-time=\"" + coordinate(time) + "\""); }

// The outline of some categories together, over `columns`, each an event. Each layer is drawn down to the axis with the
// next one on top of it, so that no light shows between neighbours.
SvgPath outline(const Chart& chart, const Timeline& timeline, const std::vector<std::size_t>& columns,
                std::span<const memory::Category> categories) {
  const AxisMap to_y = chart.to_y();
  SvgPath path;
  path.move(0, chart.frame.bottom);
  std::int64_t previous = -1;
  const std::size_t events = timeline.events.size();
  for (std::size_t i = 0; i < columns.size(); ++i) {
    std::int64_t sum = 0;
    for (const memory::Category category : categories) {
      sum += timeline.events[columns[i]].bytes[static_cast<std::size_t>(category)];
    }
    if (sum == previous) continue;
    path.horizontal(static_cast<double>(i * events / columns.size())).vertical(to_y(static_cast<double>(sum)));
    previous = sum;
  }
  path.horizontal(static_cast<double>(events)).vertical(chart.frame.bottom).close();
  return path;
}

void draw_peak(Chart& chart, const Timeline& timeline) {
  Svg& svg = chart.svg;
  const Frame& frame = chart.frame;
  const std::size_t event = peak_event(timeline);
  const Event& peak = timeline.events[event];
  const std::int64_t bytes = total(peak.bytes);
  const double time = static_cast<double>(event) + 0.5;
  const double x = chart.to_x()(time);
  const double y = chart.to_y()(static_cast<double>(bytes));
  const bool is_label_right = 2 * event + 1 < timeline.events.size();
  begin_group_at(svg, time);
  svg.line(x, y, x, frame.top + 3, {.stroke = paints::ink});
  svg.circle(x, y, 4, {.fill = paints::ink, .stroke = paints::surface, .stroke_width = 1.5});
  std::string where = "event " + format_grouped(event);
  if (!peak.path.empty()) where += " \xC2\xB7 " + peak.path;
  const double room = (is_label_right ? frame.right - x : x - frame.left) - 12;
  const double label_x = x + (is_label_right ? 9 : -9);
  const std::string_view anchor = is_label_right ? "start" : "end";
  const std::string what = "peak " + format_bytes(bytes), at = fit_text(where, small_text, room);
  // No line of the grid runs through the words.
  const double width = std::max(text_width(what, 13.5, true), text_width(at, small_text)) + 8;
  svg.rectangle(is_label_right ? label_x - 4 : label_x + 4 - width, frame.top + 1, width, 37,
                {.fill = paints::surface});
  svg.text(label_x, frame.top + 14, what, {.size = 13.5, .anchor = anchor, .is_bold = true, .has_halo = true});
  svg.text(label_x, frame.top + 33, at, {.size = small_text, .anchor = anchor, .has_halo = true});
  svg.end();
}

// An entry per event, of many for the highest of each stretch.
std::string hover(const Chart& chart, const Timeline& timeline, const std::vector<memory::Category>& categories) {
  const std::vector<std::size_t> told = highest_of_stretches(timeline.events, hover_events_max);
  const auto count = static_cast<double>(timeline.events.size());
  Hover hover("timeline", chart.frame, count, chart.y.high);
  for (std::size_t i = 0; i < told.size(); ++i) {
    hover.add({static_cast<double>(told[i]), i + 1 < told.size() ? static_cast<double>(told[i + 1]) : count, 0,
               chart.y.high, "", timeline.events[told[i]].path});
  }
  for (auto category = categories.rbegin(); category != categories.rend(); ++category) {
    Hover::Column bytes;
    for (const std::size_t event : told) {
      bytes.push_back(timeline.events[event].bytes[static_cast<std::size_t>(*category)]);
    }
    hover.add_row(label_of(*category), {hover.text(paint_of(*category).name)}, bytes);
  }
  hover["step"] = timeline.step;
  hover["is_sum"] = true;
  hover["event"] = {{"first", timeline.begins_before ? "before the step" : ""},
                    {"after", timeline.begins_before ? " of " + format_grouped(timeline.events.size() - 1) : ""}};
  return hover.json();
}

}  // namespace

std::size_t peak_event(const Timeline& timeline) noexcept {
  std::size_t peak = 0;
  for (std::size_t i = 1; i < timeline.events.size(); ++i) {
    if (total(timeline.events[i].bytes) > total(timeline.events[peak].bytes)) peak = i;
  }
  return peak;
}

Figure draw(const Timeline& timeline, Medium medium) {
  check(timeline);
  const CategoryBytes& at_peak = timeline.events[peak_event(timeline)].bytes;
  const std::vector<Level> levels = make_levels(timeline.budget_bytes, timeline.bounds);
  const std::vector<memory::Category> categories = categories_with([&](std::size_t category) {  // in stacking order
    const auto has_bytes = [&](const Event& event) { return event.bytes[category] > 0; };
    return std::any_of(timeline.events.begin(), timeline.events.end(), has_bytes);
  });
  std::vector<LegendEntry> legend = category_legend(categories);
  for (std::size_t i = 0; i < legend.size(); ++i) {
    const memory::Category category = categories[legend.size() - 1 - i];
    legend[i].detail = format_bytes(at_peak[static_cast<std::size_t>(category)]) + " at the peak";
  }
  const double high = reach(static_cast<double>(std::max(timeline.scale_bytes, total(at_peak))), levels);
  add_levels(legend, levels, high);
  const AxisTicks ticks = make_ticks(0, high * 1.02, {.title = "", .unit = Unit::bytes}, 6);
  Chart chart({.medium = medium,
               .title = timeline.title,
               .description = timeline.caption,
               .legend = legend,
               .labels = std::max(28.0, 10 + label_width(ticks)),
               .height = timeline.step.empty() ? 330.0 : 420.0});
  chart.y = ticks;
  // Above all that is drawn there is room for the peak's label.
  chart.y.high = std::max(ticks.ticks.back().value, high / (1 - 50 / chart.frame.height()));
  chart.x = make_event_ticks(timeline.events.size(), chart.frame.width());
  const double detail = medium == Medium::page ? 4 : 1;  // a page looks closer
  const auto columns = highest_of_stretches(timeline.events, static_cast<std::size_t>(detail * chart.frame.width()));
  chart.draw_y("live bytes");
  chart.svg.begin_window(chart.frame, chart.x.high);
  for (std::size_t depth = categories.size(); depth > 0; --depth) {
    chart.svg.path(outline(chart, timeline, columns, std::span(categories).first(depth)),
                   {.fill = paint_of(categories[depth - 1])});
  }
  chart.svg.end();
  draw_levels(chart.svg, chart.frame, chart.y, levels);
  chart.draw_x(timeline.events_are, false);
  draw_peak(chart, timeline);
  return {"timeline", chart.finish(), medium == Medium::page ? hover(chart, timeline, categories) : ""};
}

}  // namespace thimble::report
