#include <thimble/nn/layers/shared_conv.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/ops/conv/conv.h>
#include <thimble/nn/layers/init.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::nn {

Tensor make_kernel_basis(std::int64_t rank, std::int64_t out, std::int64_t kernel, const TensorOptions& on) {
  if (std::min({rank, out, kernel}) < 1)
    throw ValueError("kernel basis: a size of " + to_string(Shape{rank, out, kernel}) + "; at least 1");
  Tensor basis = init::kaiming_fan_out({rank, out, kernel, kernel}, out * kernel * kernel, on.dtype, on.device);
  basis.require_grad();
  return basis;
}

SharedConv2d::SharedConv2d(std::int64_t in, const Tensor& basis, const Conv2dOptions& options, const TensorOptions& on)
    : basis(add_parameter("basis", basis)),
      options_(options),
      compute_(on.compute),
      fp8_fallback_(on.fp8 ? "convolutions have no FP8 form" : "") {
  check_fp8_strict(on.fp8, fp8_fallback_);
  if (basis.rank() != 4 || basis.size(2) != basis.size(3)) {
    throw ShapeError("shared_conv2d: basis " + to_string(basis.shape()) + "; (r, O, K, K) is needed");
  }
  ops::check_conv_numbers("shared_conv2d", options.stride, options.padding, options.dilation, options.groups);
  if (in < 1 || in % options.groups != 0 || basis.size(1) % options.groups != 0) {
    throw ValueError("shared_conv2d: " + std::to_string(options.groups) + " groups do not divide " +
                     std::to_string(in) + " and " + std::to_string(basis.size(1)) + " channels");
  }
  const double deviation = 1 / std::sqrt(static_cast<double>(basis.size(0)));
  coefficients =
      add_parameter("coefficients", init::normal({in / options.groups, basis.size(0)}, deviation, on.dtype, on.device));
}

SharedConv2d::SharedConv2d(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t rank,
                           const Conv2dOptions& options, const TensorOptions& on)
    : SharedConv2d(in, make_kernel_basis(rank, out, kernel, on), options, on) {}

Tensor SharedConv2d::forward(const Tensor& x) {
  return shared_conv2d(as_operand(x, compute_), as_operand(basis, compute_), as_operand(coefficients, compute_), {},
                       options_);
}

}  // namespace thimble::nn
