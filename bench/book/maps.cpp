// Blocks at their addresses over time.

#include <algorithm>

#include <thimble/bench/book/drawing.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/units.h>

namespace thimble::report {

std::string svg_address_maps(const AddressMaps& maps) {
  double time = 0, high = 0;
  for (const AddressMap& map : maps.maps) {
    high = std::max(high, map.height);
    for (const MapBlock& block : map.blocks) {
      time = std::max(time, block.end);
      high = std::max(high, block.offset + block.size);
    }
  }
  const AxisTicks y_ticks = make_ticks(0, high * 1.04, {.title = "", .unit = maps.unit}, 5);
  const double left = 24 + label_width(y_ticks) + 14, right = figure_width - 150;
  const double top = title_height(Medium::file) + (maps.kinds.empty() ? 4 : 34), pitch = maps.map_height + 84;
  Svg svg(Medium::file, figure_width, top + pitch * static_cast<double>(maps.maps.size()), maps.title,
          maps.description);
  draw_title(svg, maps.title);
  draw_kinds(svg, left, top - 12, maps.kinds);
  const AxisTicks x_ticks = make_event_ticks(static_cast<std::size_t>(time), right - left);
  double y = top;
  for (const AddressMap& map : maps.maps) {
    const Frame frame{.left = left, .top = y + 30, .right = right, .bottom = y + 30 + maps.map_height};
    svg.text(left, y + 14, map.name, {.size = 13.5, .is_bold = true});
    draw_y_axis(svg, frame, y_ticks, "");
    const AxisMap to_x(x_ticks, frame.left, frame.right), to_y(y_ticks, frame.bottom, frame.top);
    for (const MapBlock& block : map.blocks) {
      const double x1 = to_x(block.begin), x2 = to_x(block.end), y1 = to_y(block.offset + block.size);
      const double y2 = to_y(block.offset);
      const bool is_wide = x2 - x1 > 3 && y2 - y1 > 3;
      Look look{.fill = block.paint};
      if (is_wide) look.stroke = paints::surface, look.stroke_width = 0.75;
      svg.rectangle(x1, y1, std::max(0.5, x2 - x1), std::max(0.5, y2 - y1), look);
      if (!block.label.empty()) {
        const double width = text_width(block.label, small_text) + 8;
        svg.rectangle((x1 + x2) / 2 - width / 2, (y1 + y2) / 2 - 9, width, 18, {.fill = paints::surface}, 3);
        svg.text((x1 + x2) / 2, (y1 + y2) / 2 + 4.5, block.label, {.size = small_text, .anchor = "middle"});
      }
    }
    if (map.height > 0) {
      svg.line(left, to_y(map.height), right, to_y(map.height),
               {.stroke = paints::alarm, .stroke_width = 1.5, .dashes = "5 4"});
      const std::vector<std::string> words = wrap_text(map.height_name, small_text, 132, 3);
      for (std::size_t i = 0; i < words.size(); ++i) {
        svg.text(right + 8, to_y(map.height) + 4 + 16 * static_cast<double>(i), words[i],
                 {.fill = paints::alarm, .size = small_text});
      }
    }
    draw_x_axis(svg, frame, x_ticks, maps.time_title, false);
    svg.text(left, y + 27, maps.address_title, {.fill = paints::muted, .size = 11.5});
    y += pitch;
  }
  return svg.finish();
}

}  // namespace thimble::report
