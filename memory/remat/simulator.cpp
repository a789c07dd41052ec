#include <algorithm>

#include <thimble/memory/remat/schedule.h>

namespace thimble::remat {

Simulator::Simulator(const Chain& chain) : chain_(&chain), next_backward_(chain.size()) {
  validate(chain);
  if (!chain.shared.empty()) {
    throw ValueError("remat simulate: expected a chain without shared tensors, got " +
                     std::to_string(chain.shared.size()) + ": run its plan dry (nn/fit/plan_search.h)");
  }
  has_activation_.assign(chain.size() + 1, 0);
  has_activation_[0] = 1;
  begin_.assign(chain.size(), -1);
  option_.assign(chain.size(), 0);
  held_bytes_ = chain.input_bytes;
  cost_.peak_bytes = held_bytes_;
  cost_.forward_counts.assign(chain.size(), 0);
}

void Simulator::refuse(const Operation& operation, const std::string& why) {
  throw PlanError("remat simulate: " + to_string(operation) + ": " + why);
}

void Simulator::reach(Phase phase, Bytes extra_bytes) {
  const Bytes bytes = held_bytes_ + extra_bytes;
  Bytes& peak = cost_.phase_peak_bytes[static_cast<std::size_t>(phase)];
  peak = std::max(peak, bytes);
  if (bytes > cost_.peak_bytes) {
    cost_.peak_bytes = bytes;
    cost_.peak_operation = operation_count_;
  }
}

void Simulator::release_activation(std::size_t i) {
  if (has_activation_[i] == 0) return;
  has_activation_[i] = 0;
  held_bytes_ -= chain_->activation_bytes(i);
}

void Simulator::apply(const Operation& operation) {
  const std::size_t limit = chain_->size() + (operation.kind == Operation::Kind::drop ? 1 : 0);
  if (operation.stage >= limit) refuse(operation, "the chain has " + std::to_string(chain_->size()) + " stages");
  if (operation.kind == Operation::Kind::drop) {
    drop(operation.stage);
  } else if (operation.kind == Operation::Kind::backward) {
    backward(operation);
  } else {
    forward(operation);
  }
  ++operation_count_;
}

// The recording that begins with stage i, or null.
const Option* Simulator::recorded_at(std::size_t i) const {
  if (i >= chain_->size() || begin_[i] != static_cast<std::int32_t>(i)) return nullptr;
  return &chain_->stages[i].options[option_[i]];
}

// The recording that ends with stage i - 1, or null.
const Option* Simulator::recorded_up_to(std::size_t i) const {
  if (i == 0 || begin_[i - 1] < 0) return nullptr;
  const auto begin = static_cast<std::size_t>(begin_[i - 1]);
  return chain_->end_of(begin, option_[begin]) == i ? recorded_at(begin) : nullptr;
}

// Whether the backward of the recording that ends at a_i reads a_i.
bool Simulator::is_pinned(std::size_t i) const {
  const Option* const maker = recorded_up_to(i);
  return maker != nullptr && maker->keeps_output;
}

void Simulator::forward(const Operation& operation) {
  const std::size_t i = operation.stage;
  const Stage& stage = chain_->stages[i];
  const bool is_record = operation.kind == Operation::Kind::record;
  if (is_record && operation.option >= stage.options.size()) {
    refuse(operation, "the stage has " + std::to_string(stage.options.size()) + " options");
  }
  const Option* option = is_record ? &stage.options[operation.option] : nullptr;
  const std::size_t end = option != nullptr ? i + option->span : i + 1;
  if (has_activation_[i] == 0) refuse(operation, "its input is not held");
  if (has_activation_[end] != 0) refuse(operation, "its output is held already");
  if (end > next_backward_) refuse(operation, "its backward has run already");
  for (std::size_t k = i; is_record && k < end; ++k) {
    if (begin_[k] >= 0) refuse(operation, "it is recorded already");
  }
  if (option != nullptr && option->is_first_visit_only && next_backward_ != chain_->size()) {
    refuse(operation, "the option is for the first visit alone");
  }
  const Option* const reader = recorded_at(i);
  const bool is_input_needed = is_pinned(i) || (reader != nullptr && reader->keeps_input);
  if (operation.kind == Operation::Kind::pass && is_input_needed) {
    refuse(operation, "a backward still reads the input that it drops");
  }

  const Phase phase = next_backward_ == chain_->size() ? Phase::forward : Phase::rerun;
  const Time time = option != nullptr ? option->forward_time : stage.forward_time;
  const Bytes made = chain_->activation_bytes(end) + (option != nullptr ? option->kept_bytes : 0);
  reach(phase, made + (option != nullptr ? option->forward_peak_bytes : stage.forward_peak_bytes));

  cost_.time += time;
  if (phase == Phase::rerun) cost_.extra_time += time;
  for (std::size_t k = i; k < end; ++k) {
    ++cost_.forward_counts[k];
    if (is_record) begin_[k] = static_cast<std::int32_t>(i);
  }
  held_bytes_ += made;
  has_activation_[end] = 1;
  if (is_record) option_[i] = operation.option;
  const bool leaves_input =
      option != nullptr ? option->keeps_input || is_pinned(i) : operation.kind == Operation::Kind::checkpoint;
  if (!leaves_input) release_activation(i);
}

void Simulator::drop(std::size_t activation) {
  const Operation operation{Operation::Kind::drop, static_cast<std::uint32_t>(activation), 0};
  if (has_activation_[activation] == 0) refuse(operation, "it is not held");
  const Option* const reader = recorded_at(activation);
  if (reader != nullptr && reader->keeps_input) refuse(operation, "the backward of the stage that read it needs it");
  if (is_pinned(activation)) refuse(operation, "the backward of the stage that made it needs it");
  release_activation(activation);
}

void Simulator::backward(const Operation& operation) {
  const std::size_t i = operation.stage;
  const Option* const recorded = recorded_at(i);
  const std::size_t end = recorded != nullptr ? i + recorded->span : i + 1;
  if (end != next_backward_) {
    refuse(operation, next_backward_ == 0 ? "all backwards have run"
                                          : "the backward of stage " + std::to_string(next_backward_ - 1) + " is due");
  }
  if (recorded == nullptr) refuse(operation, "the stage is not recorded");
  const Option& option = *recorded;
  if (option.keeps_input && has_activation_[i] == 0) refuse(operation, "its input is not held");
  if (option.keeps_output && has_activation_[end] == 0) refuse(operation, "its output is not held");

  const Bytes output_gradient = chain_->gradient_bytes(end);
  if (end == chain_->size()) held_bytes_ += output_gradient;  // d_n is made here; others exist
  Bytes made = chain_->gradient_bytes(i);
  for (std::size_t k = i; k < end; ++k) made += chain_->stages[k].parameter_gradient_bytes;
  if (option.recompute_time > 0 || option.recompute_peak_bytes > 0) {
    reach(Phase::recompute, option.recompute_peak_bytes);
  }
  reach(Phase::backward, made + option.backward_peak_bytes);
  cost_.time += option.recompute_time + option.backward_time;
  cost_.extra_time += option.recompute_time;

  held_bytes_ += made - output_gradient - option.kept_bytes;
  for (std::size_t k = i; k < end; ++k) begin_[k] = -1;
  release_activation(end);
  if (!is_pinned(i)) release_activation(i);
  next_backward_ = i;
}

ScheduleCost simulate(const Chain& chain, std::span<const Operation> schedule) {
  Simulator simulator(chain);
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    try {
      simulator.apply(schedule[i]);
    } catch (const PlanError& error) {
      throw PlanError("operation " + std::to_string(i) + " of " + std::to_string(schedule.size()) + ": " +
                      error.what());
    }
  }
  if (!simulator.is_complete()) {
    throw PlanError("remat simulate: the schedule ends before the backward of stage " +
                    std::to_string(simulator.next_backward() - 1));
  }
  return simulator.cost();
}

ScheduleCost simulate(const Chain& chain, const ScheduleTree& plan) {
  return simulate(chain, to_schedule(plan, chain));
}

}  // namespace thimble::remat
