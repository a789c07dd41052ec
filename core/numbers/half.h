#pragma once
// The two 16-bit formats. Storage types: arithmetic is in float. See core/numbers/minifloat.h for the conversions.

#include <thimble/core/numbers/minifloat.h>

namespace thimble {

/// IEEE 754 binary16: 1 sign, 5 exponent, 10 mantissa bits. Largest 65504; smallest normal 2^-14, subnormal 2^-24.
/// Encoding any NaN gives 0x7E00 or, with the sign, 0xFE00.
struct f16 : minifloat::Value<f16, minifloat::Format<std::uint16_t, 5, 10, 0x7BFF, 0x7E00>> {
  using Value::Value;
};

/// bfloat16: the upper half of a float, 1 sign, 8 exponent, 7 mantissa bits. Largest 3.3895e38 (0x7F7F); smallest
/// normal 2^-126, subnormal 2^-133; subnormals are kept. Encoding any NaN gives 0x7FC0 or, with the sign, 0xFFC0.
struct bf16 : minifloat::Value<bf16, minifloat::Format<std::uint16_t, 8, 7, 0x7F7F, 0x7FC0>> {
  using Value::Value;
};

}  // namespace thimble
