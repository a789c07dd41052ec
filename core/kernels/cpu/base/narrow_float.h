#pragma once
// Contiguous loops between f32 and the narrow floating formats, one table per instruction set. All tables give the same
// bits, NaN included; core/numbers/convert.h is the interface that the library uses.

#include <cstdint>

#include <thimble/core/config.h>
#include <thimble/core/dtype.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/numbers/bits.h>

namespace thimble::kernels {

/// The code of bf16(value), in a form that vectorizes better than the general codec: the upper half after rounding the
/// lower half into it. No carry reaches the sign, because NaNs lie above infinity.
THIMBLE_ALWAYS_INLINE std::uint16_t bf16_code(float value) noexcept {
  const auto bits = bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1);
  const std::uint32_t nan = 0x7FC00000u | (bits & 0x80000000u);
  return static_cast<std::uint16_t>(((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded) >> 16);
}

/// f16, bf16, f8e4m3, f8e5m2: the dtypes of the loops below.
constexpr bool is_narrow(DType dtype) noexcept { return dtype >= DType::f16 && dtype <= DType::f8e5m2; }

/// The loops compiled for one instruction set.
struct NarrowFloatLoops {
  using Load = void (*)(const void* src, float* dst, std::int64_t n);
  using Store = void (*)(const float* src, void* dst, std::int64_t n, Fp8Overflow overflow);

  Load loads[4];    ///< f16, bf16, f8e4m3, f8e5m2, exact
  Store stores[4];  ///< the same order, nearest even

  Load load(DType dtype) const noexcept { return loads[static_cast<int>(dtype) - static_cast<int>(DType::f16)]; }
  Store store(DType dtype) const noexcept { return stores[static_cast<int>(dtype) - static_cast<int>(DType::f16)]; }
};

/// The table for a supported instruction set. The table of Isa::generic has plain loops, the oracle of the others.
const NarrowFloatLoops& narrow_float_loops(Isa isa) noexcept;

}  // namespace thimble::kernels
