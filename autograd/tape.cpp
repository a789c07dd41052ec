// Recording and the life of saved tensors. Walking backward is in backward.cpp.

#include <thimble/autograd/clock.h>
#include <thimble/autograd/graph.h>
#include <thimble/autograd/stores.h>
#include <thimble/autograd/tape.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <unordered_map>

namespace thimble {
namespace tape_detail {

constexpr std::size_t page_bytes = 1 << 16;

std::uint32_t next_tape_id() noexcept {
  static std::atomic<std::uint32_t> counter{0};
  std::uint32_t id = 0;
  while (id == 0) id = ++counter;  // 0 means "on no tape"
  return id;
}

bool is_same_window(const Tensor& a, const Tensor& b) noexcept {
  return a.storage() == b.storage() && a.offset() == b.offset() && a.shape() == b.shape() && a.strides() == b.strides();
}

}  // namespace tape_detail

Tape::Tape() { renew_id(); }

Tape::~Tape() { clear(); }

void Tape::clear() noexcept {
  for (Value& value : values_) {
    if (value.holds > 0) {
      value.holds = 1;
      release(static_cast<std::uint32_t>(&value - values_.data()));
    }
  }
  if (stores_) stores_->reset();
  slots_.clear();  // gradients that were on their way
  for (Node& node : nodes_) node.type->destroy(node.record);
  nodes_.clear();
  values_.clear();
  inputs_.clear();
  saved_.clear();
  free_slots_.clear();
  leaves_.clear();
  segments_.clear();
  observed_.clear();
  observed_until_.clear();
  in_program_.clear();
  observed_work_.clear();
  innermost_ = none_segment;
  page_ = page_used_ = 0;
  if (plan_) {
    for (const TapePlan::Segment& s : plan_->segments) segments_.push_back({s.first, s.end, s.parent, drop_all});
  }
  renew_id();  // refs of the old recording are on no tape from now on
}

void Tape::renew_id() noexcept {
  const std::uint32_t before = std::exchange(id_, tape_detail::next_tape_id());
  if (id_ == before + 1) return;
  earlier_id_ = before;  // other tapes had those in between
  oldest_id_ = id_;
}

bool Tape::was_here(TapeRef ref) const noexcept {
  return (oldest_id_ <= ref.tape && ref.tape < id_) || ref.tape == earlier_id_;
}

void* Tape::allocate_record(std::size_t size, std::size_t alignment) {
  if (size > tape_detail::page_bytes || alignment > alignof(std::max_align_t)) {
    throw AutogradError("tape: an operator's record of " + std::to_string(size) + " bytes is too large");
  }
  page_used_ = (page_used_ + alignment - 1) / alignment * alignment;
  if (page_ < pages_.size() && page_used_ + size > tape_detail::page_bytes) {
    ++page_;
    page_used_ = 0;
  }
  if (page_ == pages_.size()) pages_.push_back(std::make_unique<std::byte[]>(tape_detail::page_bytes));
  void* const at = pages_[page_].get() + page_used_;
  page_used_ += size;
  return at;
}

std::uint32_t Tape::new_value(const Tensor& t, std::int32_t producer) {
  Value value;
  value.producer = producer;
  value.version = t.storage() ? t.storage()->version() : 0;
  value.elements = t.elements();
  values_.push_back(value);
  const auto index = static_cast<std::uint32_t>(values_.size() - 1);
  if (is_observing_) {
    observed_.push_back(t.detach());
    observed_until_.push_back(TapeGraph::none);
    if (t.storage()) in_program_.push_back(index);
  }
  return index;
}

// Those values that the program may have held, and whose bytes nobody but the tape holds now.
std::vector<std::uint32_t> Tape::left_by_program() const {
  std::unordered_map<const Storage*, long> holds;
  for (const std::uint32_t v : in_program_) holds[observed_[v].storage().get()] += values_[v].slot >= 0 ? 2 : 1;
  std::vector<std::uint32_t> left;
  for (const std::uint32_t v : in_program_) {
    const std::shared_ptr<Storage>& storage = observed_[v].storage();
    if (storage.use_count() == holds.at(storage.get())) left.push_back(v);
  }
  return left;
}

// Notes them before the next node runs.
void Tape::observe_program() {
  const std::vector<std::uint32_t> left = left_by_program();
  for (const std::uint32_t v : left) observed_until_[v] = static_cast<std::uint32_t>(nodes_.size()) - 1;
  const auto is_left = [&](std::uint32_t v) { return std::binary_search(left.begin(), left.end(), v); };
  in_program_.erase(std::remove_if(in_program_.begin(), in_program_.end(), is_left), in_program_.end());
}

/// Throws PlanError where the plan's node has operands or a result of other sizes than the next one.
void Tape::require_planned_size(const OpType& type, std::span<const Tensor> inputs, const Tensor& output) const {
  const std::size_t index = nodes_.size();
  const TapePlan::Size& planned = plan_->sizes[index];
  SizeDigest operands;
  for (const Tensor& t : inputs) t.defined() ? operands.add(t.shape(), t.dtype()) : operands.add_absent();
  const bool is_result = planned.result == output.shape() && planned.dtype == output.dtype();
  if (is_result && planned.operands == operands.value()) return;
  std::string text = "plan: node " + std::to_string(index) + ", " + type.name + " in '" +
                     std::string(path_name(context().path)) + "', makes " + describe(output) + " of";
  for (const Tensor& t : inputs) text += (&t == inputs.data() ? " " : ", ") + (t.defined() ? describe(t) : "nothing");
  text += is_result ? "; the plan has operands of other sizes"
                    : "; the plan has " + std::string(to_string(planned.dtype)) + " " + to_string(planned.result);
  throw PlanError(text);
}

void Tape::push_node(const OpType& type, void* record, std::span<const Tensor> inputs, std::span<Tensor> kept,
                     Tensor& output, Needs needs, Origin origin) {
  try {
    check_operands(type, inputs, needs);  // which the operator may have written itself
    if (plan_ && !plan_->sizes.empty()) require_planned_size(type, inputs, output);
  } catch (...) {
    type.destroy(record);  // no node has it yet
    throw;
  }
  const auto index = static_cast<std::uint32_t>(nodes_.size());
  if (times_) {
    times_->forward.resize(index);  // those of an earlier recording go
    times_->rerun.assign(index + 1, 0);
    times_->backward.assign(index + 1, 0);
    times_->forward.push_back(tape_detail::now() - started_);
  }
  Node node{};
  node.type = &type;
  node.record = record;
  node.path = context().path;
  node.needs = needs;
  node.inputs = static_cast<std::uint16_t>(inputs.size());
  node.first_input = static_cast<std::uint32_t>(inputs_.size());
  node.first_saved = static_cast<std::uint32_t>(saved_.size());
  node.segment = segment_of_next();
  node.fate = fate_of_next(type);
  node.is_dropped = !is_next_kept(type);
  const std::int32_t closed = node.segment == none_segment ? none_segment : outermost(node.segment);
  for (const Tensor& t : inputs) inputs_.push_back(input_value(t));
  saved_.resize(saved_.size() + kept.size());
  node.output = new_value(output, static_cast<std::int32_t>(index));
  nodes_.push_back(node);
  if (stores_) note_stored(index, kept, output);
  if (!node.is_dropped) keep(nodes_.back(), closed, inputs, kept, output);
  if (is_observing_) observed_work_.push_back(type.multiply_adds(record, inputs, output));
  if (closed != none_segment) {
    if (!plan_) {
      for (std::int32_t s = innermost_; s != none_segment; s = segment(s).parent) segment(s).end_node = index + 1;
    }
    hold_sources(index, closed, inputs);
    if (plan_ && segment(closed).end_node == index + 1) settle(closed);
  }
  if (output.leaf()) output = output.detach();
  output.set_tape_ref({id_, node.output}, origin);
}

// Holds what the operator saved: operands and the result by reference, anything else as a value of its own. Of a node
// in the segment `closed`, only what that one keeps.
void Tape::keep(Node& node, std::int32_t closed, std::span<const Tensor> inputs, std::span<Tensor> kept,
                const Tensor& output) {
  const auto producer = values_[node.output].producer;
  for (std::size_t k = 0; k < kept.size(); ++k) {
    if (!kept[k].defined()) continue;
    const Tensor t = std::exchange(kept[k], Tensor());
    std::uint32_t value = none;
    if (tape_detail::is_same_window(t, output)) value = node.output;
    for (std::size_t i = 0; i < inputs.size() && value == none; ++i) {
      if (inputs[i].defined() && tape_detail::is_same_window(t, inputs[i])) value = inputs_[node.first_input + i];
    }
    const bool is_extra = value == none;
    if (is_extra) value = new_value(t, producer);
    SavedEdge& edge = saved_[node.first_saved + k];
    if (is_extra || closed == none_segment || is_kept_for(value, closed)) {
      hold(value, t);
      edge = {value, true};
    } else {
      edge = {value, false};
    }
  }
}

std::int32_t Tape::take_slot(Tensor t) {
  if (free_slots_.empty()) {
    slots_.push_back(std::move(t));
    return static_cast<std::int32_t>(slots_.size() - 1);
  }
  const std::int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[static_cast<std::size_t>(slot)] = std::move(t);
  return slot;
}

Tensor Tape::free_slot(std::int32_t& slot) noexcept {
  Tensor t = std::exchange(slots_[static_cast<std::size_t>(slot)], Tensor());
  free_slots_.push_back(slot);
  slot = -1;
  return t;
}

void Tape::hold(std::uint32_t value, const Tensor& t) {
  Value& v = values_[value];
  if (v.holds++ > 0) return;
  v.slot = take_slot(t.detach());
  v.version = t.storage() ? t.storage()->version() : 0;  // another storage than before when it was made again
  if (t.storage()) t.storage()->hold_for_backward();
}

void Tape::release(std::uint32_t value) noexcept {
  Value& v = values_[value];
  if (--v.holds > 0) return;
  if (v.store >= 0) forget_stored(value);
  const Tensor t = free_slot(v.slot);
  if (t.storage()) t.storage()->release_from_backward();
}

void Tape::require_empty(const char* operation) const {
  if (nodes_.empty() && innermost_ == none_segment) return;
  throw AutogradError(std::string(operation) + ": the tape has " + std::to_string(nodes_.size()) +
                      " nodes and must be empty");
}

void Tape::follow(std::shared_ptr<const TapePlan> plan, std::shared_ptr<Tier> tier) {
  require_empty("follow");
  if (plan) plan->validate();
  if (plan && plan->offloads() && !tier) throw PlanError("follow: the plan offloads tensors, and there is no tier");
  std::unique_ptr<Stores> stores;
  if (plan && !plan->stores.empty()) stores = std::make_unique<Stores>(*plan, std::move(tier));
  planned_segments_ = plan ? plan->innermost() : std::vector<std::int32_t>();
  stores_ = std::move(stores);
  plan_ = std::move(plan);
  if (plan_) segments_.reserve(plan_->segments.size());
  clear();
}

void Tape::reset() noexcept {
  clear();
  segments_.clear();  // the plan's
  planned_segments_.clear();
  stores_.reset();
  plan_.reset();
  trained_ = nullptr;
  times_ = nullptr;
}

void Tape::train(const LeafSet* leaves) {
  require_empty("train");
  trained_ = leaves;
}

void Tape::observe() {
  require_empty("observe");
  is_observing_ = true;
}

std::vector<KeptTensor> Tape::kept(std::size_t node) const {
  std::vector<KeptTensor> list;
  const Node& n = nodes_.at(node);
  for (int k = 0; k < n.type->saved_tensors; ++k) {
    const SavedEdge& edge = saved_[n.first_saved + static_cast<std::uint32_t>(k)];
    if (edge.value != none && edge.is_held) list.push_back(kept_tensor(edge.value));
  }
  return list;
}

std::size_t Tape::kept_bytes(Category category) const {
  std::vector<const Storage*> seen;
  for (const Value& value : values_) {
    if (value.slot < 0) continue;
    const Storage* storage = slots_[static_cast<std::size_t>(value.slot)].storage().get();
    if (storage && storage->category() == category) seen.push_back(storage);
  }
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  std::size_t bytes = category == Category::activation ? stored_bytes_here() : 0;
  for (const Storage* storage : seen) bytes += storage->bytes();
  return bytes;
}

}  // namespace thimble
