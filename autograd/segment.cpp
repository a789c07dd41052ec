// Segments while they are recorded: what they keep, and what running them again will need.

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include <thimble/autograd/clock.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>

namespace thimble {

void Tape::begin_segment(Policy policy) {
  const auto node = static_cast<std::uint32_t>(nodes_.size());
  if (plan_ || is_observing_) return;
  segments_.push_back({node, node, innermost_, policy});
  innermost_ = static_cast<std::int32_t>(segments_.size() - 1);
}

void Tape::end_segment() noexcept {
  if (innermost_ == none_segment) return;
  const std::int32_t ended = innermost_;
  innermost_ = segment(ended).parent;
  if (innermost_ != none_segment) return;
  try {
    settle(ended);
  } catch (const std::bad_alloc&) {
    // It holds more than it needs, and backward settles it.
  }
}

std::int32_t Tape::segment_of_next() const {
  if (!plan_) return innermost_;
  return nodes_.size() < planned_segments_.size() ? planned_segments_[nodes_.size()] : none_segment;
}

Fate Tape::fate_of_next(const OpType& type) const {
  const std::int32_t s = segment_of_next();
  if (s == none_segment) return Fate::keep;
  return plan_ ? plan_->fates[nodes_.size()] : segment(s).policy(type);
}

bool Tape::is_next_kept(const OpType& type) const {
  const std::int32_t s = segment_of_next();
  return s == none_segment || (segment(s).parent == none_segment && keeps_saved(fate_of_next(type)));
}

bool Tape::next_keeps_saved(const OpType& type) {
  const std::size_t index = nodes_.size();
  if (plan_ && (index >= plan_->types.size() || plan_->types[index] != &type)) {
    throw PlanError("plan: node " + std::to_string(index) + " is " + type.name + " in '" +
                    std::string(path_name(context().path)) + "', the plan has " +
                    (index < plan_->types.size() ? plan_->types[index]->name : "no more nodes"));
  }
  store_before(static_cast<std::uint32_t>(index));
  if (is_observing_) observe_program();
  if (times_) started_ = tape_detail::now();
  return is_next_kept(type);
}

std::int32_t Tape::outermost(std::int32_t index) const {
  while (segment(index).parent != none_segment) index = segment(index).parent;
  return index;
}

// The segment directly inside of `around` that is `inner` or around it; none when `inner` is `around` itself.
std::int32_t Tape::child_towards(std::int32_t around, std::int32_t inner) const {
  std::int32_t child = none_segment;
  for (; inner != around; inner = segment(inner).parent) child = inner;
  return child;
}

// Whether a value is there while the segment is closed and all around it are open: it came from before it, or is kept.
bool Tape::is_kept_for(std::uint32_t value, std::int32_t closed) const {
  const std::int32_t producer = values_[value].producer;
  if (producer < static_cast<std::int32_t>(segment(closed).first_node)) return true;
  const Node& node = nodes_[static_cast<std::size_t>(producer)];
  return node.output == value && node.segment == closed && keeps_output(node.fate);
}

// Holds those operands of a new node that running the segment again may read.
void Tape::hold_sources(std::uint32_t node, std::int32_t closed, std::span<const Tensor> inputs) {
  Segment& s = segment(closed);
  if (s.sources.empty()) ++mark_;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::uint32_t value = inputs_[nodes_[node].first_input + i];
    if (value == none || values_[value].mark == mark_ || !is_kept_for(value, closed)) continue;
    values_[value].mark = mark_;
    hold(value, inputs[i]);
    s.sources.push_back({node, value});
  }
}

