#pragma once
// Contiguous loops between f32 and the narrow floating formats, one table per instruction set. All tables give the same
// bits, NaN included; core/convert.h is the interface that the library uses.

#include <cstdint>
#include <span>

#include <thimble/core/dtype.h>

namespace thimble {

/// The loops compiled for one instruction set.
struct NarrowFloatLoops {
  using Load = void (*)(const void* src, float* dst, std::int64_t n);
  using Store = void (*)(const float* src, void* dst, std::int64_t n, Fp8Overflow overflow);

  const char* name;  ///< "generic", "avx2", "avx512"
  Load loads[4];     ///< f16, bf16, f8e4m3, f8e5m2, exact
  Store stores[4];   ///< the same order, nearest even

  Load load(DType dtype) const noexcept { return loads[static_cast<int>(dtype) - static_cast<int>(DType::f16)]; }
  Store store(DType dtype) const noexcept { return stores[static_cast<int>(dtype) - static_cast<int>(DType::f16)]; }
};

/// Every table that this processor can run, slowest first; the first is the plain loop, the oracle of the others.
std::span<const NarrowFloatLoops> all_narrow_float_loops() noexcept;

/// The last of all_narrow_float_loops().
inline const NarrowFloatLoops& narrow_float_loops() noexcept { return all_narrow_float_loops().back(); }

}  // namespace thimble
