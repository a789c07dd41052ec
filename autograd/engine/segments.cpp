#include <thimble/autograd/engine/segments.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include <thimble/core/error.h>

namespace thimble::tape_detail {

bool is_same_window(const Tensor& a, const Tensor& b) noexcept {
  return a.storage() == b.storage() && a.offset() == b.offset() && a.shape() == b.shape() && a.strides() == b.strides();
}

void Segments::follow(std::shared_ptr<const TapePlan> plan) {
  planned_ = plan ? plan->innermost() : std::vector<std::int32_t>();
  plan_ = std::move(plan);
  if (plan_) segments_.reserve(plan_->segments.size());  // clear() must not allocate
  clear();
}

void Segments::clear() noexcept {
  segments_.clear();
  innermost_ = none_segment;
  if (!plan_) return;
  for (const TapePlan::Segment& s : plan_->segments) segments_.push_back({s.first, s.end, s.parent, drop_all});
}

void Segments::begin(FatePolicy policy) {
  if (plan_ || recorded_.observer) return;
  const auto node = static_cast<std::uint32_t>(recorded_.nodes.size());
  segments_.push_back({node, node, innermost_, policy});
  innermost_ = static_cast<std::int32_t>(segments_.size() - 1);
}

void Segments::end() noexcept {
  if (innermost_ == none_segment) return;
  const std::int32_t ended = innermost_;
  innermost_ = at(ended).parent;
  if (innermost_ != none_segment) return;
  try {
    settle(ended);
  } catch (const std::exception&) {
    // It holds more than it needs; backward settles it again and reports the error.
  }
}

std::int32_t Segments::segment_of_next() const {
  if (!plan_) return innermost_;
  return recorded_.nodes.size() < planned_.size() ? planned_[recorded_.nodes.size()] : none_segment;
}

Fate Segments::fate_of_next(const OpType& type) const {
  const std::int32_t s = segment_of_next();
  if (s == none_segment) return Fate::keep;
  return plan_ ? plan_->fates[recorded_.nodes.size()] : at(s).policy(type);
}

bool Segments::keeps_next(const OpType& type) const {
  const std::int32_t s = segment_of_next();
  return s == none_segment || (at(s).parent == none_segment && keeps_saved(fate_of_next(type)));
}

void Segments::place(Node& node) const {
  node.segment = segment_of_next();
  node.fate = fate_of_next(*node.type);
  node.is_dropped = !keeps_next(*node.type);
}

void Segments::add(std::uint32_t node, std::span<const Tensor> inputs, std::span<Tensor> kept, const Tensor& output) {
  const Node& added = recorded_.nodes[node];
  const std::int32_t closed = added.segment == none_segment ? none_segment : outermost(added.segment);
  if (!added.is_dropped) keep(added, closed, inputs, kept, output);
  if (closed == none_segment) return;
  if (!plan_) {
    for (std::int32_t s = innermost_; s != none_segment; s = at(s).parent) at(s).end_node = node + 1;
  }
  hold_sources(node, closed, inputs);
  if (plan_ && at(closed).end_node == node + 1) settle(closed);
}

void Segments::require_planned(const OpType& next) const {
  const std::size_t index = recorded_.nodes.size();
  if (!plan_ || (index < plan_->types.size() && plan_->types[index] == &next)) return;
  throw PlanError("plan: node " + std::to_string(index) + " is " + next.name + " in '" +
                  std::string(path_name(context().path)) + "', the plan has " +
                  (index < plan_->types.size() ? plan_->types[index]->name : "no more nodes"));
}

void Segments::require_planned_size(const OpType& next, std::span<const Tensor> inputs, const Tensor& output) const {
  if (!plan_ || plan_->sizes.empty()) return;
  const std::size_t index = recorded_.nodes.size();
  const TapePlan::Size& planned = plan_->sizes[index];
  SizeDigest operands;
  for (const Tensor& t : inputs) t.defined() ? operands.add(t.shape(), t.dtype()) : operands.add_absent();
  const bool is_result = planned.result == output.shape() && planned.dtype == output.dtype();
  if (is_result && planned.operands == operands.value()) return;
  std::string text = "plan: node " + std::to_string(index) + ", " + next.name + " in '" +
                     std::string(path_name(context().path)) + "', makes " + describe(output) + " of";
  for (const Tensor& t : inputs) text += (&t == inputs.data() ? " " : ", ") + (t.defined() ? describe(t) : "nothing");
  text += is_result ? "; the plan has operands of other sizes"
                    : "; the plan has " + std::string(to_string(planned.dtype)) + " " + to_string(planned.result);
  throw PlanError(text);
}

void Segments::require_planned_end() const {
  if (!plan_ || recorded_.nodes.size() == plan_->types.size()) return;
  throw PlanError("backward: the tape has " + std::to_string(recorded_.nodes.size()) + " nodes, the plan it follows " +
                  std::to_string(plan_->types.size()));
}

std::int32_t Segments::outermost(std::int32_t index) const {
  while (at(index).parent != none_segment) index = at(index).parent;
  return index;
}

std::int32_t Segments::child_towards(std::int32_t around, std::int32_t inner) const {
  std::int32_t child = none_segment;
  for (; inner != around; inner = at(inner).parent) child = inner;
  return child;
}

std::uint32_t Segments::depth(std::int32_t index) const {
  std::uint32_t d = 0;
  for (index = at(index).parent; index != none_segment; index = at(index).parent) ++d;
  return d;
}

void Segments::keep(const Node& node, std::int32_t closed, std::span<const Tensor> inputs, std::span<Tensor> kept,
                    const Tensor& output) {
  const std::int32_t producer = recorded_.values[node.output].producer;
  const std::span<SavedEdge> edges = recorded_.saved_of(node);
  const std::span<const std::uint32_t> operands = recorded_.inputs_of(node);
  for (std::size_t k = 0; k < kept.size(); ++k) {
    if (!kept[k].defined()) continue;
    const Tensor t = std::exchange(kept[k], Tensor());
    std::uint32_t value = none;
    if (is_same_window(t, output)) value = node.output;
    for (std::size_t i = 0; i < inputs.size() && value == none; ++i) {
      if (inputs[i].defined() && is_same_window(t, inputs[i])) value = operands[i];
    }
    const bool is_extra = value == none;
    if (is_extra) value = recorded_.add_value(t, producer);
    const bool is_held = is_extra || closed == none_segment || is_kept_for(value, closed);
    if (is_held) recorded_.hold(value, t);
    edges[k] = {value, is_held};
  }
}

// Whether a value is available while the segment is closed and all around it are open: made before the segment, or kept
// by it.
bool Segments::is_kept_for(std::uint32_t value, std::int32_t closed) const {
  const std::int32_t producer = recorded_.values[value].producer;
  if (producer < static_cast<std::int32_t>(at(closed).first_node)) return true;
  const Node& node = recorded_.nodes[static_cast<std::size_t>(producer)];
  return node.output == value && node.segment == closed && keeps_output(node.fate);
}

// Holds the operands of a new node that recomputing the segment may read.
void Segments::hold_sources(std::uint32_t node, std::int32_t closed, std::span<const Tensor> inputs) {
  Segment& s = at(closed);
  if (s.sources.empty()) recorded_.unmark_all();
  const std::span<const std::uint32_t> operands = recorded_.inputs_of(recorded_.nodes[node]);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::uint32_t value = operands[i];
    if (value == none || recorded_.is_marked(value) || !is_kept_for(value, closed)) continue;
    recorded_.mark(value);
    recorded_.hold(value, inputs[i]);
    s.sources.push_back({node, value});
  }
}

