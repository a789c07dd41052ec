// Matmul promises that the bits of an element depend only on k.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "gemm_calls.h"
#include "support/catch.h"

using namespace gemm_test;

TEST_CASE("gemm: the bits of an element depend on k alone", "[gemm]") {
  Settings settings;  // with any unit for bf16
  constexpr std::int64_t m = 70, n = 131;
  for (const Isa set : supported()) {
    set_isa(set);
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      for (const std::int64_t k : {60, 256, 700}) {
        INFO(to_string(set) << " " << to_string(dtype) << " k " << k);
        const Data a(dtype, m * k, 1), b(dtype, k * n, 2), bias(dtype, n, 3);
        Data whole(dtype, m * n, 0);
        GemmArgs g = plain(m, n, k, dtype);
        g.a = a.bytes.data();
        g.b = b.bytes.data();
        g.c = whole.bytes.data();
        g.bias = bias.bytes.data();
        g.activation = Activation::gelu_tanh;
        compute(g, 1);
        const std::size_t element = size_of(dtype);

        for (const int threads : {2, 5}) {
          Data other(dtype, m * n, 9);
          g.c = other.bytes.data();
          compute(g, threads);
          CHECK(other.bytes == whole.bytes);
        }
        // Single rows, pairs and thirteens, each as a separate matmul.
        for (const std::int64_t rows : {1, 2, 13}) {
          Data other(dtype, m * n, 9);
          for (std::int64_t row = 0; row < m; row += rows) {
            GemmArgs part = g;
            part.m = std::min(rows, m - row);
            part.a = a.bytes.data() + static_cast<std::size_t>(row * k) * element;
            part.c = other.bytes.data() + static_cast<std::size_t>(row * n) * element;
            compute(part, rows == 13 ? 2 : 1);
          }
          CHECK(other.bytes == whole.bytes);
        }
        // Single columns and groups.
        for (const std::int64_t columns : {1, 17}) {
          Data other(dtype, m * n, 9);
          for (std::int64_t column = 0; column < n; column += columns) {
            GemmArgs part = g;
            part.n = std::min(columns, n - column);
            part.b = b.bytes.data() + static_cast<std::size_t>(column) * element;
            part.c = other.bytes.data() + static_cast<std::size_t>(column) * element;
            part.bias = bias.bytes.data() + static_cast<std::size_t>(column) * element;
            compute(part, 1);
          }
          CHECK(other.bytes == whole.bytes);
        }
        // The same matrices transposed, and at odd addresses.
        Data a_turned(dtype, m * k + 1, 0), b_turned(dtype, k * n + 1, 0), c_turned(dtype, m * n, 9);
        const auto turn = [&](const Data& from, Data& to, std::int64_t rows, std::int64_t columns) {
          for (std::int64_t i = 0; i < rows; ++i) {
            for (std::int64_t j = 0; j < columns; ++j) {
              std::memcpy(to.bytes.data() + static_cast<std::size_t>(1 + j * rows + i) * element,
                          from.bytes.data() + static_cast<std::size_t>(i * columns + j) * element, element);
            }
          }
        };
        turn(a, a_turned, m, k);
        turn(b, b_turned, k, n);
        for (const int threads : {1, 2}) {
          GemmArgs turned = g;
          set_layout(turned, Layout::both_turned);
          turned.a = a_turned.bytes.data() + element;
          turned.b = b_turned.bytes.data() + element;
          turned.c = c_turned.bytes.data();
          compute(turned, threads);
          CHECK(c_turned.bytes == whole.bytes);
          // C transposed, too: compared element by element.
          turned.c_row_stride = 1;
          turned.c_column_stride = m;
          compute(turned, threads);
          bool is_same = true;
          for (std::int64_t i = 0; i < m; ++i) {
            for (std::int64_t j = 0; j < n; ++j) {
              is_same = is_same &&
                        std::memcmp(c_turned.bytes.data() + static_cast<std::size_t>(j * m + i) * element,
                                    whole.bytes.data() + static_cast<std::size_t>(i * n + j) * element, element) == 0;
            }
          }
          CHECK(is_same);
        }
      }
    }
  }
}

