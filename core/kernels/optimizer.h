#pragma once
// The optimizer kernel family: one pass over a parameter, its gradient and its state. Arithmetic in f32 (f64 for f64
// parameters); parameters and gradients are of any floating dtype, and narrow parameters are stored as in NarrowArgs.

#include <cstdint>
#include <span>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>
#include <thimble/core/tensor/generator.h>

namespace thimble::kernels {

/// How a parameter narrower than f32 is stored. At most one of `master`, `is_stochastic` and `compensation` is set;
/// without them the updated value is rounded to nearest. Ignored for f32 and f64 parameters.
struct NarrowArgs {
  float* master = nullptr;         ///< updated; the parameter becomes its rounded value
  bool is_stochastic = false;      ///< bf16: see round_stochastically (core/kernels/shared/update_rule.h)
  RandomSite site;                 ///< of the random bits: step is the update's number
  std::int64_t first_element = 0;  ///< index of the first element in the whole parameter: a multiple of 8
  void* compensation = nullptr;    ///< in the parameter's dtype, the rounding error: parameter + compensation is
                                   ///< updated, and the sum's rounding error is stored here
};

/// The arguments of every update. Rules that do not count updates ignore `step`.
struct UpdateArgs {
  void* parameter = nullptr;
  DType dtype = DType::f32;
  const void* gradient = nullptr;
  DType gradient_dtype = DType::f32;
  double rate = 0, weight_decay = 0;
  double gradient_factor = 1;  ///< multiplies the gradient
  std::int64_t step = 1;       ///< of this update, from 1
  NarrowArgs narrow = {};
};

/// Values per scale of an 8-bit moment, in the parameter's order; the last block may be shorter.
inline constexpr std::int64_t state_block = 256;

/// One number for each element of a parameter, which updates read and write: the first moment has a sign, the second is
/// a mean of squares. In u8 both are dynamic codes (core/numbers/quant_code.h), signed and unsigned, with the largest
/// magnitude of each block as its scale. A second moment above zero is then never rounded to code 0, where the next
/// update would divide by only epsilon. A non-finite moment makes its whole block NaN.
struct MomentArgs {
  void* values = nullptr;   ///< may be null
  float* scales = nullptr;  ///< of u8: one per block
};

/// An elementwise update. A pass over a run of elements reads their moments, updates, and stores the moments again, so
/// that narrow moments are never widened as a whole.
struct ElementArgs : UpdateArgs {
  std::int64_t n = 0;
  MomentArgs first, second;
  DType state_dtype = DType::f32;  ///< of moments: the parameter's compute type, bf16 or u8
};
/// The arguments of an update and the numbers of its rule (core/kernels/shared/update_rule.h).
template <class Numbers>
struct ElementUpdate : ElementArgs, Numbers {};

/// d = g + weight_decay p; m = momentum m + d; p -= rate (nesterov ? d + momentum m : m). Without m, the first moment,
/// p -= rate d.
struct SgdNumbers {
  double momentum = 0;
  bool nesterov = false;
  bool operator==(const SgdNumbers&) const = default;
};
using SgdArgs = ElementUpdate<SgdNumbers>;

/// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= rate / c1 * m / (sqrt(v) / sqrt(c2) + epsilon), c = 1 - b^step,
/// with 1 / sqrt(c2) as a factor. Weight decay multiplies p by 1 - rate decay before the update if decoupled (AdamW),
/// else adds decay p to g.
struct AdamNumbers {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  bool is_decoupled = true;
  bool operator==(const AdamNumbers&) const = default;
};
using AdamArgs = ElementUpdate<AdamNumbers>;

/// Updates of many parameters: a list for each rule.
struct ElementUpdates {
  std::span<const SgdArgs> sgd = {};
  std::span<const AdamArgs> adam = {};

  template <class F>
  void each_list(const F& f) const {
    f(sgd), f(adam);
  }
};

/// Adafactor (Shazeer & Stern 2018, arXiv:1804.04235, algorithms 4 and 5) of a parameter seen as (rows, columns). g is
/// the gradient times gradient_factor.
///   s = g^2 + epsilon1;  b = 1 - step^-decay
///   factored: R = b R + (1 - b) mean of s over a row;  C = b C + (1 - b) mean over a column;  V = R C / mean(R)
///   else:     V = b V + (1 - b) s
///   u = g / sqrt(V);  u /= max(1, rms(u) / clip);  a = rate max(epsilon2, rms(p)) or rate
///   m = beta1 m + (1 - beta1) u;  p = (1 - rate weight_decay) p - a (u, or m where there is one)
/// `narrow` defines p: the master copy, or the sum of parameter and compensation.
struct AdafactorNumbers {
  double beta1 = 0, decay = 0.8, epsilon1 = 1e-30, epsilon2 = 1e-3, clip = 1;
  bool scales_by_parameter = true;
  bool has_relative_step = false;  ///< the rate is min(1e-2, 1 / sqrt(step)) instead
  bool operator==(const AdafactorNumbers&) const = default;
};

/// Arithmetic in f32. Sums are in f64, in an order that depends only on rows and columns and is equal on all devices: a
/// row in tiles of 256, each in 8 lanes; all rows in 64 ranges; a column in ranges of 64 rows.
struct AdafactorArgs : UpdateArgs, AdafactorNumbers {
  static constexpr std::int64_t tile = 256, shares = 64, stretch = 64;
  static constexpr int lanes = 8;
  std::int64_t rows = 0, columns = 0;
  float* row_moment = nullptr;     ///< R; null unless factored
  float* column_moment = nullptr;  ///< C, or V, of rows x columns, where row_moment is null
  float* momentum = nullptr;       ///< may be null
};

/// Elements of a range with a separate sum of squares. A tensor's sum adds the sums of its ranges in order, so a rank
/// that holds some of the ranges can compute their term.
inline constexpr std::int64_t square_stretch = 4096;

/// *sum = sum of squares, in f64, in an order that depends only on n.
struct SquareSumArgs {
  std::int64_t n = 0;
  const void* gradient = nullptr;
  DType dtype = DType::f32;
  double* sum = nullptr;
};

/// The factor of all gradients: min(1, max_norm / (norm + 1e-6)) with norm = sqrt(sum of sums[0 .. count)).
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

/// Limit of tensors in one launch on a GPU.
inline constexpr std::size_t most_listed = 56;

struct OptimizerKernels {
  /// Updates many parameters, with the bits of separate updates. On a GPU, parameters with equal dtypes and numbers
  /// share a launch.
  void (*update_elements)(const ElementUpdates&) = nullptr;
  /// As update_elements. On a GPU each phase is one launch for all parameters that are alike, matrices and vectors.
  void (*adafactor)(std::span<const AdafactorArgs>) = nullptr;
  /// Sums of squares of many gradients, which share launches on a GPU.
  void (*square_sums)(std::span<const SquareSumArgs>) = nullptr;
  void (*clip)(const ClipNorm&, std::span<const ClipArgs>) = nullptr;
};

extern const OptimizerKernels optimizer_cpu;
extern const OptimizerKernels* const optimizer_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const OptimizerKernels& optimizer_kernels(memory::Device device);

}  // namespace thimble::kernels
