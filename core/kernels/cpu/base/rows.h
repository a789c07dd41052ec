#pragma once
// Loops over one row in a buffer, for kernels that reduce and transform rows. The order of every sum is fixed: element
// i goes to lane i % row_lanes in the type of the row; lanes l and l + half are added, twice, in that type, and the
// rest in order in double. There are more lanes than compilers unroll, so that the loops over them become vectors.

#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>
#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/shape.h>

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

/// The larger of a and b; NaN is larger than all.
template <class T>
inline T larger(T a, T b) {
  return ((b > a) | (b != b)) ? b : a;
}

/// The lanes of a row in registers, half a cache line each where the instruction set has them (`is_wide`).
template <class T, bool is_wide>
struct RowLanes {
  typedef T Vector __attribute__((vector_size(is_wide ? 32 : 16), may_alias));
  typedef T Unaligned __attribute__((vector_size(is_wide ? 32 : 16), may_alias, aligned(sizeof(T))));
  static constexpr std::int64_t width = sizeof(Vector) / sizeof(T);
  static constexpr int count = row_lanes / width;

  static THIMBLE_ALWAYS_INLINE const Unaligned& at(const T* x) { return *reinterpret_cast<const Unaligned*>(x); }

  /// lanes[l] = start, then step(vector of lanes, i) for the elements from i on of whole rounds, then one(lane, i) for
  /// the rest.
  template <class Step, class One>
  static THIMBLE_ALWAYS_INLINE void run(std::int64_t n, T start, T* lanes, Step&& step, One&& one) {
    for (std::int64_t l = 0; l < row_lanes; ++l) lanes[l] = start;
    Vector in_registers[count];
#pragma GCC unroll 16
    for (int v = 0; v < count; ++v) in_registers[v] = at(lanes + v * width);
    std::int64_t i = 0;
    for (; i + row_lanes <= n; i += row_lanes) {
#pragma GCC unroll 16
      for (int v = 0; v < count; ++v) step(in_registers[v], i + v * width);
    }
#pragma GCC unroll 16
    for (int v = 0; v < count; ++v) *reinterpret_cast<Unaligned*>(lanes + v * width) = in_registers[v];
    for (std::int64_t l = 0; l < n - i; ++l) one(lanes[l], i + l);
  }
};

/// The largest of `start` and x[0 .. n), ignoring NaN, which a sum over the row finds.
template <bool is_wide, class T>
THIMBLE_ALWAYS_INLINE T row_max(const T* x, std::int64_t n, T start) {
  using Lanes = RowLanes<T, is_wide>;
  alignas(64) T lanes[row_lanes];
  Lanes::run(
      n, start, lanes,
      [x](typename Lanes::Vector& largest, std::int64_t i) {
        const typename Lanes::Vector y = Lanes::at(x + i);
        largest = y > largest ? y : largest;
      },
      [x](T& largest, std::int64_t i) { largest = x[i] > largest ? x[i] : largest; });
  for (std::int64_t half = row_lanes / 2; half > 0; half /= 2) {
    for (std::int64_t l = 0; l < half; ++l) lanes[l] = lanes[l + half] > lanes[l] ? lanes[l + half] : lanes[l];
  }
  return lanes[0];
}

/// The sum of a row's lanes.
template <class T>
inline double lane_sum(T* lanes) {
  double total = 0;
  for (std::int64_t half = row_lanes / 2; half >= row_lanes / 4; half /= 2) {
    for (std::int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  for (std::int64_t l = 0; l < row_lanes / 4; ++l) total += static_cast<double>(lanes[l]);
  return total;
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
  return lane_sum(lanes);
}

/// Sum of x[i], i < n.
template <bool is_wide, class T>
THIMBLE_ALWAYS_INLINE double row_sum_of(const T* x, std::int64_t n) {
  using Lanes = RowLanes<T, is_wide>;
  alignas(64) T lanes[row_lanes];
  Lanes::run(
      n, T(0), lanes, [x](typename Lanes::Vector& sum, std::int64_t i) { sum += Lanes::at(x + i); },
      [x](T& sum, std::int64_t i) { sum += x[i]; });
  return lane_sum(lanes);
}

/// Sum of x[i] y[i], i < n.
template <bool is_wide, class T>
THIMBLE_ALWAYS_INLINE double row_dot(const T* x, const T* y, std::int64_t n) {
  using Lanes = RowLanes<T, is_wide>;
  alignas(64) T lanes[row_lanes];
  Lanes::run(
      n, T(0), lanes,
      [x, y](typename Lanes::Vector& sum, std::int64_t i) { sum += Lanes::at(x + i) * Lanes::at(y + i); },
      [x, y](T& sum, std::int64_t i) { sum += x[i] * y[i]; });
  return lane_sum(lanes);
}

}  // namespace thimble::kernels
