#pragma once
// Loops over one row in a buffer, for kernels that reduce and transform rows. The order of every sum is fixed: element
// i goes to lane i % row_lanes in the type of the row, lanes are added in order in double.

#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>
#include <thimble/core/shape.h>

namespace thimble::kernels {

/// Elements of a row that are held at a time; sums of longer rows add their chunks in order.
inline constexpr std::int64_t row_chunk = 2048;
inline constexpr std::int64_t row_lanes = 16;

/// An operand seen as rows: element j of a row lies `step` j elements behind the row's first, whose place follows from
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

/// The larger one; NaN is larger than all.
template <class T>
inline T larger(T a, T b) {
  return b > a || b != b ? b : a;
}

/// The largest of `start` and x[0 .. n).
template <class T>
inline T row_max(const T* x, std::int64_t n, T start) {
  T lanes[row_lanes];
  for (std::int64_t l = 0; l < row_lanes; ++l) lanes[l] = start;
  std::int64_t i = 0;
  for (; i + row_lanes <= n; i += row_lanes) {
    for (std::int64_t l = 0; l < row_lanes; ++l) lanes[l] = larger(lanes[l], x[i + l]);
  }
  for (; i < n; ++i) lanes[0] = larger(lanes[0], x[i]);
  for (std::int64_t l = 1; l < row_lanes; ++l) lanes[0] = larger(lanes[0], lanes[l]);
  return lanes[0];
}

/// Sum of term(i), i < n.
template <class T, class Term>
inline double row_sum(std::int64_t n, Term term) {
  T lanes[row_lanes] = {};
  std::int64_t i = 0;
  for (; i + row_lanes <= n; i += row_lanes) {
    for (std::int64_t l = 0; l < row_lanes; ++l) lanes[l] += term(i + l);
  }
  for (std::int64_t l = 0; i + l < n; ++l) lanes[l] += term(i + l);
  double total = 0;
  for (std::int64_t l = 0; l < row_lanes; ++l) total += static_cast<double>(lanes[l]);
  return total;
}

}  // namespace thimble::kernels
