#pragma once
// load_* and store_* (core/convert.h) by the C++ type that a kernel computes in, at an element offset.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <thimble/core/convert.h>

namespace thimble::kernels {

/// to[i] = data[element + i stride], i < n, converted to T (float, double or std::int64_t).
template <class T>
inline void load(const void* data, DType dtype, std::int64_t element, std::int64_t stride, T* to, std::int64_t n) {
  const std::byte* from = static_cast<const std::byte*>(data) + element * static_cast<std::int64_t>(size_of(dtype));
  if constexpr (std::is_same_v<T, float>) {
    load_f32(from, dtype, stride, to, n);
  } else if constexpr (std::is_same_v<T, double>) {
    load_f64(from, dtype, stride, to, n);
  } else {
    load_i64(from, dtype, stride, to, n);
  }
}

/// data[element + i stride] = from[i], i < n, converted from T.
template <class T>
inline void store(const T* from, void* data, DType dtype, std::int64_t element, std::int64_t stride, std::int64_t n) {
  std::byte* to = static_cast<std::byte*>(data) + element * static_cast<std::int64_t>(size_of(dtype));
  if constexpr (std::is_same_v<T, float>) {
    store_f32(from, to, dtype, stride, n);
  } else if constexpr (std::is_same_v<T, double>) {
    store_f64(from, to, dtype, stride, n);
  } else {
    store_i64(from, to, dtype, stride, n);
  }
}

}  // namespace thimble::kernels
