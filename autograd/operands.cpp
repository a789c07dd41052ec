// What may be an operand of a recorded operator, or a loss, and what is refused: what was written since, belongs to
// another recording, or is a gradient.

#include <string>
#include <string_view>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/leaf_set.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>

namespace thimble {
namespace operands_detail {

std::string with_path(const std::string& text, const char* between, PathId path) {
  const std::string_view name = path_name(path);
  return name.empty() ? text : text + between + std::string(name);
}

[[noreturn]] void refuse(const OpType& type, std::size_t operand, const Tensor& t, const std::string& why) {
  throw AutogradError(with_path(type.name, " in ", context().path) + ": operand " + std::to_string(operand) + ", " +
                      describe(t) + ", " + why);
}

/// Throws `error`, of its own type, with the module path at its end, unless one further in has put it there.
template <class E>
[[noreturn]] void throw_with_path(const E& error) {
  const std::string text = error.what(), path = with_path("", ", in ", context().path);
  throw E(text.ends_with(path) ? text : text + path);
}

}  // namespace operands_detail

namespace apply_detail {

Origin origin_of_constant(const OpType& type, std::span<const Tensor> inputs, bool is_recording) noexcept {
  Origin origin = Origin::constant;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& t = inputs[i];
    const bool is_listed = i < static_cast<std::size_t>(Needs::max_operands);
    if (is_listed && !type.differentiable[static_cast<int>(i)]) continue;
    if (is_recording && (t.leaf() || t.origin() == Origin::recorded)) continue;  // not trained here
    const Origin of_operand = t.origin_unrecorded();
    if (of_operand == Origin::gradient) return of_operand;
    if (of_operand == Origin::unrecorded) origin = of_operand;
  }
  return origin;
}

void rethrow_with_path() {
  try {
    throw;
  } catch (const ShapeError& error) {
    operands_detail::throw_with_path(error);
  } catch (const DTypeError& error) {
    operands_detail::throw_with_path(error);
  } catch (const DeviceError& error) {
    operands_detail::throw_with_path(error);
  } catch (const ValueError& error) {
    operands_detail::throw_with_path(error);
  }
}

}  // namespace apply_detail

// Looked up once for every leaf and recording.
bool Tape::trains(Leaf& leaf) const noexcept {
  if (leaf.is_frozen) return false;
  if (leaf.tape_ref.tape != id_) {
    leaf.tape_ref = {id_, none};
    leaf.is_trained = trained_ == nullptr || trained_->has(&leaf);
  }
  return leaf.is_trained;
}

// Whether this tape knows the tensor, and its bytes have changed since.
bool Tape::is_written(const Tensor& t) const noexcept {
  const TapeRef ref = t.leaf() ? t.leaf()->tape_ref : t.tape_ref();
  return ref.tape == id_ && ref.value != none && t.storage() && t.storage()->version() != values_[ref.value].version;
}

std::string Tape::written_text(const Tensor& t) const {
  std::string maker = "a leaf that this tape has seen";
  if (!t.leaf()) {
    const Node& node = nodes_[static_cast<std::size_t>(values_[t.tape_ref().value].producer)];
    maker = operands_detail::with_path(std::string("made by ") + node.type->name, " in ", node.path);
  }
  return maker +
         ", was written in place since; its gradient would be wrong: write before the first use, or make a new "
         "tensor";
}

Needs Tape::needs(const OpType& type, std::span<const Tensor> inputs) {
  if (inputs.size() > static_cast<std::size_t>(Needs::max_operands)) {
    throw AutogradError(std::string(type.name) + ": " + std::to_string(inputs.size()) + " operands, at most " +
                        std::to_string(Needs::max_operands) + " can be recorded");
  }
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& t = inputs[i];
    if (t.leaf() ? trains(*t.leaf()) : t.origin() == Origin::recorded) bits |= 1u << i;
  }
  const Needs needs(bits & type.differentiable.bits());
  check_operands(type, inputs, needs);
  return needs;
}

void Tape::check_operands(const OpType& type, std::span<const Tensor> inputs, Needs needs) const {
  if (!needs.any()) return;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& t = inputs[i];
    if (needs[static_cast<int>(i)]) {
      if (!t.leaf() && !is_on_tape(t)) {
        operands_detail::refuse(type, i, t,
                                was_here(t.tape_ref()) ? "is of a recording that is over; detach() makes it a constant"
                                                       : "was recorded on another tape; detach() makes it a constant");
      }
      if (is_written(t)) operands_detail::refuse(type, i, t, written_text(t));
    } else if (!t.leaf() && t.origin() == Origin::gradient && type.differentiable[static_cast<int>(i)]) {
      operands_detail::refuse(
          type, i, t,
          "is a gradient or made of one, and second derivatives are not computed; detach() makes it "
          "a constant");
    }
  }
}

// The value of an operand: known, a leaf seen for the first time, a constant inside a segment, or none. A constant that
// was written since is another one.
std::uint32_t Tape::input_value(const Tensor& t) {
  if (!t.defined()) return none;
  const bool is_trained = t.leaf() && trains(*t.leaf());
  if (is_trained && t.leaf()->tape_ref.value == none) {
    const std::uint32_t value = new_value(t, -1);
    values_[value].leaf = static_cast<std::int32_t>(leaves_.size());
    leaves_.push_back(t.leaf());
    t.leaf()->tape_ref.value = value;
    return value;
  }
  const TapeRef ref = is_trained ? t.leaf()->tape_ref : t.tape_ref();
  if (ref.tape == id_ && !is_written(t)) return ref.value;
  return is_observing_ || segment_of_next() != none_segment ? new_value(t, -1) : none;
}

void Tape::check_loss(const Tensor& loss) const {
  const auto refuse = [&](const std::string& why) {
    throw AutogradError("backward: the loss, " + describe(loss) + ", " + why);
  };
  const char* const of_none = trained_ != nullptr ? "depends on none of the leaves that this step trains"
                                                  : "depends on no leaf that needs a gradient";
  if (loss.leaf()) {
    if (!trains(*loss.leaf())) refuse(of_none);
    return;
  }
  switch (loss.origin()) {
    case Origin::recorded:
      if (is_on_tape(loss)) {
        if (is_written(loss)) refuse(written_text(loss));
        return;
      }
      return refuse(was_here(loss.tape_ref())
                        ? "is of a recording that is over: backward has run, or the tape was cleared"
                        : "was recorded on another tape");
    case Origin::unrecorded:
      return refuse("was computed where nothing is recorded");
    case Origin::gradient:
      return refuse("is made of a gradient, and second derivatives are not computed");
    case Origin::constant:
      return refuse(of_none);
  }
}

}  // namespace thimble
