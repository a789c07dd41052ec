#include <thimble/core/kernels/row_convert.h>

#include <cstring>
#include <type_traits>

namespace thimble::kernels {
namespace row_convert_detail {

template <class To, class From>
THIMBLE_ALWAYS_INLINE To convert(From value) noexcept {
  if constexpr (std::is_same_v<To, bool>) {
    return value != From{};
  } else if constexpr (!std::is_arithmetic_v<From> && !std::is_same_v<To, float>) {
    return static_cast<To>(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <class T, class S>
THIMBLE_ALWAYS_INLINE void load_body(const void* base, std::int64_t first, std::int64_t stride, std::int64_t count,
                                     T* __restrict out) {
  const S* source = static_cast<const S*>(base) + first;
  if (stride == 1) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = convert<T>(source[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i] = convert<T>(source[i * stride]);
  }
}

template <class T, class S>
THIMBLE_ALWAYS_INLINE void store_body(const T* __restrict values, std::int64_t count, void* base, std::int64_t first,
                                      std::int64_t stride) {
  S* target = static_cast<S*>(base) + first;
  if (stride == 1) {
    for (std::int64_t i = 0; i < count; ++i) target[i] = convert<S>(values[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) target[i * stride] = convert<S>(values[i]);
  }
}

template <class T, class S>
void load_generic(const void* base, std::int64_t first, std::int64_t stride, std::int64_t count, T* out) {
  load_body<T, S>(base, first, stride, count, out);
}
template <class T, class S>
void store_generic(const T* values, std::int64_t count, void* base, std::int64_t first, std::int64_t stride) {
  store_body<T, S>(values, count, base, first, stride);
}

#if defined(__x86_64__)
template <class T, class S>
THIMBLE_TARGET_AVX2 void load_avx2(const void* base, std::int64_t first, std::int64_t stride, std::int64_t count,
                                   T* out) {
  load_body<T, S>(base, first, stride, count, out);
}
template <class T, class S>
THIMBLE_TARGET_AVX2 void store_avx2(const T* values, std::int64_t count, void* base, std::int64_t first,
                                    std::int64_t stride) {
  store_body<T, S>(values, count, base, first, stride);
}
template <class T, class S>
THIMBLE_TARGET_AVX512 void load_avx512(const void* base, std::int64_t first, std::int64_t stride, std::int64_t count,
                                       T* out) {
  load_body<T, S>(base, first, stride, count, out);
}
template <class T, class S>
THIMBLE_TARGET_AVX512 void store_avx512(const T* values, std::int64_t count, void* base, std::int64_t first,
                                        std::int64_t stride) {
  store_body<T, S>(values, count, base, first, stride);
}
#endif

}  // namespace row_convert_detail

template <class T>
LoadRow<T> load_row(DType dtype, [[maybe_unused]] Isa isa) noexcept {
  using namespace row_convert_detail;
  return visit(dtype, [&]<class S>() -> LoadRow<T> {
#if defined(__x86_64__)
    if (isa == Isa::avx512) return load_avx512<T, S>;
    if (isa == Isa::avx2) return load_avx2<T, S>;
#endif
    return load_generic<T, S>;
  });
}

template <class T>
StoreRow<T> store_row(DType dtype, [[maybe_unused]] Isa isa) noexcept {
  using namespace row_convert_detail;
  return visit(dtype, [&]<class S>() -> StoreRow<T> {
#if defined(__x86_64__)
    if (isa == Isa::avx512) return store_avx512<T, S>;
    if (isa == Isa::avx2) return store_avx2<T, S>;
#endif
    return store_generic<T, S>;
  });
}

template LoadRow<float> load_row<float>(DType, Isa) noexcept;
template LoadRow<double> load_row<double>(DType, Isa) noexcept;
template LoadRow<std::int64_t> load_row<std::int64_t>(DType, Isa) noexcept;
template StoreRow<float> store_row<float>(DType, Isa) noexcept;
template StoreRow<double> store_row<double>(DType, Isa) noexcept;
template StoreRow<std::int64_t> store_row<std::int64_t>(DType, Isa) noexcept;

}  // namespace thimble::kernels
