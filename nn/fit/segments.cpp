#include <thimble/nn/fit/segments.h>

#include <algorithm>

#include <thimble/autograd/node.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/units.h>

namespace thimble::nn {

std::vector<PlannedSegment> planned_segments(const Plan& plan, const TapeGraph& graph) {
  std::vector<PlannedSegment> list;
  if (!plan.tape) return list;
  const std::vector<std::int32_t> innermost = plan.tape->innermost();
  for (std::size_t s = 0; s < plan.tape->segments.size(); ++s) {
    const TapePlan::Segment& segment = plan.tape->segments[s];
    PlannedSegment planned;
    planned.first = segment.first, planned.end = segment.end;
    for (std::int32_t p = segment.parent; p != TapePlan::none;
         p = plan.tape->segments[static_cast<std::size_t>(p)].parent) {
      ++planned.depth;
    }
    planned.path = path_name(graph.nodes[segment.first].path);
    for (std::uint32_t n = segment.first; n < segment.end; ++n) {
      if (innermost[n] != static_cast<std::int32_t>(s)) continue;
      const TapeGraph::Node& node = graph.nodes[n];
      const Fate fate = plan.tape->fates[n];
      const bool is_view = node.type->cost == ops::Cost::view;
      if (keeps_output(fate) && !is_view) planned.kept_bytes += graph.bytes_of(node.output);
      if (!keeps_output(fate)) ++planned.dropped;
      if (!keeps_saved(fate)) continue;
      for (const std::uint32_t value : node.saved) {
        const bool is_operand = std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end();
        if (!is_operand && value != node.output) planned.kept_bytes += graph.bytes_of(value);
      }
    }
    list.push_back(std::move(planned));
  }
  return list;
}

std::string to_table(const std::vector<PlannedSegment>& segments) {
  std::string table;
  const auto gap = [](const std::string& text, std::size_t width) {
    return std::string(width - std::min(width, text.size()), ' ');
  };
  const auto add_row = [&](const std::string& nodes, const std::string& path, const std::string& kept,
                           const std::string& dropped) {
    table +=
        "  " + nodes + gap(nodes, 9) + " " + path + gap(path, 44) + " " + gap(kept, 16) + kept + "  " + dropped + "\n";
  };
  if (!segments.empty()) add_row("nodes", "from", "kept bytes", "dropped");
  for (const PlannedSegment& s : segments) {
    add_row(std::to_string(s.first) + "-" + std::to_string(s.end - 1),
            std::string(static_cast<std::size_t>(2 * s.depth), ' ') + s.path, format_grouped(s.kept_bytes),
            std::to_string(s.dropped) + " of " + std::to_string(s.end - s.first) + " nodes");
  }
  return table;
}

}  // namespace thimble::nn
