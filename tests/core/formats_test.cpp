// Number formats against a brute-force nearest-even search, exhaustive counts, and cuda_fp8.h if present.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/narrow_float.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/ops/attention.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/kernel_data.h"
#include "support/operator_table.h"

#if __has_include(<cuda_fp8.h>)
#include <cuda_fp8.h>
#define THIMBLE_TEST_HAS_CUDA_FP8
#endif

namespace {

using namespace thimble;

const float inf = std::numeric_limits<float>::infinity();

/// The textbook definition of a format, without the library's codec.
template <class T>
struct Textbook;
template <>
struct Textbook<f16> {
  static constexpr int exponent_bits = 5, mantissa_bits = 10, max_code = 0x7BFF, nan_code = 0x7E00;
};
template <>
struct Textbook<bf16> {
  static constexpr int exponent_bits = 8, mantissa_bits = 7, max_code = 0x7F7F, nan_code = 0x7FC0;
};
template <>
struct Textbook<f8e4m3> {
  static constexpr int exponent_bits = 4, mantissa_bits = 3, max_code = 0x7E, nan_code = 0x7F;
};
template <>
struct Textbook<f8e5m2> {
  static constexpr int exponent_bits = 5, mantissa_bits = 2, max_code = 0x7B, nan_code = 0x7F;
};

/// The magnitude of a code without sign, as if every code were a number.
template <class T>
double textbook_magnitude(int code) {
  using B = Textbook<T>;
  const int exponent = code >> B::mantissa_bits;
  const double fraction = std::ldexp(code & ((1 << B::mantissa_bits) - 1), -B::mantissa_bits);
  const int bias = (1 << (B::exponent_bits - 1)) - 1;
  return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
}

/// Values of the codes 0 .. max_code + 1; the last would be the next number.
template <class T>
const std::vector<double>& magnitudes() {
  static const std::vector<double> table = [] {
    std::vector<double> values;
    for (int code = 0; code <= Textbook<T>::max_code + 1; ++code) values.push_back(textbook_magnitude<T>(code));
    return values;
  }();
  return table;
}

/// Nearest code by search, ties to the even code.
template <class T>
unsigned nearest_code(double value, Fp8Overflow overflow) {
  using B = Textbook<T>;
  const std::vector<double>& table = magnitudes<T>();
  const unsigned sign = std::signbit(value) ? 1u << (B::exponent_bits + B::mantissa_bits) : 0u;
  if (std::isnan(value)) return sign | B::nan_code;
  const double magnitude = std::fabs(value);
  const auto above = std::upper_bound(table.begin(), table.end(), magnitude);
  unsigned code = static_cast<unsigned>(above - table.begin()) - 1;
  if (above != table.end()) {
    const double middle = (*above + table[code]) / 2;  // exact: two neighbours
    if (magnitude > middle || (magnitude == middle && code % 2 == 1)) ++code;
  }
  const unsigned largest = static_cast<unsigned>(B::max_code);
  if (code > largest) code = sizeof(T) == 1 && overflow == Fp8Overflow::saturate ? largest : largest + 1;
  return sign | code;
}

/// Every number of the format, every midpoint of neighbours, their neighbours in Source, and the special values.
template <class T, class Source>
std::vector<Source> interesting_values() {
  std::vector<Source> values;
  const auto add_around = [&](double center) {
    const Source x = static_cast<Source>(center);
    const Source limit = std::numeric_limits<Source>::infinity();
    for (const Source v : {x, std::nextafter(x, limit), std::nextafter(x, -limit)}) {
      values.push_back(v);
      values.push_back(-v);
    }
  };
  const std::vector<double>& table = magnitudes<T>();
  for (std::size_t code = 0; code < table.size(); ++code) {
    add_around(table[code]);
    if (code + 1 < table.size()) add_around((table[code] + table[code + 1]) / 2);
  }
  for (const double x :
       {1e-300, 1e-45, 1e-42, 1.1754943508222875e-38, 1e10, 3e38, 3.4028234663852886e38, 1e39, 1e300}) {
    add_around(x);
  }
  add_around(std::numeric_limits<double>::infinity());
  values.push_back(std::numeric_limits<Source>::quiet_NaN());
  values.push_back(-std::numeric_limits<Source>::quiet_NaN());
  return values;
}

template <class T, class Source>
std::size_t count_wrong_encodings() {
  std::size_t wrong = 0;
  for (const Source value : interesting_values<T, Source>()) {
    wrong += T(value).bits != nearest_code<T>(value, Fp8Overflow::nonfinite);
    if constexpr (sizeof(T) == 1) wrong += T::saturate(value).bits != nearest_code<T>(value, Fp8Overflow::saturate);
  }
  return wrong;
}

std::vector<float> random_bit_patterns(int count) {
  std::mt19937 generator(7);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(generator()));
  return values;
}

}  // namespace

