// Matrix products by cuBLASLt. Our row-major c (m, n) is its column-major (n, m), and c^T = b^T a^T. The algorithm is
// its heuristic's first choice for the descriptor and the declared workspace.

#include <thimble/cuda/libraries/blas.h>

#include <map>
#include <mutex>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/launch/launch.h>
#include <thimble/cuda/runtime/library.h>
#include <thimble/cuda/runtime/runtime.h>

namespace thimble::gpu {

namespace blas_detail {

using kernels::Activation;
using kernels::GemmArgs;

/// The transpose (j, i) of a matrix (i, j) with strides (row_stride, column_stride).
BlasColumns columns_of(std::int64_t i, std::int64_t j, std::int64_t row_stride, std::int64_t column_stride) {
  if (column_stride == 1 && (row_stride >= j || i == 1)) return {j, i, row_stride >= j ? row_stride : j, false};
  return {i, j, column_stride >= i ? column_stride : i, true};
}

}  // namespace blas_detail

bool library_gemm(const kernels::GemmArgs& args, void* workspace, std::size_t workspace_bytes) {
  using namespace blas_detail;
  if (args.bias && blas_alignment(args.bias) < 16) return false;  // the choice of an algorithm assumes 16
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

Blas::Blas() : LoadedLibrary("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR), THIMBLE_CUBLASLT_FOLDER) {}

const Blas& blas() {
  static const Blas& library = *new Blas;  // destructors at exit may still call it
  return library;
}

void check_blas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(failure_text(call, blas().cublasLtGetStatusName(status), blas().cublasLtGetStatusString(status)));
}

cublasLtHandle_t blas_handle(memory::Device device) {
  static std::map<int, cublasLtHandle_t> handles;
  static std::mutex mutex;
  const std::lock_guard guard(mutex);
  cublasLtHandle_t& handle = handles[device.index];
  if (!handle) make_handle(device, [&] { check_blas(blas().cublasLtCreate(&handle), "cublasLtCreate"); });
  return handle;
}

cudaDataType_t blas_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f8e4m3:
      return CUDA_R_8F_E4M3;
    case DType::f8e5m2:
      return CUDA_R_8F_E5M2;
    case DType::i8:
      return CUDA_R_8I;
    case DType::i32:
      return CUDA_R_32I;
    default:
      throw DTypeError("cuBLASLt: products of " + std::string(to_string(dtype)) +
                       "; expected f32, f16, bf16, f8e4m3, f8e5m2, i8, i32");
  }
}

BlasCall::BlasCall(cublasComputeType_t compute, cudaDataType_t scale) {
  check_blas(blas().cublasLtMatmulDescCreate(&operation, compute, scale), "cublasLtMatmulDescCreate");
}

BlasCall::~BlasCall() {
  if (c) blas().cublasLtMatrixLayoutDestroy(c);
  if (b) blas().cublasLtMatrixLayoutDestroy(b);
  if (a) blas().cublasLtMatrixLayoutDestroy(a);
  if (operation) blas().cublasLtMatmulDescDestroy(operation);
}

cublasLtMatrixLayout_t blas_layout(cudaDataType_t type, const BlasColumns& m, std::int64_t matrices,
                                   std::int64_t batch_stride) {
  cublasLtMatrixLayout_t made = nullptr;
  check_blas(blas().cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(m.rows),
                                               static_cast<std::uint64_t>(m.columns), m.stride),
             "cublasLtMatrixLayoutCreate");
  if (matrices == 1) return made;
  const auto count = static_cast<std::int32_t>(matrices);
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
    check_blas(blas().cublasLtMatrixLayoutSetAttribute(made, attribute, &value, sizeof value),
               "cublasLtMatrixLayoutSetAttribute");
  };
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count);
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, batch_stride);
  return made;
}

std::uint32_t blas_alignment(const void* address) {
  std::uint32_t alignment = 16;
  while (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) alignment /= 2;
  return alignment;
}

namespace blas_choice_detail {

struct Preference {
  cublasLtMatmulPreference_t made = nullptr;
  Preference() { check_blas(blas().cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate"); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  ~Preference() { blas().cublasLtMatmulPreferenceDestroy(made); }
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    check_blas(blas().cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof value),
               "cublasLtMatmulPreferenceSetAttribute");
  }
};

}  // namespace blas_choice_detail

std::optional<cublasLtMatmulAlgo_t> choose_algorithm(cublasLtHandle_t handle, const BlasCall& call,
                                                     const BlasKey& key) {
  static std::map<BlasKey, std::optional<cublasLtMatmulAlgo_t>> known;
  static std::mutex mutex;
  const std::lock_guard guard(mutex);
  const auto [at, is_new] = known.try_emplace(key);
  if (!is_new) return at->second;
  blas_choice_detail::Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(key.workspace_bytes));
  // Adds split sums in the compute type instead of rounding each to a result's 16 bits.
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignment[0]);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignment[1]);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignment[2]);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignment[2]);
  cublasLtMatmulHeuristicResult_t result;
  int count = 0;
  const cublasStatus_t status = blas().cublasLtMatmulAlgoGetHeuristic(handle, call.operation, call.a, call.b, call.c,
                                                                      call.c, preference.made, 1, &result, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && count == 0)) return at->second;
  if (status != CUBLAS_STATUS_SUCCESS) known.erase(at);
  check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
  if (result.state == CUBLAS_STATUS_SUCCESS) at->second = result.algo;  // else the heuristic's only choice cannot run
  return at->second;
}

// ---- Products of FP8 codes by cuBLASLt. Its rules (documentation of cublasLtMatmul):
//
//   operands   at least one E4M3; rows and starts aligned to 16 bytes; in its columns the left one transposed, the
//              right one not, so both of ours run along the sum
//   scales     f32 in device memory, read when the product runs; they multiply the sum
//   in blocks  from cuBLAS 12.9 on, on compute capability 9.0: scales along the sum, of 1 x 128 on at least one side;
//              aligned to 16 bytes, in the orders of core/kernels/fp8.h; rows in multiples of 4, or of 8 on a right
//              side with 1 x 128
//   result     f32, f16 or bf16; sums in f32, without the faster mode of fewer bits: units of compute capability 9.0
//              add some products with about 14 bits, and these sums are then added in f32
//   bias       of the result's dtype; unsupported for f32, where it would have to be bf16

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
    } catch (const DeviceError&) {  // a dry run uses this build's version; products report the error
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

// ---- Products of 8-bit integers by cuBLASLt: IMMA. Both operands are i8 and run along the sum (TN in its columns);
// sizes, strides and addresses are multiples of 4; sums are exact and stored in i32.

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
