// Matmul kernels against the plain reference: shapes, layouts, dtypes, epilogues, instruction sets.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <thimble/autograd/functions/matmul.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/functors/unary.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>

#include "gemm_calls.h"
#include "references.h"
#include "support/catch.h"

namespace gemm_test {

std::int64_t extent(std::int64_t rows, std::int64_t columns, std::int64_t row_stride, std::int64_t column_stride) {
  return rows == 0 || columns == 0 ? 1 : (rows - 1) * row_stride + (columns - 1) * column_stride + 1;
}

/// 64-bit integers truncated to a narrower dtype, like every store.
Data wrapped(const Data& wide, DType dtype) {
  Data narrow(dtype, wide.count(), 0);
  const auto* values = reinterpret_cast<const std::int64_t*>(wide.bytes.data());
  store_i64(values, narrow.bytes.data(), dtype, 1, wide.count());
  return narrow;
}

/// Computes `g` with the kernel and the reference into copies of the same C, and compares all bytes between elements,
/// and all elements within the rounding of compute and storage type.
void check(GemmArgs g, int threads = 2) {
  std::int64_t a_count = extent(g.m, g.k, g.a_row_stride, g.a_column_stride);
  std::int64_t b_count = extent(g.k, g.n, g.b_row_stride, g.b_column_stride);
  std::int64_t c_count = extent(g.m, g.n, g.c_row_stride, g.c_column_stride);
  std::int64_t bias_count = g.n + 1;
  for (int i = 0; i < g.batch_rank; ++i) {
    const GemmBatchDim& dim = g.batch[static_cast<std::size_t>(i)];
    a_count += (dim.size - 1) * dim.a;
    b_count += (dim.size - 1) * dim.b;
    c_count += (dim.size - 1) * dim.c;
    bias_count += (dim.size - 1) * dim.bias;
  }
  const Data a(g.dtype, a_count, 1), b(g.dtype, b_count, 2), bias(g.c_dtype, bias_count, 3);
  Data c(g.c_dtype, c_count, 4), pre(g.c_dtype, c_count, 5);
  const Data c_before = c, pre_before = pre;
  g.a = a.bytes.data();
  g.b = b.bytes.data();
  if (g.bias != nullptr) g.bias = bias.bytes.data();

  // The reference in the widest dtype, so that only the kernel rounds.
  const bool is_integer = !is_floating(g.dtype);
  GemmArgs r = g;
  r.c_dtype = is_integer ? DType::i64 : DType::f64;
  Data expected = c.converted(r.c_dtype), expected_pre = pre.converted(r.c_dtype);
  const Data wide_bias = bias.converted(r.c_dtype);
  r.c = expected.bytes.data();
  if (r.bias != nullptr) r.bias = wide_bias.bytes.data();
  if (r.pre_activation != nullptr) r.pre_activation = expected_pre.bytes.data();
  gemm_reference(r);
  if (is_integer) {
    expected = wrapped(expected, g.c_dtype);
    expected_pre = wrapped(expected_pre, g.c_dtype);
  }

  g.c = c.bytes.data();
  if (g.pre_activation != nullptr) g.pre_activation = pre.bytes.data();
  compute(g, threads);

  std::vector<bool> is_element(static_cast<std::size_t>(c_count), false);
  std::int64_t matrices = 1;
  for (int i = 0; i < g.batch_rank; ++i) matrices *= g.batch[static_cast<std::size_t>(i)].size;
  for (std::int64_t matrix = 0; matrix < matrices; ++matrix) {
    std::int64_t offset = 0, rest = matrix;
    for (int i = g.batch_rank - 1; i >= 0; --i) {
      const GemmBatchDim& dim = g.batch[static_cast<std::size_t>(i)];
      offset += rest % dim.size * dim.c;
      rest /= dim.size;
    }
    for (std::int64_t i = 0; i < g.m; ++i) {
      for (std::int64_t j = 0; j < g.n; ++j) {
        is_element[static_cast<std::size_t>(offset + i * g.c_row_stride + j * g.c_column_stride)] = true;
      }
    }
  }
  // Operands are below 1: a block's partial sums grow as sqrt(depth) / 3, and `depth` rounding errors, each up to half
  // a unit of them, add up; 8 for the blocks, the bias and the activation.
  const double arithmetic = epsilon(g.dtype == DType::f64 ? DType::f64 : DType::f32) *
                            (16 + 2 * static_cast<double>(std::min<std::int64_t>(g.k, 256)));
  int wrong = 0, touched = 0;
  const auto differs = [&](double result, double exact) {
    if (is_integer) return result != exact;
    const double subnormal = size_of(g.c_dtype) == 1 ? 0.001 : 0;  // half of E4M3's smallest
    return !(std::abs(result - exact) <= epsilon(g.c_dtype) * std::abs(exact) + arithmetic + subnormal);
  };
  const std::vector<double> got = c.values(), want = expected.values(), before = c_before.values();
  const std::vector<double> got_pre = pre.values(), want_pre = expected_pre.values(), before_pre = pre_before.values();
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!is_element[i]) {
      const bool is_same = got[i] == before[i] && got_pre[i] == before_pre[i];
      touched += !is_same;
      continue;
    }
    wrong += differs(got[i], want[i]);
    if (g.pre_activation != nullptr) wrong += differs(got_pre[i], want_pre[i]);
  }
  CHECK(wrong == 0);
  CHECK(touched == 0);
}

}  // namespace gemm_test

