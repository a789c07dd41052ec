#include <thimble/autograd/tape.h>

#include <algorithm>
#include <string>
#include <utility>

#include <thimble/autograd/engine/backward.h>
#include <thimble/autograd/engine/observer.h>
#include <thimble/autograd/engine/operands.h>
#include <thimble/autograd/engine/recompute.h>
#include <thimble/autograd/engine/recorded.h>
#include <thimble/autograd/engine/spills.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>

namespace thimble {

void TapeTimes::keep_least(const TapeTimes& now) {
  if (forward.empty()) *this = now;
  for (const auto member : {&TapeTimes::forward, &TapeTimes::recompute, &TapeTimes::backward}) {
    for (std::size_t n = 0; n < now.forward.size(); ++n) {
      (this->*member)[n] = std::min((this->*member)[n], (now.*member)[n]);
    }
  }
}

Tape::Tape()
    : recorded_(std::make_unique<tape_detail::Recorded>()),
      segments_(std::make_unique<tape_detail::Segments>(*recorded_)),
      recompute_(std::make_unique<tape_detail::Recompute>(*recorded_, *segments_)) {}

Tape::~Tape() = default;

void Tape::clear() noexcept {
  recorded_->clear();
  segments_->clear();
}

void Tape::reset() noexcept {
  clear();
  segments_->follow(nullptr);
  recorded_->spills.reset();
  recorded_->trained = nullptr;
  recorded_->times = nullptr;
}

std::size_t Tape::node_count() const noexcept { return recorded_->nodes.size(); }

bool Tape::is_observing() const noexcept { return recorded_->observer != nullptr; }

void Tape::time(TapeTimes* times) noexcept { recorded_->times = times; }

bool Tape::records_all() const noexcept { return is_observing() || recorded_->times || segments_->may_recompute(); }

void Tape::begin_segment(FatePolicy policy) { segments_->begin(policy); }

void Tape::end_segment() noexcept { segments_->end(); }

void* Tape::allocate_record(std::size_t size, std::size_t alignment) {
  return recorded_->allocate_record(size, alignment);
}

ops::Needs Tape::needs(const OpType& type, std::span<const Tensor> inputs) {
  return tape_detail::needs_of(*recorded_, type, inputs);
}

bool Tape::next_keeps_saved(const OpType& type) {
  segments_->require_planned(type);
  if (recorded_->spills) recorded_->spills->before(static_cast<std::uint32_t>(recorded_->nodes.size()));
  if (recorded_->observer) recorded_->observer->note_program();
  if (recorded_->times) started_ = tape_detail::now();
  return segments_->keeps_next(type);
}

void Tape::push_node(const OpType& type, void* record, std::span<const Tensor> inputs, std::span<Tensor> kept,
                     Tensor& output, ops::Needs needs, tape::Origin origin) {
  tape_detail::Recorded& to = *recorded_;
  try {
    if (!output.defined()) throw AutogradError(std::string(type.name) + ": forward gave no tensor");
    tape_detail::check_operands(to, type, inputs, needs);  // the operator may have written its operands
    segments_->require_planned_size(type, inputs, output);
  } catch (...) {
    type.destroy(record);  // no node owns it yet
    throw;
  }
  const auto index = static_cast<std::uint32_t>(to.nodes.size());
  if (to.times) {
    to.times->forward.resize(index);  // drops an earlier recording's times
    to.times->recompute.assign(index + 1, 0);
    to.times->backward.assign(index + 1, 0);
    to.times->forward.push_back(tape_detail::now() - started_);
  }
  tape_detail::Node node{};
  node.type = &type;
  node.record = record;
  node.path = context().path;
  node.needs = needs;
  node.inputs = static_cast<std::uint16_t>(inputs.size());
  node.first_input = static_cast<std::uint32_t>(to.inputs.size());
  node.first_saved = static_cast<std::uint32_t>(to.saved.size());
  segments_->place(node);
  const bool notes_constants = is_observing() || node.segment != tape_detail::none_segment;
  for (const Tensor& t : inputs) to.inputs.push_back(tape_detail::value_of_operand(to, t, notes_constants));
  to.saved.resize(to.saved.size() + kept.size());
  node.output = to.add_value(output, static_cast<std::int32_t>(index));
  to.nodes.push_back(node);
  if (to.spills) to.spills->note(index, kept, output);
  if (to.observer) to.observer->add_node(type.multiply_adds(record, inputs, output));
  segments_->add(index, inputs, kept, output);
  if (output.leaf()) output = output.detach();
  output.set_tape_ref({to.id, node.output}, origin);
}

void Tape::backward(const Tensor& loss, Tensor seed, const LeafHook* on_gradient) {
  tape_detail::check_loss(*recorded_, loss);
  if (!seed.defined() && loss.elements() != 1) {
    throw ShapeError("backward: " + describe(loss) + " is not a scalar, so the gradient it starts from must be given");
  }
  if (seed.defined() && seed.shape() != loss.shape()) {
    throw ShapeError("backward: seed " + describe(seed) + " for loss " + describe(loss));
  }
  if (seed.defined() && (seed.dtype() != loss.dtype() || seed.device() != loss.device())) {
    throw DTypeError("backward: seed " + describe(seed) + "; expected dtype and device of loss " + describe(loss));
  }
  if (loss.leaf()) {  // the loss is a leaf: its gradient is the seed
    if (!seed.defined()) seed = full(loss.shape(), 1, loss.dtype(), loss.device());
    tape_detail::accumulate_leaf(loss.leaf(), std::move(seed));
    if (on_gradient) (*on_gradient)(loss.leaf());
    return clear();
  }
  try {
    segments_->require_planned_end();
    tape_detail::Backward(*recorded_, *recompute_).run(loss, std::move(seed), on_gradient);
  } catch (...) {
    clear();
    throw;
  }
  clear();
}

void Tape::require_empty(const char* operation) const {
  if (recorded_->nodes.empty() && !segments_->is_recording()) return;
  throw AutogradError(std::string(operation) + ": the tape has " + std::to_string(node_count()) +
                      " nodes and must be empty");
}

void Tape::follow(std::shared_ptr<const TapePlan> plan, std::shared_ptr<memory::Tier> tier) {
  require_empty("follow");
  if (plan) plan->validate();
  if (plan && plan->offloads() && !tier) throw PlanError("follow: the plan offloads tensors, and there is no tier");
  std::unique_ptr<tape_detail::Spills> spills;
  if (plan && !plan->spills.empty()) spills = std::make_unique<tape_detail::Spills>(*recorded_, *plan, std::move(tier));
  segments_->follow(std::move(plan));
  recorded_->spills = std::move(spills);
  clear();
}

void Tape::train(const LeafSet* leaves) {
  require_empty("train");
  recorded_->trained = leaves;
}

void Tape::observe(std::vector<std::size_t>* gradient_bytes) {
  require_empty("observe");
  recorded_->observer = std::make_unique<tape_detail::Observer>(*recorded_, gradient_bytes);
}

std::vector<KeptTensor> Tape::kept(std::size_t node) const {
  std::vector<KeptTensor> list;
  for (const tape_detail::SavedEdge& edge : recorded_->saved_of(recorded_->nodes.at(node))) {
    if (edge.value != tape_detail::none && edge.is_held) list.push_back(recorded_->kept_tensor(edge.value));
  }
  return list;
}

std::size_t Tape::kept_bytes(memory::Category category) const {
  std::vector<const memory::Storage*> seen;
  for (std::uint32_t v = 0; v < recorded_->values.size(); ++v) {
    if (!recorded_->is_held(v)) continue;
    const memory::Storage* const storage = recorded_->held(v).storage().get();
    if (storage && storage->category() == category) seen.push_back(storage);
  }
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  const bool has_spills = recorded_->spills && category == memory::Category::activation;
  std::size_t bytes = has_spills ? recorded_->spills->bytes_here() : 0;
  for (const memory::Storage* const storage : seen) bytes += storage->bytes();
  return bytes;
}

}  // namespace thimble
