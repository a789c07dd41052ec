#pragma once
// Computes convolutions in guarded workspaces and compares them with the plain loops.

#include <algorithm>
#include <cmath>
#include <vector>

#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/cpu/conv/winograd.h>

#include "conv_shapes.h"
#include "references.h"
#include "support/catch.h"
#include "support/kernel_data.h"

namespace conv_test {

using namespace kernel_test;

inline Data computed(ConvForwardArgs args, int threads) {
  set_thread_count(threads);
  Data y(args.out_dtype, y_elements(args.shape), 99);
  args.y = y.bytes.data();
  Workspace workspace(conv_workspace_bytes(args, threads));
  conv_forward(args, workspace.get(), threads);
  REQUIRE(workspace.is_intact());
  return y;
}
inline Data computed(ConvInputGradArgs args, int threads) {
  set_thread_count(threads);
  Data dx(args.out_dtype, x_elements(args.shape), 99);
  args.dx = dx.bytes.data();
  Workspace workspace(conv_workspace_bytes(args, threads));
  conv_input_grad(args, workspace.get(), threads);
  REQUIRE(workspace.is_intact());
  return dx;
}
inline Data computed(ConvWeightGradArgs args, int threads) {
  set_thread_count(threads);
  Data dweight(args.out_dtype, weight_elements(args.shape), 99);
  args.dweight = dweight.bytes.data();
  Workspace workspace(conv_workspace_bytes(args, threads));
  conv_weight_grad(args, workspace.get(), threads);
  REQUIRE(workspace.is_intact());
  return dweight;
}

/// Number of elements of `got` that differ from `want` (f64) by more than `depth` roundings in the type of arithmetic
/// and one at the store; `factor` multiplies the roundings.
inline int differences(const Data& got, const Data& want, DType operands, std::int64_t depth, double factor = 1) {
  const double arithmetic =
      factor * epsilon(operands == DType::f64 ? DType::f64 : DType::f32) *
      (16 + 2 * static_cast<double>(operands == DType::f64 ? depth : std::min<std::int64_t>(depth, 256)));
  const double subnormal = size_of(got.dtype) == 1 ? 0.001 : 0;
  const std::vector<double> results = got.values(), exact = want.values();
  int count = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    count += !(std::abs(results[i] - exact[i]) <= epsilon(got.dtype) * std::abs(exact[i]) + arithmetic + subnormal);
  }
  return count;
}

/// Winograd's sums have larger terms, which cancel.
inline double factor_of(const ConvShape& s) { return conv_detail::winograd_pays(s) ? 2 : 1; }

struct Tensors {
  Tensors(const ConvShape& s, DType dtype)
      : x(dtype, x_elements(s), 1),
        weight(dtype, weight_elements(s), 2),
        dy(dtype, y_elements(s), 3),
        bias(dtype, s.filters, 4) {}
  Data x, weight, dy, bias;
};

inline ConvForwardArgs forward_args(const ConvShape& s, DType dtype, const Tensors& t) {
  ConvForwardArgs args;
  args.shape = s;
  args.x = t.x.bytes.data();
  args.weight = t.weight.bytes.data();
  args.bias = t.bias.bytes.data();
  args.dtype = args.out_dtype = dtype;
  return args;
}
inline ConvInputGradArgs input_grad_args(const ConvShape& s, DType dtype, const Tensors& t) {
  ConvInputGradArgs args;
  args.shape = s;
  args.dy = t.dy.bytes.data();
  args.weight = t.weight.bytes.data();
  args.dtype = args.out_dtype = dtype;
  return args;
}
inline ConvWeightGradArgs weight_grad_args(const ConvShape& s, DType dtype, const Tensors& t) {
  ConvWeightGradArgs args;
  args.shape = s;
  args.x = t.x.bytes.data();
  args.dy = t.dy.bytes.data();
  args.dtype = args.out_dtype = dtype;
  return args;
}

/// The checks compute with each of `sets` and once with the plain loops; `factor` multiplies the allowed roundings.
inline void check_forward(const ConvShape& s, DType dtype, DType out_dtype, const Tensors& t,
                          const std::vector<Isa>& sets, double factor = 0) {
  ConvForwardArgs args = forward_args(s, dtype, t);
  const Data bias(out_dtype, s.filters, 4), wide_bias = bias.converted(DType::f64);
  args.out_dtype = out_dtype;
  args.bias = bias.bytes.data();
  auto reference = args;
  Data expected(DType::f64, y_elements(s), 0);
  reference.out_dtype = DType::f64;
  reference.bias = wide_bias.bytes.data();
  reference.y = expected.bytes.data();
  conv_forward_reference(reference);
  for (const Isa set : sets) {
    set_isa(set);
    INFO(describe(s, dtype));
    CHECK(differences(computed(args, 2), expected, dtype, weight_elements(s) / s.filters,
                      factor > 0 ? factor : factor_of(s)) == 0);
  }
}

inline void check_input_grad(const ConvShape& s, DType dtype, DType out_dtype, bool accumulate, const Tensors& t,
                             const std::vector<Isa>& sets, double factor = 0) {
  ConvInputGradArgs args = input_grad_args(s, dtype, t);
  args.out_dtype = out_dtype;
  args.accumulate = accumulate;
  auto reference = args;
  Data expected = Data(out_dtype, x_elements(s), 99).converted(DType::f64);
  reference.out_dtype = DType::f64;
  reference.dx = expected.bytes.data();
  conv_input_grad_reference(reference);
  for (const Isa set : sets) {
    set_isa(set);
    INFO(describe(s, dtype));
    CHECK(differences(computed(args, 2), expected, dtype, s.kernel_h * s.kernel_w * s.filters / s.groups,
                      factor > 0 ? factor : factor_of(s)) == 0);
  }
}

inline void check_weight_grad(const ConvShape& s, DType dtype, DType out_dtype, bool accumulate, const Tensors& t,
                              const std::vector<Isa>& sets, double factor = 0) {
  ConvWeightGradArgs args = weight_grad_args(s, dtype, t);
  args.out_dtype = out_dtype;
  args.accumulate = accumulate;
  auto reference = args;
  Data expected = Data(out_dtype, weight_elements(s), 99).converted(DType::f64);
  reference.out_dtype = DType::f64;
  reference.dweight = expected.bytes.data();
  conv_weight_grad_reference(reference);
  for (const Isa set : sets) {
    set_isa(set);
    INFO(describe(s, dtype));
    CHECK(differences(computed(args, 2), expected, dtype, s.images * s.out_height() * s.out_width(),
                      factor > 0 ? factor : factor_of(s)) == 0);
  }
}

}  // namespace conv_test
