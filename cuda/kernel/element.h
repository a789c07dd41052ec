#pragma once
// A kernel's view of elements and strides: values of any dtype as the compute type, and offsets of elements of strided
// operands.

#include <cstdint>
#include <type_traits>

#include <thimble/core/kernels/shared/strided.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/cuda/kernel/kernel.h>

namespace thimble::cuda_kernels {

using kernels::MergedStrides;

/// True if a kernel that computes in T can read dtype S: bool, and dtypes with compute type T.
template <class T, class S>
inline constexpr bool is_met = std::is_same_v<S, bool> || (std::is_same_v<T, std::int64_t> && std::is_integral_v<S>) ||
                               (std::is_same_v<T, double> && std::is_same_v<S, double>) ||
                               (std::is_same_v<T, float> && !std::is_integral_v<S> && !std::is_same_v<S, double>);

/// f.template operator()<S>() for the dtypes of a kernel that computes in T; `visit` for device code.
template <class T, class F>
THIMBLE_DEVICE inline void visit_met(DType dtype, F&& f) {
  if constexpr (std::is_same_v<T, float>) {
    if (dtype == DType::f32) return f.template operator()<float>();
    if (dtype == DType::bf16) return f.template operator()<bf16>();
    if (dtype == DType::f16) return f.template operator()<f16>();
    if (dtype == DType::f8e4m3) return f.template operator()<f8e4m3>();
    if (dtype == DType::f8e5m2) return f.template operator()<f8e5m2>();
  } else if constexpr (std::is_same_v<T, double>) {
    if (dtype == DType::f64) return f.template operator()<double>();
  } else {
    if (dtype == DType::i64) return f.template operator()<std::int64_t>();
    if (dtype == DType::i32) return f.template operator()<std::int32_t>();
    if (dtype == DType::i8) return f.template operator()<std::int8_t>();
    if (dtype == DType::u8) return f.template operator()<std::uint8_t>();
  }
  if (dtype == DType::boolean) f.template operator()<bool>();
}

/// a / b for numbers that are not negative; uses the faster 32-bit division if both fit.
THIMBLE_DEVICE inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

/// Element `at` of an operand as T.
template <class T>
THIMBLE_DEVICE inline T load(const void* data, DType dtype, std::int64_t at) {
  T value{};
  visit_met<T>(dtype, [&]<class S>() { value = convert_value<T>(static_cast<const S*>(data)[at]); });
  return value;
}

/// data[at] = value, rounded once.
template <class T>
THIMBLE_DEVICE inline void store(void* data, DType dtype, std::int64_t at, T value) {
  visit_met<T>(dtype, [&]<class S>() { static_cast<S*>(data)[at] = convert_value<S>(value); });
}

/// load() for any dtype of T's kind (floating, integer), whatever its compute type.
template <class T>
THIMBLE_DEVICE inline T load_any(const void* data, DType dtype, std::int64_t at) {
  if constexpr (std::is_same_v<T, std::int64_t>) {
    return load<T>(data, dtype, at);
  } else {
    return dtype == DType::f64 ? static_cast<T>(static_cast<const double*>(data)[at])
                               : static_cast<T>(load<float>(data, dtype, at));
  }
}
template <class T>
THIMBLE_DEVICE inline void store_any(void* data, DType dtype, std::int64_t at, T value) {
  if constexpr (std::is_same_v<T, std::int64_t>) {
    store<T>(data, dtype, at, value);
  } else if (dtype == DType::f64) {
    static_cast<double*>(data)[at] = static_cast<double>(value);
  } else {
    visit_met<float>(dtype, [&]<class S>() { static_cast<S*>(data)[at] = convert_value<S>(value); });
  }
}
THIMBLE_DEVICE inline void store_total(void* data, DType dtype, std::int64_t at, double value) {
  store_any<double>(data, dtype, at, value);
}
THIMBLE_DEVICE inline double load_wide(const void* data, DType dtype, std::int64_t at) {
  return load_any<double>(data, dtype, at);
}
/// An index of i32 or i64.
THIMBLE_DEVICE inline std::int64_t load_index(const void* data, DType dtype, std::int64_t at) {
  return dtype == DType::i32 ? static_cast<const std::int32_t*>(data)[at] : static_cast<const std::int64_t*>(data)[at];
}

/// a b + sum in one rounding; integers wrap around.
template <class T>
THIMBLE_DEVICE inline T multiply_add(T a, T b, T sum) {
  if constexpr (std::is_same_v<T, float>) {
    return __builtin_fmaf(a, b, sum);
  } else if constexpr (std::is_same_v<T, double>) {
    return __builtin_fma(a, b, sum);
  } else {
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b) +
                          static_cast<std::uint64_t>(sum));
  }
}

/// Host side: f.template operator()<T>() with a floating dtype's compute type.
template <class F>
void with_compute_type(DType dtype, F&& f) {
  if (dtype == DType::f64) {
    f.template operator()<double>();
  } else {
    f.template operator()<float>();
  }
}

/// A shape and the strides of N operands, merged, as an argument of a kernel.
template <int N>
struct Walk {
  int rank;
  std::int64_t sizes[max_rank];
  std::int64_t strides[N][max_rank];

  Walk(const Shape& shape, const std::array<const Shape*, N>& operands) {
    const MergedStrides<N> merged(shape, operands);
    rank = merged.rank;
    for (int axis = 0; axis < rank; ++axis) {
      sizes[axis] = merged.sizes[static_cast<std::size_t>(axis)];
      for (int n = 0; n < N; ++n) strides[n][axis] = merged.stride(n, axis);
    }
  }

  /// Element offsets of element `at`, counted in row-major order.
  THIMBLE_DEVICE void locate(std::int64_t at, std::int64_t (&offsets)[N]) const {
    for (int n = 0; n < N; ++n) offsets[n] = 0;
    for (int axis = rank - 1; axis > 0; --axis) {
      std::int64_t index;
      if (((at | sizes[axis]) >> 32) == 0) {  // 64-bit divisions are slow
        const auto narrow = static_cast<std::uint32_t>(at), size = static_cast<std::uint32_t>(sizes[axis]);
        index = narrow % size;
        at = narrow / size;
      } else {
        index = at % sizes[axis];
        at /= sizes[axis];
      }
      for (int n = 0; n < N; ++n) offsets[n] += index * strides[n][axis];
    }
    for (int n = 0; n < N; ++n) offsets[n] += at * strides[n][0];
  }
};

}  // namespace thimble::cuda_kernels
