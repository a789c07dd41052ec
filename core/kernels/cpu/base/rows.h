#pragma once
// Loops over one row in a buffer, for kernels that reduce and transform rows. The order of every sum is fixed: element
// i goes to lane i % row_lanes in the type of the row; lanes l and l + half are added, twice, in that type, and the
// rest in order in double. There are more lanes than compilers unroll, so that the loops over them become vectors.

#include <cstdint>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/tensor/device.h>
#include <thimble/core/tensor/dtype.h>
#include <thimble/core/tensor/shape.h>

namespace thimble::kernels {

/// Elements of a row in the buffer at a time; sums of longer rows add their chunks in order.
inline constexpr std::int64_t row_chunk = 2048;
inline constexpr std::int64_t row_lanes = 32;

/// An operand seen as rows: element j of a row is `step` j elements behind the row's first, whose offset follows from
/// `strides` over the shape of the other axes.
struct RowOperand {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Shape strides;
  std::int64_t step = 1;
};
struct RowResult {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape strides;
  std::int64_t step = 1;
};

/// read_elements() of n elements of a row from `element` on: in place when they are contiguous and of type T, else in
/// `buffer`.
template <class T>
const T* read_elements(const RowOperand& row, std::int64_t element, std::int64_t n, T* buffer) {
  if (row.step == 1) return read_elements(row.data, row.dtype, element, n, buffer);
  load_elements(row.data, row.dtype, element, row.step, buffer, n);
  return buffer;
}

/// The larger one; NaN is larger than all. Branch-free, so that loops over it become vectors.
template <class T>
inline T larger(T a, T b) {
  return ((b > a) | (b != b)) ? b : a;
}

/// The largest of `start` and x[0 .. n).
template <class T>
inline T row_max(const T* x, std::int64_t n, T start) {
  alignas(64) T lanes[row_lanes];
  for (std::int64_t l = 0; l < row_lanes; ++l) lanes[l] = start;
  std::int64_t i = 0;
  for (; i + row_lanes <= n; i += row_lanes) {
    for (std::int64_t l = 0; l < row_lanes; ++l) lanes[l] = larger(lanes[l], x[i + l]);
  }
  for (std::int64_t l = 0; l < n - i; ++l) lanes[l] = larger(lanes[l], x[i + l]);
  for (std::int64_t half = row_lanes / 2; half > 0; half /= 2) {
    for (std::int64_t l = 0; l < half; ++l) lanes[l] = larger(lanes[l], lanes[l + half]);
  }
  return lanes[0];
}

/// Sum of term(i), i < n.
template <class T, class Term>
inline double row_sum(std::int64_t n, Term term) {
  alignas(64) T lanes[row_lanes] = {};
  std::int64_t i = 0;
  for (; i + row_lanes <= n; i += row_lanes) {
    for (std::int64_t l = 0; l < row_lanes; ++l) lanes[l] += term(i + l);
  }
  for (std::int64_t l = 0; l < n - i; ++l) lanes[l] += term(i + l);
  double total = 0;
  for (std::int64_t half = row_lanes / 2; half >= row_lanes / 4; half /= 2) {
    for (std::int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  for (std::int64_t l = 0; l < row_lanes / 4; ++l) total += static_cast<double>(lanes[l]);
  return total;
}

}  // namespace thimble::kernels
