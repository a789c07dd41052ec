#include <thimble/bench/report/plan_data.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/autograd/node.h>
#include <thimble/bench/report/palette.h>
#include <thimble/core/tensor/context.h>

namespace thimble::report {
namespace plan_data_detail {

using bench::StepTrace;
using nlohmann::ordered_json;

/// Texts by number, in order of first use.
class Texts {
 public:
  std::size_t index(std::string_view text) {
    const auto [found, is_new] = index_.try_emplace(std::string(text), list_.size());
    if (is_new) list_.push_back(found->first);
    return found->second;
  }
  const std::vector<std::string>& list() const noexcept { return list_; }

 private:
  std::map<std::string, std::size_t> index_;
  std::vector<std::string> list_;
};

std::vector<std::size_t> shown_categories(const bench::PlanView& view) {
  std::set<Category> shown;
  for (const StepTrace& step : view.steps) {
    for (const Trace::Event& event : step.events) shown.insert(event.category);
  }
  std::vector<std::size_t> list;
  for (const Category category : stacking_order) {
    if (shown.count(category) != 0) list.push_back(static_cast<std::size_t>(category));
  }
  return list;
}

std::size_t sum_of(const thimble::CategoryBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
}

// Event times that are told of: all, or the one with the most bytes of each stretch.
std::vector<std::size_t> told_times(const std::vector<std::size_t>& live, std::size_t most) {
  const std::size_t count = std::min(live.size(), most);
  std::vector<std::size_t> told(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto begin = live.begin() + static_cast<std::ptrdiff_t>(i * live.size() / count);
    const auto end = live.begin() + static_cast<std::ptrdiff_t>((i + 1) * live.size() / count);
    told[i] = static_cast<std::size_t>(std::max_element(begin, end) - live.begin());
  }
  return told;
}

void add_timeline(ordered_json& json, const StepTrace& step, const std::vector<std::size_t>& categories, Texts& paths) {
  // By event time: 0 is the state before the step's first event.
  std::vector<thimble::CategoryBytes> states = timeline(step.events);
  if (step.before == 0) {
    states.insert(states.begin(), thimble::CategoryBytes{});
  } else {
    states.erase(states.begin(), states.begin() + static_cast<std::ptrdiff_t>(step.before - 1));
  }
  std::vector<std::size_t> live;
  live.reserve(states.size());
  for (const thimble::CategoryBytes& state : states) live.push_back(sum_of(state));
  json["count"] = states.size() - 1;
  json["peak"] = step.live_peak_bytes;
  json["peakAt"] = std::max_element(live.begin(), live.end()) - live.begin();
  std::vector<std::size_t> at, path;
  std::vector<std::vector<std::int64_t>> bytes(categories.size());
  std::size_t before = 0;
  thimble::CategoryBytes previous{};
  for (const std::size_t time : told_times(live, told_events_max)) {
    at.push_back(time - before);
    before = time;
    path.push_back(time == 0 ? paths.index("") : paths.index(path_name(step.events[step.before + time - 1].path)));
    for (std::size_t k = 0; k < categories.size(); ++k) {
      bytes[k].push_back(static_cast<std::int64_t>(states[time][categories[k]]) -
                         static_cast<std::int64_t>(previous[categories[k]]));
    }
    previous = states[time];
  }
  json["at"] = at;
  json["path"] = path;
  json["bytes"] = bytes;
}

std::size_t event_time(const StepTrace& step, std::size_t index) {
  return index < step.before ? 0 : index + 1 - step.before;
}

// Ids of the blocks that a map shows, ascending: those with the most bytes times events.
std::vector<std::uint64_t> mapped(const StepTrace& step, const std::vector<Trace::Lifetime>& blocks) {
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

ordered_json layout_json(const std::string& name, const bench::StepLayout& layout,
                         const std::vector<std::uint64_t>& ids) {
  std::vector<std::size_t> offsets;
  offsets.reserve(ids.size());
  for (const std::uint64_t id : ids) offsets.push_back(layout.offsets[id]);
  return {{"name", name}, {"height", layout.height_bytes}, {"committed", layout.committed_bytes}, {"offset", offsets}};
}

void add_blocks(ordered_json& json, const StepTrace& step, Texts& paths) {
  const std::vector<Trace::Lifetime> blocks = lifetimes(step.events);
  const std::vector<std::uint64_t> ids = mapped(step, blocks);
  std::map<std::uint64_t, std::size_t> index;
  for (std::size_t i = 0; i < ids.size(); ++i) index.emplace(ids[i], i);
  std::vector<std::size_t> lower, upper, bytes, category, path;
  ordered_json relabels = ordered_json::array();
  for (const std::uint64_t id : ids) {
    const Trace::Lifetime& block = blocks[id];
    const Trace::Event& event = step.events[block.lower];
    lower.push_back(event_time(step, block.lower));
    upper.push_back(event_time(step, block.upper));
    bytes.push_back(block.bytes);
    category.push_back(static_cast<std::size_t>(event.category));
    path.push_back(paths.index(path_name(event.path)));
  }
  for (std::size_t i = step.before; i < step.events.size(); ++i) {
    const Trace::Event& event = step.events[i];
    const auto found = index.find(event.block);
    if (event.action != Trace::Action::relabel || found == index.end()) continue;
    relabels.push_back({found->second, event_time(step, i), static_cast<std::size_t>(event.category)});
  }
  json["blocks"] = {{"lower", lower}, {"upper", upper}, {"bytes", bytes}, {"category", category}, {"path", path}};
  json["relabels"] = std::move(relabels);
  json["layouts"] = {layout_json("on demand", step.dynamic, ids), layout_json("placed offline", step.placed, ids)};
}

/// What becomes of a node's result and extras: "fate" of the page.
enum class Shown : std::uint8_t { kept, result_kept, saved_kept, dropped, not_needed };

struct NodeBytes {
  std::size_t made = 0, kept = 0;
  Shown fate = Shown::not_needed;
};

/// Result and extras of a node: bytes that it makes, and those that stand until its backward.
NodeBytes bytes_of_node(const TapeGraph& graph, const TapeGraph::Node& node, const std::set<std::uint32_t>& saved,
                        bool is_in_segment, Fate fate) {
  const auto storage_of = [&](std::uint32_t value) {
    return value == TapeGraph::none ? TapeGraph::none : graph.values[value].storage;
  };
  const auto is_operand = [&](std::uint32_t value) {
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](std::uint32_t input) {
      return input == value || (storage_of(input) == storage_of(value) && storage_of(value) != TapeGraph::none);
    });
  };
  const std::size_t result = is_operand(node.output) ? 0 : graph.bytes_of(node.output);
  std::size_t extras = 0;
  for (const std::uint32_t value : node.saved) {
    if (value != node.output && !is_operand(value)) extras += graph.bytes_of(value);
  }
  const bool keeps_result = is_in_segment ? keeps_output(fate) : saved.count(storage_of(node.output)) != 0;
  const bool keeps_extras = !is_in_segment || keeps_saved(fate);
  NodeBytes bytes;
  bytes.made = result + extras;
  bytes.kept = (keeps_result ? result : 0) + (keeps_extras ? extras : 0);
  if (is_in_segment) {
    // A fate says what may be kept; of an operator without extras the result alone decides.
    const bool is_split = extras > 0 && keeps_result != keeps_extras;
    bytes.fate = is_split ? (keeps_result ? Shown::result_kept : Shown::saved_kept)
                          : (keeps_result ? Shown::kept : Shown::dropped);
  } else if (bytes.kept > 0) {
    bytes.fate = Shown::kept;
  }
  return bytes;
}

ordered_json nodes_json(const bench::PlanReport& report, Texts& paths) {
  const TapeGraph& graph = report.planner->graph();
  std::set<std::uint32_t> saved;
  for (const TapeGraph::Node& node : graph.nodes) {
    for (const std::uint32_t value : node.saved) {
      if (value != TapeGraph::none) saved.insert(graph.values[value].storage);
    }
  }
  saved.erase(TapeGraph::none);
  std::vector<std::int32_t> innermost(graph.nodes.size(), TapePlan::none);
  if (report.plan.tape) innermost = report.plan.tape->innermost();
  Texts names;
  std::vector<std::size_t> name, path, made, kept, fate;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const TapeGraph::Node& node = graph.nodes[n];
    const bool is_in_segment = innermost[n] != TapePlan::none;
    const NodeBytes bytes =
        bytes_of_node(graph, node, saved, is_in_segment, is_in_segment ? report.plan.tape->fates[n] : Fate::keep);
    name.push_back(names.index(node.type->name));
    path.push_back(paths.index(path_name(node.path)));
    made.push_back(bytes.made);
    kept.push_back(bytes.kept);
    fate.push_back(static_cast<std::size_t>(bytes.fate));
  }
  return {{"names", names.list()}, {"name", name}, {"path", path},        {"made", made},
          {"kept", kept},          {"fate", fate}, {"segment", innermost}};
}

