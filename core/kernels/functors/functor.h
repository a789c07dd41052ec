#pragma once
// Elementwise functors: the maths of one operator on one element, shared by CPU and CUDA.
//
//   struct Tanh {
//     static constexpr const char* name = "tanh";
//     template <class T> THIMBLE_HD T fwd(T x) const { return math::tanh(x); }
//     template <class T> THIMBLE_HD T bwd(Out<T> y, T dy) const { return dy * (T(1) - y * y); }
//   };
//
// The signature of bwd declares the tensors it keeps: `bwd(In x, T dy)` keeps the input, `bwd(Out y, T dy)` the output,
// `bwd(T dy)` nothing. Binary functors have `fwd(T a, T b)`, `bwd_lhs` and `bwd_rhs`, which may take Lhs, Rhs and Out,
// in that order, before dy; ternary ones add `bwd_third` and Third. An operand without its bwd has no gradient. Where
// the gradient is dy itself, `static constexpr bool passes_lhs = true` (or passes_rhs) saves the copy. `T` is float,
// double or (with `static constexpr bool integral = true`) std::int64_t. Data members are attributes; they must be
// trivially copyable.

#include <tuple>
#include <type_traits>
#include <utility>

#include <thimble/core/config.h>

namespace thimble::functor {

/// An operand (or the output) in the signature of a gradient function. Converts to T.
template <int I, class T>
struct Argument {
  T value;
  THIMBLE_HD constexpr operator T() const { return value; }  // NOLINT(google-explicit-constructor)
};
inline constexpr int output_slot = 3;
template <class T>
using In = Argument<0, T>;
template <class T>
using Lhs = Argument<0, T>;
template <class T>
using Rhs = Argument<1, T>;
template <class T>
using Third = Argument<2, T>;
template <class T>
using Out = Argument<output_slot, T>;

template <class Op>
constexpr int operand_count() {
  if constexpr (requires(const Op op, float v) { op.fwd(v); }) {
    return 1;
  } else if constexpr (requires(const Op op, float v) { op.fwd(v, v); }) {
    return 2;
  } else {
    return 3;
  }
}

template <class Op>
inline constexpr int operands = operand_count<Op>();

template <class Op>
concept Elementwise = requires(const Op op, float v) {
  op.fwd(v);
}
|| requires(const Op op, float v) { op.fwd(v, v); }
|| requires(const Op op, float v) { op.fwd(v, v, v); };

template <class Op>
inline constexpr bool is_integral = requires {
  requires Op::integral;
};
/// True for comparisons: the result is bool.
template <class Op>
inline constexpr bool yields_bool = requires {
  requires Op::predicate;
};

// The gradient function of operand W called with the kept values named by Mask (bit i: slot i), in slot order, and dy.
template <int W, class Op, class T, class... Kept>
THIMBLE_HD constexpr auto call_backward(const Op& op, T dy, Kept... kept) {
  if constexpr (W == 0 && operands<Op> == 1) {
    if constexpr (requires { op.bwd(kept..., dy); }) return op.bwd(kept..., dy);
  } else if constexpr (W == 0) {
    if constexpr (requires { op.bwd_lhs(kept..., dy); }) return op.bwd_lhs(kept..., dy);
  } else if constexpr (W == 1) {
    if constexpr (requires { op.bwd_rhs(kept..., dy); }) return op.bwd_rhs(kept..., dy);
  } else {
    if constexpr (requires { op.bwd_third(kept..., dy); }) return op.bwd_third(kept..., dy);
  }
}

template <unsigned Mask, int I, class T>
constexpr auto slot_if() {
  if constexpr ((Mask >> I) & 1u) {
    return std::tuple<Argument<I, T>>{};
  } else {
    return std::tuple<>{};
  }
}
template <unsigned Mask, class T>
using KeptTuple = decltype(std::tuple_cat(slot_if<Mask, 0, T>(), slot_if<Mask, 1, T>(), slot_if<Mask, 2, T>(),
                                          slot_if<Mask, output_slot, T>()));

template <int W, class Op, class... Kept>
constexpr bool accepts(std::tuple<Kept...>) {
  return !std::is_void_v<decltype(call_backward<W, Op, float, Kept...>(std::declval<const Op&>(), 0.0f,
                                                                       std::declval<Kept>()...))>;
}

template <class Op, int W, unsigned Mask = 0>
constexpr int find_keeps() {
  if constexpr (Mask == 16) {
    return -1;
  } else if constexpr (accepts<W, Op>(KeptTuple<Mask, float>{})) {
    return static_cast<int>(Mask);
  } else {
    return find_keeps<Op, W, Mask + 1>();
  }
}

/// True where the gradient is dy itself (`passes_lhs`, `passes_rhs`), so that it need not be copied.
template <class Op, int W>
inline constexpr bool passes = (W == 0 && requires { requires Op::passes_lhs; }) ||
                               (W == 1 && requires { requires Op::passes_rhs; });

/// The tensors that the gradient with respect to operand W keeps (bits 0..2: operands, bit 3: output), or -1 if there
/// is no gradient.
template <class Op, int W>
inline constexpr int keeps = W < operands<Op> ? find_keeps<Op, W>() : -1;

}  // namespace thimble::functor
