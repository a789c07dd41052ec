#include <thimble/nn/layers/init.h>

#include <cmath>

#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/dist/parts/team.h>

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

Shape PartOf::shape() const {
  Shape own = whole;
  const std::int64_t stretch = whole[axis] / stretches;
  own[axis] = stretches * (dist::part_begin(stretch, parts, part + 1) - dist::part_begin(stretch, parts, part));
  return own;
}

std::int64_t PartOf::apart() const {
  std::int64_t elements = whole[axis] / stretches;
  for (int a = axis + 1; a < whole.rank(); ++a) elements *= whole[a];
  return elements;
}

std::int64_t PartOf::run() const {
  const std::int64_t stretch = whole[axis] / stretches;
  return apart() / stretch * (dist::part_begin(stretch, parts, part + 1) - dist::part_begin(stretch, parts, part));
}

std::int64_t PartOf::in_whole(std::int64_t own) const {
  const std::int64_t stretch = whole[axis] / stretches, each = run();
  return own / each * apart() + apart() / stretch * dist::part_begin(stretch, parts, part) + own % each;
}

void PartOf::for_each_run(FunctionRef<void(std::int64_t, std::int64_t, std::int64_t)> f) const {
  const std::int64_t count = shape().elements(), each = run();
  for (std::int64_t own = 0; own < count; own += each) f(in_whole(own), own, each);
}

namespace {

// Draws each run as a tensor with one sample per element: the site's first sample gives the run's place in the whole.
Tensor drawn(const PartOf& part, DType dtype, memory::Device device, RandomSite site,
             FunctionRef<void(const Tensor&, const RandomSite&)> fill) {
  const Tensor t = Tensor::empty(part.shape(), dtype, device, memory::Category::parameter);
  if (device.is_dry) return t;
  const Tensor flat = view::reshape(t, {-1});
  part.for_each_run([&](std::int64_t of_whole, std::int64_t own, std::int64_t count) {
    site.first_sample = of_whole;
    fill(view::slice(flat, 0, own, own + count), site);
  });
  return t;
}

}  // namespace

Tensor normal_part(const PartOf& part, double deviation, DType dtype, memory::Device device, const RandomSite& site) {
  return drawn(part, dtype, device, site,
               [&](const Tensor& t, const RandomSite& at) { fill_normal(t, 0, deviation, at); });
}

Tensor uniform_part(const PartOf& part, double bound, DType dtype, memory::Device device, const RandomSite& site) {
  return drawn(part, dtype, device, site,
               [&](const Tensor& t, const RandomSite& at) { fill_uniform(t, -bound, bound, at); });
}

}  // namespace thimble::nn::init