ordered_json segments_json(const bench::PlanReport& report) {
  ordered_json list = ordered_json::array();
  for (const bench::PlannedSegment& s : report.segments) {
    list.push_back({{"first", s.first},
                    {"end", s.end},
                    {"depth", s.depth},
                    {"kept", s.kept_bytes},
                    {"dropped", s.dropped},
                    {"path", s.path}});
  }
  return list;
}

void add_plans(ordered_json& json, const bench::PlanView& view) {
  const bench::PlanReport& report = view.report;
  ordered_json list = ordered_json::array();
  json["current"] = nullptr;
  const auto add = [&](const nn::Plan& plan) {
    if (plan.tape == report.plan.tape) json["current"] = list.size();
    list.push_back({{"peak", plan.peak_bytes},
                    {"load", plan.lower_bound_bytes},
                    {"overhead", plan.time_overhead},
                    {"seconds", plan.step_s},
                    {"segments", plan.tape ? plan.tape->segments.size() : 0}});
  };
  for (const nn::Plan& plan : view.plans) add(plan);
  // Keeping everything is no plan where another one needs less in the same time; it is shown all the same.
  if (view.plans.back().tape != nullptr) add(report.planner->keep_everything());
  json["plans"] = std::move(list);
}

}  // namespace plan_data_detail

