#include <thimble/cuda/libraries/blas.h>

#include <map>
#include <mutex>
#include <string>

#include <thimble/core/error.h>
#include <thimble/cuda/runtime/call_text.h>
#include <thimble/cuda/runtime/runtime.h>

namespace thimble::gpu {

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
                       "; allowed are f32, f16, bf16, f8e4m3, f8e5m2, i8, i32");
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
  // Split sums are added in the compute type: not rounded to a result's 16 bits on their way.
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
  if (result.state == CUBLAS_STATUS_SUCCESS)
    at->second = result.algo;  // else it cannot run, and nothing else was found
  return at->second;
}

}  // namespace thimble::gpu
