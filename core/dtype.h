#pragma once
// Element types. A tensor can store any of them. Floating types compute in f32 (f64 in f64), with conversion at load
// and store; integers compute in i64.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include <thimble/core/numbers/minifloat.h>

namespace thimble {

enum class DType : std::uint8_t { f64, f32, f16, bf16, f8e4m3, f8e5m2, i8, i32, i64, u8, boolean };
inline constexpr int dtype_count = 11;

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) noexcept {
  constexpr std::size_t sizes[] = {8, 4, 2, 2, 1, 1, 1, 4, 8, 1, 1};
  return sizes[static_cast<int>(dtype)];
}

constexpr bool is_floating(DType dtype) noexcept { return dtype <= DType::f8e5m2; }

/// "f32", "bf16", "bool", ...
constexpr std::string_view to_string(DType dtype) noexcept {
  constexpr std::string_view names[] = {"f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2",
                                        "i8",  "i32", "i64", "u8",   "bool"};
  return names[static_cast<int>(dtype)];
}

/// The inverse of to_string. Throws ValueError, naming the expected names.
DType parse_dtype(std::string_view text);

/// The DType of a C++ type: dtype_of<float> == DType::f32.
template <class T>
struct DTypeOf;
#define THIMBLE_DTYPE(type, name)               \
  template <>                                   \
  struct DTypeOf<type> {                        \
    static constexpr DType value = DType::name; \
  };
THIMBLE_DTYPE(double, f64)
THIMBLE_DTYPE(float, f32)
THIMBLE_DTYPE(f16, f16)
THIMBLE_DTYPE(bf16, bf16)
THIMBLE_DTYPE(f8e4m3, f8e4m3)
THIMBLE_DTYPE(f8e5m2, f8e5m2)
THIMBLE_DTYPE(std::int8_t, i8)
THIMBLE_DTYPE(std::int32_t, i32)
THIMBLE_DTYPE(std::int64_t, i64)
THIMBLE_DTYPE(std::uint8_t, u8)
THIMBLE_DTYPE(bool, boolean)
#undef THIMBLE_DTYPE
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

/// Calls `f.template operator()<T>()` with the C++ type of `dtype`: `visit(dtype, []<class T> { ... })`. The only
/// switch over dtypes in the library.
template <class F>
decltype(auto) visit(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f.template operator()<double>();
    case DType::f32:
      return f.template operator()<float>();
    case DType::f16:
      return f.template operator()<f16>();
    case DType::bf16:
      return f.template operator()<bf16>();
    case DType::f8e4m3:
      return f.template operator()<f8e4m3>();
    case DType::f8e5m2:
      return f.template operator()<f8e5m2>();
    case DType::i8:
      return f.template operator()<std::int8_t>();
    case DType::i32:
      return f.template operator()<std::int32_t>();
    case DType::i64:
      return f.template operator()<std::int64_t>();
    case DType::u8:
      return f.template operator()<std::uint8_t>();
    case DType::boolean:
      return f.template operator()<bool>();
  }
  __builtin_unreachable();
}

/// The type of arithmetic: double for f64, float for the other floating types, i64 for integers and bool.
enum class ComputeType : std::uint8_t { f32, f64, i64 };
constexpr ComputeType compute_type(DType dtype) noexcept {
  if (dtype == DType::f64) return ComputeType::f64;
  return is_floating(dtype) ? ComputeType::f32 : ComputeType::i64;
}

}  // namespace thimble