std::string plan_data(const bench::PlanView& view) {
  using namespace plan_data_detail;
  const std::vector<std::size_t> categories = shown_categories(view);
  ordered_json json;
  json["budget"] = view.report.budget_bytes;
  json["theory"] = view.theory_bytes.value_or(0);
  json["categories"] = ordered_json::array();
  for (std::size_t i = 0; i < category_count; ++i) {
    const auto category = static_cast<Category>(i);
    json["categories"].push_back({label_of(category), paint_of(category).name});
  }
  json["stack"] = categories;
  Texts paths;
  json["steps"] = ordered_json::array();
  for (const StepTrace& step : view.steps) {
    ordered_json one;
    one["name"] = step.name;
    const bool is_planned = &step == &view.planned();
    one["load"] =
        is_planned ? view.report.plan.lower_bound_bytes : view.report.planner->keep_everything().lower_bound_bytes;
    add_timeline(one, step, categories, paths);
    add_blocks(one, step, paths);
    json["steps"].push_back(std::move(one));
  }
  if (view.report.planner != nullptr) {
    json["nodes"] = nodes_json(view.report, paths);
    json["segments"] = segments_json(view.report);
    add_plans(json, view);
  }
  json["paths"] = paths.list();
  std::string text = json.dump();
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos;) text.replace(at, 1, "\\u003c");
  return text;
}

LeftOut left_out_of_map(const bench::StepTrace& step) {
  const std::vector<Trace::Lifetime> blocks = lifetimes(step.events);
  const std::vector<std::uint64_t> ids = plan_data_detail::mapped(step, blocks);
  LeftOut left{blocks.size() - ids.size(), 0};
  std::vector<bool> is_mapped(blocks.size());
  for (const std::uint64_t id : ids) is_mapped[id] = true;
  for (std::size_t id = 0; id < blocks.size(); ++id) {
    if (!is_mapped[id]) left.largest_bytes = std::max(left.largest_bytes, blocks[id].bytes);
  }
  return left;
}

}  // namespace thimble::report
