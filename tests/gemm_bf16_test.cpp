// gemm() of bf16 on dot products: a scalar twin bit for bit, the conversion path within rounding, and the promise that
// an element's bits depend on k alone. Units that this machine lacks cannot be tested on it.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/half.h>
#include <thimble/core/kernels/gemm_bf16.h>

#include "catch.h"
#include "gemm_calls.h"

using namespace gemm_test;

namespace {

/// What gemm() does with bf16, restored.
struct Unit {
  explicit Unit(std::optional<DotUnit> unit) { set_gemm_bf16_unit(unit); }
  ~Unit() { set_gemm_bf16_unit(std::nullopt); }
};

std::vector<DotUnit> units() {
  std::vector<DotUnit> list;
  for (const DotUnit unit : {DotUnit::avx512, DotUnit::amx}) {
    if (is_supported(unit, DType::bf16)) list.push_back(unit);
  }
  return list;
}

/// Elements of a stored matrix: rows x columns with the strides in g.
std::int64_t span_of(std::int64_t rows, std::int64_t columns, std::int64_t row_stride, std::int64_t column_stride) {
  return rows == 0 || columns == 0 ? 1 : (rows - 1) * row_stride + (columns - 1) * column_stride + 1;
}

float at(const Data& data, std::int64_t i) {
  bf16 value;
  std::memcpy(&value, data.bytes.data() + static_cast<std::size_t>(i) * 2, 2);
  return static_cast<float>(value);
}

/// The AVX-512 unit's sum: pairs in ascending k, the odd element first, each a fused multiply-add; blocks of 1024 added
/// in order. (Operands and sums here are no subnormals, which the unit takes for zero.)
float twin(const GemmArgs& g, const Data& a, const Data& b, std::int64_t i, std::int64_t j) {
  const auto left = [&](std::int64_t p) { return p < g.k ? at(a, i * g.a_row_stride + p * g.a_column_stride) : 0.0F; };
  const auto right = [&](std::int64_t p) { return p < g.k ? at(b, p * g.b_row_stride + j * g.b_column_stride) : 0.0F; };
  float total = 0;
  for (std::int64_t block = 0; block < g.k; block += 1024) {
    float sum = 0;
    for (std::int64_t p = block; p < std::min(block + 1024, g.k); p += 2) {
      sum = std::fma(left(p + 1), right(p + 1), sum);
      sum = std::fma(left(p), right(p), sum);
    }
    total = block == 0 ? sum : total + sum;
  }
  return total;
}

constexpr Layout layouts[] = {Layout::plain,       Layout::a_turned, Layout::b_turned,
                              Layout::both_turned, Layout::c_turned, Layout::spread};

}  // namespace

TEST_CASE("gemm_bf16: the AVX-512 unit, bit for bit its scalar twin", "[gemm][precision]") {
  if (!is_supported(DotUnit::avx512, DType::bf16)) return;
  const Settings settings;
  const Unit forced(DotUnit::avx512);
  for (const std::int64_t k : {1, 2, 31, 64, 97, 1024, 1057, 2100}) {
    for (const Layout layout : layouts) {
      GemmArgs g = plain(k > 100 ? 5 : 37, k > 100 ? 7 : 51, k, DType::bf16);
      set_layout(g, layout);
      g.c_dtype = DType::f32;
      INFO("k " << k << ", " << name(layout));
      const Data a(DType::bf16, span_of(g.m, g.k, g.a_row_stride, g.a_column_stride), 1);
      const Data b(DType::bf16, span_of(g.k, g.n, g.b_row_stride, g.b_column_stride), 2);
      Data c(DType::f32, span_of(g.m, g.n, g.c_row_stride, g.c_column_stride), 9);
      g.a = a.bytes.data(), g.b = b.bytes.data(), g.c = c.bytes.data();
      compute(g);
      bool is_same = true;
      for (std::int64_t i = 0; i < g.m; ++i) {
        for (std::int64_t j = 0; j < g.n; ++j) {
          float got = 0;
          std::memcpy(&got, c.bytes.data() + static_cast<std::size_t>(i * g.c_row_stride + j * g.c_column_stride) * 4,
                      4);
          is_same = is_same && got == twin(g, a, b, i, j);
        }
      }
      CHECK(is_same);
    }
  }
}

