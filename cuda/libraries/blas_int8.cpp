// cuBLASLt's part in products of 8-bit integers: IMMA. Both operands are i8 and read along the sum (TN in its columns),
// sizes and strides are multiples of 4, pointers too; sums are exact in i32 and stored so.

#include <thimble/core/launch/launch.h>
#include <thimble/cuda/libraries/blas.h>
#include <thimble/cuda/runtime/call_text.h>
#include <thimble/cuda/runtime/library.h>
#include <thimble/cuda/runtime/runtime.h>

namespace thimble::gpu {

bool library_int8_gemm(const Int8Gemm& args) {
  const Doing doing(args, 0);
  const memory::Device device = launching_device();
  const cudaStream_t stream = compute_stream(device);
  const cublasLtHandle_t handle = blas_handle(device);
  // c^T (n, m) = b (n, k) a^T (k, m): the library's left operand is our right one, k x n in its columns.
  const BlasColumns left{args.k, args.n, args.k, true}, right{args.k, args.m, args.k, false};
  const BlasColumns result{args.n, args.m, args.n, false};

  BlasCall call(CUBLAS_COMPUTE_32I, CUDA_R_32I);
  call.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  call.set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  call.a = blas_layout(CUDA_R_8I, left);
  call.b = blas_layout(CUDA_R_8I, right);
  call.c = blas_layout(CUDA_R_32I, result);

  const BlasKey key{{device.index, static_cast<int>(DType::i8), static_cast<int>(DType::i32), args.m, args.n, args.k},
                    {blas_alignment(args.b), blas_alignment(args.a), blas_alignment(args.c)},
                    0};
  const std::optional<cublasLtMatmulAlgo_t> algorithm = choose_algorithm(handle, call, key);
  if (!algorithm) return false;
  const std::int32_t alpha = 1, beta = 0;
  check_blas(blas().cublasLtMatmul(handle, call.operation, &alpha, args.b, call.a, args.a, call.b, &beta, args.c,
                                   call.c, args.c, call.c, &*algorithm, nullptr, 0, stream),
             "cublasLtMatmul");
  return true;
}

}  // namespace thimble::gpu
