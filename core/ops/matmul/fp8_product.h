#pragma once
// Products of FP8 codes on the FP8 units of a CUDA device: with one scale per tensor on all devices with such units,
// with block scales on some. Unrecorded.

#include <string>

#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/ops/quant/fp8.h>

namespace thimble {

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