using namespace gemm_test;

TEST_CASE("gemm: shapes and layouts against the reference", "[gemm]") {
  Settings settings;
  struct Size {
    std::int64_t m, n, k;
  };
  const Size sizes[] = {{0, 5, 3},     {5, 0, 3},     {5, 3, 0},      {1, 1, 1},    {1, 1, 300},   {7, 1, 5},
                        {1, 97, 31},   {8, 48, 16},   {9, 49, 17},    {16, 96, 64}, {13, 31, 257}, {61, 67, 71},
                        {3, 200, 512}, {130, 2, 513}, {97, 101, 256}, {70, 97, 1},  {1, 33, 1}};
  const Layout layouts[] = {Layout::plain,       Layout::a_turned, Layout::b_turned,
                            Layout::both_turned, Layout::c_turned, Layout::spread};
  for (const Isa set : supported()) {
    set_isa(set);
    for (const Size size : sizes) {
      for (const Layout layout : layouts) {
        for (const DType dtype : {DType::f32, DType::f64, DType::i64}) {
          INFO(to_string(set) << " " << size.m << " x " << size.n << " x " << size.k << " " << name(layout) << " "
                              << to_string(dtype));
          GemmArgs g = plain(size.m, size.n, size.k, dtype);
          set_layout(g, layout);
          check(g);
        }
      }
    }
  }
}

TEST_CASE("gemm: every pair of storage dtypes", "[gemm]") {
  Settings settings;
  const DType floats[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8e4m3, DType::f8e5m2};
  const DType integers[] = {DType::i64, DType::i32, DType::i8, DType::u8, DType::boolean};
  const auto check_pairs = [](auto& dtypes) {
    for (const DType dtype : dtypes) {
      for (const DType c_dtype : dtypes) {
        for (const Layout layout : {Layout::plain, Layout::both_turned, Layout::spread}) {
          INFO(to_string(dtype) << " -> " << to_string(c_dtype) << " " << name(layout));
          GemmArgs g = plain(19, 53, 77, dtype);
          g.c_dtype = c_dtype;
          set_layout(g, layout);
          g.accumulate = layout == Layout::spread;
          check(g);
        }
      }
    }
  };
  for (const Isa set : supported()) {
    set_isa(set);
    INFO(to_string(set));
    check_pairs(floats);
    check_pairs(integers);
  }
}

TEST_CASE("gemm: integers wrap around and bool is any", "[gemm]") {
  Settings settings;
  for (const Isa set : supported()) {
    set_isa(set);
    INFO(to_string(set));
    const std::int64_t big = std::int64_t{1} << 62;
    const std::int64_t a[] = {big, 3, -7}, b[] = {4, 5, 11};
    std::int64_t c = 0;
    GemmArgs g = plain(1, 1, 3, DType::i64);
    g.a = a, g.b = b, g.c = &c;
    compute(g);
    CHECK(c == 3 * 5 - 7 * 11);
    std::int8_t narrow = 0;
    g.c = &narrow, g.c_dtype = DType::i8, g.alpha = 5;
    compute(g);
    CHECK(narrow == static_cast<std::int8_t>(-62 * 5));
    bool any = false;
    g.c = &any;
    g.c_dtype = DType::boolean;
    compute(g);
    CHECK(any);
  }
}

