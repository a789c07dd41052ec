#pragma once
// The operands of a matmul as its driver sees them: the left one is read row by row, the right one packed. Plain
// matrices are here; convolution has others, which read from images.

#include <cstddef>
#include <cstdint>

#include <thimble/core/dtype.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/matmul/gemm_microkernel.h>

namespace thimble::kernels::gemm_detail {

// ---- Packs rows and columns of a matrix in the order that a microkernel reads.
//
// A packed block consists of panels: `width` neighbouring columns (for the left operand, rows), element by element of
// k, so that a microkernel walks through memory in order. Panels are panel_stride elements apart.

/// Elements of one cache line.
template <class T>
inline constexpr std::int64_t line_elements = 64 / static_cast<std::int64_t>(sizeof(T));

/// The panel stride for blocks of `depth`, in lines of `line` elements: a line more than the panel, because panels a
/// multiple of 4 KiB apart would compete for the same few lines of the first-level cache while they are written
/// together.
constexpr std::int64_t panel_stride(std::int64_t depth, std::int64_t width, std::int64_t line) noexcept {
  return ((depth * width + line - 1) / line + 1) * line;
}

/// out[i] = element first + i * stride of `data`, converted to T; count may be 0.
template <class T>
void read_row(const void* data, DType dtype, std::int64_t first, std::int64_t stride, std::int64_t count,
              T* out) noexcept;

/// Transposes rows of `depth` elements: out[p * out_stride + r] = in[r * in_stride + p], converted to T.
template <class T, class From = T>
using Transpose = void (*)(const From* in, std::int64_t in_stride, int rows, int depth, T* out,
                           std::int64_t out_stride);
template <class T, class From = T>
Transpose<T, From> transpose(Isa isa) noexcept;

/// The destination of a block: panels of `width` columns, the last one padded with zeros.
template <class T>
struct Panels {
  T* data = nullptr;
  int width = 0;
  std::int64_t stride = 0;
};

/// Copies row p + i of a block, i < row_count, from rows + i * row_stride into the panels.
template <class T>
void copy_to_panels(const T* rows, std::int64_t row_stride, std::int64_t row_count, std::int64_t p,
                    std::int64_t columns, const Panels<T>& panels) noexcept;

/// The same for elements of any dtype that computes in T; row p + i begins at element first + i * row_stride of `data`.
template <class T>
void copy_to_panels(const void* data, DType dtype, std::int64_t first, std::int64_t row_stride, std::int64_t row_count,
                    std::int64_t p, std::int64_t columns, const Panels<T>& panels) noexcept;

/// Packs a block of rows that fill(p, column, count, out) produces, p < depth.
template <class T, class Fill>
void pack_rows(std::int64_t columns, std::int64_t depth, const Panels<T>& panels, Fill&& fill) noexcept {
  constexpr std::int64_t most = 512;
  alignas(64) T row[most];
  const std::int64_t chunk = most / panels.width * panels.width;
  for (std::int64_t p = 0; p < depth; ++p) {
    for (std::int64_t j = 0; j < columns; j += chunk) {
      const std::int64_t count = columns - j < chunk ? columns - j : chunk;
      fill(p, j, count, row);
      const Panels<T> part{panels.data + j / panels.width * panels.stride, panels.width, panels.stride};
      copy_to_panels(row, 0, 1, p, count, part);
    }
  }
}

/// Limit of runs (see Microtile) in a block: runs of 16 elements and more, and their ends.
inline constexpr std::int64_t max_runs = block_depth / 16 + 2;

/// Receives the pointers to the rows of a microtile's panel, run after run.
template <class T>
using RowPointers = const T * [max_runs * max_tile_rows];

/// An opened block of the left operand. In the plain form, element (r, p) of panel i, the i-th group of a microtile's
/// rows, is base[i * panel_stride + r * row_stride + p * depth_stride].
template <class T>
struct LeftBlock {
  const T* base = nullptr;
  std::int64_t panel_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t depth_stride = 1;
  std::int64_t run_count = 1;
  std::int64_t runs[max_runs];  ///< the depth of each run; only the first run_count are set, because small
                                ///< products feel the cost
  // The arguments of open(), for operands that look up the rows of one panel at a time.
  std::int64_t offset = 0;
  std::int64_t row = 0;
  std::int64_t k = 0;
  T* scratch = nullptr;
};

/// Cache lines of a region of an operand: `columns` columns of them.
struct Lines {
  Ahead ahead;
  std::int64_t columns = 0;
};

/// op(A), m x k. Stateless: any number of threads open blocks at once.
template <class T>
class LeftOperand {
 public:
  /// Elements of scratch that a block of `rows` rows and up to block_depth columns needs; 0 to read in place.
  virtual std::int64_t scratch_elements(std::int64_t rows, int panel_rows) const noexcept = 0;

