#pragma once
// Activations that matmul and convolution can apply to their result before it is stored.

#include <cstdint>

namespace thimble::kernels {

/// The operators ops::Relu, ops::GeluTanh, ops::GeluErf of core/kernels/functors/unary.h: fused or not, the bits are
/// equal where the intermediate is not rounded.
enum class Activation : std::uint8_t { none, relu, gelu_tanh, gelu_erf };

}  // namespace thimble::kernels