TEST_CASE("gemm: epilogues", "[gemm]") {
  Settings settings;
  const int dummy = 0;
  for (const Isa set : supported()) {
    set_isa(set);
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i64}) {
      for (const Layout layout : {Layout::plain, Layout::c_turned, Layout::spread}) {
        for (const Activation activation :
             {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu_erf}) {
          if (!is_floating(dtype) && activation >= Activation::gelu_tanh) continue;
          for (int options = 0; options < 8; ++options) {
            INFO(to_string(set) << " " << to_string(dtype) << " " << name(layout) << " activation "
                                << static_cast<int>(activation) << " options " << options);
            GemmArgs g = plain(21, 50, options == 5 ? 260 : 12, dtype);
            set_layout(g, layout);
            g.activation = activation;
            g.alpha = is_floating(dtype) ? 0.75 : -3;
            if ((options & 1) != 0) g.bias = &dummy;
            if ((options & 2) != 0) g.pre_activation = &g;
            g.accumulate = (options & 4) != 0;
            check(g);
          }
        }
      }
    }
  }
}

TEST_CASE("gemm: a fused activation has the bits of the operator", "[gemm]") {
  Settings settings;
  for (const Isa set : supported()) {
    set_isa(set);
    INFO(to_string(set));
    const Data a(DType::f32, 30 * 40, 1), b(DType::f32, 40 * 90, 2);
    std::vector<float> c(30 * 90), before(30 * 90);
    GemmArgs g = plain(30, 90, 40);
    g.a = a.bytes.data(), g.b = b.bytes.data(), g.c = c.data(), g.pre_activation = before.data();
    const auto count_wrong = [&](Activation activation, auto op) {
      g.activation = activation;
      compute(g);
      int wrong = 0;
      for (std::size_t i = 0; i < c.size(); ++i) {
        const float expected = op.fwd(before[i]);
        wrong += std::memcmp(&expected, &c[i], sizeof(float)) != 0;
      }
      return wrong;
    };
    CHECK(count_wrong(Activation::relu, ops::Relu{}) == 0);
    CHECK(count_wrong(Activation::gelu_tanh, ops::GeluTanh{}) == 0);
    CHECK(count_wrong(Activation::gelu_erf, ops::GeluErf{}) == 0);
  }
}

TEST_CASE("gemm: batches broadcast and permute", "[gemm]") {
  Settings settings;
  const int dummy = 0;
  for (const Isa set : supported()) {
    set_isa(set);
    INFO(to_string(set));
    // Heads of attention: (batch, time, head, channel) taken as (batch, head) x (time, channel).
    constexpr std::int64_t batch = 3, time = 19, heads = 2, channels = 10;
    GemmArgs scores = plain(time, time, channels);
    scores.batch_rank = 2;
    scores.batch[0] = {batch, time * heads * channels, time * heads * channels, heads * time * time, 0};
    scores.batch[1] = {heads, channels, channels, time * time, 0};
    scores.a_row_stride = scores.b_column_stride = heads * channels;
    scores.a_column_stride = scores.b_row_stride = 1;
    check(scores);
    GemmArgs values = plain(time, channels, time);
    values.batch_rank = 2;
    values.batch[0] = {batch, heads * time * time, time * heads * channels, time * heads * channels, 0};
    values.batch[1] = {heads, time * time, channels, channels, 0};
    values.b_row_stride = values.c_row_stride = heads * channels;
    check(values);
    // Six dimensions, some of them broadcast in a, b or the bias.
    GemmArgs six = plain(3, 5, 7);
    six.batch_rank = 6;
    six.batch = {{{2, 21, 0, 480, 0},
                  {2, 0, 35, 240, 5},
                  {2, 0, 0, 120, 0},
                  {2, 42, 70, 60, 0},
                  {2, 0, 0, 30, 5},
                  {2, 84, 35, 15, 0}}};
    six.bias = &dummy;
    check(six);
    GemmArgs none = plain(3, 5, 7);
    none.batch_rank = 1;
    none.batch[0].size = 0;
    CHECK(gemm_workspace_bytes(none) == 0);
    gemm(none, nullptr);
  }
}

