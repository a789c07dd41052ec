// cuBLASLt's part in products of FP8 codes. Its rules for them (its documentation, cublasLtMatmul):
//
//   operands   one E4M3 at least; 16 bytes from row to row and at the beginning; the left one transposed, the right one
//              not, in its columns: both of ours read along the sum
//   scales     f32 in device memory, read when the product runs; they multiply the sum
//   in blocks  from cuBLAS 12.9 on, on compute capability 9.0: scales along the sum, of 1 x 128 on at least one side;
//              aligned to 16 bytes, in the orders of core/kernels/fp8.h; rows in multiples of 4, and of 8 on the right
//              side where that has 1 x 128
//   result     f32, f16 or bf16; sums in f32, not the faster ones with fewer bits: units of compute capability 9.0 add
//              some products with about 14 bits, and these sums are then added in f32
//   bias       of the result's dtype; for f32 it would have to be bf16, so there is none

#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/launch/launch.h>
#include <thimble/cuda/libraries/blas.h>
#include <thimble/cuda/runtime/call_text.h>
#include <thimble/cuda/runtime/library.h>
#include <thimble/cuda/runtime/runtime.h>

namespace thimble::gpu {

namespace blas_fp8_detail {

#if CUBLAS_VERSION >= 120900
constexpr bool has_blocks = true;

/// The library's left operand is our right one, with scales of 128 x 128.
void set_blocks(BlasCall& call) {
  call.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, static_cast<std::int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F));
  call.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, static_cast<std::int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F));
}
#else
constexpr bool has_blocks = false;
void set_blocks(BlasCall&) {}
#endif

}  // namespace blas_fp8_detail

bool library_has_fp8_blocks() noexcept {
  static const bool has_them = [] {
    if (!blas_fp8_detail::has_blocks) return false;
    try {
      return blas().cublasLtGetVersion() >= 120900;
    } catch (const DeviceError&) {  // a dry run uses this build's version; a product reports the error
      return true;
    }
  }();
  return has_them;
}

bool library_fp8_gemm(const kernels::Fp8GemmArgs& args, void* workspace, std::size_t workspace_bytes) {
  constexpr std::uint32_t aligned = 16;
  if (blas_alignment(args.a) < aligned || blas_alignment(args.b) < aligned || blas_alignment(args.c) < aligned) {
    return false;
  }
  if (args.bias && blas_alignment(args.bias) < aligned) return false;
  const memory::Device device = launching_device();
  if (args.in_blocks) {
    if (!library_has_fp8_blocks() || compute_capability(device) != 90) return false;
    if (blas_alignment(args.a_scale) < aligned || blas_alignment(args.b_scale) < aligned) return false;
  }
  const Doing doing(args, workspace_bytes);
  const cudaStream_t stream = compute_stream(device);
  const cublasLtHandle_t handle = blas_handle(device);
  // c^T (n, m) = b (n, k) a^T (k, m): the library's left operand is our right one, k x n in its columns.
  const BlasColumns left{args.k, args.n, args.b_row_stride, true}, right{args.k, args.m, args.a_row_stride, false};
  const BlasColumns result{args.n, args.m, args.c_row_stride, false};
  const cublasLtEpilogue_t epilogue = args.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;

  BlasCall call(CUBLAS_COMPUTE_32F, CUDA_R_32F);
  call.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  call.set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  call.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{0});
  call.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(args.b_scale));
  call.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(args.a_scale));
  if (args.in_blocks) blas_fp8_detail::set_blocks(call);
  call.set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (args.bias) {
    call.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
    call.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(blas_type(args.c_dtype)));
  }
  call.a = blas_layout(blas_type(args.b_dtype), left);
  call.b = blas_layout(blas_type(args.a_dtype), right);
  call.c = blas_layout(blas_type(args.c_dtype), result);

  const BlasKey key{{device.index, static_cast<int>(args.b_dtype), static_cast<int>(args.a_dtype),
                     static_cast<int>(args.c_dtype), args.m, args.n, args.k, left.stride, right.stride, result.stride,
                     static_cast<int>(epilogue), static_cast<int>(args.in_blocks)},
                    {aligned, aligned, aligned},
                    workspace_bytes};
  const std::optional<cublasLtMatmulAlgo_t> algorithm = choose_algorithm(handle, call, key);
  if (!algorithm) return false;
  const float alpha = 1.0f, beta = 0.0f;
  check_blas(blas().cublasLtMatmul(handle, call.operation, &alpha, args.b, call.a, args.a, call.b, &beta, args.c,
                                   call.c, args.c, call.c, &*algorithm, workspace, workspace_bytes, stream),
             "cublasLtMatmul");
  return true;
}

}  // namespace thimble::gpu
