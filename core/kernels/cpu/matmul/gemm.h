#pragma once
// Batched general matrix multiplication on raw pointers.

#include <array>
#include <cstddef>
#include <cstdint>

#include <thimble/core/dtype.h>
#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {

inline constexpr int max_gemm_batch_rank = 6;

/// One dimension of a batch of matmuls: its size, and the strides in elements between matrices of a, b, c and the bias
/// (any sign; 0 broadcasts, which c must not).
struct GemmBatchDim {
  std::int64_t size;
  std::int64_t a;
  std::int64_t b;
  std::int64_t c;
  std::int64_t bias;
};

/// For every matrix of the batch, and with v[i, j] = alpha * sum over p of a[i, p] b[p, j] + bias[j]:
///
///     pre_activation[i, j] = v[i, j]                       (when not null)
///     c[i, j] = act(v[i, j]) + (accumulate ? c[i, j] : 0)
///
/// Element (i, j) of a matrix is i * row_stride + j * column_stride elements behind its pointer, so transposed, strided
/// and broadcast views need no copy. c must not overlap a, b or itself.
///
/// a and b are of `dtype`; c, bias and pre_activation are of `c_dtype`. Arithmetic is in compute_type(dtype), which is
/// f32, f64 or i64 (wraps around), up to the one conversion at the store. A floating dtype takes a floating c_dtype; an
/// integer dtype takes an integer c_dtype and no gelu, and rounds alpha to an integer.
///
/// Order of accumulation: k is cut into blocks of 256 from 0; a block's sum is one chain in ascending p (fused
/// multiply-adds on AVX2 and AVX-512, so these two agree bitwise); blocks are added in ascending order. It depends only
/// on k: never on m, n, strides, batch, tile, thread count or address, so a row computed separately has the same bits.
struct GemmArgs {
  int batch_rank = 0;
  std::array<GemmBatchDim, max_gemm_batch_rank> batch;  ///< the first batch_rank; the others are not set
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  const void* a = nullptr;  ///< (m, k)
  std::int64_t a_row_stride = 0;
  std::int64_t a_column_stride = 1;
  const void* b = nullptr;  ///< (k, n)
  std::int64_t b_row_stride = 0;
  std::int64_t b_column_stride = 1;
  void* c = nullptr;  ///< (m, n)
  std::int64_t c_row_stride = 0;
  std::int64_t c_column_stride = 1;
  DType dtype = DType::f32;
  DType c_dtype = DType::f32;
  double alpha = 1;
  bool accumulate = false;
  const void* bias = nullptr;  ///< null or (n), elements side by side
  Activation activation = Activation::none;
  void* pre_activation = nullptr;  ///< null, or laid out as c
};

/// Bytes of workspace for gemm(): a pure function of sizes, strides, dtypes, the epilogue, the thread count and
/// isa(). Ignores alpha, and pointers except whether bias and pre_activation are null. At most 2 MiB + 64 KiB per
/// thread.
std::size_t gemm_workspace_bytes(const GemmArgs& args, int threads = thread_count()) noexcept;

/// Computes `args` on up to `threads` threads. `workspace`: gemm_workspace_bytes(args, threads) bytes, aligned to 64;
/// may be null when that is 0. Allocates nothing and throws nothing; the caller has validated sizes.
void gemm(const GemmArgs& args, void* workspace, int threads = thread_count()) noexcept;

}  // namespace thimble::kernels
