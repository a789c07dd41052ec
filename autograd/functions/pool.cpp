#include <thimble/autograd/functions/pool.h>

#include <thimble/autograd/apply.h>
#include <thimble/core/error.h>

namespace thimble {

Tensor max_pool2d(const Tensor& x, const PoolWindow& window, MaxPoolKeeps keeps) {
  return apply(ops::MaxPool2d{window, keeps}, x);
}

Tensor avg_pool2d(const Tensor& x, const PoolWindow& window, bool count_include_pad) {
  return apply(ops::AvgPool2d{window, count_include_pad}, x);
}

Tensor adaptive_avg_pool2d(const Tensor& x, std::int64_t height, std::int64_t width) {
  return apply(ops::Resample2d{height, width, Resample::area}, x);
}

Tensor interpolate(const Tensor& x, std::int64_t height, std::int64_t width, Resample mode) {
  return apply(ops::Resample2d{height, width, mode}, x);
}

Tensor upsample(const Tensor& x, std::int64_t factor, Resample mode) {
  if (x.rank() != 4) throw ShapeError("upsample: x is " + describe(x) + ", expected (N, H, W, C)");
  return apply(ops::Resample2d{x.size(1) * factor, x.size(2) * factor, mode}, x);
}

Tensor global_avg_pool(const Tensor& x) { return apply(ops::GlobalAvgPool{}, x); }

}  // namespace thimble
