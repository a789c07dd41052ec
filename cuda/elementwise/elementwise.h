#pragma once
// CUDA kernels of the built-in functors. Each functor and direction has a kernel for dense operands of one dtype, 16
// bytes at a time, and per compute type a kernel for any strides and dtypes.

#include <array>
#include <utility>

#include <thimble/core/kernels/elementwise.h>
#include <thimble/core/kernels/functors/elementwise_functors.h>
#include <thimble/core/kernels/functors/functor.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/quick.h>
#include <thimble/cuda/kernel/words.h>

namespace thimble::elementwise_cuda_detail {

using namespace cuda_kernels;
using kernels::ElementwiseArgs;
using kernels::max_elementwise_inputs;

/// Forward (W < 0), or the gradient of operand W, from N values.
template <class Op, int W>
struct Direction {
  static constexpr int keeps = W < 0 ? 0 : functor::keeps<Op, (W < 0 ? 0 : W)>;
  static constexpr bool exists = keeps >= 0;
  static constexpr int inputs = W < 0 ? functor::operands<Op> : __builtin_popcount(exists ? keeps : 0) + 1;
};

template <class Op, int W, class T, int... Slot, std::size_t... I>
THIMBLE_DEVICE inline T differentiate(const Op& op, const T* x, std::tuple<functor::Argument<Slot, T>...>*,
                                      std::index_sequence<I...>) {
  return functor::call_backward<W>(op, x[sizeof...(I)], functor::Argument<Slot, T>{x[I]}...);
}

template <class Op, int W, class T>
THIMBLE_DEVICE inline T evaluate(const Op& op, const T* x) {
  if constexpr (W >= 0) {
    using Kept = functor::KeptTuple<static_cast<unsigned>(Direction<Op, W>::keeps), T>;
    return differentiate<Op, W, T>(op, x, static_cast<Kept*>(nullptr),
                                   std::make_index_sequence<std::tuple_size_v<Kept>>{});
  } else if constexpr (functor::operands<Op> == 1) {
    return static_cast<T>(op.fwd(x[0]));
  } else if constexpr (functor::operands<Op> == 2) {
    return static_cast<T>(op.fwd(x[0], x[1]));
  } else {
    return static_cast<T>(op.fwd(x[0], x[1], x[2]));
  }
}

template <class Op, class... Ops>
constexpr bool is_any(ops::TypeList<Ops...>) {
  return (std::is_same_v<Op, Ops> || ...);
}
/// Functors with transcendental functions or divisions, computed in Quick for 16-bit results.
using QuickOps = ops::TypeList<ops::Exp, ops::Log, ops::Tanh, ops::Sigmoid, ops::Softplus, ops::GeluTanh, ops::GeluErf,
                               ops::Silu, ops::Erf, ops::SwiGlu, ops::BceWithLogits, ops::KlDivergence,
                               ops::LogSumExpGradient, ops::Reciprocal, ops::Div, ops::DivScalar>;
/// The compute type of Op for results of type S.
template <class Op, class S>
using Number = std::conditional_t<is_any<Op>(QuickOps{}), QuickNumber<S>, float>;

/// Any strides and dtypes, one element at a time.
template <class Op, int W, class T>
struct General {
  using Stored = std::conditional_t<std::is_same_v<T, Quick>, float, T>;
  static constexpr int inputs = Direction<Op, W>::inputs;
  Op op;
  Walk<inputs> walk;
  const void* in[inputs];
  DType dtypes[inputs];
  void* out;
  DType out_dtype;

  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    std::int64_t at[inputs];
    walk.locate(i, at);
    T x[inputs];
    for (int n = 0; n < inputs; ++n) x[n] = T(load<Stored>(in[n], dtypes[n], at[n]));
    store(out, out_dtype, i, static_cast<Stored>(evaluate<Op, W, T>(op, x)));
  }
};

/// Operands of one dtype, dense or of one element; `count` elements in 16 bytes.
template <class Op, int W, class S>
struct Dense {
  static constexpr int inputs = Direction<Op, W>::inputs;
  static constexpr int count = word_elements<S>;
  Op op;
  const S* in[inputs];
  bool is_one[inputs];
  S* out;
  std::int64_t n;

  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t begin = i * count;
    const bool is_whole = begin + count <= n;
    Words<S, count> vectors[inputs];
    for (int k = 0; k < inputs; ++k) {
      if (is_whole && !is_one[k]) {
        vectors[k] = words_at<count>(in[k], begin);
      } else {
        for (int e = 0; e < count; ++e) {
          vectors[k].values[e] = in[k][is_one[k] || begin + e >= n ? 0 : begin + e];
        }
      }
    }
    float results[count];
    THIMBLE_UNROLL
    for (int e = 0; e < count; ++e) {
      Number<Op, S> x[inputs];
      for (int k = 0; k < inputs; ++k) x[k] = Number<Op, S>(widened(vectors[k].values[e]));
      results[e] = static_cast<float>(evaluate<Op, W, Number<Op, S>>(op, x));
    }
    const Words<S, count> result = narrowed<S>(results);
    if (is_whole) {
      put_words(out, begin, result);
    } else {
      for (int e = 0; e < count; ++e) {
        if (begin + e < n) out[begin + e] = result.values[e];
      }
    }
  }
};

