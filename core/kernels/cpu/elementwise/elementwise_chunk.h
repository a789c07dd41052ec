#pragma once
// From a functor to its CPU entry: loops over contiguous chunks, one variant per instruction set. With contraction off
// all variants give the same bits.

#include <array>
#include <cstddef>
#include <cstdint>

#include <thimble/core/kernels/elementwise.h>
#include <thimble/core/kernels/functors/functor.h>

namespace thimble::kernels {

namespace chunk_detail {

template <class Op, class T, std::size_t... I>
inline void forward_loop(const void* functor, const void* const* in, void* out, std::int64_t n,
                         std::index_sequence<I...>) {
  const Op op = *static_cast<const Op*>(functor);
  const std::array<const T*, sizeof...(I)> x{static_cast<const T*>(in[I])...};
  T* const y = static_cast<T*>(out);
  for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<T>(op.fwd(x[I][i]...));
}

// Kept values come first, in slot order, then dy.
template <class Op, class T, int W, int... Slot, std::size_t... I>
inline void backward_loop(const void* functor, const void* const* in, void* out, std::int64_t n,
                          std::tuple<functor::Argument<Slot, T>...>, std::index_sequence<I...>) {
  const Op op = *static_cast<const Op*>(functor);
  const std::array<const T*, sizeof...(I) + 1> x{static_cast<const T*>(in[I])...,
                                                 static_cast<const T*>(in[sizeof...(I)])};
  T* const dx = static_cast<T*>(out);
  for (std::int64_t i = 0; i < n; ++i) {
    dx[i] = functor::call_backward<W>(op, x[sizeof...(I)][i], functor::Argument<Slot, T>{x[I][i]}...);
  }
}

template <class Op, class T, int W>
inline void run(const void* functor, const void* const* in, void* out, std::int64_t n) {
  if constexpr (W < 0) {
    forward_loop<Op, T>(functor, in, out, n,
                        std::make_index_sequence<static_cast<std::size_t>(functor::operands<Op>)>{});
  } else {
    using Kept = functor::KeptTuple<static_cast<unsigned>(functor::keeps<Op, W>), T>;
    backward_loop<Op, T, W>(functor, in, out, n, Kept{}, std::make_index_sequence<std::tuple_size_v<Kept>>{});
  }
}

template <class Op, class T, int W>
void generic(const void* functor, const void* const* in, void* out, std::int64_t n) {
  run<Op, T, W>(functor, in, out, n);
}

#if defined(__x86_64__) && !defined(__CUDACC__)
#if defined(__clang__)
#define THIMBLE_AVX512 "avx512f,avx512bw,avx512dq,avx512vl"
#else
#define THIMBLE_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"
#endif
template <class Op, class T, int W>
__attribute__((target("avx2"), flatten)) void avx2(const void* functor, const void* const* in, void* out,
                                                   std::int64_t n) {
  run<Op, T, W>(functor, in, out, n);
}
template <class Op, class T, int W>
__attribute__((target(THIMBLE_AVX512), flatten)) void avx512(const void* functor, const void* const* in, void* out,
                                                             std::int64_t n) {
  run<Op, T, W>(functor, in, out, n);
}
#undef THIMBLE_AVX512
#endif

template <class Op, int W>
constexpr ElementwiseFunction function() {
  ElementwiseFunction f;
  f.f32_generic = generic<Op, float, W>;
#if defined(__x86_64__) && !defined(__CUDACC__)
  f.f32_avx2 = avx2<Op, float, W>;
  f.f32_avx512 = avx512<Op, float, W>;
#endif
  f.f64 = generic<Op, double, W>;
  if constexpr (W < 0 && functor::is_integral<Op>) f.i64 = generic<Op, std::int64_t, W>;
  return f;
}

template <class Op, int W>
constexpr ElementwiseFunction backward_function() {
  if constexpr (functor::keeps<Op, W> >= 0) {
    return function<Op, W>();
  } else {
    return {};
  }
}

}  // namespace chunk_detail

/// The CPU entry of a functor.
template <class Op>
inline constexpr ElementwiseEntry elementwise_entry{
    chunk_detail::function<Op, -1>(),
    {chunk_detail::backward_function<Op, 0>(), chunk_detail::backward_function<Op, 1>(),
     chunk_detail::backward_function<Op, 2>()}};

}  // namespace thimble::kernels
