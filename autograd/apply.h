#pragma once
// apply: runs an operator and records it when a tape is active. The library's own functions and a user's operators go
// through it alike.

#include <array>
#include <span>

#include <thimble/autograd/tape.h>

namespace thimble {

/// An operator with forward, backward and a struct Saved (core/op.h).
template <class Op>
concept Structured = requires {
  typename Op::Saved;
};

/// Runs a structured operator on a list of operands.
template <Structured Op>
Tensor apply_list(const Op& op, std::span<const Tensor> inputs) {
  Tape* const tape = context().tape;
  Needs needs = tape ? tape->needs(inputs) : Needs();
  if constexpr (requires { Op::differentiable; }) needs = Needs(needs.bits() & Op::differentiable.bits());
  typename Op::Saved saved{};
  const bool is_recorded = tape && (needs.any() || tape->records_all());
  const bool fills_saved = is_recorded && tape->next_keeps_saved(op_type<Op>());
  Tensor output = node_detail::forward(op, inputs, fills_saved ? needs : Needs(), saved);
  if (is_recorded) tape->record(op, saved, inputs, output, needs);
  return output;
}

/// Runs a structured operator: `apply(LayerNorm{.epsilon = 1e-5}, x, weight, bias)`. An undefined tensor stands for an
/// operand that is absent.
template <Structured Op, class... In>
Tensor apply(const Op& op, const In&... inputs) {
  const std::array<Tensor, sizeof...(In)> list{inputs...};
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
