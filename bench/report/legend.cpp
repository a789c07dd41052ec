#include <thimble/bench/report/legend.h>

#include <algorithm>

#include <thimble/bench/report/text.h>
#include <thimble/memory/units.h>

namespace thimble::report {
namespace legend_detail {

constexpr double sample_width = 34;
constexpr double widest_text = 206;
constexpr double line_height = 17;
constexpr double entry_gap = 8;

double entry_height(const LegendEntry& entry) {
  const auto lines = wrap_text(entry.name, small_text, widest_text).size() + (entry.detail.empty() ? 0 : 1);
  return static_cast<double>(lines) * line_height + entry_gap;
}

void draw_sample(Svg& svg, double x, double y, const LegendEntry& entry) {
  if (entry.is_area) svg.rectangle(x + 6, y - 7, 14, 14, entry.line, 3);
  if (entry.has_line) svg.line(x, y, x + 26, y, entry.line);
  if (entry.has_marker) draw_marker(svg, entry.marker, x + 13, y, entry.marker_look);
}

}  // namespace legend_detail

void draw_marker(Svg& svg, Marker marker, double x, double y, const Look& look, std::string_view hover) {
  constexpr double radius = 4.5;
  SvgPath path;
  switch (marker) {
    case Marker::circle:
      svg.circle(x, y, radius, look, hover);
      return;
    case Marker::square:
      path.move(x - 4, y - 4).horizontal(x + 4).vertical(y + 4).horizontal(x - 4).close();
      break;
    case Marker::triangle:
      path.move(x, y - 5.5).line(x + 5, y + 3.5).line(x - 5, y + 3.5).close();
      break;
    case Marker::diamond:
      path.move(x, y - 5.5).line(x + 5.5, y).line(x, y + 5.5).line(x - 5.5, y).close();
      break;
    case Marker::inverted_triangle:
      path.move(x, y + 5.5).line(x + 5, y - 3.5).line(x - 5, y - 3.5).close();
      break;
  }
  svg.path(path, look, hover);
}

std::vector<Level> make_levels(const std::optional<std::int64_t>& budget_bytes,
                               const std::vector<std::pair<std::string, std::int64_t>>& bounds) {
  std::vector<Level> levels;
  const auto add = [&](const std::string& name, std::int64_t bytes, const Paint& paint, std::string_view dashes) {
    levels.push_back({name, bytes, {.stroke = paint, .stroke_width = 1.5, .dashes = dashes}});
  };
  if (budget_bytes) add("budget", *budget_bytes, paints::alarm, "7 5");
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    add(bounds[i].first, bounds[i].second, i == 0 ? paints::ink : paints::muted, i == 0 ? "2 3" : "1 4");
  }
  return levels;
}

double reach(double high, const std::vector<Level>& levels) {
  double far = high;
  for (const Level& level : levels) {
    const auto bytes = static_cast<double>(level.bytes);
    if (bytes <= 2 * high) far = std::max(far, bytes);
  }
  return far;
}

void add_levels(std::vector<LegendEntry>& legend, const std::vector<Level>& levels, double high) {
  for (const Level& level : levels) {
    const bool is_shown = static_cast<double>(level.bytes) <= high;
    legend.push_back({.name = level.name,
                      .detail = format_bytes(level.bytes) + (is_shown ? "" : ", beyond the axis"),
                      .has_line = true,
                      .line = level.look});
  }
}

void draw_levels(Svg& svg, const Frame& frame, const AxisTicks& axis, const std::vector<Level>& levels,
                 bool is_upright) {
  const AxisMap map(axis, is_upright ? frame.left : frame.bottom, is_upright ? frame.right : frame.top);
  for (const Level& level : levels) {
    const auto bytes = static_cast<double>(level.bytes);
    if (bytes < axis.low || bytes > axis.high) continue;
    if (is_upright) {
      svg.line(map(bytes), frame.top, map(bytes), frame.bottom, level.look);
    } else {
      svg.line(frame.left, map(bytes), frame.right, map(bytes), level.look);
    }
  }
}

std::vector<LegendEntry> category_legend(const std::vector<Category>& categories) {
  std::vector<LegendEntry> legend;
  for (auto category = categories.rbegin(); category != categories.rend(); ++category) {
    legend.push_back(
        {.name = std::string(label_of(*category)), .is_area = true, .line = {.fill = paint_of(*category)}});
  }
  return legend;
}

double legend_width(const std::vector<LegendEntry>& entries) {
  double width = 0;
  for (const LegendEntry& entry : entries) {
    for (const std::string& line : wrap_text(entry.name, small_text, legend_detail::widest_text)) {
      width = std::max(width, text_width(line, small_text));
    }
    width = std::max(width, text_width(entry.detail, small_text - 1));
  }
  return width + legend_detail::sample_width;
}

