// Running the nodes of a segment again, from what was kept: each right before the first backward that needs what it
// makes, with those before it that it needs. Segments inside of one that is opened are closed anew.

#include <algorithm>
#include <string>
#include <utility>

#include <thimble/autograd/backward_scope.h>
#include <thimble/autograd/clock.h>
#include <thimble/autograd/tape.h>

namespace thimble {

std::uint32_t Tape::depth(std::int32_t index) const {
  std::uint32_t d = 0;
  for (index = segment(index).parent; index != none_segment; index = segment(index).parent) ++d;
  return d;
}

// Opens a segment and all around it.
void Tape::open(std::int32_t index) {
  if (segment(index).is_open) return;
  const std::int32_t parent = segment(index).parent;
  if (parent != none_segment) {
    open(parent);
    // What the closed segment needs of the one around it, and what it keeps.
    const Segment& s = segment(index);
    Rerun& around = reruns_[depth(parent)];
    for (const auto& [reader, value] : s.needed) {
      if (values_[value].producer <= static_cast<std::int32_t>(position_)) ask(value, reader, around);
    }
    for (std::uint32_t n = s.first_node; n < std::min(s.end_node, position_ + 1); ++n) {
      if (around.modes[n - around.first] == Mode::full) ask_node(n, around);
    }
    run_due(parent, around);
  } else if (!segment(index).is_settled) {
    settle(index);
  }
  const std::uint32_t d = depth(index);
  if (reruns_.size() <= d) reruns_.resize(d + 1);
  begin_rerun(index, reruns_[d]);
}

void Tape::begin_rerun(std::int32_t index, Rerun& rerun) {
  search(index, false, rerun);
  rerun.is_asked.assign(rerun.modes.size(), false);
  rerun.due.clear();
  for (const Source& source : segment(index).sources) {
    if (values_[source.value].mark == mark_) check_version(nodes_[source.reader], source.value);
  }
  for (std::size_t at = 0; at < rerun.modes.size(); ++at) {
    if (rerun.modes[at] == Mode::skip) continue;
    const Node& node = nodes_[rerun.first + at];
    for (std::uint32_t i = 0; i < node.inputs; ++i) {
      const std::uint32_t value = inputs_[node.first_input + i];
      if (value == none) continue;
      ++values_[value].rereads;
      if (values_[value].slot >= 0) hold_for_rereads(value, held(value));
    }
  }
  find_waits(index, rerun);
  segment(index).is_open = true;
  drop_sources(segment(index));
}

void Tape::hold_for_rereads(std::uint32_t value, const Tensor& t) {
  if (values_[value].is_held_for_rereads || values_[value].rereads == 0) return;
  values_[value].is_held_for_rereads = true;
  hold(value, t);
}

// Who waits for which value. What is there already is held at once.
void Tape::find_waits(std::int32_t index, Rerun& rerun) {
  rerun.waits.clear();
  const auto add = [&](const Rerun::Wait& wait) {
    if (wait.value == none) return;
    if (values_[wait.value].slot >= 0) return give(wait, Tensor(held(wait.value)));
    rerun.waits.push_back(wait);
  };
  const Segment& s = segment(index);
  for (std::uint32_t n = s.first_node; n < s.first_node + rerun.modes.size(); ++n) {
    const Node& node = nodes_[n];
    const std::int32_t child = child_towards(index, node.segment);
    if (child == none_segment && !node.is_dropped && node.needs.any()) {
      for (int k = 0; k < node.type->saved_tensors; ++k) {
        const std::uint32_t edge = node.first_saved + static_cast<std::uint32_t>(k);
        if (!saved_[edge].is_held) add({saved_[edge].value, n, edge, none_segment});
      }
    }
    if (child != none_segment && n == segment(child).first_node) {
      for (const auto& [reader, value] : segment(child).needed) add({value, reader, none, child});
    }
  }
  std::stable_sort(rerun.waits.begin(), rerun.waits.end(), [&](const Rerun::Wait& a, const Rerun::Wait& b) {
    return values_[a.value].producer < values_[b.value].producer;
  });
}

// Gives a value to the one who waits for it, unless backward is past that one.
void Tape::give(const Rerun::Wait& wait, const Tensor& t) {
  if (wait.segment != none_segment) {
    Segment& s = segment(wait.segment);
    if (s.first_node > position_ || s.is_open) return;
    hold(wait.value, t);
    s.sources.push_back({wait.reader, wait.value});
  } else if (wait.reader <= position_) {
    hold(wait.value, t);
    saved_[wait.edge] = {wait.value, true};
  }
}

// Has the node that makes a value run, if the value is not there.
void Tape::ask(std::uint32_t value, std::uint32_t reader, Rerun& rerun) {
  if (value == none || values_[value].slot >= 0) return;
  const std::int32_t producer = values_[value].producer;
  const std::int64_t at = std::int64_t{producer} - rerun.first;
  if (at < 0 || rerun.modes[static_cast<std::size_t>(at)] == Mode::skip) {
    throw AutogradError(std::string(nodes_[reader].type->name) +
                        ": running its segment again needs a tensor that was "
                        "neither kept nor can be made");
  }
  ask_node(static_cast<std::uint32_t>(producer), rerun);
}

void Tape::ask_node(std::uint32_t node, Rerun& rerun) {
  if (rerun.is_asked[node - rerun.first]) return;
  rerun.is_asked[node - rerun.first] = true;
  rerun.due.push_back(node);
}

// Runs the nodes that were asked for, and first those that they need.
void Tape::run_due(std::int32_t index, Rerun& rerun) {
  if (rerun.due.empty()) return;
  for (std::size_t next = 0; next < rerun.due.size(); ++next) {
    const std::uint32_t n = rerun.due[next];
    for (std::uint32_t i = 0; i < nodes_[n].inputs; ++i) ask(inputs_[nodes_[n].first_input + i], n, rerun);
  }
  std::sort(rerun.due.begin(), rerun.due.end());
  const tape_detail::BackwardScope scope(true);
  for (const std::uint32_t n : rerun.due) rerun_node(n, index, rerun);
  rerun.due.clear();
}

// All that the backward of a node reads.
void Tape::make_operands_of(std::uint32_t node) {
  const std::int32_t index = nodes_[node].segment;
  open(index);
  Rerun& rerun = reruns_[depth(index)];
  if (nodes_[node].is_dropped) ask_node(node, rerun);
  for (int k = 0; k < nodes_[node].type->saved_tensors && !nodes_[node].is_dropped; ++k) {
    const SavedEdge& edge = saved_[nodes_[node].first_saved + static_cast<std::uint32_t>(k)];
    if (!edge.is_held) ask(edge.value, node, rerun);
  }
  run_due(index, rerun);
}

void Tape::rerun_node(std::uint32_t index, std::int32_t around, Rerun& rerun) {
  std::vector<Tensor> in(nodes_[index].inputs);
  for (std::uint32_t i = 0; i < nodes_[index].inputs; ++i) {
    const std::uint32_t value = inputs_[nodes_[index].first_input + i];
    if (value == none) continue;
    check_version(nodes_[index], value);
    in[i] = bring_back(value);
  }
  drop_rereads(index);
  context().path = nodes_[index].path;
  const OpType& type = *nodes_[index].type;
  const auto saved = static_cast<std::size_t>(type.saved_tensors);
  std::array<Tensor, max_saved_tensors> kept;
  const double started = times_ ? tape_detail::now() : 0;
  Tensor output;
  if (std::exchange(rerun.modes[index - rerun.first], Mode::skip) == Mode::full) {
    output = type.recompute(nodes_[index].record, in, std::span(kept).first(saved), nodes_[index].needs);
    keep(nodes_[index], child_towards(around, nodes_[index].segment), in, std::span(kept).first(saved), output);
    nodes_[index].is_dropped = false;
  } else {
    bool is_at_hand = !nodes_[index].is_dropped;
    for (std::size_t k = 0; k < saved && is_at_hand; ++k) {
      const SavedEdge& edge = saved_[nodes_[index].first_saved + k];
      if (edge.value == none) continue;
      is_at_hand = edge.is_held;
      if (!is_at_hand) continue;
      check_version(nodes_[index], edge.value);
      kept[k] = bring_back(edge.value);
    }
    output = type.remake(nodes_[index].record, in, std::span(kept).first(is_at_hand ? saved : 0));
  }
  if (times_) times_->rerun[index] += tape_detail::now() - started;

  const std::uint32_t value = nodes_[index].output;
  hold_for_rereads(value, output);
  const auto first =
      std::lower_bound(rerun.waits.begin(), rerun.waits.end(), static_cast<std::int32_t>(index),
                       [&](const Rerun::Wait& wait, std::int32_t n) { return values_[wait.value].producer < n; });
  for (auto wait = first; wait != rerun.waits.end() && wait->value == value; ++wait) give(*wait, output);
}

// A node will not read its operands again any more.
void Tape::drop_rereads(std::uint32_t node) noexcept {
  for (std::uint32_t i = 0; i < nodes_[node].inputs; ++i) {
    const std::uint32_t value = inputs_[nodes_[node].first_input + i];
    if (value == none || --values_[value].rereads > 0) continue;
    if (std::exchange(values_[value].is_held_for_rereads, false)) release(value);
  }
}

// Backward is done with a node: no one asks for what it makes any more.
void Tape::pass(std::uint32_t node) noexcept {
  for (std::int32_t s = nodes_[node].segment; s != none_segment; s = segment(s).parent) {
    if (segment(s).is_open) {
      Rerun& rerun = reruns_[depth(s)];
      if (std::exchange(rerun.modes[node - rerun.first], Mode::skip) != Mode::skip) drop_rereads(node);
    } else if (segment(s).first_node == node) {
      drop_sources(segment(s));
    }
  }
}

}  // namespace thimble