template <class Op, int W, class S>
bool run_dense(const Op& op, const ElementwiseArgs& args, const Walk<Direction<Op, W>::inputs>& walk) {
  Dense<Op, W, S> body;
  body.op = op;
  body.out = static_cast<S*>(args.out);
  body.n = args.shape.elements();
  auto addresses = reinterpret_cast<std::uintptr_t>(args.out);
  if (args.out_dtype != dtype_of<S> || walk.rank != 1) return false;
  for (int k = 0; k < body.inputs; ++k) {
    const auto& operand = args.in[static_cast<std::size_t>(k)];
    const std::int64_t stride = body.n == 1 ? 1 : walk.strides[k][0];
    if (operand.dtype != dtype_of<S> || (stride != 0 && stride != 1)) return false;
    body.in[k] = static_cast<const S*>(operand.data);
    body.is_one[k] = stride == 0;
    if (stride == 1) addresses |= reinterpret_cast<std::uintptr_t>(operand.data);
  }
  if ((addresses & 15) != 0) return false;
  for_each_item((body.n + body.count - 1) / body.count, body);
  return true;
}

template <class Op, int W, class T>
void run_general(const Op& op, const ElementwiseArgs& args, const Walk<Direction<Op, W>::inputs>& walk) {
  constexpr int inputs = Direction<Op, W>::inputs;
  General<Op, W, T> body{op, walk, {}, {}, args.out, args.out_dtype};
  for (int k = 0; k < inputs; ++k) {
    body.in[k] = args.in[static_cast<std::size_t>(k)].data;
    body.dtypes[k] = args.in[static_cast<std::size_t>(k)].dtype;
  }
  for_each_item(args.shape.elements(), body);
}

template <std::size_t N, std::size_t... I>
Walk<static_cast<int>(N)> walk_of(const ElementwiseArgs& args, std::index_sequence<I...>) {
  return Walk<static_cast<int>(N)>(args.shape, {&args.in[I].strides...});
}

using Run = void (*)(const void* functor, const ElementwiseArgs& args);

template <class Op, int W>
void run(const void* functor, const ElementwiseArgs& args) {
  constexpr auto inputs = static_cast<std::size_t>(Direction<Op, W>::inputs);
  const Op op = *static_cast<const Op*>(functor);
  const auto walk = walk_of<inputs>(args, std::make_index_sequence<inputs>{});
  switch (args.compute) {
    case ComputeType::f32:
      if (run_dense<Op, W, float>(op, args, walk) || run_dense<Op, W, bf16>(op, args, walk) ||
          run_dense<Op, W, f16>(op, args, walk)) {
        return;
      }
      if (is_quick(args.out_dtype)) return run_general<Op, W, Number<Op, bf16>>(op, args, walk);
      return run_general<Op, W, float>(op, args, walk);
    case ComputeType::f64:
      return run_general<Op, W, double>(op, args, walk);
    case ComputeType::i64:
      if constexpr (W < 0 && functor::is_integral<Op>) return run_general<Op, W, std::int64_t>(op, args, walk);
  }
}

template <class Op, int W>
constexpr Run run_of() {
  if constexpr (Direction<Op, W>::exists) {
    return run<Op, W>;
  } else {
    return nullptr;
  }
}

/// Forward, and the gradients of the three operands.
using Row = std::array<Run, 4>;
template <class Op>
inline constexpr Row row_of{run_of<Op, -1>(), run_of<Op, 0>(), run_of<Op, 1>(), run_of<Op, 2>()};

/// The rows of the list are compiled in several files to save time: file `part` has the rows with index %
/// elementwise_parts == part.
inline constexpr int elementwise_parts = 4;
const Row* row_in_part_0(int index);
const Row* row_in_part_1(int index);
const Row* row_in_part_2(int index);
const Row* row_in_part_3(int index);

template <int part, class Op, int index>
const Row* row_if(int wanted) {
  if constexpr (index % elementwise_parts == part) {
    return wanted == index ? &row_of<Op> : nullptr;
  } else {
    return nullptr;
  }
}

template <int part, class... Ops, int... index>
const Row* find_row(ops::TypeList<Ops...>, std::integer_sequence<int, index...>, int wanted) {
  const Row* row = nullptr;
  ((row = row != nullptr ? row : row_if<part, Ops, index>(wanted)), ...);
  return row;
}

template <int part, class... Ops>
const Row* row_in_part(ops::TypeList<Ops...> list, int wanted) {
  return find_row<part>(list, std::make_integer_sequence<int, sizeof...(Ops)>{}, wanted);
}

}  // namespace thimble::elementwise_cuda_detail