TEMPLATE_TEST_CASE("formats: the types are plain storage", "[formats]", f16, bf16, f8e4m3, f8e5m2) {
  STATIC_REQUIRE(std::is_trivially_copyable_v<TestType>);
  STATIC_REQUIRE(std::is_trivially_default_constructible_v<TestType>);
  STATIC_REQUIRE(std::is_standard_layout_v<TestType>);
  STATIC_REQUIRE(sizeof(TestType) == sizeof(TestType::bits));
  STATIC_REQUIRE(!std::is_convertible_v<float, TestType>);
  STATIC_REQUIRE(std::is_convertible_v<TestType, float>);
  STATIC_REQUIRE(static_cast<float>(TestType(-1.5f)) == -1.5f);
  CHECK(TestType{}.bits == 0);
  CHECK(TestType::max().bits == Textbook<TestType>::max_code);
  CHECK(TestType::quiet_nan().bits == Textbook<TestType>::nan_code);
}

TEST_CASE("formats: limits are those of the published tables", "[formats]") {
  CHECK(static_cast<float>(f16::max()) == 65504.0f);
  CHECK(static_cast<float>(bf16::max()) == 3.3895313892515355e38f);
  CHECK(static_cast<float>(f8e4m3::max()) == 448.0f);
  CHECK(static_cast<float>(f8e5m2::max()) == 57344.0f);
  CHECK(static_cast<float>(f16::from_bits(1)) == std::ldexp(1.0f, -24));
  CHECK(static_cast<float>(bf16::from_bits(1)) == std::ldexp(1.0f, -133));
  CHECK(static_cast<float>(f8e4m3::from_bits(1)) == std::ldexp(1.0f, -9));
  CHECK(static_cast<float>(f8e5m2::from_bits(1)) == std::ldexp(1.0f, -16));
  CHECK(f8e4m3(464.0f).bits == 0x7E);
  CHECK(f8e4m3(std::nextafter(464.0f, inf)).bits == 0x7F);
  CHECK(f8e4m3::saturate(-inf).bits == 0xFE);
  CHECK(f8e5m2(std::nextafter(61440.0f, 0.0f)).bits == 0x7B);
  CHECK(f8e5m2(-61440.0f).bits == 0xFC);
  CHECK(f8e5m2::saturate(61440.0f).bits == 0x7B);
}

