#include <thimble/nn/fit/graph_file.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/core/files/printable.h>
#include <thimble/memory/remat/peak_options.h>
#include <thimble/memory/remat/select.h>
#include <thimble/memory/units.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/fit/json_reader.h>

namespace thimble::nn {
namespace {

using Json = nlohmann::ordered_json;
using remat::Bytes;
using remat::GraphTimeline;

constexpr std::uint64_t max_file_bytes = 256 << 20;
constexpr std::size_t max_nodes = 1 << 20;  // also of values
constexpr double max_seconds = 1e6;         // per node, so that sums stay below largest_total ns
constexpr double nanoseconds_each = 1e9;

class GraphReader {
 public:
  explicit GraphReader(const std::string& source) : json_{source, "a graph"} {}

  StepGraph read(std::string_view text) {
    const Json json = json_.parse(text);
    json_.object(json, "it", {"version", "values", "nodes"}, {"name", "alignment"});
    if (json_.number<std::int64_t>(json["version"], "version", 0) != 1) json_.refuse("version", json["version"], "1");
    if (json.contains("name")) step_.name = json_.text(json["name"], "name");
    if (json.contains("alignment")) {
      step_.alignment = json_.number<std::size_t>(json["alignment"], "alignment", 1, std::size_t{1} << 30);
      if ((step_.alignment & (step_.alignment - 1)) != 0)
        json_.refuse("alignment", json["alignment"], "a power of two");
    }
    step_.value_count = count(json["values"], "values");
    const std::size_t nodes = count(json["nodes"], "nodes");
    for (const Json& value : json["values"]) read_value(value, nodes);
    for (const Json& node : json["nodes"]) read_node(node);
    for (std::size_t v = 0; v < roots_.size(); ++v) {
      if (is_made_[roots_[v]]) continue;
      json_.refuse("value " + std::to_string(v) + ": expected a node that makes it, or given: true");
    }
    for (std::size_t i = 0; i < nodes; ++i) {
      for (const std::uint32_t v : step_.graph.operators[i].outputs) {
        if (v >= step_.value_count || !json["values"][v].contains("held_until")) continue;
        if (step_.graph.tensors[v].held_until >= i) continue;
        json_.refuse("value " + std::to_string(v) + ", held_until", json["values"][v]["held_until"],
                     "node " + std::to_string(i) + ", which makes it, or a later one");
      }
    }
    try {
      remat::validate(step_.graph);
    } catch (const ValueError& error) {  // sums beyond the limits
      json_.refuse(error.what());
    }
    return std::move(step_);
  }

 private:
  std::size_t count(const Json& json, const std::string& what) const {
    const std::size_t size = json_.list(json, what).size();
    if (size == 0 || size > max_nodes) {
      json_.refuse(what + ": expected 1 to " + std::to_string(max_nodes) + " of them, got " + std::to_string(size));
    }
    return size;
  }

  void read_value(const Json& json, std::size_t nodes) {
    const std::size_t index = roots_.size();
    const std::string what = "value " + std::to_string(index);
    remat::GraphTensor tensor;
    json_.object(json, what, {}, {"name", "bytes", "gradient_bytes", "given", "result", "held_until", "alias"});
    if (json.contains("name")) tensor.name = json_.text(json["name"], what + ", name");
    if (json.contains("alias")) {
      json_.object(json, what + ", an alias,", {"alias"}, {"name"});
      const auto of = json_.number<std::uint32_t>(json["alias"], what + ", alias", 0);
      if (of >= index) json_.refuse(what + ", alias", json["alias"], "the index of a value before it");
      roots_.push_back(roots_[of]);
      tensor.is_given = true;  // no node makes it
    } else {
      json_.object(json, what, {"bytes"}, {"name", "gradient_bytes", "given", "result", "held_until"});
      tensor.bytes = number(json, what, "bytes");
      tensor.gradient_bytes = number(json, what, "gradient_bytes");
      if (json.contains("given")) tensor.is_given = json_.flag(json["given"], what + ", given");
      if (json.contains("result")) tensor.is_result = json_.flag(json["result"], what + ", result");
      tensor.held_until = static_cast<std::uint32_t>(number(json, what, "held_until", static_cast<Bytes>(nodes - 1)));
      roots_.push_back(static_cast<std::uint32_t>(index));
    }
    is_made_.push_back(tensor.is_given && roots_.back() == index);
    step_.graph.tensors.push_back(std::move(tensor));
  }

