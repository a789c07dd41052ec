#pragma once
// Compares gradients with central differences in f64.

#include <span>
#include <string>
#include <vector>

#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/parallel.h>

namespace thimble {

struct GradcheckOptions {
  double step = 1e-6;
  double absolute_tolerance = 1e-5;
  double relative_tolerance = 1e-3;
  std::uint32_t operands = ~0u;  ///< bit i checks the gradient of operand i
};

struct GradcheckResult {
  bool passed = true;
  double largest_error = 0;  ///< |numerical - analytical| at the worst element
  std::string report;        ///< names operand, element and both gradients of the first failure; empty when passed
};

/// Compares backward's gradients of `function` with central differences for every element of every f64 input; inputs of
/// other dtypes are passed through. The result is contracted with fixed pseudo-random weights, so every output element
/// counts. The function must be deterministic; the current generator restarts its pass before every call.
GradcheckResult gradcheck(FunctionRef<Tensor(std::span<const Tensor>)> function, std::span<const Tensor> inputs,
                          GradcheckOptions options = {});

}  // namespace thimble
