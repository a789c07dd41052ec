#pragma once
// FP8 operands of products: how values become E4M3 or E5M2 with a scale, and the state of delayed scaling. The product
// itself is core/ops/matmul/fp8_linear.h.
//
// Glossary
// - amax      the largest magnitude of a tensor
// - scale     what a code is multiplied with: value = code x scale. (Other libraries call its inverse so.)
// - largest   the dtype's largest finite value: f8e4m3 448, f8e5m2 57344
//
// Per tensor (delayed, current)
// - scale = amax / largest x 2^margin, computed in f64 and rounded to f32, at least 2^-60 (the product of two scales
//   stays a normal number) and at most 2^100. An amax of 0 gives 1. Of a tensor with a NaN or an infinity the scale is
//   NaN, and so are all its codes.
// - current: amax is that of the tensor itself.
// - delayed: amax is the largest of the last `history` steps that were recorded, so that it is known before the tensor
//   is; what is larger than largest x scale becomes the largest. Before the first recorded step, and while all that was
//   recorded is 0, the scale is the tensor's own, as with current.
// - code = nearest even to value x (1 / scale), saturating where the value is finite. A NaN stays one; an infinity
//   stays one in f8e5m2 and is NaN in f8e4m3, which has none.
//
// In blocks (block)
// - x and dy have a scale for 128 values of a row, weights one for 128 x 128. Scales are powers of two, amax / largest
//   rounded up (UE8M0, core/ops/quant/quantize.h): code x scale is exact in bf16, so no product needs a scale of its
//   own, and the codes of a tensor serve the sums over its rows and those over its columns alike. A block with a NaN or
//   an infinity is NaN as a whole. The margin is not used.
//
// State of delayed scaling, three tensors of a layer; row 0 is x, 1 the weight, 2 the gradient dy
// - amax (3, history) f32: a ring. scale (3) f32: that of the next step, 0 while none is known. steps (3, 2) i64: how
//   many steps were recorded, and 1 + the number of the last (the generator's), by which several passes of one step
//   (micro-batches, a layer used twice) share a place of the ring.
// - A step uses the scales that were committed before it, and records its own in the Transaction
//   (core/tensor/transaction.h): a recompute records nothing, and a step that throws or is skipped leaves the state as
//   it was.
// - An amax that is NaN or infinite is not recorded.

#include <cstdint>

#include <thimble/core/tensor/tensor.h>

namespace thimble {

enum class Fp8Scaling : std::uint8_t { delayed, current, block };

/// Values that share a scale of a block.
inline constexpr std::int64_t fp8_block = 128;
/// FP8 units multiply a layer only where its sizes are multiples of this.
inline constexpr std::int64_t fp8_multiple = 16;
/// Steps that delayed scaling can look back on.
inline constexpr std::int64_t fp8_history_max = 1024;
/// What a recipe may leave above amax, in powers of two.
inline constexpr int fp8_margin_max = 16;

struct Fp8Format {
  Fp8Scaling scaling = Fp8Scaling::delayed;
  DType forward = DType::f8e4m3;   ///< of x and the weight
  DType gradient = DType::f8e5m2;  ///< of dy
  int margin = 0;                  ///< powers of two that are left above amax
};

struct Fp8State {
  Tensor amax, scale, steps;  ///< all undefined: nothing is recorded
  bool defined() const noexcept { return amax.defined(); }
};

/// The state before the first step. Throws ValueError unless 1 <= history <= fp8_history_max.
Fp8State make_fp8_state(std::int64_t history, Device device);

/// Throws ShapeError, DTypeError or DeviceError, naming the operation and the tensor, unless the state has the tensors
/// that make_fp8_state makes on this device.
void check_fp8_state(const char* operation, const Fp8State& state, Device device);

/// Whose operand is encoded: a row of the state.
enum class Fp8Role : std::uint8_t { x, weight, gradient };

/// How an operator encodes: the part that its three operands share.
struct Fp8Use {
  Fp8Format format = {};
  Fp8State state = {};    ///< where amax is recorded
  std::int64_t step = 0;  ///< of the generator
  bool records = false;   ///< a training forward, or its backward: not an evaluation
  DType dtype(Fp8Role role) const noexcept { return role == Fp8Role::gradient ? format.gradient : format.forward; }
};

/// A matrix (R, C) as codes, or as the bf16 values that they stand for, with its scale: f32 (1), or of blocks u8.
struct Fp8Operand {
  Tensor values;
  Tensor scale;
};

/// The scale of an amax, as above.
float fp8_scale_of(float amax, DType dtype, int margin) noexcept;

/// Codes of a dense matrix. `known` are the committed scales of delayed scaling, f32 (3), or undefined. Records amax
/// where `use` says so, outside of a recompute. Throws ShapeError for what is no dense matrix, DeviceError where this
/// build has no kernels, DTypeError for another dtype than f32, f16, bf16; as check_fp8_state.
Fp8Operand fp8_encode(const Tensor& matrix, Fp8Role role, const Fp8Use& use, const Tensor& known);

/// What fp8_encode's codes stand for: per tensor the codes' own values (the scale is to be multiplied in later), of
/// blocks code x scale; exact in bf16. The result takes the matrix's place in memory where that is bf16 and nobody else
/// holds it.
Fp8Operand fp8_round(Tensor matrix, Fp8Role role, const Fp8Use& use, const Tensor& known);

/// What codes of blocks stand for, in the place of the matrix that they are of, as fp8_round gives it.
Tensor fp8_decode(Tensor matrix, const Fp8Operand& codes);

/// The codes of a matrix (R, C) for FP8 units, which read both operands of a product along the sum.
struct Fp8Sides {
  Tensor plain;   ///< (R, C), for sums over its columns
  Tensor turned;  ///< (C, R rounded up to a multiple of fp8_multiple), for sums over its rows; zeros beyond R
  Tensor scale;   ///< f32 (1), or of blocks u8
};

/// fp8_encode for the sides that are asked for. With a scale for the tensor the matrix is read once more for both than
/// for its amax; in blocks codes are turned once they are made, of a weight alone, whose blocks are square (the scale
/// is that of the plain side). Codes are workspace. Throws as fp8_encode does, ValueError for another matrix turned in
/// blocks, DeviceError on the CPU, whose products read bf16.
Fp8Sides fp8_encode_sides(const Tensor& matrix, Fp8Role role, const Fp8Use& use, const Tensor& known, bool plain,
                          bool turned);

/// Rows [row, row + R) and columns [column, column + C) of what codes stand for, to a dense bf16 (R, C). ShapeError.
void fp8_decode_into(const Tensor& to, const Fp8Operand& codes, std::int64_t row, std::int64_t column);

}  // namespace thimble