TEMPLATE_TEST_CASE("formats: every code decodes exactly and encodes back", "[formats]", f16, bf16, f8e4m3, f8e5m2) {
  using B = Textbook<TestType>;
  constexpr int sign_bit = 1 << (B::exponent_bits + B::mantissa_bits);
  std::size_t wrong = 0;
  int finite = 0, infinite = 0, nan = 0;
  for (int code = 0; code < 2 * sign_bit; ++code) {
    const TestType value = TestType::from_bits(static_cast<typename TestType::Bits>(code));
    const float decoded = value;
    const int magnitude = code & (sign_bit - 1);
    const bool is_number = magnitude <= B::max_code;
    const bool is_infinity = magnitude == B::max_code + 1 && B::nan_code != B::max_code + 1;
    wrong += std::signbit(decoded) != (code >= sign_bit);
    wrong += value.is_nan() != std::isnan(decoded);
    if (is_number) {
      ++finite;
      wrong += std::fabs(static_cast<double>(decoded)) != textbook_magnitude<TestType>(magnitude);
    } else if (is_infinity) {
      ++infinite;
      wrong += std::fabs(decoded) != inf;
    } else {
      ++nan;
      wrong += !std::isnan(decoded);
    }
    const int back = is_number || is_infinity ? code : (code & sign_bit) | B::nan_code;
    wrong += TestType(decoded).bits != back;
    wrong += TestType(static_cast<double>(decoded)).bits != back;
  }
  CHECK(wrong == 0);
  if (std::is_same_v<TestType, f8e4m3>) CHECK((finite == 254 && infinite == 0 && nan == 2));
  if (std::is_same_v<TestType, f8e5m2>) CHECK((finite == 248 && infinite == 2 && nan == 6));
}

