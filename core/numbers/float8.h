#pragma once
// The two 8-bit formats of "FP8 Formats for Deep Learning" (Micikevicius et al., 2022). Storage types: arithmetic is in
// float. See core/numbers/minifloat.h for the conversions; `saturate` clamps to the largest finite value.

#include <thimble/core/numbers/minifloat.h>

namespace thimble {

/// E4M3 (the "FN" variant: no infinity, one NaN). Largest 448 (0x7E); smallest normal 2^-6, subnormal 2^-9. Magnitudes
/// up to 464 round to 448; larger ones and infinity become NaN (0x7F, sign kept), with `saturate` 448.
struct f8e4m3 : minifloat::Value<f8e4m3, minifloat::Format<std::uint8_t, 4, 3, 0x7E, 0x7F>> {
  using Value::Value;
};

/// E5M2: the upper half of an f16. Largest 57344 (0x7B); smallest normal 2^-14, subnormal 2^-16. Magnitudes from 61440
/// on become infinity (0x7C), with `saturate` 57344. Encoding any NaN gives 0x7F with the sign kept.
struct f8e5m2 : minifloat::Value<f8e5m2, minifloat::Format<std::uint8_t, 5, 2, 0x7B, 0x7F>> {
  using Value::Value;
};

}  // namespace thimble
