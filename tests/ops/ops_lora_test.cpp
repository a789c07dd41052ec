// The linear layer with a low-rank adapter as rows of the operator table.

#include <cstdint>
#include <vector>

#include <thimble/autograd/functions/matmul.h>
#include <thimble/core/error.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace thimble::testing;

namespace ops_lora_test {

using Arrays = std::vector<HostArray>;
constexpr std::int64_t rows = 6, in = 5, out = 4, rank = 2;
constexpr double scale = 1.5;

/// x W + bias + scale (z A^T) B^T, by hand; operands are x, W, bias, A, B, and z where there is one.
std::vector<double> reference(const Arrays& t, bool is_in_out, bool has_z) {
  const HostArray &x = t[0], &w = t[1], &bias = t[2], &a = t[3], &b = t[4], &z = t[has_z ? 5 : 0];
  std::vector<double> y;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t o = 0; o < out; ++o) {
      double sum = bias[o];
      for (std::int64_t j = 0; j < in; ++j) sum += x[i * in + j] * (is_in_out ? w[j * out + o] : w[o * in + j]);
      for (std::int64_t r = 0; r < rank; ++r) {
        double u = 0;
        for (std::int64_t j = 0; j < in; ++j) u += z[i * in + j] * a[r * in + j];
        sum += scale * u * b[o * rank + r];
      }
      y.push_back(sum);
    }
  }
  return y;
}

OperatorCase row(const char* name, bool is_in_out, bool has_z) {
  OperatorCase c;
  c.name = name;
  c.operands = {{{2, 3, in}}, {is_in_out ? Shape{in, out} : Shape{out, in}}, {{out}}, {{rank, in}}, {{out, rank}}};
  if (has_z) c.operands.push_back({{2, 3, in}});
  c.run = [=](auto t) { return lora_linear(t[0], t[1], t[2], has_z ? t[5] : Tensor(), t[3], t[4], scale, is_in_out); };
  c.reference = [=](const Arrays& t) { return reference(t, is_in_out, has_z); };
  c.kept_bytes = [=](std::int64_t e, std::int64_t) {  // x, W, A, B, u, and z
    return e * ((has_z ? 2 : 1) * rows * in + in * out + rank * (in + out) + rows * rank);
  };
  c.tolerance = 20;
  return c;
}

}  // namespace ops_lora_test

TEST_CASE("ops: linear with an adapter", "[lora]") {
  check_operator(ops_lora_test::row("lora_linear", false, false));
  check_operator(ops_lora_test::row("lora_linear with (in, out) weight", true, false));
  check_operator(ops_lora_test::row("lora_linear whose adapter reads another tensor", false, true));
}

TEST_CASE("ops: linear with an adapter names its operands", "[lora]") {
  const Tensor x = Tensor::empty({2, 3}), w = Tensor::empty({4, 3}), a = Tensor::empty({2, 3}),
               b = Tensor::empty({4, 2});
  CHECK_NOTHROW(lora_linear(x, w, {}, {}, a, b, 1));
  CHECK_THROWS_AS(lora_linear(x, w, {}, {}, b, a, 1), ShapeError);
  CHECK_THROWS_AS(lora_linear(x, w, Tensor::empty({3}), {}, a, b, 1), ShapeError);
  CHECK_THROWS_AS(lora_linear(x, w, {}, Tensor::empty({2, 4}), a, b, 1), ShapeError);
  CHECK_THROWS_AS(lora_linear(x, w, {}, {}, a, b, 1, true), ShapeError);
  CHECK_THROWS_AS(lora_linear(x, w, {}, {}, Tensor::empty({2, 3}, DType::bf16), b, 1), DTypeError);
}
