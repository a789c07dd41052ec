// Plain products with few rows are computed where they lie (core/kernels/cpu/matmul/gemm_driver.h), and their bits are
// those of the driver that takes all others.

#include <thimble/core/kernels/cpu/matmul/gemm_driver.h>

#include <vector>

#include "gemm_calls.h"
#include "support/catch.h"

using namespace gemm_test;
using thimble::kernels::gemm_detail::is_direct;

namespace {

bool has_avx512() {
  if (is_supported(Isa::avx512)) return true;
  thimble_test::skip("AVX-512 alone has direct products, and is not on this machine");
  return false;
}

// The product by the driver, in C with rows as far apart: AVX2 has its bits and no direct way.
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
  // Every number of rows and of vectors in a last microtile, ends within a vector, and sums of none, one and more
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
    g.b = b.bytes.data() + sizeof(float);  // rows lie across cache lines
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
  CHECK_FALSE(takes(plain(64, 49, 64)));      // 15 of 64 columns in vain
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