  /// The tensor with the bytes of a value that exists already.
  std::uint32_t root(const Json& json, const std::string& what) const {
    const auto value = json_.number<std::uint32_t>(json, what, 0, static_cast<std::uint32_t>(roots_.size() - 1));
    if (!is_made_[roots_[value]]) json_.refuse(what + " is value " + std::to_string(value) + " before it is made");
    return roots_[value];
  }

  /// Distinct tensors, in the order of the file.
  std::vector<std::uint32_t> roots(const Json& json, const std::string& what) const {
    std::vector<std::uint32_t> found;
    for (const Json& value : json_.list(json, what)) {
      const std::uint32_t tensor = root(value, what);
      if (std::find(found.begin(), found.end(), tensor) == found.end()) found.push_back(tensor);
    }
    return found;
  }

  void read_node(const Json& json) {
    const std::string what = "node " + std::to_string(step_.graph.operators.size());
    json_.object(json, what, {"inputs", "outputs", "seconds"},
                 {"name", "backward_reads", "backward_seconds", "forward_bytes", "backward_bytes", "waiting_bytes",
                  "recompute", "writes_over"});
    remat::GraphOperator op;
    if (json.contains("name")) op.name = json_.text(json["name"], what + ", name");
    op.inputs = roots(json["inputs"], what + ", inputs");
    for (const Json& output : json_.list(json["outputs"], what + ", outputs")) {
      const auto value =
          json_.number<std::uint32_t>(output, what + ", outputs", 0, static_cast<std::uint32_t>(step_.value_count - 1));
      if (roots_[value] != value) {
        const std::uint32_t of = root(output, what + ", outputs");  // must exist; this node may have made it
        const auto has = [of](const std::vector<std::uint32_t>& list) { return std::ranges::count(list, of) > 0; };
        if (has(op.inputs) || has(op.outputs) || step_.graph.tensors[of].is_given) continue;
        json_.refuse(what + " makes value " + std::to_string(value) + ", an alias of value " + std::to_string(of) +
                     ", which is not among its inputs");
      }
      if (is_made_[value]) json_.refuse(what + " makes value " + std::to_string(value) + ", which is there already");
      is_made_[value] = true;
      op.outputs.push_back(value);
    }
    if (op.outputs.empty()) {
      op.outputs.push_back(static_cast<std::uint32_t>(step_.graph.tensors.size()));
      step_.graph.tensors.emplace_back();
    }
    if (json.contains("backward_reads")) op.backward_reads = roots(json["backward_reads"], what + ", backward_reads");
    op.cost = std::llround(seconds(json["seconds"], what + ", seconds") * nanoseconds_each);
    step_.forward_s += json["seconds"].get<double>();
    if (json.contains("backward_seconds")) {
      step_.backward_s += seconds(json["backward_seconds"], what + ", backward_seconds");
    }
    op.forward_peak_bytes = number(json, what, "forward_bytes");
    op.backward_peak_bytes = number(json, what, "backward_bytes");
    op.waiting_bytes = number(json, what, "waiting_bytes", op.backward_peak_bytes);
    if (json.contains("recompute")) op.can_recompute = json_.flag(json["recompute"], what + ", recompute");
    if (json.contains("writes_over")) op.is_backward_in_place = json_.flag(json["writes_over"], what + ", writes_over");
    step_.graph.operators.push_back(std::move(op));
  }

  /// An integer, 0 if missing.
  Bytes number(const Json& json, const std::string& what, const char* key, Bytes max = remat::largest_total / 4) const {
    return json.contains(key) ? json_.number<Bytes>(json[key], what + ", " + key, 0, max) : 0;
  }

  double seconds(const Json& json, const std::string& what) const {
    const double value = json_.real(json, what, 0);
    if (value > max_seconds) json_.refuse(what, json, "a number from 0 to " + std::to_string(max_seconds));
    return value;
  }

