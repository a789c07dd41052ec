// gemm() of bf16 on dot products: the bits of a scalar twin, the conversion path within rounding, and an element's bits
// depend only on k. Every machine runs the model of vdpbf16ps, and each of its units.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/numbers/minifloat.h>

#include "gemm_calls.h"
#include "support/catch.h"
#include "support/near.h"

using namespace gemm_test;

namespace {

/// Length of a stored matrix: rows x columns with the strides in g.
std::int64_t span_of(std::int64_t rows, std::int64_t columns, std::int64_t row_stride, std::int64_t column_stride) {
  return rows == 0 || columns == 0 ? 1 : (rows - 1) * row_stride + (columns - 1) * column_stride + 1;
}

float at(const Data& data, std::int64_t i) {
  bf16 value;
  std::memcpy(&value, data.bytes.data() + static_cast<std::size_t>(i) * 2, 2);
  return static_cast<float>(value);
}

/// The unit's sum, in blocks of 1024 that are added in order. AVX-512: pairs in ascending k, the odd element first,
/// each a fused multiply-add. AMX: for every 32 elements, adds the sum of the even ones plus the sum of the odd ones.
/// (Operands and sums here are not subnormal; units flush subnormals to zero.)
float twin(DotUnit unit, const GemmArgs& g, const Data& a, const Data& b, std::int64_t i, std::int64_t j) {
  const auto left = [&](std::int64_t p) { return p < g.k ? at(a, i * g.a_row_stride + p * g.a_column_stride) : 0.0F; };
  const auto right = [&](std::int64_t p) { return p < g.k ? at(b, p * g.b_row_stride + j * g.b_column_stride) : 0.0F; };
  float total = 0;
  for (std::int64_t block = 0; block < g.k; block += 1024) {
    float sum = 0;
    const std::int64_t end = std::min(block + 1024, g.k);
    for (std::int64_t p = block; unit != DotUnit::amx && p < end; p += 2) {
      sum = std::fma(left(p + 1), right(p + 1), sum);
      sum = std::fma(left(p), right(p), sum);
    }
    for (std::int64_t step = block; unit == DotUnit::amx && step < end; step += 32) {
      float even = 0, odd = 0;
      for (std::int64_t p = step; p < std::min(step + 32, end); p += 2) {
        even = std::fma(left(p), right(p), even);
        odd = std::fma(left(p + 1), right(p + 1), odd);
      }
      sum += even + odd;
    }
    total = block == 0 ? sum : total + sum;
  }
  return total;
}

constexpr Layout layouts[] = {Layout::plain,       Layout::a_turned, Layout::b_turned,
                              Layout::both_turned, Layout::c_turned, Layout::spread};

}  // namespace

TEST_CASE("gemm_bf16: every unit, bit for bit its scalar twin", "[gemm][precision]") {
  const Settings settings;
  struct Size {
    std::int64_t m, n, k;
  };
  constexpr Size sizes[] = {{37, 51, 1},  {37, 51, 2},   {37, 51, 31}, {37, 51, 64},  {37, 51, 97}, {5, 7, 1024},
                            {5, 7, 1057}, {5, 7, 2100},  {1, 1, 1},    {1, 40, 200},  {2, 7, 700},  {16, 32, 64},
                            {17, 33, 65}, {31, 100, 31}, {32, 32, 32}, {49, 64, 300}, {70, 129, 65}};
  for (const DotUnit unit : supported_units(DType::bf16)) {
    const Bf16On forced(unit);
    for (const Size& size : sizes) {
      for (const Layout layout : layouts) {
        GemmArgs g = plain(size.m, size.n, size.k, DType::bf16);
        set_layout(g, layout);
        g.c_dtype = DType::f32;
        INFO(to_string(unit) << ", " << g.m << " x " << g.n << " x " << g.k << ", " << name(layout));
        const Data a(DType::bf16, span_of(g.m, g.k, g.a_row_stride, g.a_column_stride), 1);
        const Data b(DType::bf16, span_of(g.k, g.n, g.b_row_stride, g.b_column_stride), 2);
        Data c(DType::f32, span_of(g.m, g.n, g.c_row_stride, g.c_column_stride), 9);
        g.a = a.bytes.data(), g.b = b.bytes.data(), g.c = c.bytes.data();
        compute(g);
        bool is_same = true;
        for (std::int64_t i = 0; i < g.m; ++i) {
          for (std::int64_t j = 0; j < g.n; ++j) {
            float got = 0;
            const auto offset = static_cast<std::size_t>(i * g.c_row_stride + j * g.c_column_stride) * 4;
            std::memcpy(&got, c.bytes.data() + offset, 4);
            is_same = is_same && got == twin(unit, g, a, b, i, j);
          }
        }
        CHECK(is_same);
      }
    }
  }
}

