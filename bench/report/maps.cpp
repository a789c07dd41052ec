// Blocks at their addresses over time.

#include <thimble/bench/report/maps.h>

#include <algorithm>

#include <thimble/bench/report/text.h>

namespace thimble::report {
namespace {

// Rectangles of one paint, in event times across and px upwards.
struct Boxes {
  Paint paint;
  SvgPath path;
};

SvgPath& boxes_of(std::vector<Boxes>& all, const Paint& paint) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Boxes& b) { return b.paint.name == paint.name; });
  if (found != all.end()) return found->path;
  return all.emplace_back(Boxes{paint, {}}).path;
}

}  // namespace

void draw_map(Svg& svg, const Frame& frame, const AxisTicks& x, const AxisTicks& y, const AddressMap& map) {
  const AxisMap to_x(x, frame.left, frame.right), to_y(y, frame.bottom, frame.top);
  const double pixel = x.high / frame.width();  // in event times
  std::vector<Boxes> boxes;
  SvgPath edges;
  for (const MapBlock& block : map.blocks) {
    const double bottom = to_y(block.offset), top = std::min(to_y(block.offset + block.size), bottom - 0.5);
    const auto add = [&](SvgPath& path, double begin, double end) {
      path.move(begin, bottom).horizontal(std::max(end, begin + pixel / 2)).vertical(top).horizontal(begin).close();
    };
    for (std::size_t i = 0; i < block.pieces.size(); ++i) {
      const auto& [begin, paint] = block.pieces[i];
      add(boxes_of(boxes, paint), begin, i + 1 < block.pieces.size() ? block.pieces[i + 1].first : block.end);
    }
    const double begin = block.pieces.front().first;
    if (block.end - begin > 3 * pixel && bottom - top > 3) add(edges, begin, block.end);
  }
  svg.begin_window(frame, x.high);
  for (const Boxes& one : boxes) svg.path(one.path, {.fill = one.paint});
  svg.path(edges, {.stroke = paints::surface, .stroke_width = 0.7, .keeps_width = true});
  svg.end();
  for (const MapBlock& block : map.blocks) {
    if (block.label.empty()) continue;
    const double width = text_width(block.label, small_text) + 8;
    const double middle = to_x((block.pieces.front().first + block.end) / 2);
    const double line = to_y(block.offset + block.size / 2);
    svg.rectangle(middle - width / 2, line - 9, width, 18, {.fill = paints::surface}, 3);
    svg.text(middle, line + 4.5, block.label, {.size = small_text, .anchor = "middle"});
  }
  draw_levels(svg, frame, y, map.levels);
}

std::string svg_address_maps(AddressMaps maps, Medium medium) {
  double time = 0, high = 0;
  for (const AddressMap& map : maps.maps) {
    for (const MapBlock& block : map.blocks) {
      time = std::max(time, block.end);
      high = std::max(high, block.offset + block.size);
    }
  }
  const AxisTicks y = make_ticks(0, high * 1.04, {.title = "", .unit = maps.unit}, 5);
  if (!maps.legend.empty()) add_levels(maps.legend, maps.maps.front().levels, y.high);
  const double left = left_margin(medium) + 10 + label_width(y), pitch = maps.map_height + 84;
  const double legend = maps.legend.empty() ? 0 : legend_width(maps.legend) + 28;
  double top = title_height(medium) + 4;
  Svg svg(medium, figure_width, top + pitch * static_cast<double>(maps.maps.size()), maps.title, maps.description);
  draw_title(svg, maps.title);
  const Frame first{.left = left, .top = top + 30, .right = figure_width - 24 - legend};
  const AxisTicks x = make_event_ticks(static_cast<std::size_t>(time), first.width());
  draw_legend(svg, first.right + 28, first.top - 4, maps.legend);
  for (const AddressMap& map : maps.maps) {
    const Frame frame{.left = left, .top = top + 30, .right = first.right, .bottom = top + 30 + maps.map_height};
    svg.text(left, top + 14, map.name, {.size = 13.5, .is_bold = true});
    draw_y_axis(svg, frame, y, "");
    draw_map(svg, frame, x, y, map);
    draw_x_axis(svg, frame, x, maps.time_title, false);
    top += pitch;
  }
  return svg.finish();
}

}  // namespace thimble::report
