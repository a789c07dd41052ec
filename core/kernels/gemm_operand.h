#pragma once
// The operands of a matmul as its driver sees them: a left one that is read row by row, a right one that is packed.
// Plain matrices are here; convolution has its own, which read from images.

#include <cstddef>
#include <cstdint>

#include <thimble/core/kernels/gemm_microkernel.h>
#include <thimble/core/kernels/row_convert.h>

namespace thimble::kernels::gemm_detail {

/// Element (r, p) of a block of the left operand is base[r * row_stride + p * depth_stride].
template <class T>
struct LeftBlock {
  const T* base = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t depth_stride = 0;
};

/// op(A), m x k. Stateless: any number of threads open blocks at once.
template <class T>
class LeftOperand {
 public:
  /// Elements of scratch that a block of `rows` rows and up to block_depth columns may need; 0: read where it lies.
  virtual std::int64_t scratch_elements(std::int64_t rows) const noexcept = 0;

  /// Rows [row, row + rows) x columns [k, k + depth) of the matrix that begins `offset` elements into the operand, in
  /// place or converted into `scratch` (64-byte aligned).
  virtual LeftBlock<T> open(std::int64_t offset, std::int64_t row, std::int64_t rows, std::int64_t k,
                            std::int64_t depth, T* scratch) const noexcept = 0;

 protected:
  ~LeftOperand() = default;
};

/// op(B), k x n.
template <class T>
class RightOperand {
 public:
  /// Packs rows [k, k + depth) x columns [column, column + columns) into panels of `width` columns one after the other,
  /// each depth x width, the last one filled up with zeros.
  virtual void pack(std::int64_t offset, std::int64_t column, std::int64_t columns, std::int64_t k, std::int64_t depth,
                    int width, T* panels) const noexcept = 0;

 protected:
  ~RightOperand() = default;
};

/// Transposes rows of depth elements: out[p * out_stride + r] = in[r * in_stride + p].
template <class T>
using Transpose = void (*)(const T* in, std::int64_t in_stride, int rows, int depth, T* out, std::int64_t out_stride);
template <class T>
Transpose<T> transpose(Isa isa) noexcept;

/// A matrix in memory with any strides (elements) and any storage dtype.
struct MatrixView {
  const void* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 0;
  DType dtype = DType::f32;
};

template <class T>
class LeftMatrix final : public LeftOperand<T> {
 public:
  LeftMatrix(const MatrixView& view, Isa isa) noexcept : view_(view), load_(load_row<T>(view.dtype, isa)) {}
  std::int64_t scratch_elements(std::int64_t rows) const noexcept override;
  LeftBlock<T> open(std::int64_t offset, std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t depth,
                    T* scratch) const noexcept override;

 private:
  bool is_in_place() const noexcept { return view_.dtype == dtype_of<T> && view_.column_stride == 1; }

  MatrixView view_;
  LoadRow<T> load_;
};

template <class T>
class RightMatrix final : public RightOperand<T> {
 public:
  RightMatrix(const MatrixView& view, Isa isa) noexcept
      : view_(view), load_(load_row<T>(view.dtype, isa)), transpose_(transpose<T>(isa)) {}
  void pack(std::int64_t offset, std::int64_t column, std::int64_t columns, std::int64_t k, std::int64_t depth,
            int width, T* panels) const noexcept override;

 private:
  void pack_along_columns(std::int64_t first, std::int64_t columns, std::int64_t depth, int width,
                          T* panels) const noexcept;
  void pack_along_depth(std::int64_t first, std::int64_t columns, std::int64_t depth, int width,
                        T* panels) const noexcept;

  MatrixView view_;
  LoadRow<T> load_;
  Transpose<T> transpose_;
};

/// Elements between rows of `length` elements such that rows begin on cache lines and neighbours in different sets.
template <class T>
constexpr std::int64_t padded(std::int64_t length) noexcept {
  constexpr std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
  return ((length + line - 1) / line | 1) * line;
}

}  // namespace thimble::kernels::gemm_detail
