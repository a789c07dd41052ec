// Products of FP8 codes on CUDA devices, and the operations that cuBLASLt lacks: activation functions, their kept
// inputs, and the bias of a result in f32.

#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/core/numbers/quant_code.h>
#include <thimble/cuda/matmul/fp8_product.h>
#include <thimble/cuda/matmul/product.h>
#include <thimble/cuda/runtime/library_use.h>

namespace thimble::cuda_kernels {
namespace fp8_product_detail {

using kernels::Activation;
using kernels::Fp8GemmArgs;

// Element (row, p) of an operand whose rows run along the sum; a right operand takes (p, row).
template <class F, bool is_right>
struct Codes {
  const F* codes;
  std::int64_t row_stride;
  template <class T>
  THIMBLE_DEVICE T at(std::int64_t, std::int64_t i, std::int64_t j) const {
    return convert_value<T>(is_right ? codes[j * row_stride + i] : codes[i * row_stride + j]);
  }
};

// Likewise in blocks: the codes' values, exact in f32.
template <class F, bool is_right>
struct BlockCodes {
  const F* codes;
  std::int64_t row_stride;
  const float* scales;
  std::int64_t scale_stride;
  template <class T>
  THIMBLE_DEVICE T at(std::int64_t, std::int64_t i, std::int64_t j) const {
    constexpr std::int64_t side = kernels::fp8_block_side;
    return is_right ? convert_value<T>(codes[j * row_stride + i]) * scales[j / side * scale_stride + i / side]
                    : convert_value<T>(codes[i * row_stride + j]) * scales[j / side * scale_stride + i];
  }
};

// v becomes act(v), and is kept on request.
struct Finish {
  void* c;
  std::int64_t row_stride;
  DType dtype;
  const void* bias;
  Activation activation;
  void* pre_activation;
  THIMBLE_DEVICE void store(std::int64_t i, std::int64_t j, float value) const {
    const std::int64_t at = i * row_stride + j;
    if (bias) value += load_any<float>(bias, dtype, j);
    if (pre_activation) store_any<float>(pre_activation, dtype, at, value);
    store_any<float>(c, dtype, at, activate(activation, value, dtype));
  }
};

struct Result {
  Finish finish;
  const float* a_scale;  // null in blocks, where it is already applied
  const float* b_scale;
  THIMBLE_DEVICE void store(std::int64_t, std::int64_t i, std::int64_t j, float sum) const {
    if (a_scale) sum *= static_cast<float>(static_cast<double>(*a_scale) * static_cast<double>(*b_scale));
    finish.store(i, j, sum);
  }
};

// The library's stored result, finished.
struct FinishStored {
  Finish finish;
  const void* stored;
  std::int64_t columns;
  THIMBLE_DEVICE void operator()(std::int64_t e) const {
    const std::int64_t i = e / columns, j = e % columns;
    finish.store(i, j, load_any<float>(stored, finish.dtype, i * finish.row_stride + j));
  }
};

bool by_library(const Fp8GemmArgs& args, const Finish& all, void* workspace) {
  if (!kernels::is_library_fp8_gemm(args)) return false;
  Fp8GemmArgs plain = args;
  plain.activation = Activation::none;
  plain.pre_activation = nullptr;
  if (args.pre_activation) plain.c = args.pre_activation;
  if (args.c_dtype == DType::f32) plain.bias = nullptr;
  const std::size_t bytes = kernels::cuda_fp8_gemm_workspace_bytes(args);
  if (!gpu::booked(&kernels::LibraryUse::cublaslt, args, gpu::library_fp8_gemm(plain, workspace, bytes))) return false;
  Finish rest = all;
  if (plain.bias) rest.bias = nullptr;
  if (!rest.bias && args.activation != Activation::none && args.c_row_stride == args.n &&
      activate_words(args.activation, plain.c, args.c, args.c_dtype, args.m * args.n)) {
    return true;
  }
  if (rest.bias || args.pre_activation || args.activation != Activation::none) {
    for_each_item(args.m * args.n, FinishStored{rest, plain.c, args.n});
  }
  return true;
}

template <class A, class B>
void by_tiles(const Fp8GemmArgs& args, const Finish& finish) {
  const auto* const a = static_cast<const A*>(static_cast<const void*>(args.a));
  const auto* const b = static_cast<const B*>(static_cast<const void*>(args.b));
  if (args.in_blocks) {
    return multiply<float>(1, args.m, args.n, args.k, BlockCodes<A, false>{a, args.a_row_stride, args.a_scale, args.m},
                           BlockCodes<B, true>{b, args.b_row_stride, args.b_scale, kernels::fp8_square_stride(args.k)},
                           Result{finish, nullptr, nullptr});
  }
  multiply<float>(1, args.m, args.n, args.k, Codes<A, false>{a, args.a_row_stride},
                  Codes<B, true>{b, args.b_row_stride}, Result{finish, args.a_scale, args.b_scale});
}

}  // namespace fp8_product_detail

void fp8_gemm(const kernels::Fp8GemmArgs& args, void* workspace) {
  using namespace fp8_product_detail;
  const Finish finish{args.c, args.c_row_stride, args.c_dtype, args.bias, args.activation, args.pre_activation};
  if (by_library(args, finish, workspace)) return;
  const bool a_is_e4m3 = args.a_dtype == DType::f8e4m3, b_is_e4m3 = args.b_dtype == DType::f8e4m3;
  if (a_is_e4m3) {
    b_is_e4m3 ? by_tiles<f8e4m3, f8e4m3>(args, finish) : by_tiles<f8e4m3, f8e5m2>(args, finish);
  } else {
    b_is_e4m3 ? by_tiles<f8e5m2, f8e4m3>(args, finish) : by_tiles<f8e5m2, f8e5m2>(args, finish);
  }
}

}  // namespace thimble::cuda_kernels
