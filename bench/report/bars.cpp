// Stacked horizontal bars: labels of any length stay readable, and amounts grow to the right.

#include <algorithm>
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
  double room = 0;  // for amounts behind the longest bar
  AxisTicks x;
  std::vector<LegendEntry> legend;
};

std::vector<std::string> label_lines(const Bar& bar) { return wrap_text(bar.label, small_text, widest_label, 2); }

std::int64_t total(const Bar& bar) {
  std::int64_t sum = 0;
  for (const BarPart& part : bar.parts) sum += part.amount;
  return sum;
}

std::string exact_amount(std::int64_t amount, Unit unit) {
  return format_grouped(amount) + (unit == Unit::bytes ? " B" : "");
}
std::string text_behind(const Bars& bars, const Bar& bar) {
  return (bars.is_exact ? exact_amount(total(bar), bars.unit) : format_bytes(total(bar))) + bar.note;
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

Layout make_layout(const Bars& bars, Medium medium) {
  Layout layout;
  double widest = 0;
  std::int64_t largest = 0;
  layout.room = 84;  // "1023.99 GiB"
  for (const Bar& bar : bars.bars) {
    for (const std::string& line : label_lines(bar)) widest = std::max(widest, text_width(line, small_text));
    largest = std::max(largest, bar.from + total(bar));
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

std::string draw(const Bars& bars, const Layout& layout, Medium medium) {
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
std::string hover(const Bars& bars, const Layout& layout) {
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
    data["bars"].push_back({{"label", bar.label}, {"total", exact(total(bar))}, {"parts", parts}});
  }
  return data.dump();
}

}  // namespace bars_detail

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
  return bars_detail::draw(bars, bars_detail::make_layout(bars, Medium::file), Medium::file);
}

Figure page_figure(const Bars& bars) {
  check(bars);
  const bars_detail::Layout layout = bars_detail::make_layout(bars, Medium::page);
  return {bars_detail::draw(bars, layout, Medium::page), bars_detail::hover(bars, layout)};
}

}  // namespace thimble::report
