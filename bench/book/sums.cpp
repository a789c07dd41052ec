// Parts that add up.

#include <algorithm>
#include <map>

#include <thimble/bench/book/drawing.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/units.h>

namespace thimble::report {
namespace sums_detail {

constexpr double row_pitch = 30, bar_height = 20;

std::int64_t sum_of(const std::vector<SumPart>& parts) {
  std::int64_t sum = 0;
  for (const SumPart& part : parts) sum += part.amount;
  return sum;
}

}  // namespace sums_detail

std::string amount_text(std::int64_t amount, Unit unit) {
  return format_grouped(amount) + (unit == Unit::bytes ? " B" : "");
}

double draw_kinds(Svg& svg, double x, double y, const std::vector<std::pair<std::string, Paint>>& kinds) {
  for (const auto& [name, paint] : kinds) {
    svg.rectangle(x, y - 10, 12, 12, {.fill = paint}, 2);
    svg.text(x + 18, y, name, {.size = small_text});
    x += 18 + text_width(name, small_text) + 26;
  }
  return x;
}

std::string svg_sum(const Sum& sum) {
  using namespace sums_detail;
  const std::int64_t total = sum_of(sum.parts);
  double names = text_width(sum.total_name, 13.5, true), behind = 0;
  for (const SumPart& part : sum.parts) {
    names = std::max(names, text_width(part.name, 13.5));
    behind = std::max(behind, text_width(amount_text(part.amount, sum.unit) + "  " + part.note, small_text));
  }
  const double left = 24 + names + 14, top = title_height(Medium::file) + 16;
  // Amounts stand behind their bars; the last bars end at the right, so room for amounts is kept there.
  const double right = figure_width - 24 - std::min(behind, 330.0) - 12;
  const double height = top + row_pitch * static_cast<double>(sum.parts.size() + 1) + 18;
  Svg svg(Medium::file, figure_width, height, sum.title, sum.description);
  draw_title(svg, sum.title);
  const auto to_x = [&](std::int64_t amount) {
    return left + (right - left) * static_cast<double>(amount) / static_cast<double>(total);
  };
  std::int64_t from = 0;
  double y = top;
  for (const SumPart& part : sum.parts) {
    const double x1 = to_x(from), x2 = to_x(from += part.amount);
    svg.text(left - 14, y + 15, part.name, {.size = 13.5, .anchor = "end"});
    svg.rectangle(x1, y, std::max(1.5, x2 - x1), bar_height, {.fill = part.paint}, 2,
                  part.name + ": " + amount_text(part.amount, sum.unit));
    svg.line(x2, y + bar_height, x2, y + row_pitch, {.stroke = paints::axis});
    const std::string text = amount_text(part.amount, sum.unit) + (part.note.empty() ? "" : "  " + part.note);
    svg.text(x2 + 8, y + 15, text, {.size = small_text, .has_halo = true});
    y += row_pitch;
  }
  svg.text(left - 14, y + 15, sum.total_name, {.size = 13.5, .anchor = "end", .is_bold = true});
  svg.rectangle(left, y, right - left, bar_height, {.fill = paints::ink}, 2);
  svg.text(right + 8, y + 15, amount_text(total, sum.unit), {.size = 13.5, .is_bold = true});
  return svg.finish();
}

std::string svg_shared_sums(const SharedSums& sums) {
  using namespace sums_detail;
  constexpr double thick = 28, pitch = 40;
  double names = 0;
  std::int64_t most = 1;
  std::vector<std::pair<std::string, Paint>> kinds;
  for (const auto& [name, parts] : sums.bars) {
    names = std::max(names, text_width(name, 13.5));
    most = std::max(most, sum_of(parts));
    for (const SumPart& part : parts) {
      const auto is_same = [&](const auto& kind) { return kind.first == part.name; };
      if (std::none_of(kinds.begin(), kinds.end(), is_same)) kinds.emplace_back(part.name, part.paint);
    }
  }
  const double left = 24 + names + 14,
               right = figure_width - 24 - text_width(amount_text(most, sums.unit), 13.5, true) - 14;
  const double top = title_height(Medium::file) + 42;
  Svg svg(Medium::file, figure_width, top + pitch * static_cast<double>(sums.bars.size()) + 14, sums.title,
          sums.description);
  draw_title(svg, sums.title);
  draw_kinds(svg, left, top - 18, kinds);
  double y = top;
  for (const auto& [name, parts] : sums.bars) {
    svg.text(left - 14, y + 19, name, {.size = 13.5, .anchor = "end"});
    double x = left;
    for (const SumPart& part : parts) {
      const double width = (right - left) * static_cast<double>(part.amount) / static_cast<double>(most);
      if (part.amount == 0) continue;
      const std::string text = amount_text(part.amount, sums.unit);
      svg.rectangle(x, y, width, thick, {.fill = part.paint, .stroke = paints::surface}, 2, part.name + ": " + text);
      // In the bar, on a plate of the surface's colour, which is legible on every paint.
      const double needed = text_width(text, 11.5) + 10;
      if (needed + 6 < width) {
        svg.rectangle(x + width / 2 - needed / 2, y + 6, needed, 16, {.fill = paints::surface}, 3);
        svg.text(x + width / 2, y + 18, text, {.size = 11.5, .anchor = "middle"});
      }
      x += width;
    }
    svg.text(x + 8, y + 19, amount_text(sum_of(parts), sums.unit), {.size = 13.5, .is_bold = true});
    y += pitch;
  }
  return svg.finish();
}

}  // namespace thimble::report
