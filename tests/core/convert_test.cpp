// Conversion between all pairs of dtypes by the table of core/numbers/convert.h, strides, and dtype names.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <thimble/core/dtype.h>
#include <thimble/core/error.h>
#include <thimble/core/numbers/convert.h>

#include "support/catch.h"

namespace {

using namespace thimble;

const double infinity = std::numeric_limits<double>::infinity();
const double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t largest_i64 = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t lowest_i64 = std::numeric_limits<std::int64_t>::min();

std::vector<DType> all_dtypes() {
  std::vector<DType> dtypes;
  for (int i = 0; i < dtype_count; ++i) dtypes.push_back(static_cast<DType>(i));
  return dtypes;
}

/// 600 values that reach every rule of the table, enough for a border between tiles.
template <class T>
std::vector<T> sample() {
  const double seeds[] = {0.0,   -0.0,  0.4,   -0.6,     1.0,       -1.5,         2.5,  127.5, 128.0, -129.0,
                          255.,  256.0, 300.7, 449.0,    1000.0,    -6e4,         7e4,  3e9,   -3e9,  1e19,
                          -1e19, 1e39,  1e-40, infinity, -infinity, not_a_number, 1e-8, 464.0, 6.1e4, 0x1p-10};
  std::vector<T> values;
  for (int i = 0; i < 600; ++i) {
    const double x = seeds[i % 30] * (1 + i / 30 * 0.01);
    if constexpr (std::is_same_v<T, bool>) {
      values.push_back(i % 3 == 0);
    } else if constexpr (std::is_integral_v<T>) {
      values.push_back(static_cast<T>(static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15u >> (i % 60)));
    } else {
      values.push_back(static_cast<T>(x));
    }
  }
  return values;
}

/// std::vector<bool> has no bytes: one byte per bool instead.
template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T value = values[i];
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

/// The rules of the table again, from a double and by another method: range checks on the truncated value.
template <class To>
To truncate_and_saturate(double x) {
  if (std::isnan(x)) return 0;
  const double whole = std::trunc(x);
  if (whole < static_cast<double>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
  if (whole > static_cast<double>(std::numeric_limits<To>::max() - 1)) return std::numeric_limits<To>::max();
  return static_cast<To>(whole);
}

template <class To, class From>
To expected(From value, Fp8Overflow overflow) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, bool>) {
    if constexpr (std::is_integral_v<From>) return value != 0;
    return static_cast<double>(value) != 0.0;
  } else if constexpr (std::is_integral_v<To>) {
    if constexpr (std::is_integral_v<From>) return static_cast<To>(value);
    return truncate_and_saturate<To>(static_cast<double>(value));
  } else if constexpr (std::is_arithmetic_v<To>) {
    return static_cast<To>(value);
  } else if constexpr (sizeof(To) == 1 && !std::is_integral_v<From>) {
    const double x = static_cast<double>(value);  // exact, so the codec's rounding of a double is the only one
    return overflow == Fp8Overflow::saturate ? To::saturate(x) : To(x);
  } else if constexpr (sizeof(To) == 1) {
    const To plain(value);
    const bool is_too_large = plain.is_nan() || std::isinf(static_cast<float>(plain));
    if (!is_too_large || overflow == Fp8Overflow::nonfinite) return plain;
    return To(value > 0 ? static_cast<float>(To::max()) : -static_cast<float>(To::max()));
  } else if constexpr (std::is_integral_v<From>) {
    return To(value);
  } else {
    return To(static_cast<double>(value));
  }
}

template <class To, class From>
void check_pair(Fp8Overflow overflow) {
  const std::vector<From> values = sample<From>();
  std::vector<To> wanted;
  for (const From value : values) wanted.push_back(expected<To>(value, overflow));
  const std::vector<std::byte> src = bytes_of(values), want = bytes_of(wanted);
  std::vector<std::byte> got(want.size());
  convert(src.data(), dtype_of<From>, got.data(), dtype_of<To>, static_cast<std::int64_t>(values.size()), overflow);
  CHECK(got == want);
}

