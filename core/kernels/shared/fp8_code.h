#pragma once
// The scale of an FP8 tensor and the code of a number in it (core/ops/quant/fp8.h), shared by all devices.

#include <cstdint>

#include <thimble/core/dtype.h>
#include <thimble/core/kernels/fp8.h>
#include <thimble/core/numbers/quant_code.h>

namespace thimble::kernels {

/// The code of an infinity, without its sign; in E4M3, which has no infinity, the code of NaN.
template <class Code>
THIMBLE_HD constexpr std::uint32_t fp8_infinity_code() noexcept {
  return Code::largest == 448.0f ? 0x7Fu : 0x7Cu;
}

/// The code of value x inverse. Branch-free; a non-finite value is detected on the value, not on the product, which may
/// overflow for a finite value.
template <class Code>
THIMBLE_HD inline std::uint8_t fp8_code(float value, float inverse) noexcept {
  const float x = value * inverse;
  const std::uint32_t bits = bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t scaled = bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
  std::uint32_t code = Code{}.encode(x);
  code = magnitude == quant::infinity_bits ? (fp8_infinity_code<Code>() | (bits >> 31 << 7)) : code;
  code = scaled > quant::infinity_bits ? 0x7Fu : code;  // one NaN, whatever its origin
  return static_cast<std::uint8_t>(code);
}

/// A code's value times a factor, as the bits of a bf16. The product is exact in bf16: the float's lower half is zero.
template <class Code>
THIMBLE_HD inline std::uint16_t fp8_value_bits(std::uint8_t code, float factor) noexcept {
  return static_cast<std::uint16_t>(bit_cast<std::uint32_t>(Code{}.decode(code) * factor) >> 16);
}
template <class Code>
THIMBLE_HD inline std::uint16_t fp8_value_bits(std::uint8_t code) noexcept {
  return static_cast<std::uint16_t>(bit_cast<std::uint32_t>(Code{}.decode(code)) >> 16);
}

/// Evaluates one element of Fp8ScalesArgs.
struct PlaceFp8Scales {
  Fp8ScalesArgs args;

  THIMBLE_HD static std::int64_t elements(const Fp8ScaleGrid& grid) noexcept { return grid.outer * grid.to_stride; }
  THIMBLE_HD std::int64_t elements() const noexcept { return elements(args.a) + elements(args.b); }

  THIMBLE_HD static void place(const Fp8ScaleGrid& grid, std::int64_t at) noexcept {
    const std::int64_t outer = at / grid.to_stride, inner = at - outer * grid.to_stride;
    grid.to[at] = inner < grid.inner
                      ? quant::load_scale(grid.scales, DType::u8, outer * grid.outer_stride + inner * grid.inner_stride)
                      : 0.0f;
  }
  THIMBLE_HD void operator()(std::int64_t i) const noexcept {
    const std::int64_t first = elements(args.a);
    i < first ? place(args.a, i) : place(args.b, i - first);
  }
};

THIMBLE_HD inline bool fp8_is_finite(float amax) noexcept {
  return (bit_cast<std::uint32_t>(amax) & 0x7FFFFFFFu) < quant::infinity_bits;
}

/// The entry of a step's amax in the ring.
struct Fp8Place {
  bool is_new;  ///< this step's first record
  std::int64_t index;
};

/// The entry of generator step `step` in a ring of `length`; counts the step in `steps` (Fp8ScaleArgs) if it is new.
/// Counts are unsigned here, so that the index is inside the ring whatever they hold.
THIMBLE_HD inline Fp8Place fp8_place(std::int64_t* steps, std::int64_t step, std::int64_t length) noexcept {
  const std::uint64_t number = static_cast<std::uint64_t>(step) + 1;
  auto recorded = static_cast<std::uint64_t>(steps[0]);
  const bool is_new = static_cast<std::uint64_t>(steps[1]) != number;
  if (is_new) {
    steps[0] = static_cast<std::int64_t>(++recorded);
    steps[1] = static_cast<std::int64_t>(number);
  }
  return {is_new, static_cast<std::int64_t>((recorded - 1) % static_cast<std::uint64_t>(length))};
}

inline constexpr double fp8_scale_min = 0x1p-60, fp8_scale_max = 0x1p100;

/// The scale of an amax >= 0.
THIMBLE_HD inline float fp8_scale_from(float amax, DType dtype, int margin) noexcept {
  if (!fp8_is_finite(amax)) return bit_cast<float>(0x7FC00000u);
  if (amax == 0) return 1;
  margin = margin < -900 ? -900 : margin > 900 ? 900 : margin;  // beyond these the result is clamped anyway
  const double power = bit_cast<double>(static_cast<std::uint64_t>(1023 + margin) << 52);
  const double scale = static_cast<double>(amax) / (dtype == DType::f8e4m3 ? 448.0 : 57344.0) * power;
  return static_cast<float>(scale < fp8_scale_min ? fp8_scale_min : scale > fp8_scale_max ? fp8_scale_max : scale);
}

}  // namespace thimble::kernels
