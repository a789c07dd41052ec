#pragma once
// Initial values from the papers. The current generator and path give the random numbers, with a separate count
// (core/tensor/generator.h).

#include <thimble/core/tensor/generator.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::nn::init {

Tensor constant(const Shape& shape, double value, DType dtype, memory::Device device);
/// Normal with mean 0.
Tensor normal(const Shape& shape, double deviation, DType dtype, memory::Device device);
/// Uniform in [-bound, bound].
Tensor uniform(const Shape& shape, double bound, DType dtype, memory::Device device);
/// He et al. 2015, equation 10, over the fan out: normal with deviation sqrt(2 / fan_out). For ResNets.
Tensor kaiming_fan_out(const Shape& shape, std::int64_t fan_out, DType dtype, memory::Device device);

/// Shard `index` of `shards` along an axis of a tensor of shape `whole`. If the axis concatenates `projections` tensors
/// of equal size, say q, k and v, the shard has its slice of each.
struct ShardOf {
  Shape whole;
  int axis = 0;
  std::int64_t shards = 1, index = 0, projections = 1;

  Shape shape() const;
  /// Elements of a contiguous run, and the distance between runs in the whole.
  std::int64_t run() const;
  std::int64_t apart() const;
  /// The element of the whole that is the shard's element `own`.
  std::int64_t in_whole(std::int64_t own) const;
  /// Calls f(element of the whole, element of the shard, count) for each contiguous run, in row-major order.
  void for_each_run(FunctionRef<void(std::int64_t, std::int64_t, std::int64_t)> f) const;
};

/// The shard's values of normal() or uniform() of the whole, drawn at `site`.
Tensor normal_shard(const ShardOf& shard, double deviation, DType dtype, memory::Device device, const RandomSite& site);
Tensor uniform_shard(const ShardOf& shard, double bound, DType dtype, memory::Device device, const RandomSite& site);

}  // namespace thimble::nn::init
