#pragma once
// How the tape sees an operator: its descriptor and its `struct Saved`, with the type erased.

#include <cstddef>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include <thimble/core/elementwise.h>
#include <thimble/core/error.h>
#include <thimble/core/op.h>

namespace thimble {

/// What the tape stores per node: the operator and what it said it keeps, its tensors moved out.
template <class Op>
struct Record {
  Op op;
  typename Op::Saved saved;
};

/// An operator's functions, one static instance per type.
struct OpType {
  const char* name;
  Cost cost;
  std::size_t size, alignment;  ///< of Record<Op>
  int saved_tensors;
  /// Calls the operator's backward with the kept tensors (in declaration order), which it consumes.
  Gradients (*backward)(void* record, std::span<Tensor> kept, Tensor dy, Needs needs);
  /// Runs forward again; `kept` receives the tensors of Saved.
  Tensor (*recompute)(void* record, std::span<const Tensor> inputs, std::span<Tensor> kept, Needs needs);
  void (*destroy)(void* record) noexcept;
};

namespace node_detail {

template <class T, class = void>
struct Arity;

// Number of tensors in `Tensor forward(const Tensor&..., Needs, Saved&) const`; -1 for a span of them.
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
Tensor call_forward(const Op& op, std::span<const Tensor> in, Needs needs, typename Op::Saved& saved,
                    std::index_sequence<I...>) {
  return op.forward(in[I]..., needs, saved);
}

template <class Op>
Tensor forward(const Op& op, std::span<const Tensor> in, Needs needs, typename Op::Saved& saved) {
  if constexpr (arity_of<Op>() < 0) {
    return op.forward(in, needs, saved);
  } else {
    return call_forward(op, in, needs, saved, std::make_index_sequence<static_cast<std::size_t>(arity_of<Op>())>{});
  }
}

template <class Saved>
void move_out(Saved& saved, std::span<Tensor> to) {
  [[maybe_unused]] std::size_t i = 0;
  for_each_tensor(saved, [&](Tensor& t) { to[i++] = std::exchange(t, Tensor()); });
}

template <class Saved>
int count_tensors() {
  Saved saved{};
  int n = 0;
  for_each_tensor(saved, [&](Tensor&) { ++n; });
  return n;
}

template <class Op>
constexpr Cost cost_of() {
  if constexpr (requires { Op::cost; }) {
    return Op::cost;
  } else {
    return Cost::elementwise;
  }
}

}  // namespace node_detail

template <class Op>
const OpType& op_type() {
  using Saved = typename Op::Saved;
  static const OpType type{
      Op::name,
      node_detail::cost_of<Op>(),
      sizeof(Record<Op>),
      alignof(Record<Op>),
      node_detail::count_tensors<Saved>(),
      [](void* record, std::span<Tensor> kept, Tensor dy, Needs needs) {
        auto& r = *static_cast<Record<Op>*>(record);
        Saved saved = r.saved;
        [[maybe_unused]] std::size_t i = 0;
        for_each_tensor(saved, [&](Tensor& t) { t = std::move(kept[i++]); });
        return r.op.backward(std::move(saved), std::move(dy), needs);
      },
      [](void* record, std::span<const Tensor> inputs, std::span<Tensor> kept, Needs needs) {
        auto& r = *static_cast<Record<Op>*>(record);
        r.saved = Saved{};
        Tensor out = node_detail::forward(r.op, inputs, needs, r.saved);
        node_detail::move_out(r.saved, kept);
        return out;
      },
      [](void* record) noexcept { static_cast<Record<Op>*>(record)->~Record<Op>(); }};
  return type;
}

}  // namespace thimble
