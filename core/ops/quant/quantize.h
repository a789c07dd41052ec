#pragma once
// 8-bit tensors with scales, for parameters, activations, saved tensors, gradients, optimizer state and files.
//
// Blocks
// - A tensor is a matrix (elements / last axis, last axis) or, if flat, one row of all elements. Scalars are (1, 1).
// - The matrix is cut into blocks of `rows` x `columns`, where 0 means all; the last blocks down and across may be
//   smaller. A block shares one scale.
// - The scales are a dense tensor (blocks down, blocks across), always of rank 2: {(R + rows - 1) / rows, (C +
//   columns - 1) / columns} for a matrix (R, C). It is Tensor::scale() of the codes' tensor, which has the original's
//   shape and a narrow dtype.
//
//   one scale for                      ScaleBlocks
//   the tensor                         per_tensor()            {0, 0, true}
//   each index of an axis              per_channel(shape, a)   a = 0: {rows under one index, 0}; the last: {0, 1}
//   B values of a row (1xB)            per_row_block(B)        {1, B}
//   B x B of the matrix                square(B)               {B, B}
//   B values across rows               flat(B)                 {1, B, true}
//
// Values
// - scale = amax / largest, where amax is the block's largest magnitude and `largest` the dtype's: i8 127 (symmetric),
//   f8e4m3 448, f8e5m2 57344, u8 1 (dynamic codes, core/numbers/quant_code.h). It is at least 2^-126, or 0 for a block
//   of zeros, which decodes to zeros.
// - code = the nearest to value x (1 / scale), saturating; value = code x scale, both in f32, rounded to the requested
//   dtype.
// - Scales in f16 are rounded from f32; codes are made with the inverse of the f32 scale. With i8 and flat(32) this is
//   ggml's Q8_0: 34 bytes for 32 values. Scales above 65504 become 65504; below 2^-25 they are 0, and so are the
//   decoded values.
// - Scales in u8 are powers of two, amax / largest rounded up (UE8M0 of the OCP microscaling formats, 1.0, 5.4), but at
//   most so large that largest x scale is finite: 2^121 for i8, 2^119 f8e4m3, 2^112 f8e5m2, 2^127 (exponent 254) for
//   dynamic codes. Larger values saturate at 127 x 2^121, 1.75 x 2^127 and 2^127, so that all stay finite.
// - A block with a NaN or an infinity gets scale NaN and decodes to NaN, so that an overflow is never mistaken for a
//   number. f64 values beyond f32 are infinite, and so is code x scale if it rounds beyond f32.
//
// The error of a finite value, with f32 scales: for i8 at most half a scale, so amax / 254, or 2^-127 if amax is below
// 127 x 2^-126 (values up to 2^-127 become 0), and 2^-14 of that for f32's rounding; with f16 scales 2^-11 of the value
// and 2^-18 more, with u8 scales up to twice the error, except for saturation. For f8e4m3 2^-4 of the value (2^-3 for
// f8e5m2) if it is normal there.

#include <cstddef>
#include <cstdint>

#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// The values that share a scale, as above.
struct ScaleBlocks {
  std::int64_t rows = 0, columns = 0;
  bool is_flat = false;

  static constexpr ScaleBlocks per_tensor() noexcept { return {0, 0, true}; }
  /// For axis 0 or the last one; negative axes count from the end. Throws ShapeError for another axis.
  static ScaleBlocks per_channel(const Shape& shape, int axis);
  static constexpr ScaleBlocks per_row_block(std::int64_t size) noexcept { return {1, size, false}; }
  static constexpr ScaleBlocks square(std::int64_t size) noexcept { return {size, size, false}; }
  static constexpr ScaleBlocks flat(std::int64_t size) noexcept { return {1, size, true}; }

  friend bool operator==(const ScaleBlocks&, const ScaleBlocks&) = default;
};

/// A rule for making 8-bit codes.
struct Quantization {
  DType dtype = DType::i8;  ///< i8, f8e4m3, f8e5m2, or u8 for dynamic codes
  ScaleBlocks blocks = {};
  DType scale = DType::f32;  ///< f32, f16, or u8 for powers of two
  bool is_signed = true;     ///< for dynamic codes; unsigned codes turn negative values into 0

  friend bool operator==(const Quantization&, const Quantization&) = default;
};

/// The shape of the scales. Throws ValueError for negative block sizes.
Shape scale_shape(const Shape& shape, const ScaleBlocks& blocks);

/// Bytes of the codes and of the scales.
std::size_t quantized_bytes(const Shape& shape, const Quantization& how);

/// Codes of `t` with their scales. Throws DTypeError if `t` is not floating or has scales itself, or for a dtype that
/// Quantization does not support; ValueError as scale_shape; OutOfMemory; DeviceError if this build has no kernels.
Tensor quantize(const Tensor& t, const Quantization& how, memory::Category category = memory::Category::temporary);

/// Writes codes and scales to a dense tensor of t's shape that quantize() made. Counts as a write of both. Throws as
/// quantize does, and ShapeError or DTypeError if `codes` is no such tensor.
void quantize_into(const Tensor& codes, const Tensor& t, const Quantization& how);

/// A dense tensor of a floating dtype with the values. Throws DTypeError or ShapeError if quantize() did not make
/// `codes` by `how`.
Tensor dequantize(const Tensor& codes, const Quantization& how, DType dtype = DType::f32,
                  memory::Category category = memory::Category::temporary);

/// dequantize into a dense tensor of the codes' shape. Counts as a write.
void dequantize_into(const Tensor& t, const Tensor& codes, const Quantization& how);

// ---- Packing: a dense tensor rounded to a narrower dtype, and back.
//
//   dtype           bytes per value   error of a value that is normal in it
//   bf16            2                 at most 2^-8 of the value (8 significant bits)
//   f16             2                 at most 2^-11 (11); above 65504 it becomes infinite, below 2^-14 it loses digits
//   f8e4m3, f8e5m2  1.0625            at most 2^-4 (4), 2^-3 (3) of the value
//   i8              1.0625            at most amax / 254
//
// The last three have an f32 scale for every 64 values (ScaleBlocks::flat(64)); amax is the largest magnitude of the
// 64, and a NaN or infinity makes all 64 NaN.

/// Whether tensors of `from` can be packed to `to`: `from` is floating, and `to` is narrower and in the table.
bool can_pack(DType from, DType to) noexcept;

/// The rule for packing to f8e4m3, f8e5m2 and i8.
constexpr Quantization packing(DType dtype) noexcept { return {dtype, ScaleBlocks::flat(64), DType::f32, true}; }

/// Bytes of a packed tensor, scales included.
std::size_t packed_bytes(std::int64_t elements, DType dtype);

/// `t` rounded to `dtype`, dense, with scales if the dtype has them. Throws DTypeError unless can_pack(), OutOfMemory,
/// DeviceError if this build has no kernels.
Tensor pack(const Tensor& t, DType dtype);

/// A dense tensor of `dtype` with the values of pack()'s result.
Tensor unpack(const Tensor& packed, DType dtype);

}  // namespace thimble
