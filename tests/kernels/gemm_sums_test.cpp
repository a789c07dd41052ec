// Sums over a part of k lie in C where its rows can hold them, else in scratch; a copied left operand is opened a few
// rows at a time; panels may be narrower than a microtile. None of that shows in a result.

#include <cstring>

#include "gemm_calls.h"
#include "support/catch.h"

using namespace gemm_test;

namespace {

struct Sizes {
  std::int64_t m, n, k;
};

// Element (i, j) of `rows` equals that of `strided`, and what lies between the elements of either is as it was.
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
    added.accumulate = true;  // C holds something else
    CHECK(gemm_workspace_bytes(g, 1) + std::size_t{64} * 1024 < gemm_workspace_bytes(added, 1));
  }
}
