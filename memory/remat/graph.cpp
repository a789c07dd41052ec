#include <algorithm>

#include <thimble/memory/remat/graph.h>

namespace thimble::remat {

namespace graph_detail {

constexpr std::uint32_t nobody = 0xFFFFFFFFU;

std::string label(const char* what, std::size_t i, const std::string& name) {
  return std::string("remat graph: ") + what + ' ' + std::to_string(i) + (name.empty() ? "" : " (" + name + ")");
}

void add(const std::string& where, const char* field, std::int64_t value, std::int64_t& total) {
  if (value < 0) throw ValueError(where + ": " + field + " is " + std::to_string(value) + ", must be >= 0");
  if (value > largest_total / 4 - total) {
    throw ValueError(where + ": " + field + " is " + std::to_string(value) + ": all together may be at most " +
                     std::to_string(largest_total / 4));
  }
  total += value;
}

void check_operator(const Graph& graph, std::size_t i, std::vector<bool>& is_there) {
  const GraphOperator& op = graph.operators[i];
  const std::string where = label("operator", i, op.name);
  const auto require = [&](std::uint32_t t, const char* role) {
    if (t >= graph.tensors.size()) {
      throw ValueError(where + ": " + role + " tensor " + std::to_string(t) + ", there are " +
                       std::to_string(graph.tensors.size()));
    }
  };
  const auto require_there = [&](std::uint32_t t, const char* role) {
    require(t, role);
    if (!is_there[t]) throw ValueError(where + ": " + role + " tensor " + std::to_string(t) + " before it is made");
  };
  for (const std::uint32_t t : op.inputs) require_there(t, "takes");
  if (op.outputs.empty()) throw ValueError(where + ": has no outputs, needs at least one");
  for (const std::uint32_t t : op.outputs) {
    require(t, "makes");
    if (is_there[t]) throw ValueError(where + ": makes tensor " + std::to_string(t) + ", which is there already");
    is_there[t] = true;
  }
  for (const std::uint32_t t : op.backward_reads) require_there(t, "in backward reads");
}

/// Segment of each operator.
std::vector<std::uint32_t> segments_of(const Graph& graph) {
  std::vector<std::uint32_t> segment(graph.operators.size(), 0);
  std::uint32_t s = 0;
  for (std::size_t i = 0; i < segment.size(); ++i) {
    while (!graph.segment_ends.empty() && graph.segment_ends[s] <= i) ++s;
    segment[i] = s;
  }
  return segment;
}

std::vector<std::uint32_t> makers_of(const Graph& graph) {
  std::vector<std::uint32_t> maker(graph.tensors.size(), nobody);
  for (std::uint32_t i = 0; i < graph.operators.size(); ++i) {
    for (const std::uint32_t t : graph.operators[i].outputs) maker[t] = i;
  }
  return maker;
}

}  // namespace graph_detail

void validate(const Graph& graph) {
  using graph_detail::label;
  if (graph.operators.empty()) throw ValueError("remat graph: has no operators, needs at least one");
  std::int64_t bytes = 0;
  std::int64_t cost = 0;
  std::vector<bool> is_there(graph.tensors.size());
  for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
    const std::string where = label("tensor", t, graph.tensors[t].name);
    graph_detail::add(where, "bytes", graph.tensors[t].bytes, bytes);
    graph_detail::add(where, "gradient_bytes", graph.tensors[t].gradient_bytes, bytes);
    is_there[t] = graph.tensors[t].is_given;
  }
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    const GraphOperator& op = graph.operators[i];
    const std::string where = label("operator", i, op.name);
    graph_detail::add(where, "cost", op.cost, cost);
    graph_detail::add(where, "forward_peak_bytes", op.forward_peak_bytes, bytes);
    graph_detail::add(where, "backward_peak_bytes", op.backward_peak_bytes, bytes);
    graph_detail::check_operator(graph, i, is_there);
  }
  std::uint32_t before = 0;
  for (const std::uint32_t end : graph.segment_ends) {
    if (end <= before || end > graph.operators.size()) {
      throw ValueError("remat graph: segment_ends has " + std::to_string(end) + " after " + std::to_string(before) +
                       ", must rise to " + std::to_string(graph.operators.size()));
    }
    before = end;
  }
  if (!graph.segment_ends.empty() && before != graph.operators.size()) {
    throw ValueError("remat graph: segment_ends ends with " + std::to_string(before) + ", must end with " +
                     std::to_string(graph.operators.size()));
  }
}

Selection close_selection(const Graph& graph, const std::vector<bool>& wanted) {
  if (wanted.size() != graph.tensors.size()) {
    throw ValueError("remat close_selection: " + std::to_string(wanted.size()) + " flags for " +
                     std::to_string(graph.tensors.size()) + " tensors");
  }
  const std::vector<std::uint32_t> segment = graph_detail::segments_of(graph);
  const std::vector<std::uint32_t> maker = graph_detail::makers_of(graph);
  std::vector<bool> keep(graph.tensors.size());
  std::vector<bool> rerun(graph.operators.size());
  // Needs point backwards in the order of operators, so one sweep from the last to the first settles each: when an
  // operator is reached, all that needs its outputs is known.
  std::vector<bool> need(graph.tensors.size());
  const auto ask = [&](std::uint32_t t, std::uint32_t by) {
    if (graph.tensors[t].is_given) return;
    const std::uint32_t made = maker[t];
    if (wanted[t] || segment[made] != segment[by] || !graph.operators[made].can_rerun) {
      keep[t] = true;
    } else {
      need[t] = true;
    }
  };
  for (std::uint32_t i = 0; i < graph.operators.size(); ++i) {
    for (const std::uint32_t t : graph.operators[i].backward_reads) ask(t, i);
  }
  for (std::uint32_t i = static_cast<std::uint32_t>(graph.operators.size()); i-- > 0;) {
    const GraphOperator& op = graph.operators[i];
    for (const std::uint32_t t : op.outputs) rerun[i] = rerun[i] || (need[t] && !keep[t]);
    if (!rerun[i]) continue;
    for (const std::uint32_t t : op.inputs) ask(t, i);
  }

  Selection selection;
  for (std::uint32_t t = 0; t < graph.tensors.size(); ++t) {
    if (!keep[t]) continue;
    selection.kept.push_back(t);
    selection.kept_bytes += graph.tensors[t].bytes;
  }
  for (std::uint32_t i = 0; i < graph.operators.size(); ++i) {
    if (!rerun[i]) continue;
    selection.rerun.push_back(i);
    selection.cost += graph.operators[i].cost;
  }
  return selection;
}

}  // namespace thimble::remat
