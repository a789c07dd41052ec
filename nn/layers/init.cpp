#include <thimble/nn/layers/init.h>

#include <cmath>

#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/dist/sharding/group.h>

namespace thimble::nn::init {

Tensor constant(const Shape& shape, double value, DType dtype, memory::Device device) {
  return full(shape, value, dtype, device, memory::Category::parameter);
}

Tensor normal(const Shape& shape, double deviation, DType dtype, memory::Device device) {
  const Tensor t = Tensor::empty(shape, dtype, device, memory::Category::parameter);
  fill_normal(t, 0, deviation, initial_random_site());
  return t;
}

Tensor uniform(const Shape& shape, double bound, DType dtype, memory::Device device) {
  const Tensor t = Tensor::empty(shape, dtype, device, memory::Category::parameter);
  fill_uniform(t, -bound, bound, initial_random_site());
  return t;
}

Tensor kaiming_fan_out(const Shape& shape, std::int64_t fan_out, DType dtype, memory::Device device) {
  return normal(shape, std::sqrt(2.0 / static_cast<double>(fan_out)), dtype, device);
}

Shape ShardOf::shape() const {
  Shape own = whole;
  const std::int64_t projection = whole[axis] / projections;
  own[axis] =
      projections * (dist::shard_begin(projection, shards, index + 1) - dist::shard_begin(projection, shards, index));
  return own;
}

std::int64_t ShardOf::apart() const {
  std::int64_t elements = whole[axis] / projections;
  for (int a = axis + 1; a < whole.rank(); ++a) elements *= whole[a];
  return elements;
}

std::int64_t ShardOf::run() const {
  const std::int64_t projection = whole[axis] / projections;
  return apart() / projection *
         (dist::shard_begin(projection, shards, index + 1) - dist::shard_begin(projection, shards, index));
}

std::int64_t ShardOf::in_whole(std::int64_t own) const {
  const std::int64_t projection = whole[axis] / projections, each = run();
  return own / each * apart() + apart() / projection * dist::shard_begin(projection, shards, index) + own % each;
}

void ShardOf::for_each_run(FunctionRef<void(std::int64_t, std::int64_t, std::int64_t)> f) const {
  const std::int64_t count = shape().elements(), each = run();
  for (std::int64_t own = 0; own < count; own += each) f(in_whole(own), own, each);
}

namespace {

// Draws each run as a tensor with one sample per element: the site's first sample gives the run's place in the whole.
Tensor drawn(const ShardOf& shard, DType dtype, memory::Device device, RandomSite site,
             FunctionRef<void(const Tensor&, const RandomSite&)> fill) {
  const Tensor t = Tensor::empty(shard.shape(), dtype, device, memory::Category::parameter);
  if (device.is_dry) return t;
  const Tensor flat = view::reshape(t, {-1});
  shard.for_each_run([&](std::int64_t of_whole, std::int64_t own, std::int64_t count) {
    site.first_sample = of_whole;
    fill(view::slice(flat, 0, own, own + count), site);
  });
  return t;
}

}  // namespace

Tensor normal_shard(const ShardOf& shard, double deviation, DType dtype, memory::Device device,
                    const RandomSite& site) {
  return drawn(shard, dtype, device, site,
               [&](const Tensor& t, const RandomSite& at) { fill_normal(t, 0, deviation, at); });
}

Tensor uniform_shard(const ShardOf& shard, double bound, DType dtype, memory::Device device, const RandomSite& site) {
  return drawn(shard, dtype, device, site,
               [&](const Tensor& t, const RandomSite& at) { fill_uniform(t, -bound, bound, at); });
}

}  // namespace thimble::nn::init
