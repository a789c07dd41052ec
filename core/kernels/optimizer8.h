#pragma once
// Optimizer updates whose state is 8-bit or factored: one pass over a block reads its codes, updates, and writes codes
// again, so that the state never exists in more digits. Arithmetic in f32; parameters and gradients are f32, f16, bf16,
// f8e4m3 or f8e5m2, and narrow parameters are stored as NarrowArgs says.

#include <cstdint>

#include <thimble/core/kernels/optimizer.h>

namespace thimble::kernels {

/// Values that share a scale in 8-bit state, the first ones of a parameter first; the last block may be shorter.
inline constexpr std::int64_t state_block = 256;

/// AdamArgs whose moments are u8: dynamic codes (core/numbers/quant_code.h), signed for the first, unsigned for the
/// second, with the largest magnitude of each block in f32. A second moment above zero is never rounded to code 0,
/// which would let the next update divide by epsilon alone. A block with a moment that is not finite becomes NaN as a
/// whole.
struct Adam8Args {
  AdamArgs update;
  float* first_scales = nullptr;
  float* second_scales = nullptr;
};

/// SgdArgs with a momentum buffer of signed dynamic codes, likewise.
struct Momentum8Args {
  SgdArgs update;
  float* scales = nullptr;
};

/// Adafactor (Shazeer & Stern 2018, arXiv:1804.04235, algorithms 4 and 5) of a parameter seen as (rows, columns).
/// g is the gradient times gradient_factor.
///   s = g^2 + epsilon1;  b = 1 - step^-decay
///   factored: R = b R + (1 - b) mean of s over a row;  C = b C + (1 - b) mean over a column;  V = R C / mean(R)
///   else:     V = b V + (1 - b) s
///   u = g / sqrt(V);  u /= max(1, rms(u) / clip);  a = rate max(epsilon2, rms(p)) or rate;  m = beta1 m + (1 - beta1)
///   u p = (1 - rate weight_decay) p - a (u, or m where there is one)
/// Sums are taken in f64 in an order that depends on rows and columns alone, the same on all devices: a row in tiles of
/// 256, each in 8 lanes; all rows in 64 ranges; a column in stretches of 64 rows.
struct AdafactorArgs {
  static constexpr std::int64_t tile = 256, shares = 64, stretch = 64;
  static constexpr int lanes = 8;
  std::int64_t rows = 0, columns = 0;
  void* parameter = nullptr;
  DType dtype = DType::f32;
  const void* gradient = nullptr;
  DType gradient_dtype = DType::f32;
  float* row_moment = nullptr;     ///< R, null: not factored
  float* column_moment = nullptr;  ///< C, or V, of rows x columns, where row_moment is null
  float* momentum = nullptr;       ///< null: none
  double rate = 0, beta1 = 0, decay = 0.8, epsilon1 = 1e-30, epsilon2 = 1e-3, clip = 1, weight_decay = 0;
  bool scales_by_parameter = true;
  bool has_relative_step = false;  ///< the rate is min(1e-2, 1 / sqrt(step)) instead
  double gradient_factor = 1;      ///< the gradient is multiplied by it as it is read
  std::int64_t step = 1;           ///< of this update, from 1
  NarrowArgs narrow = {};          ///< p is what it says: the master copy, or parameter and compensation together
};

struct Optimizer8Kernels {
  /// Of many parameters, as in OptimizerKernels.
  void (*adam8)(std::span<const Adam8Args>) = nullptr;
  void (*momentum8)(std::span<const Momentum8Args>) = nullptr;
  /// Likewise, with one launch for each phase of all that are alike, matrices and vectors together.
  void (*adafactor)(std::span<const AdafactorArgs>) = nullptr;
};

extern const Optimizer8Kernels optimizer8_cpu;
extern const Optimizer8Kernels* const optimizer8_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const Optimizer8Kernels& optimizer8_kernels(Device device);

}  // namespace thimble::kernels