TEMPLATE_TEST_CASE("formats: encoding is one rounding to nearest even", "[formats]", f16, bf16, f8e4m3, f8e5m2) {
  CHECK(count_wrong_encodings<TestType, float>() == 0);
  CHECK(count_wrong_encodings<TestType, double>() == 0);
  std::size_t wrong = 0;
  for (const float value : random_bit_patterns(200'000)) {
    wrong += TestType(value).bits != nearest_code<TestType>(value, Fp8Overflow::nonfinite);
  }
  CHECK(wrong == 0);
}

TEST_CASE("formats: constructors from double and integers do not round twice", "[formats]") {
  const double above_tie = 1 + 0x1p-11 + 0x1p-50;  // float rounds it to the tie of f16, which goes to even
  CHECK(f16(above_tie).bits == 0x3C01);
  CHECK(f16(static_cast<float>(above_tie)).bits == 0x3C00);
  CHECK(bf16(1 + 0x1p-8 + 0x1p-50).bits == 0x3F81);
  CHECK(f8e4m3(1 + 0x1p-4 + 0x1p-50).bits == 0x39);
  const std::int64_t tie = (std::int64_t{1} << 60) + (std::int64_t{1} << 52);  // a tie of bf16; + 1 is lost in a double
  CHECK(bf16(tie).bits == 0x5D80);
  CHECK(bf16(tie + 1).bits == 0x5D81);
  CHECK(bf16(-tie - 1).bits == 0xDD81);
  CHECK(bf16(std::numeric_limits<std::int64_t>::min()).bits == 0xDF00);
  CHECK(bf16(std::numeric_limits<std::uint64_t>::max()).bits == 0x5F80);
  CHECK(f8e4m3(true).bits == 0x38);
  CHECK(f8e5m2(std::int64_t{1} << 40).bits == 0x7C);
  const float near_tie = 1.0625f + 0x1p-9f;  // direct: up; through bf16: first down to the tie, then to even
  CHECK(f8e4m3(near_tie).bits == 0x39);
  CHECK(f8e4m3(bf16(near_tie)).bits == 0x38);
}

TEST_CASE("formats: all loops give the bits of the plain loop", "[formats]") {
  std::vector<float> inputs = interesting_values<f16, float>();
  for (const std::vector<float>& more : {interesting_values<bf16, float>(), random_bit_patterns(100'001)}) {
    inputs.insert(inputs.end(), more.begin(), more.end());
  }
  for (std::uint32_t payload = 1; payload < 0x800000; payload = payload * 2 + 1) {
    inputs.push_back(std::bit_cast<float>(0x7F800000u | payload));
    inputs.push_back(std::bit_cast<float>(0xFF800000u | payload));
  }
  const std::int64_t n = static_cast<std::int64_t>(inputs.size());
  const kernels::NarrowFloatLoops& plain_loops = kernels::narrow_float_loops(kernels::Isa::generic);
  for (const DType dtype : {DType::f16, DType::bf16, DType::f8e4m3, DType::f8e5m2}) {
    const std::size_t bytes = inputs.size() * size_of(dtype);
    const std::int64_t codes = size_of(dtype) == 2 ? 65'536 : 256;
    std::vector<std::uint16_t> all_codes;
    for (std::int64_t code = 0; code < codes; ++code) {
      all_codes.push_back(static_cast<std::uint16_t>(size_of(dtype) == 2 ? code : (2 * code) | (2 * code + 1) << 8));
    }
    std::vector<float> expected(static_cast<std::size_t>(codes)), decoded(expected.size());
    plain_loops.load(dtype)(all_codes.data(), expected.data(), codes);
    visit(dtype, [&]<class T>() {
      if constexpr (!std::is_arithmetic_v<T>) {  // checks the oracle itself against the scalar codec
        std::size_t wrong = 0;
        std::vector<T> stored(inputs.size());
        plain_loops.store(dtype)(inputs.data(), stored.data(), n, Fp8Overflow::nonfinite);
        for (std::size_t i = 0; i < inputs.size(); ++i) wrong += stored[i].bits != T(inputs[i]).bits;
        if constexpr (std::is_same_v<T, bf16>) {
          for (const float value : inputs) wrong += kernels::bf16_code(value) != T(value).bits;
        }
        CHECK(wrong == 0);
      }
    });
    for (const kernels::Isa isa : kernel_test::supported()) {
      const kernels::NarrowFloatLoops& loops = kernels::narrow_float_loops(isa);
      INFO(to_string(isa) << " " << to_string(dtype));
      loops.load(dtype)(all_codes.data(), decoded.data(), codes);
      CHECK(std::memcmp(decoded.data(), expected.data(), decoded.size() * sizeof(float)) == 0);
      for (std::int64_t length = 0; length < 40; ++length) {  // ends that do not fill a vector
        std::vector<float> part(static_cast<std::size_t>(length) + 1, 7.0f);
        loops.load(dtype)(all_codes.data(), part.data(), length);
        CHECK(std::memcmp(part.data(), expected.data(), static_cast<std::size_t>(length) * sizeof(float)) == 0);
        CHECK(part.back() == 7.0f);
      }
      for (const Fp8Overflow overflow : {Fp8Overflow::nonfinite, Fp8Overflow::saturate}) {
        std::vector<std::byte> plain(bytes), fast(bytes);
        plain_loops.store(dtype)(inputs.data(), plain.data(), n, overflow);
        loops.store(dtype)(inputs.data(), fast.data(), n, overflow);
        CHECK(std::memcmp(plain.data(), fast.data(), bytes) == 0);
      }
    }
  }
}

namespace {

struct ExhaustiveRow {
  DType from, to;
  Fp8Overflow overflow;
  int nan, zero, largest, infinite;
  std::uint64_t hash;  // FNV-1a over the 65,536 output bytes, every NaN as 0x7F
};

template <class T>
ExhaustiveRow count_codes(ExhaustiveRow row) {
  std::vector<std::uint16_t> inputs(65'536);
  for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<std::uint16_t>(i);
  std::vector<T> outputs(inputs.size());
  convert(inputs.data(), row.from, outputs.data(), row.to, static_cast<std::int64_t>(inputs.size()), row.overflow);
  row.nan = row.zero = row.largest = row.infinite = 0;
  row.hash = 0xCBF29CE484222325u;
  for (const T value : outputs) {
    const unsigned code = value.is_nan() ? 0x7F : value.bits;
    const int magnitude = value.bits & 0x7F;
    row.nan += value.is_nan();
    row.zero += magnitude == 0;
    row.largest += magnitude == Textbook<T>::max_code;
    row.infinite += !value.is_nan() && magnitude > Textbook<T>::max_code;
    row.hash = (row.hash ^ code) * 0x100000001B3u;
  }
  return row;
}

}  // namespace

TEST_CASE("formats: all 16-bit inputs to FP8, counts and hashes", "[formats]") {
  const ExhaustiveRow rows[] = {
      {DType::f16, DType::f8e4m3, Fp8Overflow::nonfinite, 16766, 10242, 258, 0, 0x80b3b2f080175525},
      {DType::f16, DType::f8e4m3, Fp8Overflow::saturate, 2046, 10242, 14978, 0, 0x55456763debf12a5},
      {DType::f16, DType::f8e5m2, Fp8Overflow::nonfinite, 2046, 258, 510, 258, 0x304feac115993fa5},
      {DType::f16, DType::f8e5m2, Fp8Overflow::saturate, 2046, 258, 768, 0, 0xd102d7d39f29d5a5},
      {DType::bf16, DType::f8e4m3, Fp8Overflow::nonfinite, 30766, 29954, 34, 0, 0xe990f48673483715},
      {DType::bf16, DType::f8e4m3, Fp8Overflow::saturate, 254, 29954, 30546, 0, 0xd8b2feb674a31125},
      {DType::bf16, DType::f8e5m2, Fp8Overflow::nonfinite, 254, 28162, 62, 28706, 0xa701dd201af279e5},
      {DType::bf16, DType::f8e5m2, Fp8Overflow::saturate, 254, 28162, 28768, 0, 0x22c10a2b6f34bb85},
  };
  for (const ExhaustiveRow& row : rows) {
    INFO(to_string(row.from) << " to " << to_string(row.to) << ", saturating "
                             << (row.overflow == Fp8Overflow::saturate));
    const ExhaustiveRow found = row.to == DType::f8e4m3 ? count_codes<f8e4m3>(row) : count_codes<f8e5m2>(row);
    CHECK(found.nan == row.nan);
    CHECK(found.zero == row.zero);
    CHECK(found.largest == row.largest);
    CHECK(found.infinite == row.infinite);
    CHECK(found.hash == row.hash);
  }
}

#if defined(THIMBLE_TEST_HAS_CUDA_FP8)
namespace {

/// Inputs on which this library and cuda_fp8.h differ, NaN compared as NaN.
template <class T>
std::size_t count_differences_to_cuda(__nv_fp8_interpretation_t interpretation) {
  std::size_t wrong = 0;
  const auto differs = [](T ours, unsigned theirs) {
    const T other = T::from_bits(static_cast<std::uint8_t>(theirs));
    return ours.is_nan() || other.is_nan() ? ours.is_nan() != other.is_nan() : ours.bits != other.bits;
  };
  std::vector<float> floats = interesting_values<T, float>();
  const std::vector<float> more = random_bit_patterns(200'000);
  floats.insert(floats.end(), more.begin(), more.end());
  for (const float x : floats) {
    wrong += differs(T(x), __nv_cvt_float_to_fp8(x, __NV_NOSAT, interpretation));
    wrong += differs(T::saturate(x), __nv_cvt_float_to_fp8(x, __NV_SATFINITE, interpretation));
  }
  for (const double x : interesting_values<T, double>()) {
    wrong += differs(T(x), __nv_cvt_double_to_fp8(x, __NV_NOSAT, interpretation));
    wrong += differs(T::saturate(x), __nv_cvt_double_to_fp8(x, __NV_SATFINITE, interpretation));
  }
  for (int code = 0; code < 256; ++code) {
    const T value = T::from_bits(static_cast<std::uint8_t>(code));
    const f16 half = f16::from_bits(__nv_cvt_fp8_to_halfraw(value.bits, interpretation).x);
    wrong += value.is_nan() ? !half.is_nan() : static_cast<float>(half) != static_cast<float>(value);
  }
  return wrong;
}

}  // namespace

TEST_CASE("formats: FP8 agrees with cuda_fp8.h", "[formats]") {
  CHECK(count_differences_to_cuda<f8e4m3>(__NV_E4M3) == 0);
  CHECK(count_differences_to_cuda<f8e5m2>(__NV_E5M2) == 0);
}
#undef THIMBLE_TEST_HAS_CUDA_FP8
#endif

// ---- TF32 is off by default, allowed per thread, and stated.

using files_test::TemporaryFolder;
using thimble::testing::has_cuda;

namespace {

double relative_error(const std::vector<double>& got, const std::vector<double>& exact) {
  double sum = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    sum += (got[i] - exact[i]) * (got[i] - exact[i]), size += exact[i] * exact[i];
  }
  return std::sqrt(sum / size);
}

}  // namespace

TEST_CASE("tf32: off, unless a scope of the thread allows it", "[tf32]") {
  CHECK_FALSE(allows_tf32());
  {
    const Tf32Scope on(true);
    CHECK(allows_tf32());
    bool elsewhere = true;
    std::thread([&] { elsewhere = allows_tf32(); }).join();
    CHECK_FALSE(elsewhere);
    {
      const Tf32Scope off(false);
      CHECK_FALSE(allows_tf32());
    }
    CHECK(allows_tf32());
  }
  CHECK_FALSE(allows_tf32());
}

TEST_CASE("tf32: products stay within its rounding, other dtypes and the CPU do not change", "[tf32][cuda]") {
  RandomGenerator generator(4);
  const GeneratorScope random(generator);
  const Tensor a = randn({64, 96}), b = randn({96, 32});
  const auto product = [&](DType dtype, memory::Device device, bool is_allowed) {
    const Tf32Scope scope(is_allowed);
    return to_host<double>(matmul(to_device(to_dtype(a, dtype), device), to_device(to_dtype(b, dtype), device)));
  };
  CHECK(product(DType::f32, cpu, true) == product(DType::f32, cpu, false));
  if (!has_cuda()) return;
  CHECK(product(DType::bf16, cuda(), true) == product(DType::bf16, cuda(), false));
  CHECK(product(DType::f64, cuda(), true) == product(DType::f64, cuda(), false));
  const std::vector<double> exact = product(DType::f64, cpu, false);
  const std::vector<double> full = product(DType::f32, cuda(), false), fast = product(DType::f32, cuda(), true);
  CHECK(fast == product(DType::f32, cuda(), true));
  CHECK(relative_error(full, exact) < 0x1p-21);
  CHECK(relative_error(fast, exact) < 0x1p-10);
}

namespace {

struct AttentionRun {
  std::vector<std::vector<double>> values;  ///< result, gradients of q, k and v; empty on a dry run
  std::size_t peak_bytes;
};

AttentionRun run_attention(DType dtype, memory::Device device, std::int64_t width, bool is_allowed) {
  const Tf32Scope scope(is_allowed);
  const memory::Stack stack = memory::make_resource(device);
  const ResourceScope resource(stack.top);
  const auto noise = [&](unsigned number) {
    const Shape shape{2, 70, 2, width};
    if (device.is_dry) return Tensor::empty(shape, dtype, device);
    return to_device(to_dtype(normal(shape, 0, 1, DType::f32, cpu, {7, 0, 0, number}), dtype), device);
  };
  AttentionRun run;
  const Tensor q = noise(1), k = noise(2), v = noise(3), dy = noise(4);
  const ops::ScaledDotProductAttention op{true, {}, 0.1, {11, 3, 5, 0x5eed5eedu}};
  ops::ScaledDotProductAttention::Saved saved;
  const Tensor y = op.forward(q, k, v, {}, ops::Needs(7), saved);
  ops::Gradients gradients = op.backward(std::move(saved), dy, ops::Needs(7));
  run.peak_bytes = stack.arena->statistics().peak_height_bytes;
  if (device.is_dry) return run;
  run.values = {to_host<double>(y)};
  for (int i = 0; i < 3; ++i) run.values.push_back(to_host<double>(gradients[i]));
  return run;
}

}  // namespace

TEST_CASE("tf32: attention stays within its rounding, where it has kernels in it", "[tf32][attention][cuda]") {
  const auto same = [](DType dtype, memory::Device device, std::int64_t width) {
    return run_attention(dtype, device, width, true).values == run_attention(dtype, device, width, false).values;
  };
  CHECK(same(DType::f32, cpu, 64));
  const std::size_t bytes = run_attention(DType::f32, dry(cuda()), 64, false).peak_bytes;
  CHECK(run_attention(DType::f32, dry(cuda()), 64, true).peak_bytes == bytes);
  if (!has_cuda()) return;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f64}) CHECK(same(dtype, cuda(), 64));
  for (const std::int64_t width : {8, 20, 144}) CHECK(same(DType::f32, cuda(), width));
  const AttentionRun full = run_attention(DType::f32, cuda(), 64, false);
  const AttentionRun fast = run_attention(DType::f32, cuda(), 64, true);
  const AttentionRun exact = run_attention(DType::f64, cpu, 64, false);
  CHECK(full.peak_bytes == bytes);
  CHECK(fast.peak_bytes == bytes);
  for (std::size_t i = 0; i < 4; ++i) {
    INFO("result " << i);
    CHECK(relative_error(full.values[i], exact.values[i]) < 0x1p-20);
    CHECK(relative_error(fast.values[i], exact.values[i]) < 0x1p-10);
    CHECK(relative_error(fast.values[i], exact.values[i]) > 0x1p-14);  // it is TF32
  }
}

TEST_CASE("tf32: training states it, and goes on as it began", "[tf32][cuda]") {
  models::RunOptions options;
  options.setup.model = "mlp";
  options.setup.batch = 2;
  options.data = "synthetic";
  options.steps = 1;
  options.eval_batches = 1;
  options.allows_tf32 = true;
  CHECK_THROWS_AS(models::Engine(options).plan(), ValueError);  // on the cpu
  if (!has_cuda()) return;
  const TemporaryFolder folder;
  options.device = cuda();
  options.save = folder / "a.safetensors";
  models::Engine(options).run();
  CHECK_FALSE(allows_tf32());
  options.resume = options.save;
  options.save.clear();
  options.steps = 2;
  CHECK(models::Engine(options).first_step() == 1);
  options.allows_tf32 = false;
  CHECK_THROWS_AS(models::Engine(options).plan(), ValueError);
}

TEST_CASE("tf32: a text model trains with it in the bytes of a plan without", "[tf32][cuda]") {
  if (!has_cuda()) return;
  models::RunOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 2;
  options.setup.sizes.layers = 1, options.setup.sizes.heads = 2, options.setup.sizes.width = 32;  // heads of 16
  options.setup.sizes.sequence = 24, options.setup.sizes.dropout = 0.1;
  options.data = "synthetic";
  options.steps = 3;
  options.eval_batches = 1;
  options.device = cuda();
  const auto report = [&](bool is_allowed) {
    options.allows_tf32 = is_allowed;
    const models::TrainReport got = models::Engine(options).run();
    CHECK(got.measured_peak_bytes == got.predicted_peak_bytes);
    return got;
  };
  const models::TrainReport full = report(false), fast = report(true);
  CHECK(fast.predicted_peak_bytes == full.predicted_peak_bytes);
  CHECK(fast.loss_last != full.loss_last);
  CHECK(fast.loss_last == Approx(full.loss_last).epsilon(1e-3));
}

TEST_CASE("tf32: plans for a GPU count with its rate where it is switched on", "[tf32]") {
  models::RunOptions options;
  options.setup.model = "gpt2";
  options.setup.batch = 2;
  options.setup.sizes.layers = 2;
  options.costs.hardware = "a100-40gb";
  options.device = cuda();
  const models::PlanReport plain = models::make_plan(options);
  options.allows_tf32 = true;
  const models::PlanReport fast = models::make_plan(options);
  CHECK(fast.plan.step_s < 0.5 * plain.plan.step_s);
  CHECK(fast.plan.peak_bytes == plain.plan.peak_bytes);
  options.setup.precision.dtype = DType::bf16;
  const double narrow = models::make_plan(options).plan.step_s;
  options.allows_tf32 = false;
  CHECK(models::make_plan(options).plan.step_s == narrow);
  CHECK(narrow < fast.plan.step_s);
  options.allows_tf32 = true;
  options.device = cpu;
  options.costs.hardware.clear();
  CHECK_THROWS_AS(models::make_plan(options), ValueError);
  CHECK_FALSE(allows_tf32());
}
