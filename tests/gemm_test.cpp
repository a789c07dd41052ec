// Matmul kernels against the plain reference: shapes, layouts, dtypes, epilogues, instruction sets; and the promise
// that the bits of an element depend on k alone.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/gemm.h>
#include <thimble/core/kernels/isa.h>
#include <thimble/core/kernels/row_convert.h>

#include "catch.h"

using namespace thimble;
using namespace thimble::kernels;

namespace gemm_test {

/// Restores instruction set and thread count.
struct Settings {
  Isa saved_isa = isa();
  int saved_threads = thread_count();
  ~Settings() {
    set_isa(saved_isa);
    set_thread_count(saved_threads);
  }
};

std::vector<Isa> supported() {
  std::vector<Isa> list;
  for (const Isa isa : {Isa::generic, Isa::avx2, Isa::avx512}) {
    if (is_supported(isa)) list.push_back(isa);
  }
  return list;
}

/// Bytes of `count` elements, filled from a fixed sequence: floats in (-1, 1), integers small.
struct Data {
  Data(DType dtype, std::int64_t count, unsigned seed)
      : dtype(dtype), bytes(static_cast<std::size_t>(count) * size_of(dtype)) {
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint64_t mixed =
          (static_cast<std::uint64_t>(seed) << 40 | static_cast<std::uint64_t>(i)) * 0x9E3779B97F4A7C15u;
      mixed = (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9u;
      const double unit = static_cast<double>(mixed >> 11) / 4503599627370496.0 - 1.0;
      const bool is_unsigned = dtype == DType::boolean || dtype == DType::u8;
      const double value = is_floating(dtype) ? unit : is_unsigned ? std::floor(unit * 3 + 3) : std::floor(unit * 11);
      store_row<double>(dtype, Isa::generic)(&value, 1, bytes.data(), i, 1);
    }
  }
  std::int64_t count() const { return static_cast<std::int64_t>(bytes.size() / size_of(dtype)); }
  double operator[](std::int64_t i) const {
    double value = 0;
    load_row<double>(dtype, Isa::generic)(bytes.data(), i, 1, 1, &value);
    return value;
  }

  DType dtype;
  std::vector<std::byte> bytes;
};

struct Workspace {
  explicit Workspace(std::size_t size) : bytes(size + 64, std::byte{0xFF}), size(size) {}  // 0xFF...: NaN
  void* get() {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    return bytes.data() + (64 - address % 64) % 64;
  }
  /// The bytes behind the workspace are as they were.
  bool is_intact() {
    const auto* end = static_cast<std::byte*>(get()) + size;
    for (const auto* p = end; p != bytes.data() + bytes.size(); ++p) {
      if (*p != std::byte{0xFF}) return false;
    }
    return true;
  }
  std::vector<std::byte> bytes;
  std::size_t size;
};

void compute(const GemmArgs& args, int threads = 1) {
  set_thread_count(threads);
  Workspace workspace(gemm_workspace_bytes(args, threads));
  gemm(args, workspace.get(), threads);
  REQUIRE(workspace.is_intact());
}

/// Half a unit in the last place of the dtype, relative.
double epsilon(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1.2e-16;
    case DType::f32:
      return 6e-8;
    case DType::f16:
      return 5e-4;
    case DType::bf16:
      return 4e-3;
    case DType::f8e4m3:
      return 0.0626;
    case DType::f8e5m2:
      return 0.126;
    default:
      return 0;
  }
}

enum class Layout { plain, a_turned, b_turned, both_turned, c_turned, spread };
const char* name(Layout layout) {
  constexpr const char* names[] = {"plain", "a turned", "b turned", "both turned", "c turned", "spread"};
  return names[static_cast<int>(layout)];
}

void set_layout(GemmArgs& g, Layout layout) {
  const bool a_turned = layout == Layout::a_turned || layout == Layout::both_turned;
  const bool b_turned = layout == Layout::b_turned || layout == Layout::both_turned;
  const std::int64_t step = layout == Layout::spread ? 2 : 1;
  g.a_row_stride = a_turned ? 1 : g.k * step + (step - 1);
  g.a_column_stride = a_turned ? g.m : step;
  g.b_row_stride = b_turned ? 1 : g.n * step + (step - 1);
  g.b_column_stride = b_turned ? g.k : step;
  g.c_row_stride = layout == Layout::c_turned ? 1 : g.n * step + (step - 1);
  g.c_column_stride = layout == Layout::c_turned ? g.m : step;
}
std::int64_t extent(std::int64_t rows, std::int64_t columns, std::int64_t row_stride, std::int64_t column_stride) {
  return rows == 0 || columns == 0 ? 1 : (rows - 1) * row_stride + (columns - 1) * column_stride + 1;
}

