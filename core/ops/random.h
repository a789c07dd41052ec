#pragma once
// Tensors of random numbers. Element i (in row-major order) is a function of only the site and i, so the numbers do not
// depend on the threads; the next call under the same path draws from the next site. As for dropout, the first axis
// counts samples: a micro-batch that begins at sample s draws the whole batch's numbers from row s on. A tensor without
// axes has no samples, so every micro-batch draws the same number, as does a call whose site has first_sample = 0.
// Numbers are made in f32 (24 random bits for `rand`, 32 for the others), for f64 tensors in f64 (53 bits), and rounded
// to the tensor's dtype.
//
// All throw ShapeError, OutOfMemory and DeviceError as Tensor::empty does, DTypeError unless the dtype is floating
// (bernoulli takes any), and ValueError for parameters out of range or a step of 2^32 or more.

#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// The current generator's next site under the current module path.
RandomSite next_random_site();
/// Its next site for initial values (core/tensor/generator.h).
RandomSite initial_random_site();

/// Uniform in [0, 1); rounding to 16 bits may give 1.
Tensor rand(const Shape& shape, DType dtype = DType::f32, memory::Device device = cpu,
            const RandomSite& site = next_random_site());
/// Uniform in [low, high), low <= high, both finite; rounding may give `high`, especially in 16 bits.
Tensor uniform(const Shape& shape, double low, double high, DType dtype = DType::f32, memory::Device device = cpu,
               const RandomSite& site = next_random_site());
/// Standard normal (Box & Muller 1958).
Tensor randn(const Shape& shape, DType dtype = DType::f32, memory::Device device = cpu,
             const RandomSite& site = next_random_site());
/// Normal with the given mean and standard deviation >= 0.
Tensor normal(const Shape& shape, double mean, double deviation, DType dtype = DType::f32, memory::Device device = cpu,
              const RandomSite& site = next_random_site());
/// Normal with the given mean and standard deviation > 0, conditioned on [low, high], low < high, by inversion of the
/// distribution function.
Tensor truncated_normal(const Shape& shape, double mean, double deviation, double low, double high,
                        DType dtype = DType::f32, memory::Device device = cpu,
                        const RandomSite& site = next_random_site());
/// 1 with the given probability in [0, 1], else 0.
Tensor bernoulli(const Shape& shape, double probability, DType dtype = DType::f32, memory::Device device = cpu,
                 const RandomSite& site = next_random_site());

/// uniform and normal into an existing tensor of any layout. Count as a write.
void fill_uniform(const Tensor& t, double low, double high, const RandomSite& site = next_random_site());
void fill_normal(const Tensor& t, double mean, double deviation, const RandomSite& site = next_random_site());
void fill_truncated_normal(const Tensor& t, double mean, double deviation, double low, double high,
                           const RandomSite& site = next_random_site());
void fill_bernoulli(const Tensor& t, double probability, const RandomSite& site = next_random_site());

/// Throws ValueError if the site's step does not fit the counter, or its first sample is negative.
void check_random_site(const char* operation, const RandomSite& site);

}  // namespace thimble