// An ended segment and those inside of it: finds what running each again needs, and releases the rest.
void Tape::settle(std::int32_t top) {
  std::int32_t end = static_cast<std::int32_t>(segments_.size());
  if (plan_) {
    end = top + 1;
    while (end < static_cast<std::int32_t>(segments_.size()) && segment(end).parent != none_segment) ++end;
  }
  for (std::int32_t i = end - 1; i >= top; --i) {
    search(i, true, ahead_);
    segment(i).needed = ahead_.sources;
  }
  Segment& s = segment(top);
  ++mark_;
  for (const auto& [reader, value] : s.needed) values_[value].mark = mark_;
  const auto unneeded = std::stable_partition(
      s.sources.begin(), s.sources.end(), [&](const Source& source) { return values_[source.value].mark == mark_; });
  for (auto source = unneeded; source != s.sources.end(); ++source) release(source->value);
  s.sources.erase(unneeded, s.sources.end());
  s.is_settled = true;
}

// Which nodes of a segment run when it is run again, with those inside of it closed anew, and what they read.
// `is_ahead` asks for the time when the segment is closed and all around it are open; otherwise it is about to be
// opened, for the nodes up to the one that backward is at.
void Tape::search(std::int32_t index, bool is_ahead, Rerun& rerun) {
  const Segment& s = segment(index);
  const std::uint32_t end = is_ahead ? s.end_node : std::min(s.end_node, position_ + 1);
  const std::size_t count = end - s.first_node;
  rerun.first = s.first_node;
  rerun.modes.assign(count, Mode::skip);
  rerun.is_needed.assign(count, 0);
  rerun.sources.clear();
  ++mark_;
  const auto require = [&](std::uint32_t value, std::uint32_t reader) {
    if (value == none || values_[value].mark == mark_) return;
    if (values_[value].producer >= static_cast<std::int32_t>(end)) return;  // backward is past all that read it
    values_[value].mark = mark_;
    const bool is_there = is_ahead ? is_kept_for(value, index) : values_[value].slot >= 0;
    if (is_there) {
      rerun.sources.emplace_back(reader, value);
    } else if (values_[value].producer < static_cast<std::int32_t>(s.first_node)) {
      throw AutogradError(std::string(nodes_[reader].type->name) +
                          ": running its segment again needs a tensor from before it "
                          "that was not kept");
    } else {
      rerun.is_needed[static_cast<std::uint32_t>(values_[value].producer) - s.first_node] = 1;
    }
  };
  std::int32_t child_before = none_segment;
  for (std::uint32_t n = end; n-- > s.first_node;) {
    const Node& node = nodes_[n];
    const std::int32_t child = child_towards(index, node.segment);
    const bool is_new_child = child != std::exchange(child_before, child);
    Mode& mode = rerun.modes[n - s.first_node];
    if (child == none_segment) {
      const bool will_keep = is_ahead && node.is_dropped && keeps_saved(node.fate);
      if (!node.needs.any()) {
        // nothing of its own
      } else if (will_keep) {
        // What it will have saved is not known yet: any of its operands, or its result.
        for (std::uint32_t i = 0; i < node.inputs; ++i) require(inputs_[node.first_input + i], n);
        if (!keeps_output(node.fate)) require(node.output, n);
      } else if (node.is_dropped) {
        mode = Mode::full;
      } else {
        for (int k = 0; k < node.type->saved_tensors; ++k) {
          const SavedEdge& edge = saved_[node.first_saved + static_cast<std::uint32_t>(k)];
          if (!edge.is_held) require(edge.value, n);
        }
      }
    } else {
      if (is_new_child) {
        for (const auto& [reader, value] : segment(child).needed) require(value, reader);
      }
      if (node.segment == child && node.needs.any() && keeps_saved(node.fate)) mode = Mode::full;
    }
    if (mode == Mode::skip && rerun.is_needed[n - s.first_node] != 0) mode = Mode::output;
    if (mode == Mode::skip) continue;
    for (std::uint32_t i = 0; i < node.inputs; ++i) require(inputs_[node.first_input + i], n);
  }
}

void Tape::drop_sources(Segment& segment) noexcept {
  for (const Source& source : segment.sources) release(source.value);
  segment.sources.clear();
}

}  // namespace thimble