  JsonReader json_;
  StepGraph step_;
  std::vector<std::uint32_t> roots_;  // of each value: itself, or the value that it views
  std::vector<bool> is_made_;         // by an earlier node, or given
};

/// Finds offsets for the buffers of a step.
memory::Placement place(const StepGraph& step, const GraphTimeline& timeline, std::size_t budget_bytes) {
  std::vector<memory::Buffer> buffers;
  for (const GraphTimeline::Buffer& b : timeline.buffers) {
    buffers.push_back({buffers.size(), b.begin, b.end, static_cast<std::size_t>(b.bytes), step.alignment});
  }
  // The limit counts work instead of time, so that plans are the same everywhere.
  const memory::PlacementOptions options{
      .capacity_bytes = budget_bytes, .seconds = 1e6, .node_limit = 200'000, .unit = step.alignment};
  memory::Placement placement = memory::place(buffers, options);
  memory::check_placement(buffers, placement.offsets, placement.height);
  return placement;
}

double in_seconds(remat::Time cost) { return static_cast<double>(cost) / nanoseconds_each; }

const char* kind_of(GraphTimeline::Event::Kind kind) {
  using Kind = GraphTimeline::Event::Kind;
  return kind == Kind::forward ? "forward" : kind == Kind::recompute ? "recompute" : "backward";
}

const char* kind_of(GraphTimeline::Buffer::Kind kind) {
  using Kind = GraphTimeline::Buffer::Kind;
  return kind == Kind::tensor ? "value" : kind == Kind::gradient ? "gradient" : "temporary";
}

/// "12 (relu)".
template <class T>
std::string named(const std::vector<T>& all, std::uint32_t index) {
  const std::string& name = all[index].name;
  return std::to_string(index) + (name.empty() ? "" : " (" + printable(name) + ")");
}

}  // namespace

StepGraph parse_graph(std::string_view json, const std::string& source) { return GraphReader(source).read(json); }

StepGraph read_graph(const std::string& path) {
  const std::vector<std::byte> bytes = read_whole_file(path, max_file_bytes);
  return parse_graph({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

GraphPlan plan_graph(const StepGraph& step, std::size_t budget_bytes) {
  const std::vector<remat::KeptPlan> found = remat::peak_options(step.graph, std::size_t{1} << 20, remat::Reruns::any);
  GraphPlan plan;
  plan.budget_bytes = budget_bytes;
  const double base_s = step.forward_s + step.backward_s;
  for (const remat::KeptPlan& one : found) {
    plan.points.push_back({static_cast<std::size_t>(one.cost.peak_bytes), base_s + in_seconds(one.selection.cost)});
  }
  plan.keep_everything_bytes = plan.points.front().peak_bytes;
  plan.smallest_bytes = plan.points.back().peak_bytes;
  std::size_t height = 0;
  for (const remat::KeptPlan& one : found) {  // fastest first
    const auto peak = static_cast<std::size_t>(one.cost.peak_bytes);
    const bool is_last = &one == &found.back();
    if (budget_bytes > 0 && peak > budget_bytes && !is_last) continue;
    plan.timeline = remat::timeline(step.graph, one.selection);
    memory::Placement placement = place(step, plan.timeline, budget_bytes);
    height = placement.height;
    if (budget_bytes > 0 && height > budget_bytes) continue;
    plan.selection = one.selection;
    plan.offsets = std::move(placement.offsets);
    plan.peak_bytes = peak;
    plan.height_bytes = height;
    plan.recompute_s = in_seconds(one.selection.cost);
    plan.step_s = base_s + plan.recompute_s;
    remat::TimeBound bound(step.graph, remat::bytes_around_backwards(step.graph));
    const std::size_t bytes = budget_bytes > 0 ? budget_bytes : peak;
    plan.least_step_s = base_s + in_seconds(bound.at(static_cast<Bytes>(bytes)));
    return plan;
  }
  throw BudgetError("plan: no plan of the graph keeps " + memory::exact_bytes(budget_bytes) + "; the smallest needs " +
                        memory::exact_bytes(height),
                    budget_bytes, height);
}

std::string to_json(const StepGraph& step, const GraphPlan& plan) {
  Json json{{"version", 1},
            {"name", step.name},
            {"nodes", step.graph.operators.size()},
            {"values", step.value_count},
            {"peak_bytes", plan.peak_bytes},
            {"height_bytes", plan.height_bytes},
            {"keep_everything_bytes", plan.keep_everything_bytes},
            {"smallest_bytes", plan.smallest_bytes},
            {"step_seconds", plan.step_s},
            {"recompute_seconds", plan.recompute_s},
            {"least_step_seconds", plan.least_step_s},
            {"time_gap", plan.time_gap()}};
  if (plan.budget_bytes > 0) json["budget_bytes"] = plan.budget_bytes;
  json["kept"] = plan.selection.kept;
  json["recomputed"] = Json::array();
  json["events"] = Json::array();
  for (const GraphTimeline::Event& event : plan.timeline.events) {
    json["events"].push_back({kind_of(event.kind), event.op});
    if (event.kind == GraphTimeline::Event::Kind::recompute) json["recomputed"].push_back({event.op, event.reader});
  }
  json["buffers"] = Json::array();
  for (std::size_t b = 0; b < plan.offsets.size(); ++b) {
    const GraphTimeline::Buffer& buffer = plan.timeline.buffers[b];
    json["buffers"].push_back(
        {kind_of(buffer.kind), buffer.index, buffer.begin, buffer.end, buffer.bytes, plan.offsets[b]});
  }
  json["plans"] = Json::array();
  for (const GraphPlan::Point& point : plan.points) json["plans"].push_back({point.peak_bytes, point.step_s});
  return json.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
}

std::string to_text(const StepGraph& step, const GraphPlan& plan) {
  const remat::Graph& graph = step.graph;
  const auto line = [](std::string name, std::size_t bytes) {
    std::string exact = format_grouped(bytes), words = format_bytes(bytes);
    name.resize(std::max<std::size_t>(name.size(), 26), ' ');
    exact.insert(0, exact.size() < 18 ? 18 - exact.size() : 0, ' ');
    words.insert(0, words.size() < 14 ? 14 - words.size() : 0, ' ');
    return "  " + name + exact + words + "\n";
  };
  const auto fixed = [](const char* format, double value) {
    char text[64];
    std::snprintf(text, sizeof text, format, value);
    return std::string(text);
  };
  const auto ms = [&](double seconds) { return fixed("%.3f ms", 1000 * seconds); };
  const auto percent = [&](double share) { return fixed("%.1f %%", 100 * share); };
  std::string text = (step.name.empty() ? "a graph" : printable(step.name)) + ": " +
                     format_grouped(graph.operators.size()) + " nodes, " + format_grouped(step.value_count) +
                     " values\n";
  if (plan.budget_bytes > 0) text += line("budget", plan.budget_bytes);
  text += line("peak", plan.peak_bytes) + line("height of all offsets", plan.height_bytes) +
          line("keeping everything", plan.keep_everything_bytes) + line("smallest plan", plan.smallest_bytes) +
          line("kept for backward", static_cast<std::size_t>(plan.selection.kept_bytes));
  const double least_s = plan.step_s - plan.recompute_s;
  text += "time: " + ms(plan.step_s) + ", of that " + ms(plan.recompute_s) + " recomputing" +
          (least_s > 0 ? ", " + percent(plan.recompute_s / least_s) + " over keeping everything" : "") + "\n" +
          "      at most " + percent(std::ceil(std::max(0.0, 1000 * plan.time_gap() - 1e-6)) / 1000) +
          " over the least possible in these bytes\n";
  text += "kept: " + format_grouped(plan.selection.kept.size()) + " values\n";
  for (const std::uint32_t t : plan.selection.kept) {
    text += line(named(graph.tensors, t), static_cast<std::size_t>(graph.tensors[t].bytes));
  }
  std::size_t forwards = 0, reruns = 0;
  std::string again;
  for (const GraphTimeline::Event& event : plan.timeline.events) {
    forwards += event.kind == GraphTimeline::Event::Kind::forward;
    if (event.kind != GraphTimeline::Event::Kind::recompute) continue;
    ++reruns;
    again += "  node " + named(graph.operators, event.op) + " before the " +
             (forwards < graph.operators.size() ? "forward" : "backward") + " of " +
             named(graph.operators, event.reader) + "\n";
  }
  text += "recomputed, in order: " + format_grouped(reruns) + " nodes\n" + again;
  text += "buffers: value, gradient or temporary; events from and to; bytes; offset\n";
  for (std::size_t b = 0; b < plan.offsets.size(); ++b) {
    const GraphTimeline::Buffer& buffer = plan.timeline.buffers[b];
    const bool is_temporary = buffer.kind == GraphTimeline::Buffer::Kind::temporary;
    text += "  " + std::string(kind_of(buffer.kind)) + (is_temporary ? " of node " : " ") +
            (is_temporary ? named(graph.operators, buffer.index) : named(graph.tensors, buffer.index)) + "  " +
            std::to_string(buffer.begin) + "-" + std::to_string(buffer.end) + "  " + std::to_string(buffer.bytes) +
            "  " + std::to_string(plan.offsets[b]) + "\n";
  }
  return text;
}

}  // namespace thimble::nn
