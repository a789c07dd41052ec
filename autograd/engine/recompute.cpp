#include <thimble/autograd/engine/recompute.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include <thimble/autograd/engine/backward.h>
#include <thimble/autograd/engine/recorded.h>
#include <thimble/core/error.h>
#include <thimble/core/tensor/parameter_store.h>

namespace thimble::tape_detail {

void Recompute::provide(std::uint32_t node) {
  position_ = node;
  const std::int32_t index = recorded_.nodes[node].segment;
  open_segment(index);
  Open& opened = open_[segments_.depth(index)];
  if (recorded_.nodes[node].is_dropped) {
    ask_node(node, opened);
  } else {
    for (const SavedEdge& edge : recorded_.saved_of(recorded_.nodes[node])) {
      if (!edge.is_held) ask(edge.value, node, opened);
    }
  }
  run_due(index, opened);
}

// Opens a segment, after all segments around it.
void Recompute::open_segment(std::int32_t index) {
  if (segments_.at(index).is_open) return;
  const std::int32_t parent = segments_.at(index).parent;
  if (parent != none_segment) {
    open_segment(parent);
    // Run the parent's nodes for the values that the segment needs, and its nodes for the tensors that it keeps.
    const Segment& s = segments_.at(index);
    Open& around = open_[segments_.depth(parent)];
    for (const Source& source : s.needed) {
      if (recorded_.values[source.value].producer <= static_cast<std::int32_t>(position_)) {
        ask(source.value, source.reader, around);
      }
    }
    for (std::uint32_t n = s.first_node; n < std::min(s.end_node, position_ + 1); ++n) {
      if (around.mode(n) == Mode::full) ask_node(n, around);
    }
    run_due(parent, around);
  } else if (!segments_.at(index).is_settled) {
    segments_.settle(index);
  }
  const std::uint32_t d = segments_.depth(index);
  if (open_.size() <= d) open_.resize(d + 1);
  begin(index, open_[d]);
}

void Recompute::begin(std::int32_t index, Open& open) {
  Segment& s = segments_.at(index);
  segments_.search(index, std::min(s.end_node, position_ + 1), false, open);
  open.is_asked.assign(open.modes.size(), false);
  open.due.clear();
  for (const Source& source : s.sources) {
    if (recorded_.is_marked(source.value)) recorded_.require_unwritten(recorded_.nodes[source.reader], source.value);
  }
  for (std::size_t at = 0; at < open.modes.size(); ++at) {
    if (open.modes[at] == Mode::skip) continue;
    for (const std::uint32_t value : recorded_.inputs_of(recorded_.nodes[open.first + at])) {
      if (value == none) continue;
      ++recorded_.values[value].rereads;
      if (recorded_.is_held(value)) hold_for_rereads(value, recorded_.held(value));
    }
  }
  find_waits(index, open);
  s.is_open = true;
  segments_.release_sources(index);
}

void Recompute::hold_for_rereads(std::uint32_t value, const Tensor& t) {
  Value& v = recorded_.values[value];
  if (v.is_held_for_rereads || v.rereads == 0) return;
  v.is_held_for_rereads = true;
  recorded_.hold(value, t);
}

// Finds the values that readers wait for. Present values are held at once.
void Recompute::find_waits(std::int32_t index, Open& open) {
  open.waits.clear();
  const auto add = [&](const Wait& wait) {
    if (wait.value == none) return;
    if (recorded_.is_held(wait.value)) return give(wait, Tensor(recorded_.held(wait.value)));
    open.waits.push_back(wait);
  };
  const Segment& s = segments_.at(index);
  for (std::uint32_t n = s.first_node; n < s.first_node + open.modes.size(); ++n) {
    const Node& node = recorded_.nodes[n];
    const std::int32_t child = segments_.child_towards(index, node.segment);
    if (child == none_segment && !node.is_dropped && node.needs.any()) {
      for (int k = 0; k < node.type->saved_tensors; ++k) {
        const std::uint32_t edge = node.first_saved + static_cast<std::uint32_t>(k);
        if (!recorded_.saved[edge].is_held) add({recorded_.saved[edge].value, n, edge, none_segment});
      }
    }
    if (child != none_segment && n == segments_.at(child).first_node) {
      for (const Source& source : segments_.at(child).needed) add({source.value, source.reader, none, child});
    }
  }
  std::stable_sort(open.waits.begin(), open.waits.end(), [&](const Wait& a, const Wait& b) {
    return recorded_.values[a.value].producer < recorded_.values[b.value].producer;
  });
}

// Gives a value to its waiting reader, unless backward has passed it.
void Recompute::give(const Wait& wait, const Tensor& t) {
  if (wait.segment != none_segment) {
    Segment& s = segments_.at(wait.segment);
    if (s.first_node > position_ || s.is_open) return;
    recorded_.hold(wait.value, t);
    s.sources.push_back({wait.reader, wait.value});
  } else if (wait.reader <= position_) {
    recorded_.hold(wait.value, t);
    recorded_.saved[wait.edge] = {wait.value, true};
  }
}

// Schedules the node that makes a value, unless the value is present.
void Recompute::ask(std::uint32_t value, std::uint32_t reader, Open& open) {
  if (value == none || recorded_.is_held(value)) return;
  const std::int32_t producer = recorded_.values[value].producer;
  const std::int64_t at = std::int64_t{producer} - open.first;
  if (at < 0 || open.modes[static_cast<std::size_t>(at)] == Mode::skip) {
    throw AutogradError(std::string(recorded_.nodes[reader].type->name) +
                        ": recomputing its segment needs a tensor that was not kept and cannot be recomputed");
  }
  ask_node(static_cast<std::uint32_t>(producer), open);
}

void Recompute::ask_node(std::uint32_t node, Open& open) {
  if (open.is_asked[node - open.first]) return;
  open.is_asked[node - open.first] = true;
  open.due.push_back(node);
}

// Runs the scheduled nodes, after the nodes that they need.
void Recompute::run_due(std::int32_t index, Open& open) {
  if (open.due.empty()) return;
  for (std::size_t next = 0; next < open.due.size(); ++next) {
    const std::uint32_t n = open.due[next];
    for (const std::uint32_t value : recorded_.inputs_of(recorded_.nodes[n])) ask(value, n, open);
  }
  std::sort(open.due.begin(), open.due.end());
  const BackwardScope scope(true);
  for (const std::uint32_t n : open.due) run(n, index, open);
  open.due.clear();
}

void Recompute::run(std::uint32_t index, std::int32_t around, Open& open) {
  Node& node = recorded_.nodes[index];
  std::vector<Tensor> inputs(node.inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::uint32_t value = recorded_.inputs_of(node)[i];
    if (value == none) continue;
    recorded_.require_unwritten(node, value);
    inputs[i] = recorded_.read(value);
  }
  fetch_parameters(inputs);  // includes the parameters that run_output reads
  drop_rereads(index);
  context().path = node.path;
  const double started = recorded_.times ? now() : 0;
  Tensor output;
  if (std::exchange(open.mode(index), Mode::skip) == Mode::full) {
    std::array<Tensor, max_saved_tensors> saved;
    const auto kept = std::span(saved).first(static_cast<std::size_t>(node.type->saved_tensors));
    output = node.type->recompute(node.record, inputs, kept, node.needs);
    segments_.keep(node, segments_.child_towards(around, node.segment), inputs, kept, output);
    node.is_dropped = false;
  } else {
    output = run_output(node, inputs);
  }
  if (recorded_.times) recorded_.times->recompute[index] += now() - started;

  hold_for_rereads(node.output, output);
  const auto producer = [&](const Wait& wait) { return recorded_.values[wait.value].producer; };
  auto wait = std::lower_bound(open.waits.begin(), open.waits.end(), static_cast<std::int32_t>(index),
                               [&](const Wait& w, std::int32_t n) { return producer(w) < n; });
  for (; wait != open.waits.end() && wait->value == node.output; ++wait) give(*wait, output);
}

// Recomputes only a node's result: from its saved tensors if all are held and the operator can, else by forward.
Tensor Recompute::run_output(const Node& node, std::span<const Tensor> inputs) {
  std::array<Tensor, max_saved_tensors> saved;
  const std::span<const SavedEdge> edges = recorded_.saved_of(node);
  bool is_held = !node.is_dropped;
  for (std::size_t k = 0; k < edges.size() && is_held; ++k) {
    if (edges[k].value == none) continue;
    is_held = edges[k].is_held;
    if (!is_held) continue;
    recorded_.require_unwritten(node, edges[k].value);
    saved[k] = recorded_.read(edges[k].value);
  }
  return node.type->output_from_saved(node.record, inputs, std::span(saved).first(is_held ? edges.size() : 0));
}

// Ends a node's claim to reread its operands.
void Recompute::drop_rereads(std::uint32_t node) noexcept {
  for (const std::uint32_t value : recorded_.inputs_of(recorded_.nodes[node])) {
    if (value == none || --recorded_.values[value].rereads > 0) continue;
    if (std::exchange(recorded_.values[value].is_held_for_rereads, false)) recorded_.release(value);
  }
}

void Recompute::pass(std::uint32_t node) noexcept {
  for (std::int32_t s = recorded_.nodes[node].segment; s != none_segment; s = segments_.at(s).parent) {
    if (segments_.at(s).is_open) {
      Open& open = open_[segments_.depth(s)];
      if (std::exchange(open.mode(node), Mode::skip) != Mode::skip) drop_rereads(node);
    } else if (segments_.at(s).first_node == node) {
      segments_.release_sources(s);
    }
  }
}

void Recompute::release_leaf(std::uint32_t leaf, std::uint32_t node) noexcept {
  for (std::int32_t s = recorded_.nodes[node].segment; s != none_segment; s = segments_.at(s).parent) {
    const auto is_of_leaf = [&](const Source& source) {
      if (recorded_.values[source.value].leaf != static_cast<std::int32_t>(leaf)) return false;
      recorded_.release(source.value);
      return true;
    };
    std::vector<Source>& sources = segments_.at(s).sources;
    sources.erase(std::remove_if(sources.begin(), sources.end(), is_of_leaf), sources.end());
  }
}

}  // namespace thimble::tape_detail
