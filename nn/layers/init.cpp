#include <thimble/nn/layers/init.h>

#include <cmath>

#include <thimble/core/random/random.h>
#include <thimble/core/tensor/copy.h>

namespace thimble::nn::init {

Tensor constant(const Shape& shape, double value, DType dtype, Device device) {
  return full(shape, value, dtype, device, Category::parameter);
}

Tensor normal(const Shape& shape, double deviation, DType dtype, Device device) {
  const Tensor t = Tensor::empty(shape, dtype, device, Category::parameter);
  fill_normal(t, 0, deviation, initial_random_site());
  return t;
}

Tensor uniform(const Shape& shape, double bound, DType dtype, Device device) {
  const Tensor t = Tensor::empty(shape, dtype, device, Category::parameter);
  fill_uniform(t, -bound, bound, initial_random_site());
  return t;
}

Tensor kaiming_fan_out(const Shape& shape, std::int64_t fan_out, DType dtype, Device device) {
  return normal(shape, std::sqrt(2.0 / static_cast<double>(fan_out)), dtype, device);
}

}  // namespace thimble::nn::init
