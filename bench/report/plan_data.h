#pragma once
// What the script of a plan's page draws.

#include <string>

#include <thimble/bench/report/plan_page.h>

namespace thimble::report {

/// JSON, with "<" escaped so that it can stand in a script element:
/// {"budget","categories":[[label, paint],...] by number,"stack":[numbers of those shown, from the axis outwards],
///  "paths":[...],
///  "steps":[{"name","count": its events,"peak","peakAt","load",
///            "at":[event times],"path":[...],"bytes":[per category in "stack": [...]],
///            "blocks":{"lower","upper","bytes","category","path"},"relabels":[[block, event time, category],...],
///            "layouts":[{"name","height","committed","offset":[...]},...]}],
///  "nodes":{"names","name","path","made","kept","fate","segment"},"segments":[{"first","end","depth","kept","dropped",
///  "path"}],"plans":[{"peak","load","overhead","seconds","segments"}],"current": index of the plan shown}
/// "at" and each list of "bytes" hold differences to the entry before. "fate" counts in the list `fates` of
/// plan_script.h. Of a forward there are no "nodes", "segments", "plans" and "current".
std::string plan_data(const bench::PlanView& view);

/// How many blocks of a step the maps leave out, and their largest size.
struct LeftOut {
  std::size_t blocks = 0, largest_bytes = 0;
};
LeftOut left_out_of_map(const bench::StepTrace& step);

}  // namespace thimble::report
