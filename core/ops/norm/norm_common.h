#pragma once
// Shared by the normalisation operators: checks of operands, and the calls of the channel kernels (core/kernels/norm.h)
// behind batch norm and group norm.

#include <thimble/core/kernels/norm.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble::norm_detail {

/// The dtype of statistics: f64 for f64, else f32.
constexpr DType statistics_dtype(DType dtype) noexcept { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// Throws DTypeError unless x is floating, ShapeError unless its rank is at least `rank`, ValueError when epsilon < 0.
void check_input(const char* operation, const Tensor& x, int rank, double epsilon);
/// A weight, bias or running statistic of x: undefined, or of the given shape, on x's device, in x's dtype or, where x
/// is narrower, in f32. Throws ShapeError, DTypeError, DeviceError.
void check_parameter(const char* operation, const char* what, const Tensor& parameter, const Tensor& x,
                     const Shape& shape);
/// The common dtype of the defined tensors. Throws DTypeError where they differ.
DType common_dtype(const char* operation, const Tensor& weight, const Tensor& bias, DType otherwise);
/// Dense and in the dtype of statistics; undefined stays undefined.
Tensor as_statistics(const Tensor& parameter, DType x_dtype);

/// x as (instances, rows, channels), statistics over the rows and over the channels of each group.
struct ChannelLayout {
  std::int64_t instances = 0, rows = 0, channels = 0, groups = 0;
};

/// Operands and attributes of y = tail((x - mean) rstd weight + bias).
struct ChannelNorm {
  ChannelLayout layout;
  kernels::NormTail tail = kernels::NormTail::none;
  double epsilon = 0, momentum = 0;
  bool uses_running = false;  ///< whether to use the running statistics; else they are updated, where defined
  Tensor x, residual, weight, bias, running_mean, running_var;
};

/// Tensors that forward can leave for backward, on request.
struct ChannelNormKept {
  Tensor mean, rstd;  ///< (instances, groups), the statistics' dtype
  Tensor mask;        ///< u8, one bit for each element of y: y > 0
};

/// y; `kept` receives the requested statistics and mask. Running statistics are not updated in a recompute. Statistics
/// already in `kept` are used.
Tensor channel_norm_forward(const ChannelNorm& call, bool keeps_statistics, bool keeps_mask, ChannelNormKept& kept);

/// The requested gradients.
struct ChannelNormWants {
  bool x = false, residual = false, weight = false, bias = false;
};
struct ChannelNormGradients {
  Tensor x, residual, weight, bias;
};

/// The gradients. Of `call` it needs: x and statistics (`kept`, or the running ones) for x, weight, or a relu tail (x
/// is not needed for x's gradient under fixed statistics); weight for x or a relu tail; bias for a relu tail; the mask
/// for an add_relu tail. dx and dresidual are written in place of dy and x when these have no other holder.
ChannelNormGradients channel_norm_backward(ChannelNorm call, ChannelNormKept kept, Tensor dy, ChannelNormWants wants,
                                           DType parameter_dtype);

}  // namespace thimble::norm_detail
