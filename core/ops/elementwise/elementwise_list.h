#pragma once
// The list of all built-in elementwise operators: each kernel family (CPU, CUDA) expands it into its own table.

#include <type_traits>

#include <thimble/core/ops/elementwise/binary.h>
#include <thimble/core/ops/elementwise/fake_quantize.h>
#include <thimble/core/ops/elementwise/unary.h>
#include <thimble/core/ops/reduction/reduction_functors.h>

namespace thimble::ops {

template <class... Ops>
struct TypeList {};

using BuiltinElementwise = TypeList<
    // unary
    Neg, Abs, Exp, Log, Sqrt, Rsqrt, Square, Pow, Clamp, Tanh, Sigmoid, Relu, LeakyRelu, GeluTanh, GeluErf, Silu,
    Reciprocal, AddScalar, MulScalar, Sin, Cos, Softplus, Erf, DivScalar, ScalarSub,
    // binary
    Add, Sub, Mul, Div, Minimum, Maximum, Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, SquaredDifference,
    FakeQuantize, SwiGlu,
    // ternary
    Where, VarianceGradient, LogSumExpGradient>;

namespace list_detail {
template <class Op, class... Ops>
constexpr int index_in(TypeList<Ops...>) {
  int index = 0;
  const bool found = ((std::is_same_v<Op, Ops> || (++index, false)) || ...);
  return found ? index : -1;
}
}  // namespace list_detail

/// Place of Op in the list; -1 for an operator of the user's own.
template <class Op>
inline constexpr int builtin_index = list_detail::index_in<Op>(BuiltinElementwise{});

}  // namespace thimble::ops
