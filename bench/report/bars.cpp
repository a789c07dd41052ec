// Stacked horizontal bars: labels of any length stay readable, and bytes grow to the right.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/bench/report/figures.h>
#include <thimble/bench/report/legend.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/units.h>

namespace thimble::report {
namespace bars_detail {

constexpr double bar_height = 22;
constexpr double bar_pitch = 35;
constexpr double widest_label = 250;

struct Layout {
  Frame frame;
  double height = 0;
  AxisTicks x;
  std::vector<Category> categories;  // those with bytes, in stacking order
  std::vector<LegendEntry> legend;
  std::vector<Level> levels;
};

std::vector<std::string> label_lines(const Bar& bar) { return wrap_text(bar.label, small_text, widest_label, 2); }

std::int64_t largest_total(const Bars& bars) {
  std::int64_t largest = 0;
  for (const Bar& bar : bars.bars) largest = std::max(largest, total(bar.bytes));
  return largest;
}

Layout make_layout(const Bars& bars, Medium medium) {
  Layout layout;
  double widest = 0;
  for (const Bar& bar : bars.bars) {
    for (const std::string& line : label_lines(bar)) widest = std::max(widest, text_width(line, small_text));
  }
  layout.categories = categories_with([&](std::size_t category) {
    return std::any_of(bars.bars.begin(), bars.bars.end(), [&](const Bar& bar) { return bar.bytes[category] > 0; });
  });
  layout.levels = make_levels(bars.budget_bytes);
  const double high = reach(static_cast<double>(largest_total(bars)), layout.levels);
  layout.legend = category_legend(layout.categories);
  add_levels(layout.legend, layout.levels, high);
  constexpr double total_label = 84;  // room for "1023.99 GiB" after the longest bar
  const double legend = layout.legend.empty() ? 0 : legend_width(layout.legend) + 28;
  layout.frame.left = left_margin(medium) + 12 + widest;
  layout.frame.right = figure_width - 24 - total_label - legend;
  layout.frame.top = title_height(medium) + 8;
  layout.frame.bottom = layout.frame.top + bar_pitch * static_cast<double>(bars.bars.size()) + 6;
  layout.height = std::max(layout.frame.bottom + 34, layout.frame.top + legend_height(layout.legend) + 8);
  layout.x = make_x_ticks(0, high, {.title = "", .unit = Unit::bytes}, layout.frame.width());
  return layout;
}

double bar_top(const Layout& layout, std::size_t index) {
  return layout.frame.top + 6 + bar_pitch * static_cast<double>(index);
}

std::string draw(const Bars& bars, const Layout& layout, Medium medium) {
  Svg svg(medium, figure_width, layout.height, bars.title, bars.caption);
  draw_title(svg, bars.title);
  draw_x_axis(svg, layout.frame, layout.x, "", true);
  const AxisMap to_x(layout.x, layout.frame.left, layout.frame.right);
  draw_levels(svg, layout.frame, layout.x, layout.levels, true);
  for (std::size_t i = 0; i < bars.bars.size(); ++i) {
    const Bar& bar = bars.bars[i];
    const double y = bar_top(layout, i);
    const double baseline = y + bar_height / 2 + 4.5;
    const std::vector<std::string> label = label_lines(bar);
    for (std::size_t k = 0; k < label.size(); ++k) {
      const double offset = label.size() == 1 ? 0 : k == 0 ? -7.5 : 7.5;
      svg.text(layout.frame.left - 12, baseline + offset, label[k], {.size = small_text, .anchor = "end"});
    }
    std::int64_t from = 0;
    for (const Category category : layout.categories) {
      const std::int64_t bytes = bar.bytes[static_cast<std::size_t>(category)];
      if (bytes == 0) continue;
      const double left = to_x(static_cast<double>(from));
      const double right = to_x(static_cast<double>(from += bytes));
      const std::string hover = bar.label + ", " + std::string(label_of(category)) + ": " +
                                format_exact(static_cast<double>(bytes), Unit::bytes);
      svg.rectangle(left, y, right - left, bar_height, {.fill = paint_of(category)}, 0, hover);
    }
    const bool is_over_budget = bars.budget_bytes && from > *bars.budget_bytes;
    svg.text(
        to_x(static_cast<double>(from)) + 8, baseline, format_bytes(from),
        {.fill = is_over_budget ? paints::alarm : paints::ink, .size = small_text, .is_bold = true, .has_halo = true});
  }
  draw_legend(svg, layout.frame.right + 84 + 28, layout.frame.top, layout.legend);
  return svg.finish();
}

// {"kind":"bars","frame","pitch","bars":[{"label","total":text,"parts":[[category, paint, text],...]},...]}
std::string hover(const Bars& bars, const Layout& layout) {
  nlohmann::ordered_json data;
  data["kind"] = "bars";
  data["frame"] = layout.frame.corners();
  data["pitch"] = bar_pitch;
  data["bars"] = nlohmann::ordered_json::array();
  for (const Bar& bar : bars.bars) {
    nlohmann::ordered_json parts = nlohmann::ordered_json::array();
    for (auto category = layout.categories.rbegin(); category != layout.categories.rend(); ++category) {
      const std::int64_t bytes = bar.bytes[static_cast<std::size_t>(*category)];
      if (bytes == 0) continue;
      parts.push_back(
          {label_of(*category), paint_of(*category).name, format_exact(static_cast<double>(bytes), Unit::bytes)});
    }
    data["bars"].push_back({{"label", bar.label},
                            {"total", format_exact(static_cast<double>(total(bar.bytes)), Unit::bytes)},
                            {"parts", parts}});
  }
  return data.dump();
}

}  // namespace bars_detail

std::string svg_bars(const Bars& bars) {
  check(bars);
  return bars_detail::draw(bars, bars_detail::make_layout(bars, Medium::file), Medium::file);
}

Figure page_figure(const Bars& bars) {
  check(bars);
  const bars_detail::Layout layout = bars_detail::make_layout(bars, Medium::page);
  return {bars_detail::draw(bars, layout, Medium::page), bars_detail::hover(bars, layout)};
}

}  // namespace thimble::report
