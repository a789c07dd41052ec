// Pictures of a step and its plans.

#include <algorithm>
#include <set>

#include <thimble/bench/book/drawing.h>
#include <thimble/bench/book/figures.h>
#include <thimble/bench/report/plan_figures.h>
#include <thimble/memory/placement/placement.h>
#include <thimble/memory/units.h>

namespace thimble::bench {
namespace {

// Plans the book's GPT at this batch; `budget_bytes` 0 sets no budget.
PlanView view_of(std::size_t budget_bytes, std::int64_t batch = 8) {
  models::RunOptions options;
  options.setup = book_gpt();
  options.setup.batch = batch;
  options.budget_bytes = budget_bytes;
  return see_plan(options, models::make_plan(options));
}

constexpr std::size_t half_budget = 20 << 20;  // about half of the peak at batch 32

}  // namespace

std::string draw_step_timeline() {
  const PlanView view = view_of(0);
  report::Timeline line = report::step_timeline(view, view.planned());
  line.name = "timeline";
  line.title = "One steady step of a small GPT: live bytes after every allocation and free";
  line.bounds.clear();
  return report::svg_file(line);
}

std::string draw_planned_timeline() {
  const PlanView view = view_of(half_budget, 32);
  report::Timeline line = report::step_timeline(view, view.planned());
  line.name = "planned";
  line.title = "A batch of 32 within 20 MiB: backward runs dropped layers again";
  return report::svg_file(line);
}

std::string draw_budget_staircase() {
  const PlanView view = view_of(half_budget, 32);
  report::Plot plot = report::plans_plot(view);
  plot.name = "plans";
  plot.title = "All plans for a small GPT: bytes committed against more time";
  return report::svg_file(plot);
}

std::string draw_address_map() {
  const PlanView view = view_of(0);
  const StepTrace& step = view.planned();
  std::set<memory::Category> seen;
  for (const memory::Trace::Event& event : step.events) seen.insert(event.category);
  const auto map_of = [&](const StepLayout& layout, const std::string& name) {
    return report::step_blocks(step, layout, name + ": height " + format_grouped(layout.height_bytes) + " B");
  };
  return report::svg_address_maps(
      {.title = "Where the blocks of one step lie: a small GPT",
       .description = "Each block as a rectangle: its lifetime across, its addresses upwards.",
       .time_title = "allocation events",
       .maps = {map_of(step.dynamic, "placed on demand, without knowing what comes"),
                map_of(step.placed, "placed offline, with all lifetimes known")},
       .legend = report::category_legend(
           report::categories_with([&](std::size_t i) { return seen.count(static_cast<memory::Category>(i)) != 0; })),
       .map_height = 260});
}

std::string draw_six_rectangles() {
  const std::vector<memory::Buffer> buffers = {{0, 5, 8, 4}, {1, 2, 6, 2}, {2, 4, 5, 3},
                                               {3, 6, 8, 3}, {4, 4, 8, 1}, {5, 1, 5, 2}};
  // First fit in order of allocation.
  std::vector<std::size_t> order = {0, 1, 2, 3, 4, 5}, first_fit(buffers.size());
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return buffers[a].lower < buffers[b].lower; });
  for (std::size_t i = 0; i < order.size(); ++i) {
    const memory::Buffer& buffer = buffers[order[i]];
    std::vector<std::pair<std::size_t, std::size_t>> taken;
    for (std::size_t k = 0; k < i; ++k) {
      const memory::Buffer& other = buffers[order[k]];
      if (other.lower < buffer.upper && buffer.lower < other.upper) {
        taken.emplace_back(first_fit[order[k]], first_fit[order[k]] + other.bytes);
      }
    }
    std::sort(taken.begin(), taken.end());
    std::size_t at = 0;
    for (const auto& [begin, end] : taken) {
      if (begin >= at + buffer.bytes) break;
      at = std::max(at, end);
    }
    first_fit[order[i]] = at;
  }
  memory::PlacementOptions options;
  options.unit = 1;
  const memory::Placement best = memory::place(buffers, options);
  const auto map_of = [&](const std::string& name, const std::vector<std::size_t>& offsets) {
    report::AddressMap map;
    std::size_t height = 0;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const memory::Buffer& b = buffers[i];
      height = std::max(height, offsets[i] + b.bytes);
      map.blocks.push_back({{{static_cast<double>(b.lower), report::series_paints[i % report::series_paints.size()]}},
                            static_cast<double>(b.upper),
                            static_cast<double>(offsets[i]),
                            static_cast<double>(b.bytes),
                            std::string(1, static_cast<char>('A' + i)) + ", " + std::to_string(b.bytes)});
    }
    map.name = name + ": height " + std::to_string(height);
    map.levels = report::make_levels(static_cast<std::int64_t>(height));
    return map;
  };
  return report::svg_address_maps(
      {.title = "Six rectangles whose load is " + std::to_string(best.load),
       .description = "Six buffers with lifetimes and sizes, placed by first fit and by an exact search.",
       .time_title = "time",
       .maps = {map_of("first fit, in the order in which they come", first_fit),
                map_of("with all lifetimes known: as low as the load", best.offsets)},
       .unit = report::Unit::plain,
       .map_height = 250});
}

}  // namespace thimble::bench
