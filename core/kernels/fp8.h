#pragma once
// Kernels of FP8 operands on the CPU (core/fp8.h). Scales and codes do not depend on threads: a magnitude is a maximum
// of integers, and elements are independent.

#include <cstdint>

#include <thimble/core/dtype.h>

namespace thimble::kernels {

/// The scale of a dense tensor, and its record.
struct Fp8ScaleArgs {
  const void* values = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::bf16;  ///< floating
  DType code_dtype = DType::f8e4m3;
  int margin = 0;
  const float* known = nullptr;  ///< taken unless it is null or holds 0
  float* scale = nullptr;        ///< written
  float* history = nullptr;      ///< `length` of them; null: nothing is recorded
  std::int64_t length = 0;
  float* next_scale = nullptr;
  std::int64_t* steps = nullptr;  ///< recorded so far, 1 + number of the last
  std::int64_t step = 0;
};
void fp8_scale(const Fp8ScaleArgs& args);

/// Codes of a dense tensor, and what they stand for: either may be null. `decoded` may be `values` where that is bf16.
struct Fp8CastArgs {
  const void* values = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::bf16;
  DType code_dtype = DType::f8e4m3;
  const float* scale = nullptr;
  std::uint8_t* codes = nullptr;
  bf16* decoded = nullptr;
};
void fp8_cast(const Fp8CastArgs& args);

/// A window of codes to dense bf16, multiplied with the scales of its blocks where there are some.
struct Fp8DecodeArgs {
  const std::uint8_t* codes = nullptr;  ///< all of them, `row_stride` a row
  DType code_dtype = DType::f8e4m3;
  std::int64_t row_stride = 0;
  std::int64_t row = 0, column = 0, rows = 0, columns = 0;  ///< the window
  const std::uint8_t* scales = nullptr;                     ///< UE8M0, row by row of blocks; null: none
  std::int64_t block_rows = 1, block_columns = 1, blocks_across = 1;
  bf16* decoded = nullptr;
};
void fp8_decode(const Fp8DecodeArgs& args);

}  // namespace thimble::kernels