/// Computes `g` with both, into copies of the same C, and compares every byte between elements and every element within
/// what rounding in compute and storage type allows.
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

  // The reference in the widest dtype, so that only the kernel's rounding is compared.
  const bool is_integer = !is_floating(g.dtype);
  GemmArgs r = g;
  r.c_dtype = is_integer ? DType::i64 : DType::f64;
  Data expected(r.c_dtype, c_count, 0), expected_pre(r.c_dtype, c_count, 0), wide_bias(r.c_dtype, bias_count, 0);
  for (std::int64_t i = 0; i < c_count; ++i) {
    const double value = c[i];
    store_row<double>(r.c_dtype, Isa::generic)(&value, 1, expected.bytes.data(), i, 1);
  }
  for (std::int64_t i = 0; i < bias_count; ++i) {
    const double value = bias[i];
    store_row<double>(r.c_dtype, Isa::generic)(&value, 1, wide_bias.bytes.data(), i, 1);
  }
  r.c = expected.bytes.data();
  if (r.bias != nullptr) r.bias = wide_bias.bytes.data();
  if (r.pre_activation != nullptr) r.pre_activation = expected_pre.bytes.data();
  gemm_reference(r);

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
  // Operands are below 1: a block's partial sums grow as sqrt(depth) / 3, and as many rounding errors, each up to half
  // a unit of them, add up; 8 for the blocks, the bias and the activation.
  const double arithmetic = epsilon(g.dtype == DType::f64 ? DType::f64 : DType::f32) *
                            (16 + 2 * static_cast<double>(std::min<std::int64_t>(g.k, 256)));
  int wrong = 0, touched = 0;
  const auto differs = [&](double got, double want) {
    if (is_integer) return got != want;
    const double subnormal = size_of(g.c_dtype) == 1 ? 0.001 : 0;  // half of E4M3's smallest
    return !(std::abs(got - want) <= epsilon(g.c_dtype) * std::abs(want) + arithmetic + subnormal);
  };
  for (std::int64_t i = 0; i < c_count; ++i) {
    if (!is_element[static_cast<std::size_t>(i)]) {
      const bool is_same = c[i] == c_before[i] && pre[i] == pre_before[i];
      touched += !is_same;
      continue;
    }
    wrong += differs(c[i], expected[i]);
    if (g.pre_activation != nullptr) wrong += differs(pre[i], expected_pre[i]);
  }
  CHECK(wrong == 0);
  CHECK(touched == 0);
}

GemmArgs plain(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype = DType::f32) {
  GemmArgs g;
  g.m = m;
  g.n = n;
  g.k = k;
  g.dtype = g.c_dtype = dtype;
  set_layout(g, Layout::plain);
  return g;
}

}  // namespace gemm_test

using namespace gemm_test;

TEST_CASE("gemm: shapes and layouts against the reference", "[gemm]") {
  Settings settings;
  struct Size {
    std::int64_t m, n, k;
  };
  const Size sizes[] = {{0, 5, 3},     {5, 0, 3},    {5, 3, 0},     {1, 1, 1},     {1, 1, 300},
                        {7, 1, 5},     {1, 97, 31},  {8, 48, 16},   {9, 49, 17},   {16, 96, 64},
                        {13, 31, 257}, {61, 67, 71}, {3, 200, 512}, {130, 2, 513}, {97, 101, 256}};
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
          g.accumulate = layout == Layout::spread && c_dtype != DType::boolean;
          // Sums of f64 may be anything, and narrow integers wrap: keep both in range of what the reference compares.
          if (!is_floating(dtype) && size_of(c_dtype) == 1) g.k = 1, set_layout(g, layout);
          if (!is_floating(dtype) && c_dtype == DType::boolean) continue;
          if (c_dtype == DType::u8 && (dtype != DType::u8 && dtype != DType::boolean)) continue;
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
    g.a = a;
    g.b = b;
    g.c = &c;
    compute(g);
    CHECK(c == 3 * 5 - 7 * 11);
    std::int8_t narrow = 0;
    g.c = &narrow;
    g.c_dtype = DType::i8;
    g.alpha = 5;
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
            GemmArgs g = plain(21, 50, options % 2 == 0 ? 40 : 260, dtype);
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
    // Six dimensions, some broadcast in a, b or the bias.
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

TEST_CASE("gemm: the bits of an element depend on k alone", "[gemm]") {
  Settings settings;
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
        // Rows alone, in pairs, in thirteens; each a matmul of its own.
        for (const std::int64_t rows : {1, 2, 13}) {
          Data other(dtype, m * n, 9);
          for (std::int64_t row = 0; row < m; row += rows) {
            GemmArgs part = g;
            part.m = std::min(rows, m - row);
            part.a = a.bytes.data() + static_cast<std::size_t>(row * k) * element;
            part.c = other.bytes.data() + static_cast<std::size_t>(row * n) * element;
            compute(part, 2);
          }
          CHECK(other.bytes == whole.bytes);
        }
        // Columns alone and in groups.
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
        // The same matrices stored turned, and at odd addresses.
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
          // And C turned as well: compared element by element.
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

TEST_CASE("gemm: AVX2 and AVX-512 agree bitwise", "[gemm]") {
  if (!is_supported(Isa::avx512)) return;
  Settings settings;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f8e4m3}) {
    const Data a(dtype, 33 * 600, 1), b(dtype, 600 * 70, 2);
    GemmArgs g = plain(33, 70, 600, dtype);
    g.a = a.bytes.data();
    g.b = b.bytes.data();
    g.activation = Activation::gelu_erf;
    Data narrow(dtype, 33 * 70, 0), wide(dtype, 33 * 70, 9);
    set_isa(Isa::avx2);
    g.c = narrow.bytes.data();
    compute(g);
    set_isa(Isa::avx512);
    g.c = wide.bytes.data();
    compute(g);
    CHECK(narrow.bytes == wide.bytes);
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
    g.a = a.data();
    g.b = b.data();
    g.c = c.data();
    g.activation = Activation::relu;
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
          CHECK(bytes <= (std::size_t{1792} << 10) * static_cast<std::size_t>(threads));
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