/// load_*/store_* as overloads, so that one test covers the three compute types.
void load(const void* src, DType from, std::int64_t stride, float* dst, std::int64_t n) {
  load_f32(src, from, stride, dst, n);
}
void load(const void* src, DType from, std::int64_t stride, double* dst, std::int64_t n) {
  load_f64(src, from, stride, dst, n);
}
void load(const void* src, DType from, std::int64_t stride, std::int64_t* dst, std::int64_t n) {
  load_i64(src, from, stride, dst, n);
}
void store(const float* src, DType to, void* dst, std::int64_t stride, std::int64_t n) {
  store_f32(src, dst, to, stride, n);
}
void store(const double* src, DType to, void* dst, std::int64_t stride, std::int64_t n) {
  store_f64(src, dst, to, stride, n);
}
void store(const std::int64_t* src, DType to, void* dst, std::int64_t stride, std::int64_t n) {
  store_i64(src, dst, to, stride, n);
}

/// Strided results equal the contiguous ones (checked by the test of all pairs), and nothing else is written.
template <class Compute, class T>
void check_strides(std::int64_t stride) {
  constexpr std::int64_t n = 37;
  const std::vector<std::byte> narrow = bytes_of(sample<T>());
  const std::vector<Compute> wide = sample<Compute>();
  const std::int64_t first = stride < 0 ? -stride * (n - 1) : 0;
  const std::int64_t size = static_cast<std::int64_t>(sizeof(T));
  std::vector<Compute> contiguous(600), strided(n);
  convert(narrow.data(), dtype_of<T>, contiguous.data(), dtype_of<Compute>, 600);
  load(narrow.data() + first * size, dtype_of<T>, stride, strided.data(), n);
  std::vector<Compute> picked;
  for (std::int64_t i = 0; i < n; ++i) picked.push_back(contiguous[static_cast<std::size_t>(first + i * stride)]);
  CHECK(std::memcmp(strided.data(), picked.data(), picked.size() * sizeof(Compute)) == 0);

  std::vector<std::byte> converted(static_cast<std::size_t>(600 * size));
  convert(wide.data(), dtype_of<Compute>, converted.data(), dtype_of<T>, n);
  std::vector<std::byte> background(converted.size(), std::byte{0x5A}), wanted = background;
  store(wide.data(), dtype_of<T>, background.data() + first * size, stride, n);
  for (std::int64_t i = 0; i < n; ++i) {
    std::memcpy(wanted.data() + (first + i * stride) * size, converted.data() + i * size, sizeof(T));
  }
  CHECK(background == wanted);
}

}  // namespace

TEST_CASE("convert: names of dtypes are read and written", "[convert]") {
  for (const DType dtype : all_dtypes()) CHECK(parse_dtype(to_string(dtype)) == dtype);
  for (const char* bad : {"", "F32", "float", "f32 ", "f8"}) {
    try {
      parse_dtype(bad);
      FAIL("accepted '" << bad << "'");
    } catch (const ValueError& error) {
      CHECK(std::string(error.what()) == "parse_dtype: unknown dtype '" + std::string(bad) +
                                             "', expected f64, f32, f16, bf16, f8e4m3, f8e5m2, i8, i32, i64, u8, bool");
    }
  }
}

TEST_CASE("convert: every pair of dtypes follows the table", "[convert]") {
  for (const Fp8Overflow overflow : {Fp8Overflow::nonfinite, Fp8Overflow::saturate}) {
    for (const DType from : all_dtypes()) {
      visit(from, [&]<class From>() {
        for (const DType to : all_dtypes()) {
          INFO(to_string(from) << " to " << to_string(to));
          visit(to, [&]<class To>() { check_pair<To, From>(overflow); });
        }
      });
    }
  }
}

TEST_CASE("convert: corner values", "[convert]") {
  CHECK(convert_value<std::int8_t>(-128.9f) == -128);
  CHECK(convert_value<std::int8_t>(127.99f) == 127);
  CHECK(convert_value<std::int8_t>(128.0f) == 127);
  CHECK(convert_value<std::uint8_t>(-0.99f) == 0);
  CHECK(convert_value<std::uint8_t>(255.99) == 255);
  CHECK(convert_value<std::int32_t>(2147483647.5) == 2147483647);
  CHECK(convert_value<std::int32_t>(-2147483648.0f) == std::numeric_limits<std::int32_t>::min());
  CHECK(convert_value<std::int64_t>(9223372036854775808.0) == largest_i64);
  CHECK(convert_value<std::int64_t>(9223371487098961920.0f) == 9223371487098961920);
  CHECK(convert_value<std::int64_t>(-infinity) == lowest_i64);
  CHECK(convert_value<std::int64_t>(not_a_number) == 0);
  CHECK(convert_value<std::int8_t>(std::int64_t{0x1234567F80}) == -128);
  CHECK(convert_value<std::uint8_t>(std::int32_t{-1}) == 255);
  CHECK(convert_value<bool>(not_a_number));
  CHECK(convert_value<bool>(f16::from_bits(1)));
  CHECK_FALSE(convert_value<bool>(bf16(-0.0f)));
  CHECK(convert_value<float>(std::int64_t{16777217}) == 16777216.0f);
  CHECK(convert_value<f16>(70000.0f, Fp8Overflow::saturate).bits == 0x7C00);
  CHECK(convert_value<f8e4m3>(std::int64_t{-500}, Fp8Overflow::saturate).bits == 0xFE);
}

