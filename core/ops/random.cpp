#include <thimble/core/ops/random.h>

#include <cmath>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/kernels/random.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/transaction.h>

namespace thimble {
namespace {

void check_floating(const char* operation, DType dtype) {
  if (!is_floating(dtype)) {
    throw DTypeError(std::string(operation) + ": " + std::string(to_string(dtype)) + " is not a floating dtype");
  }
}

[[noreturn]] void refuse(const char* operation, const char* what, double first, double second) {
  throw ValueError(std::string(operation) + ": " + std::to_string(first) + " and " + std::to_string(second) +
                   " given, " + what);
}

// The index in the whole batch of t's first element; t has the samples from site.first_sample on.
std::int64_t first_element(const char* operation, const Tensor& t, const RandomSite& site) {
  if (t.rank() == 0 || site.first_sample == 0) return 0;
  const std::int64_t sample_elements = t.elements() / t.shape()[0];
  constexpr std::int64_t most = std::int64_t{1} << 60;
  if (site.first_sample > most / sample_elements) {
    throw ValueError(std::string(operation) + ": " + describe(t) + " from sample " + std::to_string(site.first_sample) +
                     " on; elements must count below 2^60");
  }
  return site.first_sample * sample_elements;
}

// Runs the kernel on t, through a temporary if t is not dense.
void run(const char* operation, const Tensor& t, kernels::RandomFillArgs args) {
  check_random_site(operation, args.site);
  if (!t.defined()) throw ShapeError(std::string(operation) + ": the tensor is undefined");
  if (t.elements() == 0) return;
  keep_state(t);
  const Tensor dense = t.is_contiguous() ? t : Tensor::empty_like(t);
  fetch_parameters(t);
  launch(t.device(), [&](const Addresses& at) {
    args.out = at(dense);
    args.dtype = dense.dtype();
    args.elements = dense.elements();
    args.first_element = first_element(operation, t, args.site);
    kernels::random_kernels(t.device()).fill(args);
  });
  if (t.is_contiguous()) {
    t.storage()->bump_version();
  } else {
    copy_into(t, dense);
  }
}

void fill_uniform_as(const char* operation, const Tensor& t, double low, double high, const RandomSite& site) {
  check_floating(operation, t.dtype());
  if (!(low <= high) || !std::isfinite(high - low)) {
    refuse(operation, "low and high must be finite with low <= high", low, high);
  }
  kernels::RandomFillArgs args;
  args.distribution = kernels::Distribution::uniform;
  args.offset = low;
  args.factor = high - low;
  args.site = site;
  run(operation, t, args);
}

void fill_normal_as(const char* operation, const Tensor& t, double mean, double deviation, const RandomSite& site) {
  check_floating(operation, t.dtype());
  if (!std::isfinite(mean) || !(deviation >= 0) || !std::isfinite(deviation)) {
    refuse(operation, "mean and deviation must be finite and the deviation >= 0", mean, deviation);
  }
  kernels::RandomFillArgs args;
  args.distribution = kernels::Distribution::normal;
  args.offset = mean;
  args.factor = deviation;
  args.site = site;
  run(operation, t, args);
}

double normal_cdf(double z) { return 0.5 * std::erfc(-z * 0.7071067811865476); }

void fill_truncated_normal_as(const char* operation, const Tensor& t, double mean, double deviation, double low,
                              double high, const RandomSite& site) {
  check_floating(operation, t.dtype());
  if (!std::isfinite(mean) || !(deviation > 0) || !std::isfinite(deviation)) {
    refuse(operation, "mean and deviation must be finite and the deviation > 0", mean, deviation);
  }
  if (!(low < high)) refuse(operation, "low must be below high", low, high);
  kernels::RandomFillArgs args;
  args.distribution = kernels::Distribution::truncated_normal;
  args.low = (low - mean) / deviation;
  args.high = (high - mean) / deviation;
  args.offset = mean;
  args.factor = deviation;
  // In the upper tail the distribution function is too close to 1 to be exact: draw the mirror image.
  if (args.low > 0) {
    std::swap(args.low, args.high);
    args.low = -args.low;
    args.high = -args.high;
    args.factor = -deviation;
  }
  args.cdf_low = normal_cdf(args.low);
  args.cdf_high = normal_cdf(args.high);
  if (!(args.cdf_low < args.cdf_high)) refuse(operation, "the interval has no probability", low, high);
  args.site = site;
  run(operation, t, args);
}

void fill_bernoulli_as(const char* operation, const Tensor& t, double probability, const RandomSite& site) {
  if (!(probability >= 0 && probability <= 1)) {
    throw ValueError(std::string(operation) + ": probability " + std::to_string(probability) + " is not in [0, 1]");
  }
  kernels::RandomFillArgs args;
  args.distribution = kernels::Distribution::bernoulli;
  args.probability = probability;
  args.site = site;
  run(operation, t, args);
}

}  // namespace

RandomSite next_random_site() { return current_generator().next_site(context().path); }
RandomSite initial_random_site() { return current_generator().next_initial_site(context().path); }

void check_random_site(const char* operation, const RandomSite& site) {
  if (site.step >> 32 != 0) {
    throw ValueError(std::string(operation) + ": step " + std::to_string(site.step) +
                     ", random numbers count steps below 2^32");
  }
  if (site.first_sample < 0) {
    throw ValueError(std::string(operation) + ": first sample " + std::to_string(site.first_sample) +
                     "; expected at least 0");
  }
}

Tensor rand(const Shape& shape, DType dtype, memory::Device device, const RandomSite& site) {
  const Tensor t = Tensor::empty(shape, dtype, device);
  fill_uniform_as("rand", t, 0, 1, site);
  return t;
}

Tensor uniform(const Shape& shape, double low, double high, DType dtype, memory::Device device,
               const RandomSite& site) {
  const Tensor t = Tensor::empty(shape, dtype, device);
  fill_uniform_as("uniform", t, low, high, site);
  return t;
}

Tensor randn(const Shape& shape, DType dtype, memory::Device device, const RandomSite& site) {
  const Tensor t = Tensor::empty(shape, dtype, device);
  fill_normal_as("randn", t, 0, 1, site);
  return t;
}

Tensor normal(const Shape& shape, double mean, double deviation, DType dtype, memory::Device device,
              const RandomSite& site) {
  const Tensor t = Tensor::empty(shape, dtype, device);
  fill_normal_as("normal", t, mean, deviation, site);
  return t;
}

Tensor truncated_normal(const Shape& shape, double mean, double deviation, double low, double high, DType dtype,
                        memory::Device device, const RandomSite& site) {
  const Tensor t = Tensor::empty(shape, dtype, device);
  fill_truncated_normal_as("truncated_normal", t, mean, deviation, low, high, site);
  return t;
}

Tensor bernoulli(const Shape& shape, double probability, DType dtype, memory::Device device, const RandomSite& site) {
  const Tensor t = Tensor::empty(shape, dtype, device);
  fill_bernoulli_as("bernoulli", t, probability, site);
  return t;
}

void fill_uniform(const Tensor& t, double low, double high, const RandomSite& site) {
  fill_uniform_as("fill_uniform", t, low, high, site);
}

void fill_normal(const Tensor& t, double mean, double deviation, const RandomSite& site) {
  fill_normal_as("fill_normal", t, mean, deviation, site);
}

void fill_truncated_normal(const Tensor& t, double mean, double deviation, double low, double high,
                           const RandomSite& site) {
  fill_truncated_normal_as("fill_truncated_normal", t, mean, deviation, low, high, site);
}

void fill_bernoulli(const Tensor& t, double probability, const RandomSite& site) {
  fill_bernoulli_as("fill_bernoulli", t, probability, site);
}

}  // namespace thimble