TEST_CASE("gemm_bf16: subnormal operands and results count as zero on a unit", "[gemm][precision]") {
  const Settings settings;
  for (const DotUnit unit : units()) {
    struct Row {
      float a, b, on_unit, converted;
    };
    for (const Row& row : {Row{0x1p-130F, 0x1p100F, 0, 0x1p-30F}, Row{0x1p100F, -0x1p-127F, 0, -0x1p-27F},
                           Row{0x1p-100F, 0x1p-30F, 0, 0x1p-130F}, Row{0x1p-126F, 0x1p100F, 0x1p-26F, 0x1p-26F}}) {
      INFO(static_cast<int>(unit) << ": " << row.a << " " << row.b);
      const bf16 a(row.a), b(row.b);
      float c = 7;
      GemmArgs g = plain(1, 1, 1, DType::bf16);
      g.c_dtype = DType::f32;
      g.a = &a, g.b = &b, g.c = &c;
      {
        const Unit forced(unit);
        compute(g);
        CHECK(c == row.on_unit);
      }
      const Unit converts(DotUnit::generic);
      compute(g);
      CHECK(c == row.converted);
    }
  }
}

TEST_CASE("gemm_bf16: every unit, epilogue and layout against the conversion to f32", "[gemm][precision]") {
  const Settings settings;
  constexpr std::int64_t m = 45, n = 67, k = 75;
  for (const DotUnit unit : units()) {
    for (const DType out : {DType::bf16, DType::f32, DType::f16}) {
      for (const Layout layout : layouts) {
        for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_tanh}) {
          GemmArgs g = plain(m, n, k, DType::bf16);
          set_layout(g, layout);
          g.c_dtype = out;
          g.activation = activation;
          g.alpha = activation == Activation::relu ? 0.5 : 1;
          g.accumulate = activation != Activation::gelu_tanh;
          INFO(static_cast<int>(unit) << " " << to_string(out) << ", " << name(layout));
          const Data a(DType::bf16, span_of(m, k, g.a_row_stride, g.a_column_stride), 1);
          const Data b(DType::bf16, span_of(k, n, g.b_row_stride, g.b_column_stride), 2);
          const std::int64_t out_count = span_of(m, n, g.c_row_stride, g.c_column_stride);
          const Data bias(out, n, 3);
          g.a = a.bytes.data(), g.b = b.bytes.data(), g.bias = bias.bytes.data();
          Data dot(out, out_count, 4), converted(out, out_count, 4);
          Data dot_before(out, out_count, 5), converted_before(out, out_count, 5);
          const auto run = [&](DotUnit how, Data& c, Data& before) {
            const Unit forced(how);
            g.c = c.bytes.data();
            g.pre_activation = activation == Activation::gelu_tanh ? before.bytes.data() : nullptr;
            compute(g, 2);
          };
          run(unit, dot, dot_before);
          run(DotUnit::generic, converted, converted_before);
          double worst = 0;
          const auto compare = [&](const Data& x, const Data& y) {
            const auto left = x.values(), right = y.values();
            for (std::size_t i = 0; i < left.size(); ++i) worst = std::max(worst, std::abs(left[i] - right[i]));
          };
          compare(dot, converted);
          compare(dot_before, converted_before);
          // Sums of 75 products below 1: about 5. One more rounding of the result may differ.
          CHECK(worst <= (out == DType::f32 ? 1e-5 : 16 * epsilon(out)));
          if (out == DType::f32) CHECK(dot.bytes != converted.bytes);  // both ways were taken
        }
      }
    }
  }
}

