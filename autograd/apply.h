#pragma once
// apply: runs an operator, and records it when a tape is active. Both the library's functions and a user's operators go
// through it.

#include <array>
#include <span>
#include <utility>

#include <thimble/autograd/node.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/tensor/parameter_store.h>

namespace thimble {

/// An operator with forward, backward and a struct Saved (core/ops/op.h).
template <class Op>
concept Structured = requires {
  typename Op::Saved;
};

namespace apply_detail {

/// The origin of a result that depends on no trained leaf.
tape::Origin origin_of_constant(const OpType& type, std::span<const Tensor> inputs, bool is_recording) noexcept;

/// Throws ValueError for a wrong number of operands.
[[noreturn]] void throw_operands(const OpType& type, std::size_t given, int taken);

/// Rethrows the ShapeError, DTypeError, DeviceError or ValueError being handled, with the module path.
[[noreturn]] void rethrow_with_path();

/// NoGrad for a caller that already has the context.
class Suspended {
 public:
  explicit Suspended(ThreadContext& here) : here_(here), tape_(std::exchange(here.tape, nullptr)) {}
  ~Suspended() { here_.tape = tape_; }
  Suspended(const Suspended&) = delete;
  Suspended& operator=(const Suspended&) = delete;

 private:
  ThreadContext& here_;
  Tape* tape_;
};

/// Forward without recording: the operator's inner calls are not recorded.
template <class Op>
Tensor run(const Op& op, std::span<const Tensor> inputs, ops::Needs needs, typename Op::Saved& saved,
           ThreadContext& here) {
  const Suspended inside(here);
  try {
    fetch_parameters(inputs);
    return node_detail::forward(op, inputs, needs, saved);
  } catch (...) {
    rethrow_with_path();
  }
}

}  // namespace apply_detail

template <class Op>
void Tape::record(const Op& op, typename Op::Saved& saved, std::span<const Tensor> inputs, Tensor& output,
                  ops::Needs needs, tape::Origin origin) {
  std::array<Tensor, static_cast<std::size_t>(node_detail::saved_tensors<Op>)> kept;
  const OpType& type = op_type<Op>();
  void* const at = allocate_record(type.size, type.alignment);
  auto* const record = new (at) OpRecord<Op>{op, {}};
  node_detail::take_apart(saved, kept, record->attributes);
  push_node(type, at, inputs, kept, output, needs, origin);
}

/// Runs a structured operator on a list of operands; an undefined tensor is an absent operand. Throws ValueError unless
/// forward takes so many, and as Tape::needs() and the operator throw; the operator's ShapeError, DTypeError,
/// DeviceError and ValueError end in the module path: "..., in gpt.h.3.mlp".
template <Structured Op>
Tensor apply_list(const Op& op, std::span<const Tensor> inputs) {
  const OpType& type = op_type<Op>();
  constexpr int operands = node_detail::arity_of<Op>();
  if constexpr (operands >= 0) {
    if (inputs.size() != static_cast<std::size_t>(operands))
      apply_detail::throw_operands(type, inputs.size(), operands);
  }
  ThreadContext& here = context();
  Tape* const tape = here.tape;
  const ops::Needs needs = tape ? tape->needs(type, inputs) : ops::Needs();
  typename Op::Saved saved{};
  const bool is_recorded = tape && (needs.any() || tape->records_all());
  const bool fills_saved = is_recorded && tape->next_keeps_saved(type);
  Tensor output = apply_detail::run(op, inputs, fills_saved ? needs : ops::Needs(), saved, here);
  const tape::Origin origin =
      needs.any() ? tape::Origin::recorded : apply_detail::origin_of_constant(type, inputs, tape != nullptr);
  if (is_recorded) {
    tape->record(op, saved, inputs, output, needs, origin);
  } else {
    output.set_tape_ref({}, origin);
  }
  return output;
}

/// Runs a structured operator: `apply(LayerNorm{.epsilon = 1e-5}, x, weight, bias)`. An undefined tensor is an absent
/// operand; trailing absent operands may be left out.
template <Structured Op, class... In>
Tensor apply(const Op& op, const In&... inputs) {
  constexpr int operands = node_detail::arity_of<Op>(), given = static_cast<int>(sizeof...(In));
  static_assert(operands < 0 || given <= operands, "an operator has as many operands as its forward takes tensors");
  const std::array<Tensor, static_cast<std::size_t>(operands < given ? given : operands)> list{inputs...};
  return apply_list(op, std::span<const Tensor>(list));
}

/// Runs an elementwise functor: `apply(LeakyRelu{0.1}, x)`.
template <functor::Elementwise F, class... In>
requires(!Structured<F>) Tensor apply(const F& f, const In&... inputs) { return apply(Elementwise<F>{f}, inputs...); }

/// `apply<Relu>(x)`: an operator without attributes.
template <class Op, class... In>
Tensor apply(const In&... inputs) {
  return apply(Op{}, inputs...);
}

}  // namespace thimble