  /// Rows [row, row + rows) x columns [k, k + depth) of the matrix that begins `offset` elements into the operand, in
  /// place or converted into `scratch` (64-byte aligned), for panels of `panel_rows`.
  virtual LeftBlock<T> open(std::int64_t offset, std::int64_t row, std::int64_t rows, std::int64_t k,
                            std::int64_t depth, int panel_rows, T* scratch) const noexcept = 0;

  /// The lines of a block that open() or the microkernels will read, to prefetch; empty where they are hard to
  /// tell.
  virtual Lines lines([[maybe_unused]] std::int64_t offset, [[maybe_unused]] std::int64_t row,
                      [[maybe_unused]] std::int64_t rows, [[maybe_unused]] std::int64_t k,
                      [[maybe_unused]] std::int64_t depth) const noexcept {
    return {};
  }

  /// Points to the first `rows` rows of panel `index`, valid until the next call for this block. Here: the plain form.
  virtual void panel(const LeftBlock<T>& block, std::int64_t index, int rows, RowPointers<T>& pointers) const noexcept {
    const T* const first = block.base + index * block.panel_stride;
    for (int r = 0; r < rows; ++r) pointers[r] = first + r * block.row_stride;
  }

 protected:
  ~LeftOperand() = default;
};

/// The plain form: one run.
template <class T>
LeftBlock<T> plain_block(const T* base, std::int64_t panel_stride, std::int64_t row_stride, std::int64_t depth_stride,
                         std::int64_t depth) noexcept {
  LeftBlock<T> block;
  block.base = base;
  block.panel_stride = panel_stride;
  block.row_stride = row_stride;
  block.depth_stride = depth_stride;
  block.runs[0] = depth;
  return block;
}

/// Rows of a matrix in place: element (p, j) is first[p * stride + j]. Null if the rows are not readable in place.
template <class T>
struct RowsInPlace {
  const T* first = nullptr;
  std::int64_t stride = 0;
};

/// op(B), k x n.
template <class T>
class RightOperand {
 public:
  /// The rows from (k, column) of the matrix that begins `offset` elements into the operand, if a microkernel can read
  /// them in place.
  virtual RowsInPlace<T> rows([[maybe_unused]] std::int64_t offset, [[maybe_unused]] std::int64_t column,
                              [[maybe_unused]] std::int64_t k) const noexcept {
    return {};
  }

  /// Packs rows [k, k + depth) x columns [column, column + columns) of the matrix that begins `offset` elements into
  /// the operand.
  virtual void pack(std::int64_t offset, std::int64_t column, std::int64_t columns, std::int64_t k, std::int64_t depth,
                    const Panels<T>& panels) const noexcept = 0;

 protected:
  ~RightOperand() = default;
};

/// The stride of rows of a block that is copied row by row: an odd number of cache lines, so that the rows of a panel
/// lie in different sets of the cache.
template <class T>
inline constexpr std::int64_t scratch_row_stride = (block_depth / line_elements<T> | 1) * line_elements<T>;

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
  explicit LeftMatrix(const MatrixView& view) noexcept : view_(view) {}
  std::int64_t scratch_elements(std::int64_t rows, int panel_rows) const noexcept override;
  LeftBlock<T> open(std::int64_t offset, std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t depth,
                    int panel_rows, T* scratch) const noexcept override;
  Lines lines(std::int64_t offset, std::int64_t row, std::int64_t rows, std::int64_t k,
              std::int64_t depth) const noexcept override;

 private:
  bool has_rows_together() const noexcept { return view_.row_stride == 1 && view_.column_stride != 1; }
  bool is_in_place() const noexcept { return view_.dtype == dtype_of<T> && view_.column_stride == 1; }

  MatrixView view_;
};

template <class T>
class RightMatrix final : public RightOperand<T> {
 public:
  RightMatrix(const MatrixView& view, Isa isa) noexcept
      : view_(view),
        transpose_(transpose<T>(isa)),
        transpose_bf16_(transpose<float, bf16>(isa)),
        transpose_f16_(transpose<float, f16>(isa)) {}
  RowsInPlace<T> rows(std::int64_t offset, std::int64_t column, std::int64_t k) const noexcept override;
  void pack(std::int64_t offset, std::int64_t column, std::int64_t columns, std::int64_t k, std::int64_t depth,
            const Panels<T>& panels) const noexcept override;

 private:
  void pack_columns(std::int64_t first, std::int64_t columns, std::int64_t depth,
                    const Panels<T>& panels) const noexcept;

  MatrixView view_;
  Transpose<T> transpose_;
  Transpose<float, bf16> transpose_bf16_;
  Transpose<float, f16> transpose_f16_;
};

}  // namespace thimble::kernels::gemm_detail
