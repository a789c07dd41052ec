#pragma once
// The reduction kernel family. The order in which one reduction combines elements depends only on its length: in the
// compute type, one after the other, within blocks of `reduce_block` elements; blocks in f64 within ranges of
// `reduce_stretch`; ranges one after the other. Layout, rows and threads do not matter.

#include <cstddef>
#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>
#include <thimble/core/shape.h>

namespace thimble::kernels {

inline constexpr std::int64_t reduce_block = 128;
inline constexpr std::int64_t reduce_stretch = 1 << 16;

/// The term of a sum, with x the input and c the other operand.
enum class ReduceMap : std::uint8_t {
  value,                ///< x
  squared_difference,   ///< (x - c)^2; like `product` in f64, where nothing of f32 values overflows or vanishes
  product,              ///< x c
  exp_difference,       ///< e^(x - c), with c = 0 where c is not finite
  absolute_difference,  ///< |x - c|; this and the next three are defined in core/kernels/functors/reduction_functors.h
  huber,                ///< the parameter is delta
  bce_with_logits,      ///< the parameter is the weight of positive targets
  kl_divergence         ///< the parameter is 1 where c is a logarithm, else 0
};

struct ReduceOperand {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Shape kept_strides, reduced_strides;
};

/// out[k] = (sum over r of map(in[k, r], other[k, r])) / divisor; for exp_difference out[k] = other[k] + log(sum), and
/// `other` must be dense over k, constant over r, and of the compute type. k runs over `kept`, r over `reduced`, both
/// in row-major order. The output is dense and may be `other`. Integers are summed in i64 and take only the map `value`
/// and the divisor 1.
struct ReduceArgs {
  Shape kept, reduced;
  ReduceOperand in;
  ReduceMap map = ReduceMap::value;
  ReduceOperand other;  ///< not read for `value`
  double parameter = 0;
  double divisor = 1;
  void* out = nullptr;
  DType out_dtype = DType::f32;
  double* partial = nullptr;  ///< reduce_partial_elements(...) doubles; unused when that is 0
};

/// The extreme of each reduction: out[k] = max (or min) over r of in[k, r] and its index r, counted in row-major order
/// of `reduced`. The first NaN wins over everything, the first of equal values over later ones. Either output may be
/// null; both are dense. `reduced` is not empty.
struct ExtremeArgs {
  Shape kept, reduced;
  ReduceOperand in;
  bool is_max = true;
  void* values = nullptr;
  DType values_dtype = DType::f32;
  void* places = nullptr;
  DType places_dtype = DType::i64;
  double* partial = nullptr;  ///< 2 reduce_partial_elements(...) doubles; unused when that is 0
};

/// out[k, places[k]] = dy[k]; other elements of out stay unchanged. `out` and dy share a dtype; places are dense.
struct PlaceArgs {
  Shape kept, reduced;
  const void* dy = nullptr;
  Shape dy_strides;
  const void* places = nullptr;
  DType places_dtype = DType::i64;
  void* out = nullptr;
  DType dtype = DType::f32;
  Shape out_kept_strides, out_reduced_strides;
};

/// Doubles between the two stages of a long reduction; 0 when one stage suffices.
std::int64_t reduce_partial_elements(std::int64_t kept, std::int64_t reduced) noexcept;

struct ReduceKernels {
  void (*sum)(const ReduceArgs&) = nullptr;
  void (*extreme)(const ExtremeArgs&) = nullptr;
  void (*place)(const PlaceArgs&) = nullptr;
};

extern const ReduceKernels reduce_cpu;
extern const ReduceKernels* const reduce_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const ReduceKernels& reduce_kernels(memory::Device device);

}  // namespace thimble::kernels
