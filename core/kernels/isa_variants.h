#pragma once
// One function body, compiled once per instruction set, and the choice among the copies at run time. With contraction
// off all copies give the same bits.

#include <thimble/core/kernels/isa.h>

namespace thimble::kernels {
namespace variant_detail {

#if defined(__x86_64__) && !defined(__CUDACC__)
#if defined(__clang__)
#define THIMBLE_AVX512 "avx512f,avx512bw,avx512dq,avx512vl"
#else
#define THIMBLE_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"
#endif
template <auto Body, class... Args>
__attribute__((target("avx2"), flatten)) void avx2(const Args&... args) {
  Body(args...);
}
template <auto Body, class... Args>
__attribute__((target(THIMBLE_AVX512), flatten)) void avx512(const Args&... args) {
  Body(args...);
}
#undef THIMBLE_AVX512
#endif

}  // namespace variant_detail

/// Calls Body(args...) as compiled for the instruction set in force. Body and what it calls must be inline functions of
/// this translation unit to profit.
template <auto Body, class... Args>
void run_variant(const Args&... args) {
#if defined(__x86_64__) && !defined(__CUDACC__)
  if (isa() == Isa::avx512) return variant_detail::avx512<Body>(args...);
  if (isa() == Isa::avx2) return variant_detail::avx2<Body>(args...);
#endif
  Body(args...);
}

}  // namespace thimble::kernels
