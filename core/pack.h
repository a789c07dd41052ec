#pragma once
// Fewer digits for bytes that only wait: a dense tensor rounded to a narrower floating dtype, and back.
//
//   dtype           scale        relative error of a value that is normal in it
//   bf16            none         at most 2^-8 (8 significant bits)
//   f16             none         at most 2^-11 (11); beyond 65504 it becomes infinite, below 2^-14 it loses digits
//   f8e4m3, f8e5m2  per tensor   at most 2^-4 (4), 2^-3 (3); below amax 2^-14.8, amax 2^-29.8 it loses digits
//
// An FP8 scale is amax / (the format's largest value), amax being the largest finite magnitude of the tensor: nothing
// overflows but infinities, which become that largest value. The scale is a tensor of one f32 value (Tensor::scale).

#include <thimble/core/tensor.h>

namespace thimble {

/// Whether tensors of `from` can be packed to `to`: both are floating and `to` is narrower.
bool can_pack(DType from, DType to) noexcept;

/// `t` rounded to `dtype`, dense, with a scale where that is an FP8 dtype. Throws DTypeError where can_pack() says no,
/// OutOfMemory; DeviceError for an FP8 dtype on another device than the cpu.
Tensor pack(const Tensor& t, DType dtype);

/// A dense tensor of `dtype` with the values of one that pack() made.
Tensor unpack(const Tensor& packed, DType dtype);

}  // namespace thimble