TEST_CASE("gemm_bf16: subnormal operands and results count as zero on a unit", "[gemm][precision]") {
  const Settings settings;
  for (const DotUnit unit : supported_units(DType::bf16)) {
    struct Row {
      float a, b, on_unit, converted;
    };
    for (const Row& row : {Row{0x1p-130F, 0x1p100F, 0, 0x1p-30F}, Row{0x1p100F, -0x1p-127F, 0, -0x1p-27F},
                           Row{0x1p-100F, 0x1p-30F, 0, 0x1p-130F}, Row{0x1p-126F, 0x1p100F, 0x1p-26F, 0x1p-26F}}) {
      INFO(to_string(unit) << ": " << row.a << " " << row.b);
      const bf16 a(row.a), b(row.b);
      float c = 7;
      GemmArgs g = plain(1, 1, 1, DType::bf16);
      g.c_dtype = DType::f32;
      g.a = &a, g.b = &b, g.c = &c;
      {
        const Bf16On forced(unit);
        compute(g);
        CHECK(c == row.on_unit);
      }
      const Bf16On converts(std::nullopt);
      compute(g);
      CHECK(c == row.converted);
    }
  }
}

TEST_CASE("gemm_bf16: every unit, epilogue and layout against the conversion to f32", "[gemm][precision]") {
  const Settings settings;
  constexpr std::int64_t m = 45, n = 67, k = 75;
  for (const DotUnit unit : supported_units(DType::bf16)) {
    for (const DType out : {DType::bf16, DType::f32, DType::f16}) {
      for (const Layout layout : layouts) {
        for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_tanh}) {
          GemmArgs g = plain(m, n, k, DType::bf16);
          set_layout(g, layout);
          g.c_dtype = out;
          g.activation = activation;
          g.alpha = activation == Activation::relu ? 0.5 : 1;
          g.accumulate = activation != Activation::gelu_tanh;
          INFO(to_string(unit) << " " << to_string(out) << ", " << name(layout));
          const Data a(DType::bf16, span_of(m, k, g.a_row_stride, g.a_column_stride), 1);
          const Data b(DType::bf16, span_of(k, n, g.b_row_stride, g.b_column_stride), 2);
          const std::int64_t out_count = span_of(m, n, g.c_row_stride, g.c_column_stride);
          const Data bias(out, n, 3);
          g.a = a.bytes.data(), g.b = b.bytes.data(), g.bias = bias.bytes.data();
          Data dot(out, out_count, 4), converted(out, out_count, 4);
          Data dot_before(out, out_count, 5), converted_before(out, out_count, 5);
          const auto run = [&](std::optional<DotUnit> how, Data& c, Data& before) {
            const Bf16On forced(how);
            g.c = c.bytes.data();
            g.pre_activation = activation == Activation::gelu_tanh ? before.bytes.data() : nullptr;
            compute(g, 2);
          };
          run(unit, dot, dot_before);
          run(std::nullopt, converted, converted_before);
          double worst = 0;
          const auto compare = [&](const Data& x, const Data& y) {
            const auto left = x.values(), right = y.values();
            for (std::size_t i = 0; i < left.size(); ++i)
              worst = thimble_test::worse(worst, std::abs(left[i] - right[i]));
          };
          compare(dot, converted);
          compare(dot_before, converted_before);
          // Sums of 75 products below 1: about 5. One more rounding of the result may differ.
          CHECK(worst <= (out == DType::f32 ? 1e-5 : 16 * epsilon(out)));
          if (out == DType::f32) CHECK(dot.bytes != converted.bytes);  // both paths were taken
        }
      }
    }
  }
}

TEST_CASE("gemm_bf16: bits depend on k alone", "[gemm][precision]") {
  const Settings settings;
  constexpr std::int64_t m = 70, n = 300;  // two tiles of columns
  for (const DotUnit unit : supported_units(DType::bf16)) {
    const Bf16On forced(unit);
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
  for (const DotUnit unit : supported_units(DType::bf16)) {
    const auto check = [&](GemmArgs g, std::int64_t a_count, std::int64_t b_count, std::int64_t c_count) {
      const Data a(DType::bf16, a_count, 1), b(DType::bf16, b_count, 2);
      g.a = a.bytes.data(), g.b = b.bytes.data();
      g.c_dtype = DType::f32;
      std::vector<std::vector<double>> results;
      for (const std::optional<DotUnit> how : {std::optional(unit), std::optional<DotUnit>()}) {
        const Bf16On forced(how);
        Data c(DType::f32, c_count, 7);
        g.c = c.bytes.data();
        compute(g, 2);
        results.push_back(c.values());
      }
      double worst = 0;
      for (std::size_t i = 0; i < results[0].size(); ++i)
        worst = thimble_test::worse(worst, std::abs(results[0][i] - results[1][i]));
      CHECK(worst < 1e-5);
    };
    GemmArgs batch = plain(5, 6, 7, DType::bf16);
    batch.batch_rank = 2;
    batch.batch[0] = {3, 35, 0, 2 * 30, 0};  // b is shared
    batch.batch[1] = {2, 0, 42, 30, 0};      // a is shared
    check(batch, 3 * 35, 2 * 42, 6 * 30);
    check(plain(1100, 33, 8, DType::bf16), 1100 * 8, 8 * 33, 1100 * 33);
    check(plain(4, 5, 0, DType::bf16), 1, 1, 20);
  }
}

TEST_CASE("gemm_bf16: workspaces are those of the way that is taken", "[gemm][precision]") {
  const Settings settings;
  const GemmArgs g = plain(40, 40, 40, DType::bf16);
  std::size_t converted = 0;
  {
    const Bf16On none(std::nullopt);
    converted = gemm_workspace_bytes(g, 1);
  }
  for (const DotUnit unit : supported_units(DType::bf16)) {
    const Bf16On forced(unit);
    CHECK(gemm_workspace_bytes(g, 1) != converted);
  }
}
