#include <algorithm>

#include <thimble/memory/remat/schedule.h>

namespace thimble::remat {

Simulator::Simulator(const Chain& chain) : chain_(&chain), next_backward_(chain.size()) {
  validate(chain);
  has_activation_.assign(chain.size() + 1, 0);
  has_activation_[0] = 1;
  recorded_.assign(chain.size(), -1);
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

void Simulator::forward(const Operation& operation) {
  const std::size_t i = operation.stage;
  const Stage& stage = chain_->stages[i];
  const bool is_record = operation.kind == Operation::Kind::record;
  const bool is_pinned = i > 0 && recorded_[i - 1] >= 0 &&
                         chain_->stages[i - 1].options[static_cast<std::size_t>(recorded_[i - 1])].keeps_output;
  if (has_activation_[i] == 0) refuse(operation, "its input is not held");
  if (has_activation_[i + 1] != 0) refuse(operation, "its output is held already");
  if (i >= next_backward_) refuse(operation, "its backward has run already");
  if (recorded_[i] >= 0 && is_record) refuse(operation, "it is recorded already");
  if (is_record && operation.option >= stage.options.size()) {
    refuse(operation, "the stage has " + std::to_string(stage.options.size()) + " options");
  }
  const bool is_input_needed =
      is_pinned || (recorded_[i] >= 0 && stage.options[static_cast<std::size_t>(recorded_[i])].keeps_input);
  if (operation.kind == Operation::Kind::pass && is_input_needed) {
    refuse(operation, "a backward still reads the input that it drops");
  }

  const Phase phase = next_backward_ == chain_->size() ? Phase::forward : Phase::rerun;
  const Option* option = is_record ? &stage.options[operation.option] : nullptr;
  const Time time = option != nullptr ? option->forward_time : stage.forward_time;
  const Bytes kept = option != nullptr ? option->kept_bytes : 0;
  reach(phase, stage.output_bytes + kept + (option != nullptr ? option->forward_peak_bytes : stage.forward_peak_bytes));

  cost_.time += time;
  if (phase == Phase::rerun) cost_.extra_time += time;
  ++cost_.forward_counts[i];
  held_bytes_ += stage.output_bytes + kept;
  has_activation_[i + 1] = 1;
  if (is_record) recorded_[i] = static_cast<std::int32_t>(operation.option);
  const bool leaves_input =
      option != nullptr ? option->keeps_input || is_pinned : operation.kind == Operation::Kind::checkpoint;
  if (!leaves_input) release_activation(i);
}

void Simulator::drop(std::size_t activation) {
  const Operation operation{Operation::Kind::drop, static_cast<std::uint32_t>(activation), 0};
  if (has_activation_[activation] == 0) refuse(operation, "it is not held");
  const auto option_of = [&](std::size_t stage) -> const Option* {
    if (recorded_[stage] < 0) return nullptr;
    return &chain_->stages[stage].options[static_cast<std::size_t>(recorded_[stage])];
  };
  const Option* reader = activation < chain_->size() ? option_of(activation) : nullptr;
  const Option* maker = activation > 0 ? option_of(activation - 1) : nullptr;
  if (reader != nullptr && reader->keeps_input) refuse(operation, "the backward of the stage that read it needs it");
  if (maker != nullptr && maker->keeps_output) refuse(operation, "the backward of the stage that made it needs it");
  release_activation(activation);
}

void Simulator::backward(const Operation& operation) {
  const std::size_t i = operation.stage;
  const Stage& stage = chain_->stages[i];
  if (i + 1 != next_backward_) {
    refuse(operation, next_backward_ == 0 ? "all backwards have run"
                                          : "the backward of stage " + std::to_string(next_backward_ - 1) + " is due");
  }
  if (recorded_[i] < 0) refuse(operation, "the stage is not recorded");
  const Option& option = stage.options[static_cast<std::size_t>(recorded_[i])];
  if (option.keeps_input && has_activation_[i] == 0) refuse(operation, "its input is not held");
  if (option.keeps_output && has_activation_[i + 1] == 0) refuse(operation, "its output is not held");

  if (i + 1 == chain_->size()) held_bytes_ += stage.output_gradient_bytes;  // d_n is made here; others are there
  const Bytes made = chain_->gradient_bytes(i) + stage.parameter_gradient_bytes;
  if (option.recompute_time > 0 || option.recompute_peak_bytes > 0) {
    reach(Phase::recompute, option.recompute_peak_bytes);
  }
  reach(Phase::backward, made + option.backward_peak_bytes);
  cost_.time += option.recompute_time + option.backward_time;
  cost_.extra_time += option.recompute_time;

  recorded_[i] = -1;
  held_bytes_ += made - stage.output_gradient_bytes - option.kept_bytes;
  release_activation(i + 1);
  const bool is_pinned = i > 0 && recorded_[i - 1] >= 0 &&
                         chain_->stages[i - 1].options[static_cast<std::size_t>(recorded_[i - 1])].keeps_output;
  if (!is_pinned) release_activation(i);
  next_backward_ = i;
}

Cost simulate(const Chain& chain, std::span<const Operation> schedule) {
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

Cost simulate(const Chain& chain, const Plan& plan) { return simulate(chain, to_schedule(plan, chain)); }

}  // namespace thimble::remat