TEST_CASE("gemm: infinities and NaN stay where they belong", "[gemm]") {
  Settings settings;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Isa set : supported()) {
    set_isa(set);
    INFO(to_string(set));
    std::vector<float> a(9 * 5, 1.0f), b(5 * 49, 1.0f), c(9 * 49, 0.0f);
    a[3 * 5 + 2] = infinity;
    b[2 * 49 + 48] = std::numeric_limits<float>::quiet_NaN();
    GemmArgs g = plain(9, 49, 5);
    g.a = a.data(), g.b = b.data(), g.c = c.data(), g.activation = Activation::relu;
    compute(g);
    int wrong = 0;
    for (std::size_t i = 0; i < 9; ++i) {
      for (std::size_t j = 0; j < 49; ++j) {
        const float value = c[i * 49 + j];
        wrong += j == 48 ? !std::isnan(value) : value != (i == 3 ? infinity : 5.0f);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("gemm: workspace is bounded and a function of the arguments", "[gemm]") {
  Settings settings;
  for (const Isa set : supported()) {
    set_isa(set);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      for (const std::int64_t size : {1, 100, 1000, 5000, 100000}) {
        for (const int threads : {1, 2, 16}) {
          GemmArgs g = plain(size, 5000, size, dtype);
          const std::size_t bytes = gemm_workspace_bytes(g, threads);
          CHECK(bytes <= (std::size_t{2112} << 10) * static_cast<std::size_t>(threads));
          int pointer = 0;
          g.a = g.b = g.c = &pointer;
          CHECK(gemm_workspace_bytes(g, threads) == bytes);
        }
      }
    }
  }
}

TEST_CASE("gemm: instruction sets are checked", "[gemm]") {
  Settings settings;
  CHECK(is_supported(Isa::generic));
  CHECK(is_supported(best_isa()));
  for (const Isa set : {Isa::generic, Isa::avx2, Isa::avx512}) {
    if (is_supported(set)) {
      set_isa(set);
      CHECK(isa() == set);
    } else {
      CHECK_THROWS_AS(set_isa(set), ValueError);
    }
  }
}

// ---- Products of matrices that repeat one row or one column, as expand() makes them: stride 0.

using namespace thimble;

namespace {

Tensor waves(const Shape& shape, DType dtype) {
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(1.7f * static_cast<float>(i) + 0.3f);
  return to_dtype(from_host(values, shape), dtype);
}

// (rows, columns): one column for all, one row for all, one number.
std::vector<Tensor> repeated(std::int64_t rows, std::int64_t columns, DType dtype) {
  std::vector<Tensor> list;
  for (const Shape& own : {Shape{rows, 1}, Shape{1, columns}, Shape{1, 1}}) {
    list.push_back(view::expand(waves(own, dtype), {rows, columns}));
  }
  return list;
}

}  // namespace

TEST_CASE("matmul: a row or column that stands for all gives the bits of its copies", "[matmul]") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const std::int64_t m : {1, 7, 8, 33, 64, 200}) {
      for (const std::int64_t k : {1, 2, 16, 31, 96}) {
        for (const std::int64_t n : {1, 3, 8, 17, 32, 96}) {
          INFO(to_string(dtype) << " (" << m << ", " << k << ") by (" << k << ", " << n << ")");
          const Tensor left = waves({m, k}, dtype), right = waves({k, n}, dtype);
          for (const Tensor& a : repeated(m, k, dtype)) {
            REQUIRE(to_host<double>(matmul(a, right)) == to_host<double>(matmul(clone(a), right)));
          }
          for (const Tensor& b : repeated(k, n, dtype)) {
            REQUIRE(to_host<double>(matmul(left, b)) == to_host<double>(matmul(left, clone(b))));
          }
        }
      }
    }
  }
}
