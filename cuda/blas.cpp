// cuBLASLt's part in matrix products. It sees columns where we see rows: c (m, n) in rows is its (n, m), and
// c^T = b^T a^T. The algorithm is its heuristic's first choice for the descriptor and the declared workspace; it is
// asked once for each descriptor.

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include <cublasLt.h>

#include <thimble/core/launch.h>
#include <thimble/core/tf32.h>
#include <thimble/cuda/library.h>
#include <thimble/cuda/runtime.h>

namespace thimble::gpu {
namespace blas_detail {

using kernels::Activation;
using kernels::GemmArgs;

void check_blas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(failure_text(call, cublasLtGetStatusName(status), cublasLtGetStatusString(status)));
}

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::f16 ? CUDA_R_16F : CUDA_R_16BF;
}

/// An operand as columns: rows x columns, `stride` elements from column to column.
struct Columns {
  std::int64_t rows, columns, stride;
  bool is_transposed;
};

/// A matrix (i, j) of strides (row_stride, column_stride), which becomes its transpose (j, i).
Columns columns_of(std::int64_t i, std::int64_t j, std::int64_t row_stride, std::int64_t column_stride) {
  if (column_stride == 1 && (row_stride >= j || i == 1)) return {j, i, row_stride >= j ? row_stride : j, false};
  return {i, j, column_stride >= i ? column_stride : i, true};
}

// Largest power of two up to 16 that divides an address.
std::uint32_t alignment_of(const void* address) {
  std::uint32_t alignment = 16;
  while (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) alignment /= 2;
  return alignment;
}

/// What the choice of an algorithm depends on.
using Key = std::tuple<int, int, int, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                       std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, int, int, std::uint32_t,
                       std::uint32_t, std::uint32_t, std::size_t>;

/// The descriptors of one call; destroyed with it.
struct Call {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    if (preference) cublasLtMatmulPreferenceDestroy(preference);
    if (c) cublasLtMatrixLayoutDestroy(c);
    if (b) cublasLtMatrixLayoutDestroy(b);
    if (a) cublasLtMatrixLayoutDestroy(a);
    if (operation) cublasLtMatmulDescDestroy(operation);
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check_blas(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value),
               "cublasLtMatmulDescSetAttribute");
  }
  template <class T>
  void prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    check_blas(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
               "cublasLtMatmulPreferenceSetAttribute");
  }
};

cublasLtMatrixLayout_t layout(cudaDataType_t type, const Columns& m, std::int64_t matrices, std::int64_t batch_stride) {
  cublasLtMatrixLayout_t made = nullptr;
  check_blas(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(m.rows),
                                        static_cast<std::uint64_t>(m.columns), m.stride),
             "cublasLtMatrixLayoutCreate");
  const auto count = static_cast<std::int32_t>(matrices);
  cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
  cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride,
                                   sizeof batch_stride);
  return made;
}

cublasLtEpilogue_t epilogue_of(const GemmArgs& args) {
  if (args.activation == Activation::relu) return args.bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
  if (args.activation == Activation::gelu_tanh) return args.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  return args.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

cublasLtHandle_t handle_of(Device device) {
  static std::map<int, cublasLtHandle_t> handles;
  static std::mutex mutex;
  const std::lock_guard guard(mutex);
  cublasLtHandle_t& handle = handles[device.index];
  if (!handle) check_blas(cublasLtCreate(&handle), "cublasLtCreate");
  return handle;
}

/// The heuristic's first choice; none where it has no algorithm.
std::optional<cublasLtMatmulAlgo_t> choose(cublasLtHandle_t handle, Call& call, const Key& key) {
  static std::map<Key, std::optional<cublasLtMatmulAlgo_t>> known;
  static std::mutex mutex;
  const std::lock_guard guard(mutex);
  const auto [at, is_new] = known.try_emplace(key);
  if (!is_new) return at->second;
  check_blas(cublasLtMatmulPreferenceCreate(&call.preference), "cublasLtMatmulPreferenceCreate");
  call.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(std::get<18>(key)));
  call.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::get<15>(key));
  call.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::get<16>(key));
  call.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::get<17>(key));
  call.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::get<17>(key));
  cublasLtMatmulHeuristicResult_t result;
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, call.operation, call.a, call.b, call.c, call.c,
                                                               call.preference, 1, &result, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && count == 0)) return at->second;
  if (status != CUBLAS_STATUS_SUCCESS) known.erase(at);
  check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
  return at->second = result.algo;
}

}  // namespace blas_detail

bool library_gemm(const kernels::GemmArgs& args, void* workspace, std::size_t workspace_bytes) {
  using namespace blas_detail;
  const Doing doing(args, workspace_bytes);
  const Device device = launching_device();
  const cudaStream_t stream = compute_stream(device);
  const cublasLtHandle_t handle = handle_of(device);
  const cudaDataType_t type = type_of(args.dtype);
  const kernels::GemmBatchDim batch = args.batch_rank == 1 ? args.batch[0] : kernels::GemmBatchDim{1, 0, 0, 0, 0};
  // c^T (n, m) = b^T (n, k) a^T (k, m): the library's left operand is our right one.
  const Columns left = columns_of(args.k, args.n, args.b_row_stride, args.b_column_stride);
  const Columns right = columns_of(args.m, args.k, args.a_row_stride, args.a_column_stride);
  const Columns result{args.n, args.m, args.c_row_stride >= args.n ? args.c_row_stride : args.n, false};
  const cublasLtEpilogue_t epilogue = epilogue_of(args);

  const cublasComputeType_t compute =
      args.dtype == DType::f32 && allows_tf32() ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;

  Call call;
  check_blas(cublasLtMatmulDescCreate(&call.operation, compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
  call.set(CUBLASLT_MATMUL_DESC_TRANSA, left.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  call.set(CUBLASLT_MATMUL_DESC_TRANSB, right.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  call.set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (args.bias) call.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
  call.a = layout(type, left, batch.size, batch.b);
  call.b = layout(type, right, batch.size, batch.a);
  call.c = layout(type, result, batch.size, batch.c);

  const Key key{device.index,
                static_cast<int>(args.dtype),
                static_cast<int>(compute),
                args.m,
                args.n,
                args.k,
                left.stride,
                right.stride,
                result.stride,
                batch.size,
                batch.a,
                batch.b,
                batch.c,
                left.is_transposed * 2 + right.is_transposed,
                static_cast<int>(epilogue),
                alignment_of(args.b),
                alignment_of(args.a),
                alignment_of(args.c),
                workspace_bytes};
  const std::optional<cublasLtMatmulAlgo_t> algorithm = choose(handle, call, key);
  if (!algorithm) return false;
  const float alpha = static_cast<float>(args.alpha), beta = args.accumulate ? 1.0f : 0.0f;
  check_blas(cublasLtMatmul(handle, call.operation, &alpha, args.b, call.a, args.a, call.b, &beta, args.c, call.c,
                            args.c, call.c, &*algorithm, workspace, workspace_bytes, stream),
             "cublasLtMatmul");
  return true;
}

}  // namespace thimble::gpu