TEST_CASE("gemm_bf16: bits depend on k alone", "[gemm][precision]") {
  const Settings settings;
  constexpr std::int64_t m = 70, n = 300;  // two tiles of columns
  for (const DotUnit unit : units()) {
    const Unit forced(unit);
    for (const std::int64_t k : {33, 1100}) {
      const Data a(DType::bf16, m * k, 1), b(DType::bf16, k * n, 2);
      Data whole(DType::bf16, m * n, 0);
      GemmArgs g = plain(m, n, k, DType::bf16);
      g.a = a.bytes.data(), g.b = b.bytes.data(), g.c = whole.bytes.data();
      compute(g, 1);
      for (const int threads : {2, 5}) {
        Data other(DType::bf16, m * n, 9);
        g.c = other.bytes.data();
        compute(g, threads);
        CHECK(other.bytes == whole.bytes);
      }
      Data rows(DType::bf16, m * n, 9), turned(DType::bf16, m * n, 9), columns(DType::bf16, m * n, 9);
      for (std::int64_t row = 0; row < m; row += 13) {
        GemmArgs part = g;
        part.m = std::min<std::int64_t>(13, m - row);
        part.a = a.bytes.data() + static_cast<std::size_t>(row * k) * 2;
        part.c = rows.bytes.data() + static_cast<std::size_t>(row * n) * 2;
        compute(part, 2);
      }
      CHECK(rows.bytes == whole.bytes);
      for (std::int64_t column = 0; column < n; column += 7) {
        GemmArgs part = g;
        part.n = std::min<std::int64_t>(7, n - column);
        part.b = b.bytes.data() + static_cast<std::size_t>(column) * 2;
        part.c = columns.bytes.data() + static_cast<std::size_t>(column) * 2;
        compute(part, 1);
      }
      CHECK(columns.bytes == whole.bytes);
      Data a_turned(DType::bf16, m * k, 0);
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t p = 0; p < k; ++p) {
          std::memcpy(a_turned.bytes.data() + (p * m + i) * 2, a.bytes.data() + (i * k + p) * 2, 2);
        }
      }
      GemmArgs other = g;
      other.a = a_turned.bytes.data();
      other.a_row_stride = 1, other.a_column_stride = m;
      other.c = turned.bytes.data();
      compute(other, 2);
      CHECK(turned.bytes == whole.bytes);
    }
  }
}

TEST_CASE("gemm_bf16: batches, more rows than a tile, and empty sums", "[gemm][precision]") {
  const Settings settings;
  for (const DotUnit unit : units()) {
    const auto check = [&](GemmArgs g, std::int64_t a_count, std::int64_t b_count, std::int64_t c_count) {
      const Data a(DType::bf16, a_count, 1), b(DType::bf16, b_count, 2);
      g.a = a.bytes.data(), g.b = b.bytes.data();
      g.c_dtype = DType::f32;
      std::vector<std::vector<double>> results;
      for (const DotUnit how : {unit, DotUnit::generic}) {
        const Unit forced(how);
        Data c(DType::f32, c_count, 7);
        g.c = c.bytes.data();
        compute(g, 2);
        results.push_back(c.values());
      }
      double worst = 0;
      for (std::size_t i = 0; i < results[0].size(); ++i)
        worst = std::max(worst, std::abs(results[0][i] - results[1][i]));
      CHECK(worst < 1e-5);
    };
    GemmArgs batch = plain(5, 6, 7, DType::bf16);
    batch.batch_rank = 2;
    batch.batch[0] = {3, 35, 0, 2 * 30, 0};  // b is shared
    batch.batch[1] = {2, 0, 42, 30, 0};      // a is
    check(batch, 3 * 35, 2 * 42, 6 * 30);
    check(plain(1100, 33, 8, DType::bf16), 1100 * 8, 8 * 33, 1100 * 33);
    check(plain(4, 5, 0, DType::bf16), 1, 1, 20);
  }
}

TEST_CASE("gemm_bf16: the unit is what the processor says, unless it is set", "[gemm][precision]") {
  const Settings settings;
  CHECK_FALSE(is_worthwhile_for_bf16(DotUnit::generic));
  CHECK_FALSE(is_worthwhile_for_bf16(DotUnit::avx2));
  CHECK(is_worthwhile_for_bf16(DotUnit::amx));
  const auto by_itself = gemm_bf16_unit();
  if (by_itself) CHECK((is_worthwhile_for_bf16(*by_itself) && is_supported(*by_itself, DType::bf16)));
  for (const DotUnit unit : {DotUnit::avx512, DotUnit::amx}) {
    if (is_supported(unit, DType::bf16)) {
      const Unit forced(unit);
      CHECK(gemm_bf16_unit() == unit);
      GemmArgs g = plain(40, 40, 40, DType::bf16);
      const std::size_t bytes = gemm_workspace_bytes(g, 1);
      set_gemm_bf16_unit(DotUnit::generic);
      CHECK(gemm_bf16_unit() == std::nullopt);
      CHECK(gemm_workspace_bytes(g, 1) != bytes);
    } else {
      CHECK_THROWS_AS(set_gemm_bf16_unit(unit), ValueError);
    }
  }
  set_gemm_bf16_unit(std::nullopt);
  set_isa(Isa::generic);
  CHECK(gemm_bf16_unit() == std::nullopt);
}
