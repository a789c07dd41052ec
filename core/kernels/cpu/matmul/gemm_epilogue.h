#pragma once
// The epilogue of a finished block of C: scale, bias, activation, sum with the previous values, conversion, store.

#include <cstdint>

#include <thimble/core/dtype.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/shared/activation.h>

namespace thimble::kernels::gemm_detail {

/// Offsets of the rows of C. Rows are the pixels (image, line, pixel) of an image; a matrix is one endless line.
struct RowMap {
  std::int64_t width = INT64_MAX;  ///< pixels of a line
  std::int64_t height = 1;         ///< lines of an image
  std::int64_t pixel = 0;          ///< strides in elements
  std::int64_t line = 0;
  std::int64_t image = 0;
};

/// C and its epilogue. With v = alpha * accumulator + bias (in T): pre_activation = v, v = act(v), C = accumulate ? v +
/// C : v.
template <class T>
struct Output {
  void* c = nullptr;
  void* pre_activation = nullptr;  ///< null, or laid out as C
  const void* bias = nullptr;      ///< null, or one element per column (per row when bias_along_rows), dtype of C
  bool bias_along_rows = false;
  bool accumulate = false;
  Activation activation = Activation::none;
  DType dtype = DType::f32;
  T alpha = T{1};
  RowMap rows;
  std::int64_t column_stride = 1;

  /// C is the plain accumulators, converted to its dtype.
  bool is_bare() const noexcept {
    return alpha == T{1} && bias == nullptr && activation == Activation::none && pre_activation == nullptr &&
           !accumulate;
  }
  /// C is contiguous rows of contiguous elements.
  bool has_rows() const noexcept { return column_stride == 1 && rows.width == INT64_MAX; }
  /// C is the plain accumulators, in rows of T.
  bool is_plain() const noexcept { return dtype == dtype_of<T> && has_rows() && is_bare(); }
};

/// The region of C that one microtile computes, and the offsets of the batch's C and bias (elements).
struct OutputTile {
  std::int64_t c_offset = 0;
  std::int64_t bias_offset = 0;
  std::int64_t row = 0;
  std::int64_t column = 0;
  int rows = 0;
  int columns = 0;
};

/// Finishes `tile`, whose accumulators lie in rows of `stride` elements and are overwritten.
template <class T>
using Finish = void (*)(const Output<T>& output, const OutputTile& tile, T* accumulators, int stride);

template <class T>
Finish<T> finish(Isa isa) noexcept;

}  // namespace thimble::kernels::gemm_detail
