#include <thimble/bench/timing/step_profile.h>

#include <algorithm>
#include <map>
#include <string_view>

#include <thimble/core/error.h>

namespace thimble::bench {
namespace step_profile_detail {

double bytes_of(const TapeGraph& graph, std::uint32_t value) {
  if (value == TapeGraph::none) return 0;
  const TapeGraph::Value& v = graph.values[value];
  return static_cast<double>(v.shape.elements()) * static_cast<double>(size_of(v.dtype));
}

double forward_bytes(const TapeGraph& graph, const TapeGraph::Node& node) {
  if (node.type->cost == Cost::view) return 0;
  double bytes = bytes_of(graph, node.output);
  for (const std::uint32_t input : node.inputs) bytes += bytes_of(graph, input);
  return bytes;
}

double backward_bytes(const TapeGraph& graph, const TapeGraph::Node& node) {
  if (node.type->cost == Cost::view || !node.needs.any()) return 0;
  double bytes = bytes_of(graph, node.output);
  for (const std::uint32_t saved : node.saved) bytes += bytes_of(graph, saved);
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.needs[static_cast<int>(i)]) bytes += bytes_of(graph, node.inputs[i]);
  }
  return bytes;
}

}  // namespace step_profile_detail

double multiply_adds(const TapeGraph::Node& node) {
  const bool is_attention = std::string_view(node.type->name).ends_with("attention");
  const double backward =
      is_attention ? (node.needs.any() ? 2.5 : 0) : (node.needs[0] ? 1.0 : 0.0) + (node.needs[1] ? 1.0 : 0.0);
  return node.multiply_adds * (1 + backward);
}

double multiply_adds(const TapeGraph& graph) {
  double sum = 0;
  for (const TapeGraph::Node& node : graph.nodes) sum += multiply_adds(node);
  return sum;
}

std::vector<OperatorTime> operator_times(const TapeGraph& graph, const TapeTimes& times) {
  if (times.forward.size() != graph.nodes.size()) {
    throw ValueError("operator_times: times of " + std::to_string(times.forward.size()) + " nodes, the recording has " +
                     std::to_string(graph.nodes.size()));
  }
  std::map<std::string, OperatorTime> by_name;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const TapeGraph::Node& node = graph.nodes[n];
    OperatorTime& time = by_name[node.type->name];
    ++time.calls;
    time.forward_s += times.forward[n];
    time.recompute_s += times.recompute[n];
    time.backward_s += times.backward[n];
    time.forward_bytes += step_profile_detail::forward_bytes(graph, node);
    time.backward_bytes += step_profile_detail::backward_bytes(graph, node);
    time.multiply_adds += multiply_adds(node);
  }
  std::vector<OperatorTime> list;
  for (auto& [name, time] : by_name) {
    time.name = name;
    list.push_back(std::move(time));
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const OperatorTime& a, const OperatorTime& b) { return a.seconds() > b.seconds(); });
  return list;
}

}  // namespace thimble::bench
