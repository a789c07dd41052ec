#pragma once
// Initial values as the papers give them. Numbers come from the current generator, by the current path, with a count of
// their own (core/tensor/generator.h).

#include <thimble/core/tensor/generator.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::nn::init {

/// All set to a value.
Tensor constant(const Shape& shape, double value, DType dtype, memory::Device device);
/// Normal with mean 0.
Tensor normal(const Shape& shape, double deviation, DType dtype, memory::Device device);
/// Uniform in [-bound, bound].
Tensor uniform(const Shape& shape, double bound, DType dtype, memory::Device device);
/// He et al. 2015, equation 10, over the fan out: normal with deviation sqrt(2 / fan_out). For ResNets.
Tensor kaiming_fan_out(const Shape& shape, std::int64_t fan_out, DType dtype, memory::Device device);

/// Part number `part` of `parts` along an axis of a tensor of shape `whole`. Where several tensors lie side by side in
/// it, `stretches` of one size, it has such a part of each.
struct PartOf {
  Shape whole;
  int axis = 0;
  std::int64_t parts = 1, part = 0, stretches = 1;

  Shape shape() const;
  /// Elements of a run of neighbours, and of the whole from one run to the next.
  std::int64_t run() const;
  std::int64_t apart() const;
  /// Where an element of the part lies in the whole.
  std::int64_t in_whole(std::int64_t own) const;
  /// f(element of the whole, element of the part, count) for each run of neighbours, in row-major order.
  void for_each_run(FunctionRef<void(std::int64_t, std::int64_t, std::int64_t)> f) const;
};

/// What normal() and uniform() of the whole would have there, if it were drawn at `site`.
Tensor normal_part(const PartOf& part, double deviation, DType dtype, memory::Device device, const RandomSite& site);
Tensor uniform_part(const PartOf& part, double bound, DType dtype, memory::Device device, const RandomSite& site);

}  // namespace thimble::nn::init
