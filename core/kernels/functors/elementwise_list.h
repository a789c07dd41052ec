#pragma once
// The list of all built-in elementwise operators: each kernel family (CPU, CUDA) expands it into a table. It only names
// them; elementwise_functors.h defines them.

#include <type_traits>

namespace thimble::ops {

template <class... Ops>
struct TypeList {};

using BuiltinElementwise = TypeList<
    // unary
    struct Neg, struct Abs, struct Exp, struct Log, struct Sqrt, struct Rsqrt, struct Square, struct Pow, struct Clamp,
    struct Tanh, struct Sigmoid, struct Relu, struct LeakyRelu, struct GeluTanh, struct GeluErf, struct Silu,
    struct Reciprocal, struct AddScalar, struct MulScalar, struct Sin, struct Cos, struct Softplus, struct Erf,
    struct DivScalar, struct ScalarSub, struct Relu6,
    // binary
    struct Add, struct Sub, struct Mul, struct Div, struct Minimum, struct Maximum, struct Equal, struct NotEqual,
    struct Less, struct LessEqual, struct Greater, struct GreaterEqual, struct SquaredDifference, struct FakeQuantize,
    struct SwiGlu, struct AbsoluteDifference, struct Huber, struct BceWithLogits, struct KlDivergence,
    // ternary
    struct Where, struct VarianceGradient, struct LogSumExpGradient, struct NormGradient>;

namespace list_detail {
template <class Op, class... Ops>
constexpr int index_in(TypeList<Ops...>) {
  int index = 0;
  const bool found = ((std::is_same_v<Op, Ops> || (++index, false)) || ...);
  return found ? index : -1;
}
}  // namespace list_detail

/// Index of Op in the list; -1 for a user's operator.
template <class Op>
inline constexpr int builtin_index = list_detail::index_in<Op>(BuiltinElementwise{});

}  // namespace thimble::ops
