// The events of a plan's steps: live bytes, and blocks at their addresses.

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/bench/report/legend.h>
#include <thimble/bench/report/plan_figures.h>
#include <thimble/core/tensor/context.h>

namespace thimble::report {
namespace plan_map_detail {

using bench::StepTrace;
using nlohmann::ordered_json;

std::size_t event_time(const StepTrace& step, std::size_t index) {
  return index < step.before ? 0 : index + 1 - step.before;
}

// Ids of the blocks that a map shows, ascending: those with the most bytes times events.
std::vector<std::uint64_t> mapped(const StepTrace& step, const std::vector<memory::Trace::Lifetime>& blocks) {
  std::vector<std::uint64_t> ids(blocks.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (ids.size() <= mapped_blocks_max) return ids;
  const auto area = [&](std::uint64_t id) {
    return static_cast<double>(blocks[id].bytes) *
           static_cast<double>(event_time(step, blocks[id].upper) - event_time(step, blocks[id].lower));
  };
  std::stable_sort(ids.begin(), ids.end(), [&](std::uint64_t a, std::uint64_t b) { return area(a) > area(b); });
  ids.resize(mapped_blocks_max);
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::optional<std::int64_t> budget_of(const bench::PlanView& view) {
  if (view.report.budget_bytes == 0) return std::nullopt;
  return static_cast<std::int64_t>(view.report.budget_bytes);
}

// What a picture has lines for besides the budget. The textbook keeps everything.
std::vector<std::pair<std::string, std::int64_t>> bounds_of(const bench::PlanView& view, const StepTrace& step,
                                                            const std::string& name, std::size_t bytes) {
  std::vector<std::pair<std::string, std::int64_t>> bounds = {{name, static_cast<std::int64_t>(bytes)}};
  if (view.theory_bytes && step.name == "keep everything") {
    bounds.emplace_back("textbook, by formula", *view.theory_bytes);
  }
  return bounds;
}

// Where the bytes of every step's picture end: at the highest of all, or a level near it.
double scale_of(const bench::PlanView& view, std::size_t highest) {
  const auto textbook = view.theory_bytes.value_or(0);
  return reach(static_cast<double>(highest), make_levels(budget_of(view), {{"textbook", textbook}}));
}

// The pictures stand below one another, at one scale for all steps of the view.
struct Layout {
  Frame frame;
  AxisTicks x, y;
  std::vector<Category> categories;  // of all blocks, in stacking order
};

std::vector<Level> levels_of(const bench::PlanView& view, const StepTrace& step, const bench::StepLayout& layout) {
  return make_levels(budget_of(view), bounds_of(view, step, "height of the blocks", layout.height_bytes));
}

std::vector<LegendEntry> legend_of(const std::vector<Category>& categories, const std::vector<Level>& levels,
                                   double high) {
  std::vector<LegendEntry> legend = category_legend(categories);
  add_levels(legend, levels, high);
  return legend;
}

Layout make_layout(const bench::PlanView& view, const StepTrace& step) {
  Layout layout;
  std::set<Category> shown;
  std::size_t highest = 0;
  for (const StepTrace& one : view.steps) {
    highest = std::max({highest, one.dynamic.height_bytes, one.placed.height_bytes});
    for (const memory::Trace::Event& event : one.events) shown.insert(event.category);
  }
  layout.categories = categories_with([&](std::size_t i) { return shown.count(static_cast<Category>(i)) != 0; });
  const std::vector<Level> levels = levels_of(view, step, step.dynamic);
  const double high = scale_of(view, highest);
  const std::vector<LegendEntry> legend = legend_of(layout.categories, levels, high);
  layout.y = make_ticks(0, high, {.title = "", .unit = Unit::bytes}, 6);
  layout.frame = {.left = left_margin(Medium::page) + 10 + label_width(layout.y),
                  .top = 34,
                  .right = figure_width - 24 - legend_width(legend) - 28,
                  .bottom = 34 + std::max(302.0, legend_height(legend))};
  layout.x = make_event_ticks(step.events.size() - step.before + 1, layout.frame.width());
  return layout;
}

std::string draw(const Layout& layout, const AddressMap& map, const std::vector<Category>& named) {
  Svg svg(Medium::page, figure_width, layout.frame.bottom + 56, map.name, "addresses of blocks over a step's events");
  draw_y_axis(svg, layout.frame, layout.y, "addresses, from the arena's base");
  draw_map(svg, layout.frame, layout.x, layout.y, map);
  draw_x_axis(svg, layout.frame, layout.x, "allocation events", false);
  draw_legend(svg, layout.frame.right + 28, layout.frame.top - 4, legend_of(named, map.levels, layout.y.high));
  return svg.finish();
}

// {"kind":"map","frame","high": bytes at the frame's top,"count": event times, 0 to that,"step",
//  "categories":[[label, paint],...] by number,"paths":[...],"blocks":{"lower","upper","bytes","category","path"},
//  "relabels":[[block, event time, category],...],"offsets":[[of each block] per picture]}
std::string hover(const StepTrace& step, const Layout& layout) {
  const std::vector<memory::Trace::Lifetime> blocks = lifetimes(step.events);
  const std::vector<std::uint64_t> ids = mapped(step, blocks);
  std::map<std::uint64_t, std::size_t> index;
  for (std::size_t i = 0; i < ids.size(); ++i) index.emplace(ids[i], i);
  std::vector<std::size_t> lower, upper, bytes, category, path, on_demand, offline;
  Texts paths;
  for (const std::uint64_t id : ids) {
    const memory::Trace::Lifetime& block = blocks[id];
    const memory::Trace::Event& event = step.events[block.lower];
    lower.push_back(event_time(step, block.lower));
    upper.push_back(event_time(step, block.upper));
    bytes.push_back(block.bytes);
    category.push_back(static_cast<std::size_t>(event.category));
    path.push_back(paths.index(path_name(event.path)));
    on_demand.push_back(step.dynamic.offsets[id]);
    offline.push_back(step.placed.offsets[id]);
  }
  ordered_json relabels = ordered_json::array(), categories = ordered_json::array();
  for (std::size_t i = step.before; i < step.events.size(); ++i) {
    const memory::Trace::Event& event = step.events[i];
    const auto found = index.find(event.block);
    if (event.action != memory::Trace::Action::relabel || found == index.end()) continue;
    relabels.push_back({found->second, event_time(step, i), static_cast<std::size_t>(event.category)});
  }
  for (std::size_t i = 0; i < category_count; ++i) {
    categories.push_back({label_of(static_cast<Category>(i)), paint_of(static_cast<Category>(i)).name});
  }
  ordered_json data;
  data["kind"] = "map";
  data["frame"] = layout.frame.corners();
  data["high"] = layout.y.high;
  data["count"] = layout.x.high;
  data["step"] = step.name;
  data["categories"] = std::move(categories);
  data["paths"] = paths.list();
  data["blocks"] = {{"lower", lower}, {"upper", upper}, {"bytes", bytes}, {"category", category}, {"path", path}};
  data["relabels"] = std::move(relabels);
  data["offsets"] = {on_demand, offline};
  return data.dump();
}

}  // namespace plan_map_detail

Timeline step_timeline(const bench::PlanView& view, const bench::StepTrace& step) {
  const bool is_planned = &step == &view.planned();
  Timeline line;
  line.title = step.name;
  line.caption = "live bytes by category over the events of the step";
  line.step = step.name;
  line.begins_before = true;
  line.budget_bytes = plan_map_detail::budget_of(view);
  const std::size_t load =
      is_planned ? view.report.plan.lower_bound_bytes : view.report.planner->keep_everything().lower_bound_bytes;
  line.bounds = plan_map_detail::bounds_of(view, step, "lower bound", load);
  std::size_t highest = 0;
  for (const bench::StepTrace& one : view.steps) highest = std::max(highest, one.live_peak_bytes);
  line.scale_bytes = std::llround(plan_map_detail::scale_of(view, highest));
  const std::vector<thimble::CategoryBytes> states = timeline(step.events);
  line.events.push_back({step.before == 0 ? CategoryBytes{} : report_bytes(states[step.before - 1]), ""});
  for (std::size_t i = step.before; i < states.size(); ++i) {
    line.events.push_back({report_bytes(states[i]), std::string(path_name(step.events[i].path))});
  }
  return line;
}

AddressMap step_blocks(const bench::StepTrace& step, const bench::StepLayout& layout, const std::string& name) {
  using namespace plan_map_detail;
  AddressMap map{name, {}, {}};
  const std::vector<memory::Trace::Lifetime> blocks = lifetimes(step.events);
  std::map<std::uint64_t, std::size_t> index;
  for (const std::uint64_t id : mapped(step, blocks)) {
    const memory::Trace::Lifetime& block = blocks[id];
    index.emplace(id, map.blocks.size());
    map.blocks.push_back(
        {{{static_cast<double>(event_time(step, block.lower)), paint_of(step.events[block.lower].category)}},
         static_cast<double>(event_time(step, block.upper)),
         static_cast<double>(layout.offsets[id]),
         static_cast<double>(block.bytes)});
  }
  for (std::size_t i = step.before; i < step.events.size(); ++i) {
    const memory::Trace::Event& event = step.events[i];
    const auto found = index.find(event.block);
    if (event.action != memory::Trace::Action::relabel || found == index.end()) continue;
    map.blocks[found->second].pieces.emplace_back(static_cast<double>(event_time(step, i)), paint_of(event.category));
  }
  return map;
}

Figure step_map(const bench::PlanView& view, const bench::StepTrace& step) {
  using namespace plan_map_detail;
  const Layout layout = make_layout(view, step);
  // The second picture has the colours of the first.
  const auto picture = [&](const bench::StepLayout& placed, const std::string& title, const std::string& remark,
                           const std::vector<Category>& named) {
    AddressMap map = step_blocks(step, placed, title);
    map.levels = levels_of(view, step, placed);
    return "<h4>" + title + remark + "</h4>" + draw(layout, map, named);
  };
  const bool is_above = view.report.budget_bytes > 0 && step.dynamic.committed_bytes > view.report.budget_bytes &&
                        step.placed.committed_bytes <= view.report.budget_bytes;
  return {picture(step.dynamic, "placed on demand by the dynamic arena",
                  is_above ? ": above the budget, for comparison; the run trains with the placement below" : "",
                  layout.categories) +
              picture(step.placed, "placed offline, with all lifetimes known", "", {}),
          hover(step, layout)};
}

LeftOut left_out_of_map(const bench::StepTrace& step) {
  const std::vector<memory::Trace::Lifetime> blocks = lifetimes(step.events);
  const std::vector<std::uint64_t> ids = plan_map_detail::mapped(step, blocks);
  LeftOut left{blocks.size() - ids.size(), 0};
  std::vector<bool> is_mapped(blocks.size());
  for (const std::uint64_t id : ids) is_mapped[id] = true;
  for (std::size_t id = 0; id < blocks.size(); ++id) {
    if (!is_mapped[id]) left.largest_bytes = std::max(left.largest_bytes, blocks[id].bytes);
  }
  return left;
}

}  // namespace thimble::report
