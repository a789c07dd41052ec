#pragma once
// Fewer bits for bytes that wait: a dense tensor rounded to a narrower dtype, and back.
//
//   dtype           bytes per value   error of a value that is normal in it
//   bf16            2                 at most 2^-8 of the value (8 significant bits)
//   f16             2                 at most 2^-11 (11); beyond 65504 it becomes infinite, below 2^-14 it loses digits
//   f8e4m3, f8e5m2  1.0625            at most 2^-4 (4), 2^-3 (3) of the value
//   i8              1.0625            at most amax / 254
//
// The last three have a scale in f32 for every 64 values (core/ops/quant/quantize.h, ScaleBlocks::flat(64)); amax is
// the largest magnitude of the 64; a NaN or infinity makes all 64 NaN.

#include <thimble/core/ops/quant/quantize.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

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