namespace {

/// The sum that gemm.h promises: chains of 256 fused multiply-adds, added in ascending order.
template <class T>
T chain(const std::vector<double>& a, const std::vector<double>& b, std::int64_t row, std::int64_t column,
        std::int64_t n, std::int64_t k) {
  T total = 0;
  for (std::int64_t block = 0; block < k; block += 256) {
    T sum = 0;
    for (std::int64_t p = block; p < std::min(block + 256, k); ++p) {
      sum = std::fma(static_cast<T>(a[static_cast<std::size_t>(row * k + p)]),
                     static_cast<T>(b[static_cast<std::size_t>(p * n + column)]), sum);
    }
    total = block == 0 ? sum : total + sum;
  }
  return total;
}

}  // namespace

TEST_CASE("gemm: AVX2 and AVX-512 have the bits of a scalar twin", "[gemm]") {
  Settings settings;
  const Bf16On converted(std::nullopt);  // no unit that sums in another order
  constexpr std::int64_t m = 33, n = 70, k = 600;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f8e4m3}) {
    const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
    const Data a(dtype, m * k, 1), b(dtype, k * n, 2);
    const std::vector<double> left = a.values(), right = b.values();
    std::vector<double> expected;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        expected.push_back(wide == DType::f64 ? chain<double>(left, right, i, j, n, k)
                                              : static_cast<double>(chain<float>(left, right, i, j, n, k)));
      }
    }
    GemmArgs g = plain(m, n, k, dtype);
    g.a = a.bytes.data();
    g.b = b.bytes.data();
    std::vector<std::byte> activated;  // from the first set
    for (const Isa set : fused()) {
      INFO(to_string(set) << " " << to_string(dtype));
      set_isa(set);
      Data sums(wide, m * n, 0), out(dtype, m * n, 9);
      g.c_dtype = wide, g.activation = Activation::none, g.c = sums.bytes.data();
      compute(g);
      CHECK(sums.values() == expected);
      g.c_dtype = dtype, g.activation = Activation::gelu_erf, g.c = out.bytes.data();
      compute(g);
      if (activated.empty()) activated = out.bytes;
      CHECK(out.bytes == activated);
    }
  }
}

TEST_CASE("gemm: in a narrow dtype it is that of the same numbers in f32, rounded once", "[gemm]") {
  Settings settings;
  const Bf16On converted(std::nullopt);  // no unit that sums in another order
  for (const Isa set : supported()) {
    set_isa(set);
    for (const DType dtype : {DType::f16, DType::bf16, DType::f8e5m2}) {
      for (const Layout layout :
           {Layout::plain, Layout::a_turned, Layout::b_turned, Layout::both_turned, Layout::c_turned, Layout::spread}) {
        for (const bool accumulate : {false, true}) {
          constexpr std::int64_t m = 61, n = 131, k = 300, room = 2 * std::max({m * k, k * n, m * n}) + 512;
          INFO(to_string(set) << " " << to_string(dtype) << " " << name(layout) << " accumulate " << accumulate);
          Data a(dtype, room, 1);
          const Data b(dtype, room, 2), bias(dtype, n, 3);
          // Rows of NaN and of too large values (columns if transposed), next to other rows in a microtile.
          const double most = 1e30, nan = std::numeric_limits<double>::quiet_NaN();
          store_f64(&nan, a.bytes.data() + 5 * k * size_of(dtype), dtype, 1, 1);
          store_f64(&most, a.bytes.data() + 17 * k * size_of(dtype), dtype, 1, 1);
          const Data wide_a = a.converted(DType::f32), wide_b = b.converted(DType::f32);
          const Data wide_bias = bias.converted(DType::f32);
          Data c(dtype, room, 4), before(dtype, room, 5);
          Data wide_c = c.converted(DType::f32), wide_before = before.converted(DType::f32);
          GemmArgs g = plain(m, n, k, dtype);
          set_layout(g, layout);
          g.a = a.bytes.data(), g.b = b.bytes.data(), g.bias = bias.bytes.data();
          g.c = c.bytes.data(), g.pre_activation = before.bytes.data();
          g.activation = Activation::gelu_tanh;
          g.accumulate = accumulate;
          GemmArgs wide = g;
          wide.dtype = wide.c_dtype = DType::f32;
          wide.a = wide_a.bytes.data(), wide.b = wide_b.bytes.data(), wide.bias = wide_bias.bytes.data();
          wide.c = wide_c.bytes.data(), wide.pre_activation = wide_before.bytes.data();
          compute(g);
          compute(wide);
          CHECK(c.bytes == wide_c.converted(dtype).bytes);
          CHECK(before.bytes == wide_before.converted(dtype).bytes);
        }
      }
    }
  }
}
