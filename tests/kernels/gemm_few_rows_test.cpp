// Few rows by a large right operand (core/kernels/cpu/matmul/gemm_driver.h), and bf16 products that are turned
// (gemm_bf16.cpp): their bits are those of the same rows among others, which other ways compute.

#include <thimble/core/kernels/cpu/matmul/gemm_driver.h>

#include <cmath>
#include <cstring>

#include "gemm_calls.h"
#include "references.h"
#include "support/catch.h"

using namespace gemm_test;
using thimble::kernels::gemm_detail::has_few_rows;

namespace gemm_few_rows_test {

constexpr std::int64_t all_rows = 20;  // of the product that the few are a part of

struct Case {
  std::int64_t m, n, k;
};
// Ends within a vector, a tile of 1024 columns and a block of 256 of k; a last step of k of every length. The last two
// have few rows only where columns of b are contiguous.
constexpr Case cases[] = {{1, 1100, 300}, {1, 64, 1030}, {2, 257, 513}, {3, 2050, 70}, {4, 131, 769},
                          {2, 1029, 258}, {1, 515, 255}, {3, 75, 29},   {1, 64, 33}};

struct Epilogue {
  const char* name;
  bool has_bias, has_pre, accumulates;
  Activation activation;
  double alpha;
  DType c_dtype;
};

void check(DType dtype, const Epilogue& e) {
  for (const Case& s : cases) {
    for (const Layout layout : {Layout::plain, Layout::b_turned, Layout::both_turned, Layout::c_turned}) {
      INFO(to_string(dtype) << ", " << s.m << " x " << s.n << " x " << s.k << ", " << name(layout) << ", " << e.name);
      const DType c_dtype = e.c_dtype == DType::f64 ? dtype : e.c_dtype;
      GemmArgs whole = plain(all_rows, s.n, s.k, dtype);
      set_layout(whole, layout);
      const Data a(dtype, all_rows * s.k, 1), b(dtype, s.k * s.n, 2), bias(c_dtype, s.n, 3);
      Data c(c_dtype, all_rows * s.n, 4), pre(c_dtype, all_rows * s.n, 5);
      whole.c_dtype = c_dtype;
      whole.a = a.bytes.data(), whole.b = b.bytes.data();
      whole.bias = e.has_bias ? bias.bytes.data() : nullptr;
      whole.accumulate = e.accumulates, whole.activation = e.activation, whole.alpha = e.alpha;
      GemmArgs few = whole;  // strides are those of the whole
      few.m = s.m;
      REQUIRE_FALSE(has_few_rows(whole));
      const bool is_turned = layout == Layout::b_turned || layout == Layout::both_turned;
      REQUIRE(has_few_rows(few) == (is_turned || s.n * s.k >= 1 << 16));
      for (const int threads : {1, 3}) {
        Data c_few = c, pre_few = pre, c_whole = c, pre_whole = pre;
        whole.c = c_whole.bytes.data(), few.c = c_few.bytes.data();
        whole.pre_activation = e.has_pre ? pre_whole.bytes.data() : nullptr;
        few.pre_activation = e.has_pre ? pre_few.bytes.data() : nullptr;
        compute(whole, 1);
        compute(few, threads);
        // Rows of C that are not asked for stay as they were.
        const std::size_t size = size_of(c_dtype);
        bool is_same = true;
        for (std::int64_t r = 0; r < all_rows; ++r) {
          for (std::int64_t j = 0; j < s.n; ++j) {
            const auto at = static_cast<std::size_t>(r * whole.c_row_stride + j * whole.c_column_stride) * size;
            const auto equals = [&](const Data& x, const Data& y) {
              return std::memcmp(x.bytes.data() + at, y.bytes.data() + at, size) == 0;
            };
            is_same = is_same && equals(c_few, r < s.m ? c_whole : c);
            if (e.has_pre) is_same = is_same && equals(pre_few, r < s.m ? pre_whole : pre);
          }
        }
        CHECK(is_same);
      }
    }
  }
}

constexpr Epilogue bare{"bare", false, false, false, Activation::none, 1, DType::f64};
constexpr Epilogue linear{"bias, gelu", true, true, false, Activation::gelu_tanh, 1, DType::f64};
constexpr Epilogue added{"alpha, accumulate, f32", false, false, true, Activation::none, 0.5, DType::f32};

}  // namespace gemm_few_rows_test

using namespace gemm_few_rows_test;

TEST_CASE("gemm_few_rows: bits are those of the rows among others", "[gemm]") {
  Settings settings;
  const Bf16On converted(std::nullopt);
  for (const Isa set : supported()) {
    set_isa(set);
    INFO(to_string(set));
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f8e4m3}) {
      check(dtype, bare);
      check(dtype, linear);
    }
    check(DType::bf16, added);
  }
}

TEST_CASE("gemm_few_rows: bf16 units give the bits of the rows among others", "[gemm]") {
  Settings settings;
  for (const DotUnit unit : supported_units(DType::bf16)) {
    const Bf16On on(unit);
    INFO(to_string(unit));
    for (const Epilogue& e : {bare, linear, added}) check(DType::bf16, e);
  }
}

TEST_CASE("gemm_few_rows: values are the reference's", "[gemm]") {
  Settings settings;
  for (const Isa set : supported()) {
    set_isa(set);
    for (const Layout layout : {Layout::plain, Layout::b_turned}) {
      GemmArgs g = plain(3, 300, 700);
      set_layout(g, layout);
      const Data a(DType::f32, g.m * g.k, 1), b(DType::f32, g.k * g.n, 2);
      Data c(DType::f32, g.m * g.n, 0), expected(DType::f32, g.m * g.n, 0);
      g.a = a.bytes.data(), g.b = b.bytes.data();
      g.c = expected.bytes.data();
      gemm_reference(g);
      g.c = c.bytes.data();
      compute(g, 2);
      const auto got = c.values(), want = expected.values();
      for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - want[i]) <= 1e-4);
    }
  }
}
