// Plain products with few rows are computed directly from their operands (core/kernels/cpu/matmul/gemm_driver.h), with
// the bits of the driver for all other products.

#include <cmath>
#include <cstring>
#include <vector>

#include <thimble/core/kernels/cpu/matmul/gemm_driver.h>

#include "gemm_calls.h"
#include "references.h"
#include "support/catch.h"

using namespace gemm_test;
using thimble::kernels::gemm_detail::is_direct;

namespace {

bool has_avx512() {
  if (is_supported(Isa::avx512)) return true;
  thimble_test::skip("AVX-512 alone has direct products, and is not on this machine");
  return false;
}

// The driver's product, in a C with rows as far apart: AVX2 has the driver's bits and no direct path.
std::vector<std::byte> by_driver(GemmArgs g, const std::vector<std::byte>& c) {
  std::vector<std::byte> result = c;
  g.c = result.data();
  set_isa(Isa::avx2);
  REQUIRE_FALSE(is_direct(g, Isa::avx2));
  compute(g);
  set_isa(Isa::avx512);
  return result;
}

}  // namespace

TEST_CASE("gemm_direct: has the driver's bits and writes nothing else", "[gemm]") {
  if (!has_avx512()) return;
  Settings settings;
  set_isa(Isa::avx512);
  struct Sizes {
    std::int64_t m, n, k;
  };
  // Every number of rows and of vectors in a last microtile, ends within a vector, and sums of zero, one and several
  // blocks.
  std::vector<Sizes> all{{64, 64, 64}, {37, 130, 513}, {200, 590, 700}, {512, 61, 257}, {5, 640, 256}, {40, 64, 0}};
  for (std::int64_t m = 1; m <= 17; ++m) all.push_back({m, 80, 9});
  for (const std::int64_t n : {32, 43, 48, 58, 64, 75, 80, 93, 96, 112, 128, 144}) all.push_back({21, n, 261});
  for (const std::int64_t k : {1, 3, 4, 5, 255, 256, 512, 600}) all.push_back({8, 100, k});
  for (const Sizes s : all) {
    INFO(s.m << " x " << s.n << " x " << s.k);
    GemmArgs g = plain(s.m, s.n, s.k);
    g.a_row_stride = s.k + 3;
    g.b_row_stride = s.n + 1;
    g.c_row_stride = s.n + 7;
    REQUIRE(is_direct(g, Isa::avx512));
    CHECK(gemm_workspace_bytes(g, 2) == 0);
    const Data a(DType::f32, s.m * g.a_row_stride, 1), b(DType::f32, s.k * g.b_row_stride + 1, 2);
    Data c(DType::f32, s.m * g.c_row_stride, 9);
    g.a = a.bytes.data();
    g.b = b.bytes.data() + sizeof(float);  // rows cross cache lines
    for (const double alpha : {1.0, 0.3}) {
      g.alpha = alpha;
      const std::vector<std::byte> right = by_driver(g, c.bytes);
      for (const int threads : {1, 2, 5}) {
        Data other = c;
        g.c = other.bytes.data();
        compute(g, threads);
        CHECK(other.bytes == right);
      }
    }
  }
}

TEST_CASE("gemm_direct: batches, broadcast or not, on any number of threads", "[gemm]") {
  if (!has_avx512()) return;
  Settings settings;
  set_isa(Isa::avx512);
  constexpr std::int64_t m = 30, n = 75, k = 300;
  const Data a(DType::f32, 5 * m * k, 1), b(DType::f32, 3 * k * n, 2), c(DType::f32, 15 * m * n, 9);
  GemmArgs g = plain(m, n, k);
  g.a = a.bytes.data();
  g.b = b.bytes.data();
  g.batch_rank = 2;
  g.batch[0] = {5, m * k, 0, 3 * m * n, 0};
  g.batch[1] = {3, 0, k * n, m * n, 0};
  REQUIRE(is_direct(g, Isa::avx512));
  const std::vector<std::byte> right = by_driver(g, c.bytes);
  for (const int threads : {1, 2, 3, 4, 16}) {
    Data other = c;
    g.c = other.bytes.data();
    compute(g, threads);
    CHECK(other.bytes == right);
  }
}

