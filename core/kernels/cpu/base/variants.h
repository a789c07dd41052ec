#pragma once
// One source, one variant per instruction set: a kernel's inner loop is a struct with a static `run`; the call chooses
// the variant for the CPU in use. With contraction off all variants give the same bits.

#include <thimble/core/kernels/cpu/base/isa.h>

namespace thimble::kernels {
namespace variants_detail {

#if defined(__x86_64__)
template <class Inner, class... Args>
THIMBLE_TARGET_AVX2 __attribute__((flatten)) void run_avx2(const Args&... args) {
  Inner::run(args...);
}

template <class Inner, class... Args>
THIMBLE_TARGET_AVX512 __attribute__((flatten)) void run_avx512(const Args&... args) {
  Inner::run(args...);
}
#endif

}  // namespace variants_detail

/// Inner::run(args...), compiled for the current instruction set, together with everything that it calls inline.
template <class Inner, class... Args>
void run_variant(const Args&... args) {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return variants_detail::run_avx512<Inner>(args...);
  if (isa() == Isa::avx2) return variants_detail::run_avx2<Inner>(args...);
#endif
  Inner::run(args...);
}

/// As above for Inner<T, is_fused>::run(args...), is_fused where the instruction set has a fused multiply-add.
template <template <class, bool> class Inner, class T, class... Args>
void run_fused_variant(const Args&... args) {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return variants_detail::run_avx512<Inner<T, true>>(args...);
  if (isa() == Isa::avx2) return variants_detail::run_avx2<Inner<T, true>>(args...);
#endif
  Inner<T, false>::run(args...);
}

}  // namespace thimble::kernels
