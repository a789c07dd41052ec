#pragma once
// An operator's descriptor and `struct Saved` with the type erased, for the tape.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/ops/op.h>

namespace thimble {

namespace node_detail {

template <class T>
using UnlessTensor = std::conditional_t<std::is_same_v<std::remove_cvref_t<T>, Tensor>, std::tuple<>,
                                        std::tuple<std::remove_cvref_t<T>>>;
template <class... Members>
auto attributes_of(std::tuple<Members...>) -> decltype(std::tuple_cat(std::declval<UnlessTensor<Members>>()...));

}  // namespace node_detail

/// The tape's record of a node: the operator, and the members of its `struct Saved` that are not tensors. The tape
/// holds the tensors as values (autograd/tape.h).
template <class Op>
struct OpRecord {
  using Attributes = decltype(node_detail::attributes_of(tie_members(std::declval<typename Op::Saved&>())));
  Op op;
  Attributes attributes;
};

/// An operator's functions, one static instance per type.
struct OpType {
  const char* name;
  ops::Cost cost;
  ops::Needs differentiable;    ///< operands that may have a gradient
  std::size_t size, alignment;  ///< of OpRecord<Op>
  int saved_tensors;
  /// Calls the operator's backward with the kept tensors, in declaration order, and consumes them.
  ops::Gradients (*backward)(void* record, std::span<Tensor> kept, Tensor dy, ops::Needs needs);
  /// Runs forward again; `kept` receives the tensors of Saved.
  Tensor (*recompute)(void* record, std::span<const Tensor> inputs, std::span<Tensor> kept, ops::Needs needs);
  /// Recomputes only the result. `kept` has the tensors of Saved, or is empty if they are not available.
  Tensor (*output_from_saved)(void* record, std::span<const Tensor> inputs, std::span<const Tensor> kept);
  bool has_output_from_saved;  ///< whether the operator can skip its forward there
  /// Of forward; 0 if the operator does not define it.
  double (*multiply_adds)(const void* record, std::span<const Tensor> inputs, const Tensor& output);
  void (*destroy)(void* record) noexcept;
};

namespace node_detail {

// Number of tensors in `Tensor forward(const Tensor&..., Needs, Saved&) const`; -1 for a span of tensors.
template <class Op, class R, class... Args>
constexpr int arity(R (Op::*)(Args...) const) {
  if constexpr (std::is_same_v<std::remove_cvref_t<std::tuple_element_t<0, std::tuple<Args...>>>,
                               std::span<const Tensor>>) {
    return -1;
  } else {
    return static_cast<int>(sizeof...(Args)) - 2;
  }
}

template <class Op>
constexpr int arity_of() {
  if constexpr (requires { Op::operands; }) {
    return Op::operands;
  } else {
    return arity(&Op::forward);
  }
}

template <class Op, std::size_t... I>
Tensor call_forward(const Op& op, std::span<const Tensor> in, ops::Needs needs, typename Op::Saved& saved,
                    std::index_sequence<I...>) {
  return op.forward(in[I]..., needs, saved);
}

template <class Op>
Tensor forward(const Op& op, std::span<const Tensor> in, ops::Needs needs, typename Op::Saved& saved) {
  if constexpr (arity_of<Op>() < 0) {
    return op.forward(in, needs, saved);
  } else {
    return call_forward(op, in, needs, saved, std::make_index_sequence<static_cast<std::size_t>(arity_of<Op>())>{});
  }
}

template <class... Members>
constexpr int count_tensors(std::tuple<Members...>*) {
  return (0 + ... + (std::is_same_v<std::remove_cvref_t<Members>, Tensor> ? 1 : 0));
}

/// Number of tensors in an operator's struct Saved.
template <class Op>
inline constexpr int saved_tensors =
    count_tensors(static_cast<decltype(tie_members(std::declval<typename Op::Saved&>()))*>(nullptr));

// Copies members one by one between a struct Saved and a tuple of attributes.
template <std::size_t I = 0, class Attributes, class F>
void visit_attributes([[maybe_unused]] Attributes& attributes, [[maybe_unused]] std::size_t at,
                      [[maybe_unused]] F&& f) {
  if constexpr (I < std::tuple_size_v<Attributes>) {
    if (at == I) return f(std::get<I>(attributes));
    visit_attributes<I + 1>(attributes, at, f);
  }
}

template <class T, class U>
void assign_if_same(T& to, const U& from) {
  if constexpr (std::is_same_v<T, U>) to = from;
}

/// Moves the tensors of a struct Saved into the undefined `tensors`, and the rest into `attributes`. It tests each
/// tensor first: most are undefined, and a move costs more than a test.
template <class Saved, class Attributes>
void take_apart(Saved& saved, std::span<Tensor> tensors, Attributes& attributes) {
  [[maybe_unused]] std::size_t i = 0, j = 0;
  for_each_member(
      saved,
      [&](Tensor& t) {
        Tensor& to = tensors[i++];
        if (t.defined()) to = std::move(t);
      },
      [&](auto& member) { visit_attributes(attributes, j++, [&](auto& to) { assign_if_same(to, member); }); });
}

/// The reverse; moves the tensors.
template <class Saved, class Attributes>
Saved put_together(std::span<Tensor> tensors, Attributes& attributes) {
  Saved saved{};
  [[maybe_unused]] std::size_t i = 0, j = 0;
  for_each_member(
      saved,
      [&](Tensor& t) {
        Tensor& from = tensors[i++];
        if (from.defined()) t = std::move(from);
      },
      [&](auto& member) { visit_attributes(attributes, j++, [&](auto& from) { assign_if_same(member, from); }); });
  return saved;
}

// Whether an operator can make its result from its saved tensors.
template <class Op>
inline constexpr bool has_output_from_saved = requires(const Op& op, typename Op::Saved saved,
                                                       std::span<const Tensor> inputs) {
  op.output_from_saved(std::move(saved), inputs);
};

// Recomputes the result: from the saved tensors if they are available and the operator can, else by forward.
template <class Op>
Tensor output_from_saved(OpRecord<Op>& r, std::span<const Tensor> inputs, std::span<const Tensor> kept) {
  using Saved = typename Op::Saved;
  if constexpr (has_output_from_saved<Op>) {
    if (!kept.empty()) {
      std::array<Tensor, max_saved_tensors> copies;
      for (std::size_t k = 0; k < kept.size(); ++k) copies[k] = kept[k];
      return r.op.output_from_saved(put_together<Saved>(std::span(copies).first(kept.size()), r.attributes), inputs);
    }
  }
  Saved saved{};
  return forward(r.op, inputs, ops::Needs(), saved);
}

template <class Op>
constexpr ops::Cost cost_of() {
  if constexpr (requires { Op::cost; }) {
    return Op::cost;
  } else {
    return ops::Cost::elementwise;
  }
}

template <class Op>
constexpr ops::Needs differentiable_of() {
  if constexpr (requires { Op::differentiable; }) {
    return Op::differentiable;
  } else {
    return ops::Needs(~std::uint32_t{0});
  }
}

}  // namespace node_detail

template <class Op>
const OpType& op_type() {
  using Saved = typename Op::Saved;
  static const OpType type{Op::name,
                           node_detail::cost_of<Op>(),
                           node_detail::differentiable_of<Op>(),
                           sizeof(OpRecord<Op>),
                           alignof(OpRecord<Op>),
                           node_detail::saved_tensors<Op>,
                           [](void* record, std::span<Tensor> kept, Tensor dy, ops::Needs needs) {
                             auto& r = *static_cast<OpRecord<Op>*>(record);
                             return r.op.backward(node_detail::put_together<Saved>(kept, r.attributes), std::move(dy),
                                                  needs);
                           },
                           [](void* record, std::span<const Tensor> inputs, std::span<Tensor> kept, ops::Needs needs) {
                             auto& r = *static_cast<OpRecord<Op>*>(record);
                             Saved saved{};
                             Tensor out = node_detail::forward(r.op, inputs, needs, saved);
                             node_detail::take_apart(saved, kept, r.attributes);
                             return out;
                           },
                           [](void* record, std::span<const Tensor> inputs, std::span<const Tensor> kept) {
                             return node_detail::output_from_saved(*static_cast<OpRecord<Op>*>(record), inputs, kept);
                           },
                           node_detail::has_output_from_saved<Op>,
                           []([[maybe_unused]] const void* record, [[maybe_unused]] std::span<const Tensor> inputs,
                              [[maybe_unused]] const Tensor& output) -> double {
                             if constexpr (requires(const Op& op) { op.multiply_adds(inputs, output); }) {
                               return static_cast<const OpRecord<Op>*>(record)->op.multiply_adds(inputs, output);
                             } else {
                               return 0;
                             }
                           },
                           [](void* record) noexcept { static_cast<OpRecord<Op>*>(record)->~OpRecord<Op>(); }};
  return type;
}

}  // namespace thimble
