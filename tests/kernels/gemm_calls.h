#pragma once
// Helpers of the tests of matmul: the call with a guarded workspace, and memory layouts.

#include <thimble/core/kernels/cpu/matmul/gemm.h>

#include "support/catch.h"
#include "support/kernel_data.h"

namespace gemm_test {

using namespace kernel_test;

inline void compute(const GemmArgs& args, int threads = 1) {
  set_thread_count(threads);
  Workspace workspace(gemm_workspace_bytes(args, threads));
  gemm(args, workspace.get(), threads);
  REQUIRE(workspace.is_intact());
}

enum class Layout { plain, a_turned, b_turned, both_turned, c_turned, spread };
inline const char* name(Layout layout) {
  constexpr const char* names[] = {"plain", "a turned", "b turned", "both turned", "c turned", "spread"};
  return names[static_cast<int>(layout)];
}

inline void set_layout(GemmArgs& g, Layout layout) {
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

inline GemmArgs plain(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype = DType::f32) {
  GemmArgs g;
  g.m = m;
  g.n = n;
  g.k = k;
  g.dtype = g.c_dtype = dtype;
  set_layout(g, Layout::plain);
  return g;
}

}  // namespace gemm_test
