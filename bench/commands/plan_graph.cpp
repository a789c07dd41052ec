// thimble plan --graph: plans another program's step, read from a file.

#include <thimble/bench/commands/plan_output.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>

#include <thimble/bench/commands/flags.h>
#include <thimble/bench/report/figures.h>
#include <thimble/bench/report/maps.h>
#include <thimble/bench/report/page.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>
#include <thimble/core/files/outputs.h>
#include <thimble/memory/units.h>
#include <thimble/nn/fit/graph_file.h>

namespace thimble::bench {
namespace {

using Buffer = remat::GraphTimeline::Buffer;
using Event = remat::GraphTimeline::Event;

constexpr std::size_t max_mapped = 12'000;

memory::Category category_of(const Buffer& buffer) {
  constexpr memory::Category categories[] = {memory::Category::activation, memory::Category::gradient,
                                             memory::Category::temporary};
  return categories[static_cast<std::size_t>(buffer.kind)];
}

std::optional<std::int64_t> budget_of(const nn::GraphPlan& plan) {
  return plan.budget_bytes == 0 ? std::nullopt : std::optional(static_cast<std::int64_t>(plan.budget_bytes));
}

std::string name_of(const nn::StepGraph& step, const Event& event) {
  constexpr const char* kinds[] = {"forward", "again", "backward"};
  const std::string& name = step.graph.operators[event.op].name;
  return std::string(kinds[static_cast<std::size_t>(event.kind)]) + " of node " + std::to_string(event.op) +
         (name.empty() ? "" : " " + name);
}

std::ptrdiff_t first_backward(const std::vector<Event>& events) {
  return std::ranges::find(events, Event::Kind::backward, &Event::kind) - events.begin();
}

report::Timeline timeline_of(const nn::StepGraph& step, const nn::GraphPlan& plan) {
  report::Timeline timeline;
  timeline.name = "step";
  timeline.title = "The step, event by event";
  const std::vector<Event>& events = plan.timeline.events;
  timeline.caption = "Bytes during every forward, re-run and backward; the first backward is event " +
                     format_grouped(first_backward(events)) +
                     ". Activations are values; temporaries include unlisted gradients.";
  timeline.events_are = "events";
  timeline.budget_bytes = budget_of(plan);
  std::vector<report::CategoryBytes> changes(events.size() + 1);
  for (const Buffer& buffer : plan.timeline.buffers) {
    const auto category = static_cast<std::size_t>(category_of(buffer));
    changes[buffer.begin][category] += buffer.bytes;
    changes[buffer.end][category] -= buffer.bytes;
  }
  report::CategoryBytes bytes{};
  for (std::size_t e = 0; e < events.size(); ++e) {
    for (std::size_t c = 0; c < memory::category_count; ++c) bytes[c] += changes[e][c];
    timeline.events.push_back({bytes, name_of(step, events[e])});
  }
  return timeline;
}

/// Colours buffers by what the plan does with their values.
std::string map_of(const nn::StepGraph& step, const nn::GraphPlan& plan) {
  report::AddressMap map{step.name, {}, {}};
  const std::vector<Event>& events = plan.timeline.events;
  const auto turn = static_cast<std::size_t>(first_backward(events));
  const std::pair<const char*, report::Paint> fates[] = {
      {"kept for backward", report::paint_of(memory::Category::activation)},
      {"freed before backward", report::paints::axis},
      {"computed again", report::series_paints[0]},
      {"gradients", report::paint_of(memory::Category::gradient)},
      {"temporaries", report::paint_of(memory::Category::temporary)}};
  const auto fate_of = [&](const Buffer& buffer) -> std::size_t {
    if (buffer.kind != Buffer::Kind::tensor) return buffer.kind == Buffer::Kind::gradient ? 3 : 4;
    return events[buffer.begin].kind == Event::Kind::recompute ? 2 : buffer.end > turn ? 0 : 1;
  };
  std::vector<std::size_t> order(plan.offsets.size());
  for (std::size_t b = 0; b < order.size(); ++b) order[b] = b;
  const auto area = [&](std::size_t b) {
    const Buffer& buffer = plan.timeline.buffers[b];
    return static_cast<double>(buffer.bytes) * static_cast<double>(buffer.end - buffer.begin);
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return area(a) > area(b); });
  order.resize(std::min(order.size(), max_mapped));
  for (const std::size_t b : order) {
    const Buffer& buffer = plan.timeline.buffers[b];
    map.blocks.push_back({{{static_cast<double>(buffer.begin), fates[fate_of(buffer)].second}},
                          static_cast<double>(buffer.end),
                          static_cast<double>(plan.offsets[b]),
                          static_cast<double>(buffer.bytes)});
  }
  map.levels = report::make_levels(budget_of(plan), {{"height", static_cast<std::int64_t>(plan.height_bytes)}});
  report::AddressMaps maps;
  maps.title = "Where every buffer is", maps.time_title = "event";
  maps.description = "Each buffer of the step as a rectangle over its events and its offsets.";
  for (std::size_t i = 0; i < std::size(fates); ++i) {
    if (std::ranges::count(plan.timeline.buffers, i, fate_of) == 0) continue;
    maps.legend.push_back({.name = fates[i].first, .is_area = true, .line = {.fill = fates[i].second}});
  }
  maps.maps = {std::move(map)};
  return report::svg_address_maps(std::move(maps), report::Medium::page);
}

report::Plot plot_of(const nn::GraphPlan& plan) {
  report::Plot plot;
  plot.name = "plans";
  plot.title = "Time against bytes";
  plot.caption = "Every plan that was found, before its buffers are placed.";
  plot.x = {.title = "peak", .unit = report::Unit::bytes, .from_zero = false};
  plot.y = {.title = "time of a step", .unit = report::Unit::milliseconds, .from_zero = false};
  plot.budget_bytes = budget_of(plan);
  report::Series series{"plans", report::Role::other, {}, "plans", true};
  for (std::size_t i = plan.points.size(); i-- > 0;) {
    series.points.push_back({static_cast<double>(plan.points[i].peak_bytes), 1000 * plan.points[i].step_s});
  }
  plot.series = {std::move(series)};
  return plot;
}

std::string page_of(const nn::StepGraph& step, const nn::GraphPlan& plan) {
  using report::escape_markup;
  const std::string title = escape_markup(step.name.empty() ? "A graph" : step.name);
  const auto card = [](const std::string& name, std::size_t bytes) {
    return report::stat_card(name, format_bytes(bytes), format_grouped(bytes) + " bytes");
  };
  std::string html =
      report::begin_page(title + ": a plan", "plan") + "<main>\n<header><h1>" + title + "</h1>\n<dl class=\"stats\">\n";
  if (plan.budget_bytes > 0) html += card("budget", plan.budget_bytes);
  html +=
      card("peak", plan.peak_bytes) + card("height of all offsets", plan.height_bytes) +
      card("keeping everything", plan.keep_everything_bytes) + card("smallest plan", plan.smallest_bytes) +
      report::stat_card("recomputing", report::format_fixed(1000 * plan.recompute_s, 3) + " ms",
                        "of a step of " + report::format_fixed(1000 * plan.step_s, 3) + " ms") +
      report::stat_card("gap", report::format_most_percent(plan.time_gap()), "over the least possible time, at most") +
      "</dl></header>\n";
  html += report::figure_card(timeline_of(step, plan)) + "<figure class=\"card\"><h3>Where every buffer is</h3>" +
          map_of(step, plan) +
          "<figcaption>Events across, offsets upwards. A value that is computed again has a rectangle for each time. "
          "At most " +
          format_grouped(max_mapped) +
          " buffers are drawn, those with the most bytes times events.</figcaption></figure>\n" +
          report::figure_card(plot_of(plan));
  return html + "<section><h2>The plan</h2><div class=\"card scroll\"><pre>" + escape_markup(nn::to_text(step, plan)) +
         "</pre></div></section>\n</main>\n" + report::end_page();
}

}  // namespace

