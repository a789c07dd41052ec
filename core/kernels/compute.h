#pragma once
// Between stored elements and short buffers of the type that a kernel computes in: float, double or std::int64_t.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <thimble/core/convert.h>

namespace thimble::kernels {

/// Address of an element.
inline const std::byte* element_at(const void* data, DType dtype, std::int64_t element) {
  return static_cast<const std::byte*>(data) + element * static_cast<std::int64_t>(size_of(dtype));
}
inline std::byte* element_at(void* data, DType dtype, std::int64_t element) {
  return static_cast<std::byte*>(data) + element * static_cast<std::int64_t>(size_of(dtype));
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

/// The n elements from `element` on: where they lie when they are of type T already, else converted into `buffer`.
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

}  // namespace thimble::kernels
