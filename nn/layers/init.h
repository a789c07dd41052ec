#pragma once
// Initial values as the papers give them. Numbers come from the current generator, by the current path, with a count of
// their own (core/random/generator.h).

#include <thimble/core/tensor/tensor.h>

namespace thimble::nn::init {

/// All set to a value.
Tensor constant(const Shape& shape, double value, DType dtype, Device device);
/// Normal with mean 0.
Tensor normal(const Shape& shape, double deviation, DType dtype, Device device);
/// Uniform in [-bound, bound].
Tensor uniform(const Shape& shape, double bound, DType dtype, Device device);
/// He et al. 2015, equation 10, over the fan out: normal with deviation sqrt(2 / fan_out). For ResNets.
Tensor kaiming_fan_out(const Shape& shape, std::int64_t fan_out, DType dtype, Device device);

}  // namespace thimble::nn::init
