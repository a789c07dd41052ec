#include <algorithm>
#include <cstring>

#include <thimble/core/kernels/cpu/base/narrow_float.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/numbers/convert.h>

namespace thimble {
namespace convert_detail {

/// The stored form of an element: a bool is read as a byte, so that any nonzero byte is true.
template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

template <class T, class Compute>
void load_strided(const void* src, std::int64_t stride, Compute* __restrict dst, std::int64_t n) {
  const Stored<T>* from = static_cast<const Stored<T>*>(src);
  for (std::int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<T, bool>) {
      dst[i] = static_cast<Compute>(from[i * stride] != 0);
    } else {
      dst[i] = convert_value<Compute>(from[i * stride]);
    }
  }
}

template <class T, class Compute>
void store_strided(const Compute* __restrict src, void* dst, std::int64_t stride, std::int64_t n,
                   Fp8Overflow overflow) {
  Stored<T>* to = static_cast<Stored<T>*>(dst);
  for (std::int64_t i = 0; i < n; ++i) to[i * stride] = convert_value<T>(src[i], overflow);
}

/// Between dense f32 and f64, by the vectors of the instruction set.
template <class To, class From>
struct Widths {
  static void run(To* __restrict dst, const From* __restrict src, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) dst[i] = static_cast<To>(src[i]);
  }
};
template <class T, class Compute>
inline constexpr bool is_f32_with_f64 = std::is_same_v<T, float>&& std::is_same_v<Compute, double>;

/// Only the loop with a constant stride of 1 vectorizes.
template <class T, class Compute>
void load_elements(const void* src, std::int64_t stride, Compute* dst, std::int64_t n) {
  if constexpr (is_f32_with_f64<T, Compute>) {
    if (stride == 1) return kernels::run_variant<Widths<Compute, T>>(dst, static_cast<const T*>(src), n);
  }
  if (stride == 0 && n > 0) {
    load_strided<T>(src, 0, dst, 1);
    std::fill(dst + 1, dst + n, dst[0]);
  } else if (stride != 1) {
    load_strided<T>(src, stride, dst, n);
  } else if constexpr (is_narrow_float<T> && std::is_same_v<Compute, float>) {
    kernels::narrow_float_loops(kernels::isa()).load(dtype_of<T>)(src, dst, n);
  } else {
    load_strided<T>(src, 1, dst, n);
  }
}

template <class T, class Compute>
void store_elements(const Compute* src, void* dst, std::int64_t stride, std::int64_t n, Fp8Overflow overflow) {
  if constexpr (is_f32_with_f64<T, Compute>) {
    if (stride == 1) return kernels::run_variant<Widths<T, Compute>>(static_cast<T*>(dst), src, n);
  }
  if (stride != 1) {
    store_strided<T>(src, dst, stride, n, overflow);
  } else if constexpr (is_narrow_float<T> && std::is_same_v<Compute, float>) {
    kernels::narrow_float_loops(kernels::isa()).store(dtype_of<T>)(src, dst, n, overflow);
  } else {
    store_strided<T>(src, dst, 1, n, overflow);
  }
}

template <class Compute>
void load(const void* src, DType from, std::int64_t stride, Compute* dst, std::int64_t n) {
  visit(from, [&]<class T>() { load_elements<T>(src, stride, dst, n); });
}

template <class Compute>
void store(const Compute* src, void* dst, DType to, std::int64_t stride, std::int64_t n, Fp8Overflow overflow) {
  visit(to, [&]<class T>() { store_elements<T>(src, dst, stride, n, overflow); });
}

/// Through tiles of the source's compute type, which holds every source value exactly: the store rounds, once.
template <class Compute>
void convert_through(const void* src, DType from, void* dst, DType to, std::int64_t n, Fp8Overflow overflow) {
  constexpr std::int64_t tile = 512;
  Compute values[tile];
  const std::byte* read = static_cast<const std::byte*>(src);
  std::byte* write = static_cast<std::byte*>(dst);
  for (std::int64_t begin = 0; begin < n; begin += tile) {
    const std::int64_t count = std::min(tile, n - begin);
    load<Compute>(read + begin * static_cast<std::int64_t>(size_of(from)), from, 1, values, count);
    store<Compute>(values, write + begin * static_cast<std::int64_t>(size_of(to)), to, 1, count, overflow);
  }
}

}  // namespace convert_detail

void convert(const void* src, DType from, void* dst, DType to, std::int64_t n, Fp8Overflow overflow) {
  if (n <= 0) return;
  if (from == to) {
    std::memmove(dst, src, static_cast<std::size_t>(n) * size_of(from));
    return;
  }
  if (to == DType::f32) return load_f32(src, from, 1, static_cast<float*>(dst), n);
  if (to == DType::f64) return load_f64(src, from, 1, static_cast<double*>(dst), n);
  if (to == DType::i64) return load_i64(src, from, 1, static_cast<std::int64_t*>(dst), n);
  if (from == DType::f32) return store_f32(static_cast<const float*>(src), dst, to, 1, n, overflow);
  if (from == DType::f64) return store_f64(static_cast<const double*>(src), dst, to, 1, n, overflow);
  if (from == DType::i64) return store_i64(static_cast<const std::int64_t*>(src), dst, to, 1, n, overflow);
  if (is_floating(from)) {
    convert_detail::convert_through<float>(src, from, dst, to, n, overflow);
  } else {
    convert_detail::convert_through<std::int64_t>(src, from, dst, to, n, overflow);
  }
}

void load_f32(const void* src, DType from, std::int64_t stride, float* dst, std::int64_t n) {
  convert_detail::load(src, from, stride, dst, n);
}
void load_f64(const void* src, DType from, std::int64_t stride, double* dst, std::int64_t n) {
  convert_detail::load(src, from, stride, dst, n);
}
void load_i64(const void* src, DType from, std::int64_t stride, std::int64_t* dst, std::int64_t n) {
  convert_detail::load(src, from, stride, dst, n);
}

void store_f32(const float* src, void* dst, DType to, std::int64_t stride, std::int64_t n, Fp8Overflow overflow) {
  convert_detail::store(src, dst, to, stride, n, overflow);
}
void store_f64(const double* src, void* dst, DType to, std::int64_t stride, std::int64_t n, Fp8Overflow overflow) {
  convert_detail::store(src, dst, to, stride, n, overflow);
}
void store_i64(const std::int64_t* src, void* dst, DType to, std::int64_t stride, std::int64_t n,
               Fp8Overflow overflow) {
  convert_detail::store(src, dst, to, stride, n, overflow);
}

}  // namespace thimble
