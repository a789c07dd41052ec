#pragma once
// Elementwise operators without broadcasting, gathering or conversion, as in most calls.

#include <array>
#include <cstdint>

#include <thimble/core/kernels/elementwise.h>

namespace thimble::kernels {

/// `elements` contiguous elements of every operand and of the result, in `dtype` (f32, f64 or i64). Gives
/// elementwise_cpu's bits.
struct DenseElementwise {
  std::array<const void*, max_elementwise_inputs> in;
  int inputs = 0;
  void* out = nullptr;
  std::int64_t elements = 0;
  DType dtype = DType::f32;
};

void elementwise_dense_cpu(const ElementwiseFunction& function, const void* functor, const DenseElementwise& args);

}  // namespace thimble::kernels
