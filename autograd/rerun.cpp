// Running a closed segment again, in tape order, from what was kept. Segments inside of it are closed anew.

#include <algorithm>
#include <string>

#include <thimble/autograd/backward_scope.h>
#include <thimble/autograd/clock.h>
#include <thimble/autograd/tape.h>

namespace thimble {

// Opens a segment and all around it.
void Tape::open(std::int32_t index) {
  if (segment(index).is_open) return;
  if (segment(index).parent != none_segment) {
    open(segment(index).parent);
  } else if (!segment(index).is_settled) {
    settle(index);
  }
  restore(index);
}

void Tape::restore(std::int32_t index) {
  const tape_detail::BackwardScope scope(true);
  for (const Source& source : segment(index).sources) check_version(nodes_[source.reader], source.edge);
  Rerun& rerun = rerun_;
  search(index, false, rerun);
  const Segment& s = segment(index);
  const std::size_t count = s.end_node - s.first_node;

  // Who waits for which value. What is there already is held at once.
  rerun.waits.clear();
  const auto wants = [&](const Rerun::Wait& wait) {
    if (wait.value == none) return;
    if (values_[wait.value].slot >= 0) return give(wait, Tensor(held(wait.value)));
    rerun.waits.push_back(wait);
  };
  for (std::uint32_t n = s.first_node; n < s.end_node; ++n) {
    const Node& node = nodes_[n];
    const std::int32_t child = child_towards(index, node.segment);
    if (child == none_segment && !node.is_dropped && node.needs.any()) {
      for (int k = 0; k < node.type->saved_tensors; ++k) {
        const std::uint32_t edge = node.first_saved + static_cast<std::uint32_t>(k);
        if (!saved_[edge].is_held) wants({saved_[edge].value, n, edge, none_segment});
      }
    }
    if (child != none_segment && n == segment(child).first_node) {
      for (const auto& [reader, value] : segment(child).needed) wants({value, reader, none, child});
    }
  }
  std::stable_sort(rerun.waits.begin(), rerun.waits.end(), [&](const Rerun::Wait& a, const Rerun::Wait& b) {
    return values_[a.value].producer < values_[b.value].producer;
  });

  // How many nodes read each result that is made only for that.
  rerun.readers.assign(count, 0);
  rerun.made.assign(count, Tensor());
  for (std::uint32_t n = s.first_node; n < s.end_node; ++n) {
    if (rerun.modes[n - s.first_node] == Mode::skip) continue;
    for (std::uint32_t i = 0; i < nodes_[n].inputs; ++i) {
      const std::uint32_t value = inputs_[nodes_[n].first_input + i];
      if (value != none && values_[value].slot < 0) {
        ++rerun.readers[static_cast<std::uint32_t>(values_[value].producer) - s.first_node];
      }
    }
  }
  for (std::uint32_t n = s.first_node; n < s.end_node; ++n) {
    if (rerun.modes[n - s.first_node] != Mode::skip) rerun_node(n, index, rerun);
  }
  segment(index).is_open = true;
  drop_sources(segment(index));
}

// Gives a value to the one who waits for it.
void Tape::give(const Rerun::Wait& wait, const Tensor& t) {
  if (wait.segment != none_segment) {
    segment(wait.segment).sources.push_back({wait.reader, hold(wait.value, t)});
  } else {
    saved_[wait.edge] = hold(wait.value, t);
  }
}

void Tape::rerun_node(std::uint32_t index, std::int32_t around, Rerun& rerun) {
  const std::uint32_t at = index - rerun.first;
  std::vector<Tensor> in(nodes_[index].inputs);
  for (std::uint32_t i = 0; i < nodes_[index].inputs; ++i) {
    const std::uint32_t value = inputs_[nodes_[index].first_input + i];
    if (value == none) continue;
    const auto producer = static_cast<std::uint32_t>(values_[value].producer) - rerun.first;
    if (values_[value].producer >= static_cast<std::int32_t>(rerun.first) && rerun.readers[producer] > 0) {
      in[i] = rerun.made[producer];
      if (--rerun.readers[producer] == 0) rerun.made[producer] = Tensor();
    } else {
      in[i] = held(value);
    }
  }
  context().path = nodes_[index].path;
  const OpType& type = *nodes_[index].type;
  const auto saved = static_cast<std::size_t>(type.saved_tensors);
  std::array<Tensor, max_saved_tensors> kept;
  const double started = times_ ? tape_detail::now() : 0;
  Tensor output;
  if (rerun.modes[at] == Mode::full) {
    output = type.recompute(nodes_[index].record, in, std::span(kept).first(saved), nodes_[index].needs);
    keep(nodes_[index], child_towards(around, nodes_[index].segment), in, std::span(kept).first(saved), output);
    nodes_[index].is_dropped = false;
  } else {
    bool is_at_hand = !nodes_[index].is_dropped;
    for (std::size_t k = 0; k < saved && is_at_hand; ++k) {
      const SavedEdge& edge = saved_[nodes_[index].first_saved + k];
      if (edge.value == none) continue;
      is_at_hand = edge.is_held;
      if (is_at_hand) kept[k] = held(edge.value);
    }
    output = type.remake(nodes_[index].record, in, std::span(kept).first(is_at_hand ? saved : 0));
  }

  if (times_) times_->rerun[index] += tape_detail::now() - started;
  const std::uint32_t value = nodes_[index].output;
  const auto first =
      std::lower_bound(rerun.waits.begin(), rerun.waits.end(), static_cast<std::int32_t>(index),
                       [&](const Rerun::Wait& wait, std::int32_t n) { return values_[wait.value].producer < n; });
  for (auto wait = first; wait != rerun.waits.end() && wait->value == value; ++wait) {
    give(*wait, output);
  }
  if (rerun.readers[at] > 0) rerun.made[at] = std::move(output);
}

}  // namespace thimble
