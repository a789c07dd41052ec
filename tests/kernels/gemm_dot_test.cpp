// Matmul on dot-product instructions: every unit against the reference, and the promise about bits.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/matmul/gemm_dot.h>
#include <thimble/core/numbers/half.h>

#include "support/catch.h"
#include "support/kernel_data.h"

namespace gemm_dot_test {

using namespace thimble;
using namespace thimble::kernels;

/// A product with operands of its own, between guards that must stay as they are.
struct DotProduct {
  DotGemmArgs args;
  std::vector<std::byte> a, b, c;

  DotProduct(std::int64_t m, std::int64_t n, std::int64_t k, DType a_dtype, bool is_turned, bool is_spread) {
    args.m = m;
    args.n = n;
    args.k = k;
    args.a_dtype = a_dtype;
    args.b_dtype = a_dtype == DType::bf16 ? DType::bf16 : DType::i8;
    const std::int64_t gap = is_spread ? 3 : 0;
    args.a_row_stride = k + gap;
    args.c_row_stride = std::max<std::int64_t>(1, n + gap);
    args.b_row_stride = is_turned ? 1 : (is_spread ? 2 : 1) * n + gap;
    args.b_column_stride = is_turned ? k + gap : is_spread ? 2 : 1;
    a = filled(m * args.a_row_stride, a_dtype, 1);
    b = filled(k * args.b_row_stride + n * args.b_column_stride, args.b_dtype, 2);
    c.resize(static_cast<std::size_t>(m * args.c_row_stride + 1) * 4);
    for (std::size_t i = 0; i < c.size() / 4; ++i) write(i, static_cast<double>(i % 7));
    args.a = a.data();
    args.b = b.data();
    args.c = c.data();
  }

  static std::vector<std::byte> filled(std::int64_t count, DType dtype, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> bytes(static_cast<std::size_t>(count + 1) * size_of(dtype));
    for (std::size_t i = 0; i < bytes.size() / size_of(dtype); ++i) {
      if (dtype == DType::bf16) {
        const bf16 value(static_cast<float>(random() % 2001) / 1000.0F - 1.0F);
        std::memcpy(bytes.data() + i * 2, &value, 2);
      } else {
        // Every third at an end of the range, where instructions that saturate would show.
        const auto byte = random() % 3 != 0 ? random() : random() % 2 != 0 ? 0x80U : dtype == DType::u8 ? 0xFFU : 0x7FU;
        bytes[i] = static_cast<std::byte>(byte);
      }
    }
    return bytes;
  }

  bool is_float() const { return args.a_dtype == DType::bf16; }
  void write(std::size_t i, double value) {
    const auto real = static_cast<float>(value);
    const auto integer = static_cast<std::int32_t>(value);
    std::memcpy(c.data() + i * 4, is_float() ? static_cast<const void*>(&real) : &integer, 4);
  }
  double read(std::size_t i) const {
    float real = 0;
    std::int32_t integer = 0;
    std::memcpy(&real, c.data() + i * 4, 4);
    std::memcpy(&integer, c.data() + i * 4, 4);
    return is_float() ? static_cast<double>(real) : integer;
  }

  std::vector<std::byte> computed(DotUnit unit, int threads, bool is_packed) const {
    DotProduct copy = *this;
    copy.args.a = copy.a.data();
    copy.args.b = copy.b.data();
    copy.args.c = copy.c.data();
    kernel_test::Workspace packed(is_packed ? dot_packed_bytes(args.k, args.n, args.b_dtype) : 0);
    if (is_packed) {
      pack_dot_right(copy.args, packed.get(), unit, threads);
      copy.args.packed_b = packed.get();
      copy.args.b = nullptr;
    }
    kernel_test::Workspace workspace(dot_gemm_workspace_bytes(copy.args));
    dot_gemm(copy.args, workspace.get(), threads, unit);
    CHECK(workspace.is_intact());
    CHECK(packed.is_intact());
    return copy.c;
  }

  /// Elements of `result` that differ from the reference by more than rounding, and bytes beside the elements that
  /// differ at all.
  int wrong(const std::vector<std::byte>& result) const {
    DotProduct expected = *this, got = *this;
    expected.args.a = expected.a.data();
    expected.args.b = expected.b.data();
    expected.args.c = expected.c.data();
    dot_gemm_reference(expected.args);
    got.c = result;
    // Products are below 1: a sum's rounding errors, each up to half a unit of a partial sum that grows as sqrt(k) / 3.
    const double allowed = is_float() ? 6e-8 * (16 + 2 * static_cast<double>(args.k)) : 0;
    int count = 0;
    for (std::size_t i = 0; i < c.size() / 4; ++i) {
      const auto column = static_cast<std::int64_t>(i) % args.c_row_stride;
      const bool is_element = column < args.n && static_cast<std::int64_t>(i) / args.c_row_stride < args.m;
      const double difference = std::abs(got.read(i) - expected.read(i));
      count += !(difference <= (is_element ? allowed : 0));
    }
    return count;
  }
};

struct Size {
  std::int64_t m, n, k;
};
inline constexpr Size sizes[] = {{0, 5, 3},    {5, 0, 3},      {5, 3, 0},    {1, 1, 1},
                                 {1, 40, 200}, {16, 32, 64},   {17, 33, 65}, {31, 100, 31},
                                 {32, 32, 32}, {70, 129, 257}, {2, 7, 700},  {49, 64, 512}};
inline constexpr DType dtypes[] = {DType::u8, DType::i8, DType::bf16};

}  // namespace gemm_dot_test

