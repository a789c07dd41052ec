#pragma once
// Shared by the operators over class numbers.

#include <cstdint>

#include <thimble/core/kernels/cross_entropy.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble::ops::loss_detail {

/// The shared attributes of cross entropy and nll.
struct Form {
  const char* name;
  bool are_logits;
  std::int64_t ignore_index;
  double label_smoothing;
  kernels::LossReduction reduction;
};

/// The dtype of a loss over scores of `dtype`, and of statistics: f64 for f64, else f32.
inline DType loss_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// Throws DTypeError unless `targets` are i32 or i64.
void check_target_dtype(const Form& form, const Tensor& targets);

/// Throws ValueError unless it is in [0, 1].
void check_label_smoothing(const Form& form);

/// Throws ValueError for the first target that is neither a class nor ignored, unless the check would stall the device.
void check_targets(const Form& form, const Tensor& targets, std::int64_t classes);

/// Dense `targets`, as kernels take them.
kernels::ClassTargets class_targets(const Form& form, const Tensor& targets, std::int64_t classes, const Addresses& at);

/// The rows of a matrix (N, C), as kernels take them.
inline kernels::RowOperand rows_of(const Tensor& matrix, const Addresses& at) {
  return {at(matrix), matrix.dtype(), {matrix.strides()[0]}, matrix.strides()[1]};
}
inline kernels::RowResult result_rows_of(const Tensor& matrix, const Addresses& at) {
  return {at(matrix), matrix.dtype(), {matrix.strides()[0]}, matrix.strides()[1]};
}

}  // namespace thimble::ops::loss_detail
