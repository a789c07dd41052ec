// cuBLASLt's part in matrix products. c (m, n) in rows is its (n, m), and c^T = b^T a^T. The algorithm is its
// heuristic's first choice for the descriptor and the declared workspace.

#include <thimble/core/launch/launch.h>
#include <thimble/core/launch/tf32.h>
#include <thimble/cuda/libraries/blas.h>
#include <thimble/cuda/runtime/call_text.h>
#include <thimble/cuda/runtime/library.h>
#include <thimble/cuda/runtime/runtime.h>

namespace thimble::gpu {
namespace blas_detail {

using kernels::Activation;
using kernels::GemmArgs;

/// A matrix (i, j) of strides (row_stride, column_stride), which becomes its transpose (j, i).
BlasColumns columns_of(std::int64_t i, std::int64_t j, std::int64_t row_stride, std::int64_t column_stride) {
  if (column_stride == 1 && (row_stride >= j || i == 1)) return {j, i, row_stride >= j ? row_stride : j, false};
  return {i, j, column_stride >= i ? column_stride : i, true};
}

}  // namespace blas_detail

bool library_gemm(const kernels::GemmArgs& args, void* workspace, std::size_t workspace_bytes) {
  using namespace blas_detail;
  if (args.bias && blas_alignment(args.bias) < 16) return false;  // the choice of an algorithm assumes it
  const Doing doing(args, workspace_bytes);
  const memory::Device device = launching_device();
  const cudaStream_t stream = compute_stream(device);
  const cublasLtHandle_t handle = blas_handle(device);
  const cudaDataType_t type = blas_type(args.dtype);
  const kernels::GemmBatchDim batch = args.batch_rank == 1 ? args.batch[0] : kernels::GemmBatchDim{1, 0, 0, 0, 0};
  // c^T (n, m) = b^T (n, k) a^T (k, m): the library's left operand is our right one.
  const BlasColumns left = columns_of(args.k, args.n, args.b_row_stride, args.b_column_stride);
  const BlasColumns right = columns_of(args.m, args.k, args.a_row_stride, args.a_column_stride);
  const BlasColumns result{args.n, args.m, args.c_row_stride >= args.n ? args.c_row_stride : args.n, false};
  const cublasLtEpilogue_t epilogue = args.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;

  const cublasComputeType_t compute =
      args.dtype == DType::f32 && allows_tf32() ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;

  BlasCall call(compute, CUDA_R_32F);
  call.set(CUBLASLT_MATMUL_DESC_TRANSA, left.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  call.set(CUBLASLT_MATMUL_DESC_TRANSB, right.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  call.set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (args.bias) call.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
  call.a = blas_layout(type, left, batch.size, batch.b);
  call.b = blas_layout(type, right, batch.size, batch.a);
  call.c = blas_layout(blas_type(args.c_dtype), result, batch.size, batch.c);

  const BlasKey key{
      {device.index, static_cast<int>(args.dtype), static_cast<int>(args.c_dtype), static_cast<int>(compute), args.m,
       args.n, args.k, left.stride, right.stride, result.stride, batch.size, batch.a, batch.b, batch.c,
       left.is_transposed * 2 + right.is_transposed, static_cast<int>(epilogue)},
      {blas_alignment(args.b), blas_alignment(args.a), blas_alignment(args.c)},
      workspace_bytes};
  const std::optional<cublasLtMatmulAlgo_t> algorithm = choose_algorithm(handle, call, key);
  if (!algorithm) return false;
  const float alpha = static_cast<float>(args.alpha), beta = args.accumulate ? 1.0f : 0.0f;
  check_blas(blas().cublasLtMatmul(handle, call.operation, &alpha, args.b, call.a, args.a, call.b, &beta, args.c,
                                   call.c, args.c, call.c, &*algorithm, workspace, workspace_bytes, stream),
             "cublasLtMatmul");
  return true;
}

}  // namespace thimble::gpu
