#include <thimble/autograd/engine/operands.h>

#include <string>
#include <string_view>

#include <thimble/autograd/leaf_set.h>
#include <thimble/core/error.h>

namespace thimble::tape_detail {

std::string with_path(const std::string& text, const char* between, PathId path) {
  const std::string_view name = path_name(path);
  return name.empty() ? text : text + between + std::string(name);
}

[[noreturn]] void refuse(const OpType& type, std::size_t operand, const Tensor& t, const std::string& why) {
  throw AutogradError(with_path(type.name, " in ", context().path) + ": operand " + std::to_string(operand) + ", " +
                      describe(t) + ", " + why);
}

// Looks in the set of trained leaves once per leaf and recording.
bool trains(const Recorded& recorded, tape::Leaf& leaf) noexcept {
  if (leaf.is_frozen) return false;
  if (leaf.tape_ref.tape != recorded.id) {
    leaf.tape_ref = {recorded.id, none};
    leaf.is_trained = recorded.trained == nullptr || leaf.is_input || recorded.trained->has(&leaf);
  }
  return leaf.is_trained;
}

// Whether the tensor's bytes have changed since this tape saw it.
bool is_written(const Recorded& recorded, const Tensor& t) noexcept {
  const TapeRef ref = t.leaf() ? t.leaf()->tape_ref : t.tape_ref();
  return ref.tape == recorded.id && ref.value != none && t.storage() &&
         t.storage()->version() != recorded.values[ref.value].version;
}

std::string written_text(const Recorded& recorded, const Tensor& t) {
  std::string maker = "a leaf that this tape has seen";
  if (!t.leaf()) {
    const std::int32_t producer = recorded.values[t.tape_ref().value].producer;
    const Node& node = recorded.nodes[static_cast<std::size_t>(producer)];
    maker = with_path(std::string("made by ") + node.type->name, " in ", node.path);
  }
  return maker +
         ", was written in place since; its gradient would be wrong: write before the first use, or make a new tensor";
}

ops::Needs needs_of(const Recorded& recorded, const OpType& type, std::span<const Tensor> inputs) {
  if (inputs.size() > static_cast<std::size_t>(ops::Needs::max_operands)) {
    throw AutogradError(std::string(type.name) + ": " + std::to_string(inputs.size()) + " operands, at most " +
                        std::to_string(ops::Needs::max_operands) + " can be recorded");
  }
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& t = inputs[i];
    if (t.leaf() ? trains(recorded, *t.leaf()) : t.origin() == tape::Origin::recorded) bits |= 1u << i;
  }
  const ops::Needs needs(bits & type.differentiable.bits());
  check_operands(recorded, type, inputs, needs);
  return needs;
}

void check_operands(const Recorded& recorded, const OpType& type, std::span<const Tensor> inputs, ops::Needs needs) {
  if (!needs.any()) return;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& t = inputs[i];
    if (needs[static_cast<int>(i)]) {
      if (!t.leaf() && !recorded.has(t)) {
        refuse(type, i, t,
               recorded.had(t) ? "is of a recording that is over; detach() makes it a constant"
                               : "was recorded on another tape; detach() makes it a constant");
      }
      if (is_written(recorded, t)) refuse(type, i, t, written_text(recorded, t));
    } else if (!t.leaf() && t.origin() == tape::Origin::gradient && type.differentiable[static_cast<int>(i)]) {
      refuse(type, i, t,
             "is a gradient or made of one, and second derivatives are not computed; detach() makes it a constant");
    }
  }
}

std::uint32_t value_of_operand(Recorded& recorded, const Tensor& t, bool notes_constants) {
  if (!t.defined()) return none;
  const bool is_trained = t.leaf() && trains(recorded, *t.leaf());
  if (is_trained && t.leaf()->tape_ref.value == none) {
    const std::uint32_t value = recorded.add_value(t, -1);
    recorded.values[value].leaf = static_cast<std::int32_t>(recorded.leaves.size());
    recorded.leaves.push_back(t.leaf());
    t.leaf()->tape_ref.value = value;
    return value;
  }
  const TapeRef ref = is_trained ? t.leaf()->tape_ref : t.tape_ref();
  if (ref.tape == recorded.id && !is_written(recorded, t)) return ref.value;
  return notes_constants ? recorded.add_value(t, -1) : none;
}

void check_loss(const Recorded& recorded, const Tensor& loss) {
  const auto refuse = [&](const std::string& why) {
    throw AutogradError("backward: the loss, " + describe(loss) + ", " + why);
  };
  const char* const of_none = recorded.trained != nullptr ? "depends on none of the leaves that this step trains"
                                                          : "depends on no leaf that needs a gradient";
  if (loss.leaf()) {
    if (!trains(recorded, *loss.leaf())) refuse(of_none);
    return;
  }
  switch (loss.origin()) {
    case tape::Origin::recorded:
      if (recorded.has(loss)) {
        if (is_written(recorded, loss)) refuse(written_text(recorded, loss));
        return;
      }
      return refuse(recorded.had(loss) ? "is of a recording that is over: backward has run, or the tape was cleared"
                                       : "was recorded on another tape");
    case tape::Origin::unrecorded:
      return refuse("was computed where nothing is recorded");
    case tape::Origin::gradient:
      return refuse("is made of a gradient, and second derivatives are not computed");
    case tape::Origin::constant:
      return refuse(of_none);
  }
}

}  // namespace thimble::tape_detail
