#include <thimble/autograd/functions/pool.h>

#include <thimble/autograd/apply.h>

namespace thimble {

Tensor max_pool2d(const Tensor& x, const PoolWindow& window, MaxPoolKeeps keeps) {
  return apply(ops::MaxPool2d{window, keeps}, x);
}

Tensor avg_pool2d(const Tensor& x, const PoolWindow& window, bool count_include_pad) {
  return apply(ops::AvgPool2d{window, count_include_pad}, x);
}

Tensor global_avg_pool(const Tensor& x) { return apply(ops::GlobalAvgPool{}, x); }

}  // namespace thimble