void Segments::settle(std::int32_t top) {
  std::int32_t end = static_cast<std::int32_t>(segments_.size());
  if (plan_) {
    end = top + 1;
    while (end < static_cast<std::int32_t>(segments_.size()) && at(end).parent != none_segment) ++end;
  }
  for (std::int32_t i = end - 1; i >= top; --i) {
    search(i, at(i).end_node, true, ahead_);
    at(i).needed = ahead_.sources;
  }
  Segment& s = at(top);
  recorded_.unmark_all();
  for (const Source& source : s.needed) recorded_.mark(source.value);
  const auto unneeded = std::stable_partition(s.sources.begin(), s.sources.end(),
                                              [&](const Source& source) { return recorded_.is_marked(source.value); });
  for (auto source = unneeded; source != s.sources.end(); ++source) recorded_.release(source->value);
  s.sources.erase(unneeded, s.sources.end());
  s.is_settled = true;
}

void Segments::search(std::int32_t index, std::uint32_t end, bool is_ahead, Needed& needed) {
  const Segment& s = at(index);
  const std::size_t count = end - s.first_node;
  needed.first = s.first_node;
  needed.modes.assign(count, Mode::skip);
  needed.is_output.assign(count, 0);
  needed.sources.clear();
  recorded_.unmark_all();
  const auto require = [&](std::uint32_t value, std::uint32_t reader) {
    if (value == none || recorded_.is_marked(value)) return;
    const std::int32_t producer = recorded_.values[value].producer;
    if (producer >= static_cast<std::int32_t>(end)) return;  // backward has passed all its readers
    recorded_.mark(value);
    const bool is_there = is_ahead ? is_kept_for(value, index) : recorded_.is_held(value);
    if (is_there) {
      needed.sources.push_back({reader, value});
    } else if (producer < static_cast<std::int32_t>(s.first_node)) {
      throw AutogradError(std::string(recorded_.nodes[reader].type->name) +
                          ": recomputing its segment needs a tensor from before it that was not kept");
    } else {
      needed.is_output[static_cast<std::uint32_t>(producer) - s.first_node] = 1;
    }
  };
  const auto require_operands = [&](const Node& node, std::uint32_t n) {
    for (const std::uint32_t value : recorded_.inputs_of(node)) require(value, n);
  };
  std::int32_t child_before = none_segment;
  for (std::uint32_t n = end; n-- > s.first_node;) {
    const Node& node = recorded_.nodes[n];
    const std::int32_t child = child_towards(index, node.segment);
    const bool is_new_child = child != std::exchange(child_before, child);
    Mode& mode = needed.modes[n - s.first_node];
    if (child == none_segment) {
      const bool will_keep = is_ahead && node.is_dropped && keeps_saved(node.fate);
      if (!node.needs.any()) {
        // it saves nothing
      } else if (will_keep) {
        // Its future saved tensors are unknown: they may be any of its operands, or its result.
        require_operands(node, n);
        if (!keeps_output(node.fate)) require(node.output, n);
      } else if (node.is_dropped) {
        mode = Mode::full;
      } else {
        for (const SavedEdge& edge : recorded_.saved_of(node)) {
          if (!edge.is_held) require(edge.value, n);
        }
      }
    } else {
      if (is_new_child) {
        for (const Source& source : at(child).needed) require(source.value, source.reader);
      }
      if (node.segment == child && node.needs.any() && keeps_saved(node.fate)) mode = Mode::full;
    }
    if (mode == Mode::skip && needed.is_output[n - s.first_node] != 0) mode = Mode::output;
    if (mode != Mode::skip) require_operands(node, n);
  }
}

void Segments::release_sources(std::int32_t index) noexcept {
  std::vector<Source>& sources = at(index).sources;
  for (const Source& source : sources) recorded_.release(source.value);
  sources.clear();
}

}  // namespace thimble::tape_detail
