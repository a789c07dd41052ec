#pragma once
// The optimizer kernel family: one pass over a parameter, its gradient and its state. Arithmetic in f32 (f64 for f64
// parameters); state tensors have the parameter's compute type.

#include <cstdint>
#include <span>

#include <thimble/core/random/generator.h>
#include <thimble/core/tensor/device.h>
#include <thimble/core/tensor/dtype.h>

namespace thimble::kernels {

/// How a parameter narrower than f32 is stored. At most one of the three is there; with none the updated value is
/// rounded to nearest. Not looked at for f32 and f64 parameters.
struct NarrowArgs {
  float* master = nullptr;       ///< what is updated; the parameter becomes this, rounded
  bool is_stochastic = false;    ///< bf16: see round_stochastically (core/kernels/shared/optimizer_narrow.h)
  RandomSite site;               ///< of the random bits: step is the update's number
  void* compensation = nullptr;  ///< in the parameter's dtype, what rounding has taken: parameter + compensation is
                                 ///< updated, and what rounding takes of the sum goes there
};

/// d = g + weight_decay p;  m = momentum m + d;  p -= rate (nesterov ? d + momentum m : m), or rate d without momentum.
struct SgdArgs {
  std::int64_t n = 0;
  void* parameter = nullptr;
  DType dtype = DType::f32;
  const void* gradient = nullptr;
  DType gradient_dtype = DType::f32;
  void* momentum_buffer = nullptr;  ///< null: no momentum
  DType state_dtype = DType::f32;
  double rate = 0, momentum = 0, weight_decay = 0;
  bool nesterov = false;
  double gradient_factor = 1;  ///< the gradient is multiplied by it as it is read
  NarrowArgs narrow = {};
};

/// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= rate / c1 * m / (sqrt(v) / sqrt(c2) + epsilon), c = 1 -
/// b^step, with 1 / sqrt(c2) as a factor. Weight decay: decoupled (AdamW) p *= 1 - rate decay before; else g += decay
/// p.
struct AdamArgs {
  std::int64_t n = 0;
  void* parameter = nullptr;
  DType dtype = DType::f32;
  const void* gradient = nullptr;
  DType gradient_dtype = DType::f32;
  void* first_moment = nullptr;
  void* second_moment = nullptr;
  DType state_dtype = DType::f32;
  double rate = 0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  bool is_decoupled = true;
  std::int64_t step = 1;       ///< of this update, from 1
  double gradient_factor = 1;  ///< the gradient is multiplied by it as it is read
  NarrowArgs narrow = {};
};

/// *sum = sum of squares, in f64, in an order that depends on n alone.
struct SquareSumArgs {
  std::int64_t n = 0;
  const void* gradient = nullptr;
  DType dtype = DType::f32;
  double* sum = nullptr;
};

/// What all gradients are multiplied by: min(1, max_norm / (norm + 1e-6)) with norm = sqrt(sum of sums[0 .. count)).
struct ClipNorm {
  const double* sums = nullptr;
  std::int64_t count = 0;
  double max_norm = 1;
};
struct ClipArgs {
  std::int64_t n = 0;
  void* gradient = nullptr;
  DType dtype = DType::f32;
};

/// How many tensors a launch on a GPU takes at most.
inline constexpr std::size_t most_listed = 56;

struct OptimizerKernels {
  /// Updates of many parameters, with the bits of one after the other. On a GPU those that are alike in dtypes and
  /// numbers share a launch.
  void (*sgd)(std::span<const SgdArgs>) = nullptr;
  void (*adam)(std::span<const AdamArgs>) = nullptr;
  /// Of many gradients, likewise.
  void (*square_sums)(std::span<const SquareSumArgs>) = nullptr;
  void (*clip)(const ClipNorm&, std::span<const ClipArgs>) = nullptr;
};

extern const OptimizerKernels optimizer_cpu;
extern const OptimizerKernels* const optimizer_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const OptimizerKernels& optimizer_kernels(Device device);

}  // namespace thimble::kernels
