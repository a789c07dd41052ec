// Line and scatter plots.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/bench/report/figures.h>
#include <thimble/bench/report/legend.h>
#include <thimble/bench/report/text.h>

namespace thimble::report {
namespace plot_detail {

struct SeriesStyle {
  Paint paint;
  Marker marker = Marker::circle;
};

struct Layout {
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

Layout make_layout(const Plot& plot, Medium medium) {
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
  Layout layout;
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

std::string draw(const Plot& plot, const Layout& layout, Medium medium) {
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
std::string hover(const Plot& plot, const Layout& layout) {
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

}  // namespace plot_detail

std::string svg_plot(const Plot& plot) {
  check(plot);
  return plot_detail::draw(plot, plot_detail::make_layout(plot, Medium::file), Medium::file);
}

Figure page_figure(const Plot& plot) {
  check(plot);
  const plot_detail::Layout layout = plot_detail::make_layout(plot, Medium::page);
  return {plot_detail::draw(plot, layout, Medium::page), plot_detail::hover(plot, layout)};
}

}  // namespace thimble::report
