#pragma once
// The random kernel family: fills and dropout masks. Every number is a function of (site, position) by Philox
// (core/numbers/philox.h), independent of threads and tiles.

#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>
#include <thimble/core/tensor/generator.h>

namespace thimble::kernels {

enum class Distribution : std::uint8_t { uniform, normal, truncated_normal, bernoulli };

/// out[i] = number first_element + i of the site, i < elements. A Philox block serves four elements, but only two in
/// f64, whose numbers take 53 bits. (Bernoulli takes four in f64 as well.)
struct RandomFillArgs {
  Distribution distribution = Distribution::uniform;
  double offset = 0, factor = 1;     ///< the result is offset + factor x (the standard number)
  double low = 0, high = 1;          ///< truncated_normal: the standard normal's bounds
  double cdf_low = 0, cdf_high = 1;  ///< truncated_normal: its distribution function there
  double probability = 0;            ///< bernoulli: of a 1
  RandomSite site;
  void* out = nullptr;
  DType dtype = DType::f32;
  std::int64_t elements = 0;
  std::int64_t first_element = 0;  ///< >= 0
};

/// out[s, i] = is_kept(s, i) ? in[s, i] x scale : 0 for `samples` rows of `sample_elements` dense elements. Element i
/// of row s is dropped when its random word, word i % 4 of block (first_block + i / 4, site.first_sample + s), is below
/// `threshold`. `out` may be `in`.
struct DropoutArgs {
  std::int64_t samples = 0, sample_elements = 0;
  std::int64_t first_block = 0;
  RandomSite site;
  std::uint32_t threshold = 0;
  double scale = 1;
  const void* in = nullptr;
  void* out = nullptr;
  DType dtype = DType::f32;
  std::uint8_t* mask = nullptr;  ///< 1 where kept; may be null
};

/// out[i] = mask[i] ? in[i] x scale : 0. `out` may be `in`.
struct MaskArgs {
  std::int64_t elements = 0;
  const std::uint8_t* mask = nullptr;
  double scale = 1;
  const void* in = nullptr;
  void* out = nullptr;
  DType dtype = DType::f32;
};

struct RandomKernels {
  void (*fill)(const RandomFillArgs&) = nullptr;
  void (*dropout)(const DropoutArgs&) = nullptr;
  void (*apply_mask)(const MaskArgs&) = nullptr;
};

extern const RandomKernels random_cpu;
extern const RandomKernels* const random_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const RandomKernels& random_kernels(memory::Device device);

}  // namespace thimble::kernels
