#pragma once
// FP8 operands of products: encoding values as E4M3 or E5M2 with a scale, and the state of delayed scaling. The
// products are in core/ops/quant/fp8_linear.h.
//
// Glossary
// - amax      the largest magnitude of a tensor
// - scale     the factor of a code: value = code x scale. (Other libraries call its inverse the scale.)
// - largest   the dtype's largest finite value: f8e4m3 448, f8e5m2 57344
//
// Per tensor (delayed, current)
// - scale = amax / largest x 2^margin, computed in f64 and rounded to f32, at least 2^-60 (the product of two scales
//   stays a normal number) and at most 2^100. An amax of 0 gives 1. A NaN or an infinity makes the tensor's scale and
//   all its codes NaN.
// - current: amax is the tensor's.
// - delayed: amax is the largest of the last `history` recorded steps, so that it is known before the tensor exists;
//   values beyond largest x scale become the largest. Before the first recorded step, and while all records are 0, the
//   scale is the tensor's, as with current.
// - code = value x (1 / scale), rounded to nearest even, finite values saturated. NaN stays NaN; an infinity stays one
//   in f8e5m2 and is NaN in f8e4m3, which has none.
//
// In blocks (block)
// - x and dy have a scale per 128 values of a row, weights per 128 x 128. Scales are powers of two, amax / largest
//   rounded up (UE8M0, core/ops/quant/quantize.h): code x scale is exact in bf16, so products need no separate scale,
//   and the same codes serve sums over rows and over columns. A NaN or an infinity makes its whole block NaN. The
//   margin is not used.
//
// State of delayed scaling, three tensors of a layer; row 0 is x, 1 the weight, 2 the gradient dy
// - amax (3, history) f32: a ring. scale (3) f32: the next step's, 0 until one is known. steps (3, 2) i64: the number
//   of recorded steps, and 1 + the generator's step of the last one, so that several passes of one step (micro-batches,
//   a layer used twice) share an entry of the ring.
// - A step uses the scales committed before it, and records its amax in the Transaction (core/tensor/transaction.h): a
//   recompute records nothing, and a step that throws or is skipped leaves the state unchanged.
// - An amax that is NaN or infinite is not recorded.

#include <cstdint>

#include <thimble/core/tensor/tensor.h>

namespace thimble {

enum class Fp8Scaling : std::uint8_t { delayed, current, block };

/// Values per block scale.
inline constexpr std::int64_t fp8_block = 128;
/// FP8 units multiply only layers whose sizes are multiples of this.
inline constexpr std::int64_t fp8_multiple = 16;
/// Longest history of delayed scaling, in steps.
inline constexpr std::int64_t fp8_history_max = 1024;
/// Largest margin above amax, in powers of two.
inline constexpr int fp8_margin_max = 16;

struct Fp8Format {
  Fp8Scaling scaling = Fp8Scaling::delayed;
  DType forward = DType::f8e4m3;   ///< for x and the weight
  DType gradient = DType::f8e5m2;  ///< for dy
  int margin = 0;                  ///< powers of two of headroom above amax
};

struct Fp8State {
  Tensor amax, scale, steps;  ///< if undefined, nothing is recorded
  bool defined() const noexcept { return amax.defined(); }
};

/// The state before the first step. Throws ValueError unless 1 <= history <= fp8_history_max.
Fp8State make_fp8_state(std::int64_t history, memory::Device device);

/// Throws ShapeError, DTypeError or DeviceError, naming the operation and the tensor, unless the state has the tensors
/// that make_fp8_state makes on this device.
void check_fp8_state(const char* operation, const Fp8State& state, memory::Device device);

/// The encoded operand, which is a row of the state.
enum class Fp8Role : std::uint8_t { x, weight, gradient };

/// An operator's encoding, shared by its three operands.
struct Fp8Use {
  Fp8Format format = {};
  Fp8State state = {};    ///< records amax
  std::int64_t step = 0;  ///< the generator's
  bool records = false;   ///< true in training, false in evaluation
  DType dtype(Fp8Role role) const noexcept { return role == Fp8Role::gradient ? format.gradient : format.forward; }
};

/// A matrix (R, C) as codes, or as the codes' values in bf16, with its scale: f32 (1), or u8 for blocks.
struct Fp8Operand {
  Tensor values;
  Tensor scale;
};

/// Codes of a dense matrix. `known` are the committed scales of delayed scaling, f32 (3), or undefined. Records amax
/// if `use` requests it, except in a recompute. Throws ShapeError unless the matrix is dense, DeviceError if this build
/// has no kernels, DTypeError for another dtype than f32, f16, bf16, and as check_fp8_state.
Fp8Operand fp8_encode(const Tensor& matrix, Fp8Role role, const Fp8Use& use, const Tensor& known);

/// The values of fp8_encode's codes, exact in bf16: per tensor without the scale, which is still to be multiplied; for
/// blocks code x scale. Reuses the matrix's buffer if it is bf16 and has no other holder.
Fp8Operand fp8_round(Tensor matrix, Fp8Role role, const Fp8Use& use, const Tensor& known);

/// Decodes block codes into their matrix's buffer, to fp8_round's values.
Tensor fp8_decode(Tensor matrix, const Fp8Operand& codes);

/// The codes of a matrix (R, C) for FP8 units, which read both operands of a product along the summed axis.
struct Fp8Sides {
  Tensor plain;   ///< (R, C), for sums over its columns
  Tensor turned;  ///< (C, R rounded up to a multiple of fp8_multiple), for sums over its rows; zeros beyond R
  Tensor scale;   ///< f32 (1), or u8 for blocks
};

/// fp8_encode for the requested sides. With one scale per tensor it reads the matrix once for amax and once for both
/// sides. With block scales only a weight, whose blocks are square, can be transposed; the scale is the plain side's.
/// Codes are workspace. Throws as fp8_encode does, ValueError for another matrix transposed in blocks, DeviceError on
/// the CPU, whose products read bf16.
Fp8Sides fp8_encode_sides(const Tensor& matrix, Fp8Role role, const Fp8Use& use, const Tensor& known, bool plain,
                          bool turned);

/// Writes rows [row, row + R) and columns [column, column + C) of the codes' values to a dense bf16 (R, C). Throws
/// ShapeError.
void fp8_decode_into(const Tensor& to, const Fp8Operand& codes, std::int64_t row, std::int64_t column);

}  // namespace thimble