double legend_height(const std::vector<LegendEntry>& entries) {
  double height = 0;
  for (const LegendEntry& entry : entries) height += legend_detail::entry_height(entry);
  return height;
}

namespace legend_detail {

void draw_entries(Svg& svg, double x, double y, const std::vector<LegendEntry>& entries) {
  for (const LegendEntry& entry : entries) {
    legend_detail::draw_sample(svg, x, y + 8, entry);
    const double text_x = x + legend_detail::sample_width;
    double baseline = y + 12.5;
    for (const std::string& line : wrap_text(entry.name, small_text, legend_detail::widest_text)) {
      svg.text(text_x, baseline, line, {.size = small_text});
      baseline += legend_detail::line_height;
    }
    if (!entry.detail.empty())
      svg.text(text_x, baseline - 1, entry.detail, {.fill = paints::muted, .size = small_text - 1});
    y += legend_detail::entry_height(entry);
  }
}

}  // namespace legend_detail

void draw_legend(Svg& svg, double x, double y, const std::vector<LegendEntry>& entries) {
  if (svg.medium() == Medium::file || entries.empty()) return legend_detail::draw_entries(svg, x, y, entries);
  const double width = legend_width(entries), height = legend_height(entries);
  Svg legend(Medium::page, width, height, "legend", "what colours and lines are");
  legend_detail::draw_entries(legend, 0, 0, entries);
  svg.set_aside(x - 4, legend.finish_legend());
}

void draw_y_axis(Svg& svg, const Frame& frame, const AxisTicks& ticks, const std::string& title) {
  const AxisMap map(ticks, frame.bottom, frame.top);
  for (const Tick& tick : ticks.ticks) {
    const double y = map(tick.value);
    const bool is_zero_line = tick.value == 0 && ticks.low < 0;
    svg.line(frame.left, y, frame.right, y, {.stroke = is_zero_line ? paints::axis : paints::hairline});
    svg.text(frame.left - 10, y + 4.5, tick.label, {.fill = paints::muted, .size = small_text, .anchor = "end"});
  }
  svg.text(left_margin(svg.medium()), frame.top - 16, title, {.fill = paints::muted, .size = small_text});
}

void draw_x_axis(Svg& svg, const Frame& frame, const AxisTicks& ticks, const std::string& title, bool has_grid) {
  const AxisMap map(ticks, frame.left, frame.right);
  svg.begin_group("class=\"x-axis\"");
  for (const Tick& tick : ticks.ticks) {
    const double x = map(tick.value);
    if (has_grid) svg.line(x, frame.top, x, frame.bottom, {.stroke = paints::hairline});
    svg.line(x, frame.bottom, x, frame.bottom + 5, {.stroke = paints::axis});
    svg.text(x, frame.bottom + 20, tick.label, {.fill = paints::muted, .size = small_text, .anchor = "middle"});
  }
  svg.end();
  svg.line(frame.left, frame.bottom, frame.right, frame.bottom, {.stroke = paints::axis});
  svg.text((frame.left + frame.right) / 2, frame.bottom + 42, title,
           {.fill = paints::muted, .size = small_text, .anchor = "middle"});
}

AxisTicks make_x_ticks(double low, double high, const Axis& axis, double width) {
  for (int target = 9; target > 1; --target) {
    AxisTicks ticks = make_ticks(low, high, axis, target);
    double taken = 0;
    for (const Tick& tick : ticks.ticks) taken += text_width(tick.label, small_text) + 18;
    if (taken <= width) return ticks;
  }
  return make_ticks(low, high, axis, 1);
}

AxisTicks make_event_ticks(std::size_t count, double width) {
  const auto last = static_cast<double>(count);
  AxisTicks ticks = make_x_ticks(0, last, {.title = ""}, width);
  ticks.high = last;
  while (ticks.ticks.back().value > last) ticks.ticks.pop_back();
  return ticks;
}

double label_width(const AxisTicks& ticks) {
  double width = 0;
  for (const Tick& tick : ticks.ticks) width = std::max(width, text_width(tick.label, small_text));
  return width;
}

double left_margin(Medium medium) noexcept { return medium == Medium::file ? 16 : 0; }

double title_height(Medium medium) noexcept { return medium == Medium::file ? 44 : 0; }

double draw_title(Svg& svg, const std::string& title) {
  if (svg.medium() == Medium::page) return 0;
  svg.text(16, 30, fit_text(title, 17, figure_width - 40, true), {.size = 17, .is_bold = true});
  return title_height(svg.medium());
}

}  // namespace thimble::report