TEST_CASE("gemm_direct: takes what stays near and has no epilogue", "[gemm]") {
  const auto takes = [](const GemmArgs& g) { return is_direct(g, Isa::avx512); };
  const GemmArgs good = plain(64, 64, 64);
  CHECK(takes(good));
  CHECK_FALSE(is_direct(good, Isa::avx2));
  CHECK_FALSE(is_direct(good, Isa::generic));
  CHECK(takes(plain(512, 512, 512)));
  CHECK_FALSE(takes(plain(513, 512, 512)));
  CHECK_FALSE(takes(plain(64, 31, 64)));
  CHECK_FALSE(takes(plain(64, 49, 64)));      // wastes 15 of 64 columns
  CHECK_FALSE(takes(plain(64, 1040, 1040)));  // more than 4 MiB
  CHECK_FALSE(takes(plain(64, 2048, 256)));   // 256 rows, 8 KiB apart
  CHECK(takes(plain(64, 2048, 64)));
  CHECK_FALSE(takes(plain(64, 64, 64, DType::f64)));
  CHECK_FALSE(takes(plain(64, 64, 64, DType::bf16)));
  const float value = 0;
  const auto rejects = [&](auto&& change) {
    GemmArgs g = good;
    change(g);
    return !takes(g);
  };
  CHECK(rejects([](GemmArgs& g) { g.c_dtype = DType::f64; }));
  CHECK(rejects([](GemmArgs& g) { g.accumulate = true; }));
  CHECK(rejects([](GemmArgs& g) { g.activation = Activation::relu; }));
  CHECK(rejects([&](GemmArgs& g) { g.bias = &value; }));
  CHECK(rejects([&](GemmArgs& g) { g.pre_activation = &const_cast<float&>(value); }));
  CHECK(rejects([](GemmArgs& g) { g.a_column_stride = 2; }));
  CHECK(rejects([](GemmArgs& g) { g.b_column_stride = 2; }));
  CHECK(rejects([](GemmArgs& g) { g.c_column_stride = 2; }));
  GemmArgs scaled = good;
  scaled.alpha = 0.5;
  CHECK(takes(scaled));
}

// ---- Partial sums over k are in C if its rows can hold them, otherwise in scratch; a copied left operand is unpacked
// a few rows at a time; panels may be narrower than a microtile. None of this changes a result.

using namespace gemm_test;

namespace {

struct Sizes {
  std::int64_t m, n, k;
};

// Whether `rows` and `strided` have equal elements, and the bytes between elements are unchanged.
bool is_same(const Data& rows, std::int64_t row_stride, const Data& strided, std::int64_t n, const Sizes& s,
             std::size_t element) {
  const Data untouched(rows.dtype, 1, 9);
  for (std::int64_t i = 0; i < s.m; ++i) {
    for (std::int64_t j = 0; j < row_stride; ++j) {
      const std::byte* const at = rows.bytes.data() + static_cast<std::size_t>(i * row_stride + j) * element;
      const std::byte* const other =
          j < s.n ? strided.bytes.data() + static_cast<std::size_t>(2 * (i * n + j)) * element : untouched.bytes.data();
      if (std::memcmp(at, other, element) != 0) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("gemm: sums so far have the same bits in C and in scratch", "[gemm]") {
  Settings settings;
  for (const Isa set : supported()) {
    set_isa(set);
    for (const DType dtype : {DType::f32, DType::f64}) {
      // Ragged columns and rows; panels of two vectors; chunks of copied rows; more than one tile.
      for (const Sizes s : {Sizes{70, 131, 700}, Sizes{101, 64, 520}, Sizes{9, 60, 513}, Sizes{600, 17, 300}}) {
        for (const Layout layout : {Layout::plain, Layout::a_turned, Layout::b_turned, Layout::both_turned}) {
          INFO(to_string(set) << " " << to_string(dtype) << " " << s.m << " x " << s.n << " x " << s.k << " "
                              << name(layout));
          const Data a(dtype, s.m * s.k, 1), b(dtype, s.k * s.n, 2), bias(dtype, s.n, 3);
          GemmArgs g = plain(s.m, s.n, s.k, dtype);
          set_layout(g, layout);
          g.a = a.bytes.data();
          g.b = b.bytes.data();
          for (const bool has_bias : {false, true}) {
            g.bias = has_bias ? bias.bytes.data() : nullptr;
            GemmArgs strided = g;
            const std::int64_t row_stride = s.n + 5;
            Data in_rows(dtype, s.m * row_stride, 0), in_steps(dtype, 2 * s.m * s.n, 0);
            const Data mark(dtype, 1, 9);
            for (std::size_t i = 0; i < in_rows.bytes.size(); i += size_of(dtype)) {
              std::memcpy(in_rows.bytes.data() + i, mark.bytes.data(), size_of(dtype));
            }
            g.c = in_rows.bytes.data();
            g.c_row_stride = row_stride;
            strided.c = in_steps.bytes.data();
            strided.c_row_stride = 2 * s.n;
            strided.c_column_stride = 2;
            for (const int threads : {1, 3}) {
              compute(g, threads);
              compute(strided, threads);
              CHECK(is_same(in_rows, row_stride, in_steps, s.n, s, size_of(dtype)));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("gemm: sums that lie in C need no workspace", "[gemm]") {
  Settings settings;
  for (const Isa set : supported()) {
    set_isa(set);
    GemmArgs g = plain(512, 768, 768), added = g;
    added.accumulate = true;  // C has other contents
    CHECK(gemm_workspace_bytes(g, 1) + std::size_t{64} * 1024 < gemm_workspace_bytes(added, 1));
  }
}

// ---- Few rows times a large right operand (core/kernels/cpu/matmul/gemm_driver.h), and transposed bf16 products
// (gemm_bf16.cpp), have the bits of the same rows in a larger product, which takes other paths.

using namespace gemm_test;
using thimble::kernels::gemm_detail::has_few_rows;

namespace {

constexpr std::int64_t all_rows = 20;  // of the larger product

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
      GemmArgs few = whole;  // with the whole's strides
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
        // Other rows of C do not change.
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

}  // namespace

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
