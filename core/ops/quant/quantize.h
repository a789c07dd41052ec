#pragma once
// 8-bit tensors with scales: one description for parameters, activations, saved tensors, gradients, optimizer state and
// files.
//
// Blocks
// - A tensor is a matrix (elements / last axis, last axis), or, flat, one row of all its elements. Scalars are (1, 1).
// - The matrix is cut in blocks of `rows` x `columns`, 0 meaning all; the last ones down and across may be smaller. A
//   block shares one scale.
// - The scales are a dense tensor of shape (blocks down, blocks across), always of rank 2: {(R + rows - 1) / rows, (C +
//   columns - 1) / columns} for a matrix (R, C). It is Tensor::scale() of the codes' tensor, which has the shape of the
//   original and one of the narrow dtypes.
//
//   one scale for                      ScaleBlocks
//   the tensor                         per_tensor()            {0, 0, true}
//   each index of an axis              per_channel(shape, a)   a = 0: {rows under one index, 0}; the last: {0, 1}
//   B values of a row (1xB)            per_row_block(B)        {1, B}
//   B x B of the matrix                square(B)               {B, B}
//   B values wherever rows end         flat(B)                 {1, B, true}
//
// Values
// - scale = amax / largest, amax being the block's largest magnitude and `largest` the dtype's: i8 127 (symmetric),
//   f8e4m3 448, f8e5m2 57344, u8 1 (dynamic codes, core/numbers/quant_code.h). It is at least 2^-126, and 0 for a block
//   of zeros, which decodes to zeros.
// - code = nearest to value x (1 / scale), saturating; value = code x scale, both in f32, rounded to the requested
//   dtype.
// - scales in f16 are rounded from f32; codes are still made with the inverse of the f32 scale. With i8 and flat(32)
//   this is Q8_0 of ggml: 34 bytes for 32 values. Scales beyond 65504 become 65504; below 2^-25 they are 0, and so are
//   the decoded values.
// - scales in u8 are powers of two, amax / largest rounded up (UE8M0 of the OCP microscaling formats, 1.0, 5.4), but at
//   most the one for which largest x scale is finite: 2^121 for i8, 2^119 f8e4m3, 2^112 f8e5m2, 2^127 (exponent 254)
//   for dynamic codes. Values beyond saturate: at 127 x 2^121, 1.75 x 2^127 and 2^127, so that all of them stay finite.
// - A block with a NaN or an infinity gets scale NaN and decodes to NaN, so that an overflow is never mistaken for a
//   number. f64 values beyond f32 are infinite, and so is code x scale where it rounds beyond f32.
//
// The error of a finite value, with f32 scales: for i8 at most half a scale, so amax / 254, or 2^-127 where amax is
// below 127 x 2^-126 (values up to 2^-127 become 0), and 2^-14 of that for f32's rounding; with f16 scales 2^-11 of the
// value and 2^-18 more, with u8 ones up to twice as much, saturation aside. For f8e4m3 2^-4 of the value (2^-3 f8e5m2)
// where it is normal in it.

#include <cstddef>
#include <cstdint>

#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// Which values share a scale. See above.
struct ScaleBlocks {
  std::int64_t rows = 0, columns = 0;
  bool is_flat = false;

  static constexpr ScaleBlocks per_tensor() noexcept { return {0, 0, true}; }
  /// Axis 0 or the last one (negative axes count from the end). Throws ShapeError for another.
  static ScaleBlocks per_channel(const Shape& shape, int axis);
  static constexpr ScaleBlocks per_row_block(std::int64_t size) noexcept { return {1, size, false}; }
  static constexpr ScaleBlocks square(std::int64_t size) noexcept { return {size, size, false}; }
  static constexpr ScaleBlocks flat(std::int64_t size) noexcept { return {1, size, true}; }

  friend bool operator==(const ScaleBlocks&, const ScaleBlocks&) = default;
};

/// How values become 8 bits.
struct Quantization {
  DType dtype = DType::i8;  ///< i8, f8e4m3, f8e5m2; u8: dynamic codes
  ScaleBlocks blocks = {};
  DType scale = DType::f32;  ///< f32, f16; u8: powers of two
  bool is_signed = true;     ///< of dynamic codes; unsigned codes turn negative values into 0

  friend bool operator==(const Quantization&, const Quantization&) = default;
};

/// The shape of the scales. Throws ValueError for negative block sizes.
Shape scale_shape(const Shape& shape, const ScaleBlocks& blocks);

/// Bytes of the codes and of the scales.
std::size_t quantized_bytes(const Shape& shape, const Quantization& how);

/// Codes of `t` with their scales. Throws DTypeError when `t` is not floating or has scales itself, or for a dtype that
/// Quantization does not support; ValueError as scale_shape; OutOfMemory; DeviceError where this build has no kernels.
Tensor quantize(const Tensor& t, const Quantization& how, Category category = Category::temporary);

/// Codes and scales into a dense tensor of t's shape that quantize() made. Counts as a write of
/// both. Throws as quantize does, and ShapeError, DTypeError where `codes` is not such a tensor.
void quantize_into(const Tensor& codes, const Tensor& t, const Quantization& how);

/// A dense tensor of a floating dtype with the values. `how` is quantize()'s. Throws DTypeError, ShapeError where
/// `codes` was not made so.
Tensor dequantize(const Tensor& codes, const Quantization& how, DType dtype = DType::f32,
                  Category category = Category::temporary);

/// The same into a dense tensor of the codes' shape. Counts as a write.
void dequantize_into(const Tensor& t, const Tensor& codes, const Quantization& how);

// ---- Fewer bits for bytes that wait: a dense tensor rounded to a narrower dtype, and back.
//
//   dtype           bytes per value   error of a value that is normal in it
//   bf16            2                 at most 2^-8 of the value (8 significant bits)
//   f16             2                 at most 2^-11 (11); beyond 65504 it becomes infinite, below 2^-14 it loses digits
//   f8e4m3, f8e5m2  1.0625            at most 2^-4 (4), 2^-3 (3) of the value
//   i8              1.0625            at most amax / 254
//
// The last three have a scale in f32 for every 64 values (ScaleBlocks::flat(64)); amax is
// the largest magnitude of the 64; a NaN or infinity makes all 64 NaN.

/// Whether tensors of `from` can be packed to `to`: `from` is floating and `to` narrower and one of the above.
bool can_pack(DType from, DType to) noexcept;

/// How f8e4m3, f8e5m2 and i8 are packed.
constexpr Quantization packing(DType dtype) noexcept { return {dtype, ScaleBlocks::flat(64), DType::f32, true}; }

/// Bytes of a packed tensor, scales included.
std::size_t packed_bytes(std::int64_t elements, DType dtype);

/// `t` rounded to `dtype`, dense, with scales where it has them. Throws DTypeError unless can_pack(), OutOfMemory,
/// DeviceError where this build has no kernels.
Tensor pack(const Tensor& t, DType dtype);

/// A dense tensor of `dtype` with the values of pack()'s result.
Tensor unpack(const Tensor& packed, DType dtype);

}  // namespace thimble
