#pragma once
// The softmax kernel family: softmax and log-softmax over one axis, optionally scaled and with a causal mask.

#include <thimble/core/kernels/cpu/base/rows.h>

namespace thimble::kernels {

/// For every row of `length` elements, z = scale x:
///   softmax      y = exp(z - max z) / sum exp(z - max z)
///   log-softmax  y = z - max z - log sum exp(z - max z)
/// `causal_queries` > 0: the last axis of `outer` counts queries t < causal_queries, and elements s > t + (length -
/// causal_queries) are masked: they take no part and get y = 0 (softmax only). On the CPU exponentials are
/// exp_below.h's: zero below e^-87, and rounded differently on the generic instruction set, which lacks the fused
/// multiply-add of the others.
struct SoftmaxArgs {
  Shape outer;  ///< every axis but the row's
  std::int64_t length = 0;
  RowOperand x;
  RowResult y;
  double scale = 1;
  bool is_log = false;
  std::int64_t causal_queries = 0;
};

/// softmax: dx = scale y (dy - sum dy y); log-softmax: dx = scale (dy - exp(y) sum dy). dx may alias y or dy, in the
/// same layout. Masked elements get 0.
struct SoftmaxBackwardArgs {
  Shape outer;
  std::int64_t length = 0;
  RowOperand y, dy;
  RowResult dx;
  double scale = 1;
  bool is_log = false;
  std::int64_t causal_queries = 0;
};

struct SoftmaxKernels {
  void (*forward)(const SoftmaxArgs&) = nullptr;
  void (*backward)(const SoftmaxBackwardArgs&) = nullptr;
};

extern const SoftmaxKernels softmax_cpu;
extern const SoftmaxKernels* const softmax_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const SoftmaxKernels& softmax_kernels(memory::Device device);

}  // namespace thimble::kernels
