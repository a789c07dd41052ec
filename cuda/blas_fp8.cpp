// cuBLASLt's part in products of FP8 codes. The rules that it has for them (its documentation, cublasLtMatmul):
//
//   operands   one E4M3 at least; 16 bytes from row to row and at the beginning; the left one transposed, the right one
//              not, in its columns: both of ours read along the sum
//   scales     f32 in device memory, read when the product runs; they multiply the sum
//   result     f32, f16 or bf16; sums in f32, not the faster ones with fewer bits
//   bias       of the result's dtype; for f32 it would have to be bf16, so there is none

#include <thimble/core/launch.h>
#include <thimble/cuda/blas.h>
#include <thimble/cuda/call_text.h>
#include <thimble/cuda/library.h>
#include <thimble/cuda/runtime.h>

namespace thimble::gpu {

bool library_fp8_gemm(const kernels::Fp8GemmArgs& args, void* workspace, std::size_t workspace_bytes) {
  constexpr std::uint32_t aligned = 16;
  if (blas_alignment(args.a) < aligned || blas_alignment(args.b) < aligned || blas_alignment(args.c) < aligned) {
    return false;
  }
  const Doing doing(args, workspace_bytes);
  const Device device = launching_device();
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
  call.set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (args.bias) {
    call.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
    call.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(blas_type(args.c_dtype)));
  }
  call.a = blas_layout(blas_type(args.b_dtype), left);
  call.b = blas_layout(blas_type(args.a_dtype), right);
  call.c = blas_layout(blas_type(args.c_dtype), result);

  const BlasKey key{
      {device.index, static_cast<int>(args.b_dtype), static_cast<int>(args.a_dtype), static_cast<int>(args.c_dtype),
       args.m, args.n, args.k, left.stride, right.stride, result.stride, static_cast<int>(epilogue)},
      {aligned, aligned, aligned},
      workspace_bytes};
  const std::optional<cublasLtMatmulAlgo_t> algorithm = choose_algorithm(handle, call, key);
  if (!algorithm) return false;
  const float alpha = 1.0f, beta = 0.0f;
  check_blas(cublasLtMatmul(handle, call.operation, &alpha, args.b, call.a, args.a, call.b, &beta, args.c, call.c,
                            args.c, call.c, &*algorithm, workspace, workspace_bytes, stream),
             "cublasLtMatmul");
  return true;
}

}  // namespace thimble::gpu
