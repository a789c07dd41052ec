#pragma once
// The elementwise kernel family. A functor is evaluated over short contiguous chunks in the compute type;
// elementwise_cpu.cpp handles strides, broadcasting, dtype conversion and threads once for all functors.

#include <array>
#include <cstdint>

#include <thimble/core/dtype.h>
#include <thimble/core/shape.h>

namespace thimble::kernels {

inline constexpr int max_elementwise_inputs = 5;

/// One operand: `strides` belong to the common shape (0 along broadcast axes).
struct ElementwiseOperand {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Shape strides;
};

/// out[i] = f(in[0][i], in[1][i], ...) for every index of `shape`. The output is dense.
struct ElementwiseArgs {
  Shape shape;
  int inputs = 0;
  std::array<ElementwiseOperand, max_elementwise_inputs> in;
  void* out = nullptr;
  DType out_dtype = DType::f32;
  ComputeType compute = ComputeType::f32;
};

/// Evaluates a functor over n contiguous elements of the compute type: out[i] = f(in[0][i], ...). `out` may be an
/// input.
using ElementwiseChunk = void (*)(const void* functor, const void* const* in, void* out, std::int64_t n);

/// A functor in each compute type; f32 in one variant per instruction set. Null for unsupported types.
struct ElementwiseFunction {
  ElementwiseChunk f32_generic = nullptr;
  ElementwiseChunk f32_avx2 = nullptr;
  ElementwiseChunk f32_avx512 = nullptr;
  ElementwiseChunk f64 = nullptr;
  ElementwiseChunk i64 = nullptr;
};

/// Forward, and the gradient with respect to each operand.
struct ElementwiseEntry {
  ElementwiseFunction forward;
  std::array<ElementwiseFunction, 3> backward;
};

void elementwise_cpu(const ElementwiseFunction& function, const void* functor, const ElementwiseArgs& args);

/// Runs built-in functor `index` (its index in BuiltinElementwise) on a CUDA device: forward (-1) or the gradient of an
/// operand. Null in a build without CUDA.
using ElementwiseCuda = void (*)(int index, int operand, const void* functor, const ElementwiseArgs& args);
extern const ElementwiseCuda elementwise_cuda;

/// The built-in functors' CPU entries, in the order of BuiltinElementwise (core/kernels/functors/elementwise_list.h).
extern const ElementwiseEntry* const elementwise_cpu_table;

}  // namespace thimble::kernels
