#pragma once
// A linear layer with FP8 operands.

#include <cstdint>
#include <string>

#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/ops/op.h>
#include <thimble/core/ops/quant/fp8.h>

namespace thimble {

// ---- Products of FP8 codes on the FP8 units of a CUDA device: with one scale per tensor on all devices with such
// units, with block scales on some. Unrecorded.

/// c = act(a_scale b_scale a b^T + bias), the codes a (M, K), b (N, K), c (M, N) with dense rows, in f32, f16 or bf16.
/// The longer of two K is padded with zeros. bias (N) and pre_activation (as c) may be undefined. With block scales a's
/// scales are u8 (M, blocks of K), 1 x 128, and b's (blocks of N, blocks of K), 128 x 128, with any strides; each term
/// of the sum is multiplied by its two.
struct Fp8MatmulCall {
  const char* operation;  ///< for errors
  Fp8Operand a, b;
  Tensor c;
  Tensor bias, pre_activation;
  kernels::Activation activation = kernels::Activation::none;
};

/// Takes the workspace, with block scales also for the scales in the order that units read them (f32), then launches.
/// The scales are read when the product runs. Throws ShapeError, DTypeError, DeviceError (the CPU, which multiplies
/// decoded values: core/ops/matmul/product.h).
void fp8_matmul_into(const Fp8MatmulCall& call);

/// Whether units multiply (M, K) codes with scales of 1 x 128 and (N, K) codes with scales of 128 x 128: a device of
/// compute capability 9.0 (core/launch/compute_capability.h), a build with cuBLAS 12.9 or later, N and K in multiples
/// of 16, M in multiples of 8, not E5M2 twice. Depends on nothing else, so a dry device answers as the real one.
struct Fp8BlockProduct {
  std::int64_t m = 0, n = 0, k = 0;
  DType a_dtype = DType::f8e4m3, b_dtype = DType::f8e4m3, c_dtype = DType::bf16;
};
bool fp8_blocks_on_units(memory::Device device, const Fp8BlockProduct& product);

/// Why a device multiplies no codes with block scales, whatever their sizes; empty if it does.
std::string why_no_fp8_blocks(memory::Device device);

/// Columns [begin, end) of codes (R, C), transposed: (end - begin, R rounded up to a multiple of fp8_multiple), zeros
/// beyond R, into `to`, dense. Throws ShapeError, DTypeError, DeviceError.
void fp8_turn_into(const Tensor& to, const Tensor& codes, std::int64_t begin, std::int64_t end);

}  // namespace thimble

namespace thimble::ops {

/// y = act(s x8 W8 + bias): x (..., I) -> (..., O) in x's dtype (f32, f16, bf16), with x8 and W8 the FP8 values of x
/// and the weight (core/ops/quant/fp8.h) and s the product of their scales. The weight is (O, I), or (I, O) with
/// `weight_is_in_out`; bias (O), or undefined; both in x's dtype. `scales` are the committed ones of delayed scaling,
/// f32 (3), or undefined.
///
/// Gradients: dx = s dy8 W8^T, dW = s x8^T dy8, dbias = the sum of dy unrounded. dy is rounded once for both, W a
/// second time, with the scale of forward.
///
/// Every FP8 value is exact in bf16, so products have bf16 operands with sums in f32 (core/kernels/cpu/matmul/gemm.h);
/// the scales multiply the complete sums. A CUDA device multiplies codes with per-tensor scales directly;
/// with block scales it multiplies the codes for y and dx where it has units for such
/// scales (fp8_blocks_on_units), and never for dW, a sum over rows with different scales.
///
/// Keeps x's codes, 1 byte a value, with their scale (4 bytes, or a byte per block of 128), the weight, and for the
/// activation the tensors that Linear keeps. Decoded operands are workspace: W whole, of x at most about 4 MiB at a
/// time (64 rows or 128 columns at least; 32 MiB on a CUDA device); dy is rounded in place. Products of codes use
/// workspace for the codes of W and dy, 1 byte a value, transposed where the sum is over their other side, dy both
/// ways; of x at most about 32 MiB of codes are transposed at a time. With block scales dy's codes live beside dy until
/// dx is computed.
///
/// Throws ShapeError, DTypeError, DeviceError.
struct Fp8Linear {
  static constexpr const char* name = "fp8_linear";
  static constexpr Cost cost = Cost::matmul;
  struct Saved {
    Tensor x, x_scale, weight, scales, activation;
    Shape x_shape;
  };
  Fp8Use use = {};
  kernels::Activation activation = kernels::Activation::none;
  bool weight_is_in_out = false;

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& scales, Needs needs,
                 Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

}  // namespace thimble::ops
