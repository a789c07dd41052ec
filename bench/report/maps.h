#pragma once
// Maps of an arena: blocks as rectangles over time (across) and addresses (upwards).

#include <string>
#include <utility>
#include <vector>

#include <thimble/bench/report/drawing.h>

namespace thimble::report {

struct MapBlock {
  std::vector<std::pair<double, Paint>> pieces;  ///< event times from which it has a colour; the first is its begin
  double end = 0, offset = 0, size = 0;
  std::string label = {};
};
struct AddressMap {
  std::string name;
  std::vector<MapBlock> blocks;
  std::vector<Level> levels;
};
/// Draws the blocks into a window of the frame (drawing.h), their labels, and lines at the levels.
void draw_map(Svg& svg, const Frame& frame, const AxisTicks& x, const AxisTicks& y, const AddressMap& map);

/// One map below the other, at one scale; addresses are bytes or plain. A legend also has the first one's levels.
struct AddressMaps {
  std::string title, description, time_title;
  std::vector<AddressMap> maps;
  std::vector<LegendEntry> legend = {};
  Unit unit = Unit::bytes;
  double map_height = 220;
};
std::string svg_address_maps(AddressMaps maps, Medium medium = Medium::file);

}  // namespace thimble::report