TEST_CASE("convert: the bits of NaN that a GPU's conversions are given are those of processors", "[convert]") {
  for (const std::uint64_t sign : {std::uint64_t{0}, std::uint64_t{1} << 63}) {
    for (const std::uint64_t payload :
         {std::uint64_t{1}, std::uint64_t{0x8000000000000}, std::uint64_t{0x8000020000000},
          std::uint64_t{0xFFFFFFFFFFFFF}, std::uint64_t{0x123456789ABCD}, std::uint64_t{0x7FFFFE0000000}}) {
      const std::uint64_t bits = sign | 0x7FF0000000000000u | payload;
      volatile double wide = std::bit_cast<double>(bits);
      volatile float narrow = static_cast<float>(wide);
      CHECK(narrowed_nan(bits) == std::bit_cast<std::uint32_t>(float{narrow}));
      const auto narrow_bits = static_cast<std::uint32_t>(sign >> 32 | 0x7F800000u | (payload >> 29) | 1u);
      narrow = std::bit_cast<float>(narrow_bits);
      wide = static_cast<double>(narrow);
      CHECK(widened_nan(narrow_bits) == std::bit_cast<std::uint64_t>(double{wide}));
    }
  }
}

TEST_CASE("convert: a byte other than 0 and 1 is a true bool", "[convert]") {
  const std::uint8_t bytes[] = {0, 1, 2, 255};
  float as_float[4];
  std::int64_t as_int[4];
  load_f32(bytes, DType::boolean, 1, as_float, 4);
  load_i64(bytes, DType::boolean, 1, as_int, 4);
  for (int i = 0; i < 4; ++i) {
    CHECK(as_float[i] == (i == 0 ? 0.0f : 1.0f));
    CHECK(as_int[i] == (i == 0 ? 0 : 1));
  }
}

TEST_CASE("convert: loads and stores take any stride", "[convert]") {
  for (const DType dtype : all_dtypes()) {
    for (const std::int64_t stride : {1, 2, 3, 16, -1, -5}) {
      INFO(to_string(dtype) << " stride " << stride);
      visit(dtype, [&]<class T>() {
        check_strides<float, T>(stride);
        check_strides<double, T>(stride);
        check_strides<std::int64_t, T>(stride);
      });
    }
  }
  const bf16 one(1.0f);
  float copies[5] = {};
  load_f32(&one, DType::bf16, 0, copies, 5);
  for (const float value : copies) CHECK(value == 1.0f);
}

TEST_CASE("convert: equal dtypes move bytes, nothing is nothing", "[convert]") {
  std::uint32_t payload[] = {0x7F800001u, 0xFFC12345u, 3};
  convert(payload, DType::f32, payload + 1, DType::f32, 2);
  CHECK(payload[0] == 0x7F800001u);
  CHECK(payload[1] == 0x7F800001u);
  CHECK(payload[2] == 0xFFC12345u);
  convert(nullptr, DType::f32, nullptr, DType::bf16, 0);
  std::uint8_t untouched = 7;
  store_f32(nullptr, &untouched, DType::u8, 1, 0);
  CHECK(untouched == 7);
}

TEST_CASE("convert: stores at a stride saturate, too", "[convert]") {
  const float from[] = {1000, -1000};
  std::uint8_t to[] = {1, 2, 3, 4};
  store_f32(from, to, DType::f8e4m3, 2, 2, Fp8Overflow::saturate);
  CHECK((to[0] == 0x7E && to[1] == 2 && to[2] == 0xFE && to[3] == 4));
}
