#pragma once
// Pictures of the book that explain themselves: every part has its name beside it, so that none needs a legend.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <thimble/bench/report/experiment.h>
#include <thimble/bench/report/legend.h>
#include <thimble/bench/report/palette.h>
#include <thimble/bench/report/svg.h>
#include <thimble/dist/pipeline/schedule.h>
#include <thimble/memory/remat/schedule.h>

namespace thimble::report {

/// One part of a sum.
struct SumPart {
  std::string name;
  std::int64_t amount = 0;
  Paint paint = series_paints[0];
  std::string note = {};  ///< a few words behind the amount
};

/// Parts of a sum, each a row whose bar begins where the one above ends, and the sum as the last row: who looks sees
/// that it adds up. `unit` bytes or plain.
struct Sum {
  std::string title, description, total_name;
  std::vector<SumPart> parts;
  Unit unit = Unit::bytes;
};
std::string svg_sum(const Sum& sum);

/// Several sums of the same parts, one bar each, with names above the first bar's parts and amounts in the bars.
struct SharedSums {
  std::string title, description;
  std::vector<std::pair<std::string, std::vector<SumPart>>> bars;
  Unit unit = Unit::bytes;
};
std::string svg_shared_sums(const SharedSums& sums);

/// A schedule for a chain with its name.
struct ShownSchedule {
  std::string name;
  remat::Schedule operations;
};

/// Stages upwards, time across: every operation of each schedule, and below it the bytes that are held. `unit_name` is
/// what bytes are called: "bytes", "units". Throws what remat::simulate throws.
std::string svg_schedules(const std::string& title, const std::string& description, const remat::Chain& chain,
                          const std::vector<ShownSchedule>& schedules, const std::string& unit_name);

/// A run of a pipeline with its name.
struct ShownPipeline {
  std::string name;
  int chunks = 1;  ///< of each stage
  dist::PipelineRun run;
};

/// Stages downwards, time across: what each stage does when, one pipeline below the other.
std::string svg_pipelines(const std::string& title, const std::string& description,
                          const std::vector<ShownPipeline>& pipelines);

/// A rectangle over time (across) and addresses (upwards).
struct MapBlock {
  double begin = 0, end = 0, offset = 0, size = 0;
  Paint paint = series_paints[0];
  std::string label = {};
};
/// Blocks at their addresses.
struct AddressMap {
  std::string name;  ///< above the map
  std::vector<MapBlock> blocks;
  double height = 0;  ///< a line at it, with its name
  std::string height_name;
};
/// One map below the other, at one scale. `time_title` and `address_title` name the axes; addresses are bytes or plain.
struct AddressMaps {
  std::string title, description, time_title, address_title;
  std::vector<AddressMap> maps;
  std::vector<std::pair<std::string, Paint>> kinds = {};  ///< what colours stand for, told above the first map
  Unit unit = Unit::bytes;
  double map_height = 220;
};
std::string svg_address_maps(const AddressMaps& maps);

/// Draws coloured names in one line from x on; returns where the line ends.
double draw_kinds(Svg& svg, double x, double y, const std::vector<std::pair<std::string, Paint>>& kinds);

/// An amount as it stands in pictures: bytes grouped, "1,234 B"; plain "1,234".
std::string amount_text(std::int64_t amount, Unit unit);

}  // namespace thimble::report
