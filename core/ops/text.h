#pragma once
// Tensors as human-readable text.

#include <string>

#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// The elements in nested brackets, laid out and rounded as NumPy prints an array: lines of at most 75 characters,
/// columns aligned, at most 8 digits after the point, a common exponent form if magnitudes differ by more than 1000
/// or leave [1e-4, 1e8) (f32: 1e6, narrower: 1e3). Prints the fewest digits that identify the value in its dtype (bf16
/// and fp8 too). Above 1000 elements it shows only `edge` elements at both ends of every axis, with dots in between. A
/// tensor without elements is "[]". Throws DeviceError on a dry device, which has no values (use describe()), and
/// ValueError if edge < 1.
std::string to_text(const Tensor& t, int edge = 3);

}  // namespace thimble
