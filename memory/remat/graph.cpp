
#include <numeric>

#include <thimble/memory/remat/graph.h>

namespace thimble::remat {

namespace {

/// The subject of an error message, formatted only on error because graphs are checked before every use.
struct Place {
  const char* what;
  std::size_t index;
  const std::string& name;

  [[noreturn]] void refuse(const std::string& why) const {
    throw ValueError(std::string("remat graph: ") + what + ' ' + std::to_string(index) +
                     (name.empty() ? "" : " (" + name + ")") + ": " + why);
  }
};

void add(const Place& place, const char* field, std::int64_t value, std::int64_t& total) {
  constexpr std::int64_t limit = largest_total / 4;
  if (value < 0) place.refuse(std::string(field) + " is " + std::to_string(value) + ", must be >= 0");
  if (value > limit - total) {
    place.refuse(std::string(field) + " is " + std::to_string(value) + ": all together may be at most " +
                 std::to_string(limit));
  }
  total += value;
}

void check_operator(const Graph& graph, std::size_t i, std::vector<bool>& is_there) {
  const GraphOperator& op = graph.operators[i];
  const Place place{"operator", i, op.name};
  const auto require = [&](std::uint32_t t, const char* role) {
    if (t < graph.tensors.size()) return;
    place.refuse(std::string(role) + " tensor " + std::to_string(t) + ", there are " +
                 std::to_string(graph.tensors.size()));
  };
  const auto require_there = [&](std::uint32_t t, const char* role) {
    require(t, role);
    if (!is_there[t]) place.refuse(std::string(role) + " tensor " + std::to_string(t) + " before it is made");
  };
  for (const std::uint32_t t : op.inputs) require_there(t, "takes");
  if (op.outputs.empty()) place.refuse("has no outputs, needs at least one");
  for (const std::uint32_t t : op.outputs) {
    require(t, "makes");
    if (is_there[t]) place.refuse("makes tensor " + std::to_string(t) + ", which is there already");
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

}  // namespace

void validate(const Graph& graph) {
  if (graph.operators.empty()) throw ValueError("remat graph: has no operators, needs at least one");
  std::int64_t bytes = 0;
  std::int64_t cost = 0;
  std::vector<bool> is_there(graph.tensors.size());
  for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
    const Place place{"tensor", t, graph.tensors[t].name};
    add(place, "bytes", graph.tensors[t].bytes, bytes);
    add(place, "gradient_bytes", graph.tensors[t].gradient_bytes, bytes);
    if (graph.tensors[t].held_until >= graph.operators.size()) {
      place.refuse("is held until operator " + std::to_string(graph.tensors[t].held_until) + ", there are " +
                   std::to_string(graph.operators.size()));
    }
    is_there[t] = graph.tensors[t].is_given;
  }
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    const GraphOperator& op = graph.operators[i];
    const Place place{"operator", i, op.name};
    add(place, "cost", op.cost, cost);
    add(place, "forward_peak_bytes", op.forward_peak_bytes, bytes);
    add(place, "backward_peak_bytes", op.backward_peak_bytes, bytes);
    add(place, "waiting_bytes", op.waiting_bytes, bytes);
    check_operator(graph, i, is_there);
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

std::vector<bool> recomputable(const Graph& graph) {
  const std::vector<std::uint32_t> segment = segments_of(graph);
  std::vector<bool> can(graph.tensors.size());
  std::vector<std::uint32_t> made_in(graph.tensors.size());
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    for (const std::uint32_t t : graph.operators[i].outputs) {
      can[t] = graph.operators[i].can_recompute;
      made_in[t] = segment[i];
    }
  }
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    for (const auto* uses : {&graph.operators[i].inputs, &graph.operators[i].backward_reads}) {
      for (const std::uint32_t t : *uses) can[t] = can[t] && made_in[t] == segment[i];
    }
  }
  return can;
}

GradientBytes gradient_bytes(const Graph& graph) {
  const std::size_t n = graph.operators.size();
  std::vector<std::size_t> maker(graph.tensors.size(), 0), last_taker(graph.tensors.size(), n);
  for (std::size_t i = 0; i < n; ++i) {
    for (const std::uint32_t t : graph.operators[i].inputs) last_taker[t] = i;
    for (const std::uint32_t t : graph.operators[i].outputs) maker[t] = i;
  }
  GradientBytes sums{std::vector<Bytes>(n + 1), std::vector<Bytes>(n + 2)};
  for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
    const GraphTensor& tensor = graph.tensors[t];
    const bool is_taken = last_taker[t] < n;
    if (tensor.is_given && !is_taken) continue;
    const std::size_t end = tensor.is_given || (is_taken && !tensor.is_result) ? last_taker[t] : n;
    sums.before[maker[t]] += tensor.gradient_bytes, sums.before[end] -= tensor.gradient_bytes;
    sums.during[maker[t]] += tensor.gradient_bytes, sums.during[end + 1] -= tensor.gradient_bytes;
  }
  std::partial_sum(sums.before.begin(), sums.before.end(), sums.before.begin());
  std::partial_sum(sums.during.begin(), sums.during.end(), sums.during.begin());
  return sums;
}

}  // namespace thimble::remat