void add_graph_flag(CLI::App& command, const std::shared_ptr<std::string>& graph) {
  command
      .add_option_function<std::string>(
          "--graph", [graph](const std::string& path) { *graph = path; },
          "Plan the training step in this file, of any program")
      ->type_name("FILE");
  command.get_option("MODEL")->required(false);
}

bool plan_graph(const CLI::App& command, const PlanGraphFlags& flags) {
  if (flags.graph.empty()) {
    if (command.get_option("MODEL")->count() == 0) throw CLI::RequiredError("MODEL");
    return false;
  }
  constexpr std::array<std::string_view, 5> known{"--graph", "--budget", "--json", "--html", "--overwrite"};
  require_flags(command, known, "a model to plan", "--graph");
  check_outputs({{"--html", flags.html, &file_kinds::page}}, {{"--graph", flags.graph}}, flags.overwrites);
  const nn::StepGraph step = nn::read_graph(flags.graph);
  const nn::GraphPlan plan = nn::plan_graph(step, flags.budget_bytes);
  if (!flags.html.empty()) write_output(flags.html, page_of(step, plan));
  std::fputs((flags.is_json ? nn::to_json(step, plan) : nn::to_text(step, plan)).c_str(), stdout);
  return true;
}

}  // namespace thimble::bench
