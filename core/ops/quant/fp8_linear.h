#pragma once
// A linear layer with FP8 operands.

#include <cstdint>
#include <string>

#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/ops/op.h>
#include <thimble/core/ops/quant/fp8.h>

namespace thimble {

// ---- Unrecorded products of FP8 codes on the FP8 units of a CUDA device: with one scale per tensor on all devices
// with FP8 units, with block scales on some.

/// c = act(a_scale b_scale a b^T + bias), with codes a (M, K) and b (N, K), and c (M, N) with dense rows in f32, f16 or
/// bf16. If the K differ, the longer one is padded with zeros. bias (N) and pre_activation (as c) may be undefined.
/// With block scales a's scales are u8 (M, blocks of K), 1 x 128, and b's (blocks of N, blocks of K), 128 x 128, with
/// any strides; each term of the sum is multiplied by both of its scales.
struct Fp8MatmulCall {
  const char* operation;  ///< for errors
  Fp8Operand a, b;
  Tensor c;
  Tensor bias, pre_activation;
  kernels::Activation activation = kernels::Activation::none;
};

/// Takes the workspace, including f32 block scales in the units' order, then launches. The scales are read when the
/// product runs. Throws ShapeError, DTypeError, DeviceError (the CPU, which multiplies decoded values:
/// core/ops/matmul/product.h).
void fp8_matmul_into(const Fp8MatmulCall& call);

/// Whether units multiply (M, K) codes with scales of 1 x 128 and (N, K) codes with scales of 128 x 128: a device of
/// compute capability 9.0 (core/launch/compute_capability.h), a build with cuBLAS 12.9 or later, N and K in multiples
/// of 16, M in multiples of 8, not E5M2 twice. It depends on nothing else, so the answer is the same on a dry device.
struct Fp8BlockProduct {
  std::int64_t m = 0, n = 0, k = 0;
  DType a_dtype = DType::f8e4m3, b_dtype = DType::f8e4m3, c_dtype = DType::bf16;
};
bool fp8_blocks_on_units(memory::Device device, const Fp8BlockProduct& product);

/// The reason why a device multiplies no codes with block scales of any size; empty if it does.
std::string why_no_fp8_blocks(memory::Device device);

/// Writes columns [begin, end) of codes (R, C), transposed, to a dense `to`: (end - begin, R rounded up to a multiple
/// of fp8_multiple), with zeros beyond R. Throws ShapeError, DTypeError, DeviceError.
void fp8_turn_into(const Tensor& to, const Tensor& codes, std::int64_t begin, std::int64_t end);

}  // namespace thimble

namespace thimble::ops {

/// y = act(s x8 W8 + bias): x (..., I) -> (..., O) in x's dtype (f32, f16, bf16), with x8 and W8 the FP8 values of x
/// and the weight (core/ops/quant/fp8.h) and s the product of their scales. The weight is (O, I), or (I, O) with
/// `weight_is_in_out`; bias (O), or undefined; both in x's dtype. `scales` are the committed ones of delayed scaling,
/// f32 (3), or undefined.
///
/// Gradients: dx = s dy8 W8^T, dW = s x8^T dy8, dbias = the sum of unrounded dy. dy is rounded once for both products,
/// W a second time, with forward's scale.
///
/// Every FP8 value is exact in bf16, so products have bf16 operands with sums in f32 (core/kernels/cpu/matmul/gemm.h);
/// the scales multiply the complete sums. A CUDA device multiplies codes with per-tensor scales directly; with block
/// scales it does so for y and dx if its units support them (fp8_blocks_on_units), and never for dW, a sum over rows
/// with different scales.
///
/// Keeps x's codes, 1 byte per value, with their scale (4 bytes, or a byte per block of 128), the weight, and for the
/// activation the tensors that Linear keeps. Decoded operands are workspace: W whole, x in windows of about 4 MiB (32
/// MiB on a CUDA device; at least 64 rows or 128 columns); dy is rounded in place. Products of codes use workspace for
/// the codes of W and dy, 1 byte per value, transposed if the sum is over their other side, dy both ways; x's codes are
/// transposed in windows of about 32 MiB. With block scales dy and its codes both live until dx is computed.
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
