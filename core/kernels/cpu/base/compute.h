#pragma once
// Conversions between stored elements and short buffers of the compute type: float, double or std::int64_t.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/narrow_float.h>
#include <thimble/core/numbers/convert.h>

namespace thimble::kernels {

/// Address of an element.
inline const std::byte* element_at(const void* data, DType dtype, std::int64_t element) {
  return static_cast<const std::byte*>(data) + element * static_cast<std::int64_t>(size_of(dtype));
}
inline std::byte* element_at(void* data, DType dtype, std::int64_t element) {
  return static_cast<std::byte*>(data) + element * static_cast<std::int64_t>(size_of(dtype));
}

/// x where it stays, else 0, in bit arithmetic: compilers would move the computation of x behind a branch, and a loop
/// over it would not vectorize.
template <class T>
inline T kept(bool stays, T x) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return bit_cast<T>(bit_cast<Bits>(x) & (Bits{0} - static_cast<Bits>(stays)));
}

/// to[i] = data[element + i stride], converted to T.
template <class T>
void load_elements(const void* data, DType dtype, std::int64_t element, std::int64_t stride, T* to, std::int64_t n) {
  const std::byte* const from = element_at(data, dtype, element);
  if constexpr (std::is_same_v<T, float>) {
    load_f32(from, dtype, stride, to, n);
  } else if constexpr (std::is_same_v<T, double>) {
    load_f64(from, dtype, stride, to, n);
  } else {
    load_i64(from, dtype, stride, to, n);
  }
}

/// The n elements from `element` on: in place when they are of type T, else converted into `buffer`.
template <class T>
const T* read_elements(const void* data, DType dtype, std::int64_t element, std::int64_t n, T* buffer) {
  if (dtype == dtype_of<T>) return static_cast<const T*>(data) + element;
  load_elements(data, dtype, element, 1, buffer, n);
  return buffer;
}

/// data[element + i stride] = from[i], converted to the dtype.
template <class T>
void store_elements(const T* from, void* data, DType dtype, std::int64_t element, std::int64_t stride, std::int64_t n) {
  std::byte* const to = element_at(data, dtype, element);
  if constexpr (std::is_same_v<T, float>) {
    store_f32(from, to, dtype, stride, n);
  } else if constexpr (std::is_same_v<T, double>) {
    store_f64(from, to, dtype, stride, n);
  } else {
    store_i64(from, to, dtype, stride, n);
  }
}

/// data[element + i] = from[i], converted to the dtype.
template <class T>
void store_elements(const T* from, void* data, DType dtype, std::int64_t element, std::int64_t n) {
  store_elements(from, data, dtype, element, 1, n);
}

/// Rows of n elements: to[r to_stride + i] = data[element + r row_stride + i], converted to T.
template <class T>
void load_rows(const void* data, DType dtype, std::int64_t element, std::int64_t row_stride, std::int64_t rows,
               std::int64_t n, T* to, std::int64_t to_stride) {
  if (row_stride == n && to_stride == n) return load_elements(data, dtype, element, 1, to, rows * n);
  if constexpr (std::is_same_v<T, float>) {
    if (is_narrow(dtype)) {  // the loop is chosen once: rows may be short
      const NarrowFloatLoops::Load load = narrow_float_loops(isa()).load(dtype);
      for (std::int64_t r = 0; r < rows; ++r) {
        load(element_at(data, dtype, element + r * row_stride), to + r * to_stride, n);
      }
      return;
    }
  }
  for (std::int64_t r = 0; r < rows; ++r)
    load_elements(data, dtype, element + r * row_stride, 1, to + r * to_stride, n);
}

/// data[element + r row_stride + i] = from[r from_stride + i], converted to the dtype.
template <class T>
void store_rows(const T* from, std::int64_t from_stride, void* data, DType dtype, std::int64_t element,
                std::int64_t row_stride, std::int64_t rows, std::int64_t n) {
  if (row_stride == n && from_stride == n) return store_elements(from, data, dtype, element, rows * n);
  if constexpr (std::is_same_v<T, float>) {
    if (is_narrow(dtype)) {
      const NarrowFloatLoops::Store store = narrow_float_loops(isa()).store(dtype);
      for (std::int64_t r = 0; r < rows; ++r) {
        std::byte* const to = element_at(data, dtype, element + r * row_stride);
        store(from + r * from_stride, to, n, Fp8Overflow::nonfinite);
      }
      return;
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    store_elements(from + r * from_stride, data, dtype, element + r * row_stride, n);
  }
}

}  // namespace thimble::kernels