using namespace gemm_dot_test;

TEST_CASE("gemm_dot: every unit against the reference", "[gemm]") {
  for (const DType dtype : dtypes) {
    for (const DotUnit unit : kernel_test::supported_units(dtype)) {
      for (const Size size : sizes) {
        for (int options = 0; options < 8; ++options) {
          INFO("unit " << to_string(unit) << " " << to_string(dtype) << " " << size.m << " x " << size.n << " x "
                       << size.k << " options " << options);
          DotProduct product(size.m, size.n, size.k, dtype, (options & 1) != 0, (options & 2) != 0);
          product.args.accumulate = (options & 4) != 0;
          const auto result = product.computed(unit, 1, false);
          CHECK(product.wrong(result) == 0);
          CHECK((product.computed(unit, 2, false) == result));
          CHECK((product.computed(unit, 1, true) == result));
        }
      }
    }
  }
}

TEST_CASE("gemm_dot: the ends of the range", "[gemm]") {
  // 128 times the sum of a row of a reaches 2^31 at k = 131072, the sum of products of -128 by 127 stays within it.
  for (const DotUnit unit : kernel_test::supported_units(DType::i8)) {
    for (const std::int64_t k : {std::int64_t{1}, std::int64_t{833}, std::int64_t{131071}, std::int64_t{131073}}) {
      for (const bool is_low : {true, false}) {
        if (is_low && k > 131071) continue;  // (-128)^2 k would not be an i32
        const std::int64_t m = 13, n = 33;
        INFO("unit " << to_string(unit) << " k " << k << " low " << is_low);
        const int right = is_low ? -128 : 127;
        DotProduct product(m, n, k, DType::i8, true, false);
        std::fill(product.a.begin(), product.a.end(), std::byte{0x80});
        std::fill(product.b.begin(), product.b.end(), static_cast<std::byte>(right));
        const auto expected = static_cast<std::int32_t>(-128 * right * k);
        for (const bool is_packed : {false, true}) {
          const auto result = product.computed(unit, 1, is_packed);
          int wrong = 0;
          for (std::int64_t i = 0; i < m * n; ++i) {
            std::int32_t sum = 0;
            std::memcpy(&sum, result.data() + i * 4, 4);
            wrong += sum != expected;
          }
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("gemm_dot: random shapes, bits of rows alone and of threads", "[gemm]") {
  std::mt19937 random(7);
  for (int i = 0; i < 20; ++i) {
    const std::int64_t m = 1 + random() % 90, n = 1 + random() % 300, k = 1 + random() % 900;
    for (const DType dtype : dtypes) {
      const DotProduct product(m, n, k, dtype, random() % 2 != 0, random() % 2 != 0);
      for (const DotUnit unit : kernel_test::supported_units(dtype)) {
        INFO("unit " << to_string(unit) << " " << to_string(dtype) << " " << m << " x " << n << " x " << k);
        const auto result = product.computed(unit, 1, false);
        CHECK(product.wrong(result) == 0);
        CHECK((product.computed(unit, 3, true) == result));
        DotProduct rows = product;
        rows.c = result;  // overwritten row by row with the same bits
        for (std::int64_t row = 0; row < m; ++row) {
          DotGemmArgs one = product.args;
          one.m = 1;
          one.a = product.a.data() + static_cast<std::size_t>(row * one.a_row_stride) * size_of(dtype);
          one.b = product.b.data();
          one.c = rows.c.data() + static_cast<std::size_t>(row * one.c_row_stride) * 4;
          kernel_test::Workspace workspace(dot_gemm_workspace_bytes(one));
          dot_gemm(one, workspace.get(), 1, unit);
        }
        CHECK((rows.c == result));
      }
    }
  }
}

TEST_CASE("gemm_dot: the best unit follows the instruction set", "[gemm]") {
  kernel_test::Settings settings;
  for (const Isa set : kernel_test::supported()) {
    set_isa(set);
    const std::optional<DotUnit> unit = best_dot_unit(DType::i8);
    REQUIRE(unit);
    CHECK(is_supported(*unit, DType::i8));
    if (set == Isa::generic) CHECK(*unit == DotUnit::generic);
    if (set == Isa::avx2) CHECK(*unit == DotUnit::avx2);
    if (set != Isa::avx512) CHECK_FALSE(best_dot_unit(DType::bf16));
    CHECK(best_dot_unit(DType::bf16) != DotUnit::generic);  // the model is for those who ask for it
  }
  CHECK_FALSE(is_supported(DotUnit::avx2, DType::bf16));
}
