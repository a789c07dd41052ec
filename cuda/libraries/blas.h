#pragma once
// Shared by the calls of cuBLASLt: descriptors, and the choice of an algorithm. Its columns are our rows.

#include <array>
#include <compare>
#include <cstdint>
#include <optional>

#include <cublasLt.h>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>
#include <thimble/cuda/libraries/loaded.h>

namespace thimble::gpu {

struct Blas : LoadedLibrary {
  Blas();
  THIMBLE_LOADED_FUNCTION(cublasLtCreate);
  THIMBLE_LOADED_FUNCTION(cublasLtGetStatusName);
  THIMBLE_LOADED_FUNCTION(cublasLtGetStatusString);
  THIMBLE_LOADED_FUNCTION(cublasLtGetVersion);
  THIMBLE_LOADED_FUNCTION(cublasLtMatmul);
  THIMBLE_LOADED_FUNCTION(cublasLtMatmulAlgoGetHeuristic);
  THIMBLE_LOADED_FUNCTION(cublasLtMatmulDescCreate);
  THIMBLE_LOADED_FUNCTION(cublasLtMatmulDescDestroy);
  THIMBLE_LOADED_FUNCTION(cublasLtMatmulDescSetAttribute);
  THIMBLE_LOADED_FUNCTION(cublasLtMatmulPreferenceCreate);
  THIMBLE_LOADED_FUNCTION(cublasLtMatmulPreferenceDestroy);
  THIMBLE_LOADED_FUNCTION(cublasLtMatmulPreferenceSetAttribute);
  THIMBLE_LOADED_FUNCTION(cublasLtMatrixLayoutCreate);
  THIMBLE_LOADED_FUNCTION(cublasLtMatrixLayoutDestroy);
  THIMBLE_LOADED_FUNCTION(cublasLtMatrixLayoutSetAttribute);
};
/// Loads cuBLASLt at the first call. Throws DeviceError.
const Blas& blas();

/// Throws DeviceError with the call that failed.
void check_blas(cublasStatus_t status, const char* call);

/// The device's handle, made at first use.
cublasLtHandle_t blas_handle(memory::Device device);

/// For f32, f16, bf16, f8e4m3, f8e5m2, i8, i32.
cudaDataType_t blas_type(DType dtype);

/// An operand as columns: rows x columns, `stride` elements from column to column.
struct BlasColumns {
  std::int64_t rows, columns, stride;
  bool is_transposed;
};

/// Owns the descriptors of one call.
struct BlasCall {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  BlasCall(cublasComputeType_t compute, cudaDataType_t scale);
  BlasCall(const BlasCall&) = delete;
  BlasCall& operator=(const BlasCall&) = delete;
  ~BlasCall();
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check_blas(blas().cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value),
               "cublasLtMatmulDescSetAttribute");
  }
};

cublasLtMatrixLayout_t blas_layout(cudaDataType_t type, const BlasColumns& m, std::int64_t matrices = 1,
                                   std::int64_t batch_stride = 0);

/// The inputs of the choice of an algorithm.
struct BlasKey {
  std::array<std::int64_t, 16> descriptor = {};
  std::array<std::uint32_t, 3> alignment = {16, 16, 16};  ///< of a, b and c
  std::size_t workspace_bytes = 0;
  auto operator<=>(const BlasKey&) const = default;
};

/// Largest power of two up to 16 that divides an address.
std::uint32_t blas_alignment(const void* address);

/// The heuristic's first choice, queried once per key; nullopt if it has no algorithm.
std::optional<cublasLtMatmulAlgo_t> choose_algorithm(cublasLtHandle_t handle, const BlasCall& call, const BlasKey& key);

}  // namespace thimble::gpu
