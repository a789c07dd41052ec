// Operators of a user's own, those of examples/own_operators.h, as rows of the operator table: nothing that is checked
// of a built-in operator is left out.

#include "../examples/own_operators.h"

#include <cmath>

#include <thimble/autograd/apply.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"
#include "support/operator_table.h"

/// Names of a user's own, beside `using namespace thimble`.
struct In {};
struct Out {};
struct Lhs {};

using namespace thimble;
using namespace thimble::testing;

namespace {

static_assert(std::is_empty_v<In> && std::is_empty_v<Out> && std::is_empty_v<Lhs>);

std::vector<double> mish_of(const std::vector<HostArray>& in) {
  std::vector<double> y;
  for (const double x : in[0].values) y.push_back(x * std::tanh(std::log1p(std::exp(x))));
  return y;
}

std::vector<double> normalized_rows_of(const std::vector<HostArray>& in, double epsilon) {
  const HostArray& x = in[0];
  const auto columns = static_cast<std::size_t>(x.shape.back());
  std::vector<double> y(x.values.size());
  for (std::size_t row = 0; row < y.size(); row += columns) {
    long double sum = epsilon;
    for (std::size_t c = row; c < row + columns; ++c) sum += x.values[c] * x.values[c];
    for (std::size_t c = row; c < row + columns; ++c) y[c] = static_cast<double>(x.values[c] / std::sqrt(sum));
  }
  return y;
}

OperatorCase normalize_rows(const char* name, const Shape& shape, double epsilon) {
  const std::int64_t n = shape.elements(), rows = n / shape.back();
  return {name,
          {{shape}},
          [=](auto in) { return apply(own::NormalizeRows{epsilon}, in[0]); },
          [=](const auto& in) { return normalized_rows_of(in, epsilon); },
          [=](std::int64_t e, std::int64_t s) { return n * e + rows * s; }};
}

}  // namespace

TEST_CASE("own operator: rows of the operator table") {
  static_assert(ops::builtin_index<own::Mish> == -1, "the library does not know it");
  const std::vector<OperatorCase> rows{
      {"mish",
       {{{3, 5, 7}, -6, 6}},
       [](auto in) { return apply<own::Mish>(in[0]); },
       mish_of,
       [](std::int64_t e, std::int64_t) { return 3 * 5 * 7 * e; }},
      {"mish, saturated and vanishing",
       {{{64}, -60, 60}},
       [](auto in) { return apply(own::Mish{}, in[0]); },
       mish_of,
       [](std::int64_t e, std::int64_t) { return 64 * e; }},
      normalize_rows("normalize_rows", {4, 6}, 1e-6),
      normalize_rows("normalize_rows, many rows", {5, 13, 9}, 0.5),
      normalize_rows("normalize_rows, one column", {40, 1}, 0.1),
  };
  for (OperatorCase row : rows) {
    row.why_cpu_alone = "an operator of one's own has a kernel for the CPU alone";
    check_operator(row);
  }
}

TEST_CASE("own operator: layouts, edges and refusals") {
  const Tensor x = from_host(std::vector<double>{3, 4, 0, 5, 12, 8}, {2, 3});
  const Tensor rows = apply(own::NormalizeRows{0}, view::transpose(x, 0, 1));  // (3, 2)
  CHECK(to_host<double>(rows)[0] == Approx(3 / std::sqrt(34.0)));
  CHECK(to_host<double>(rows)[3] == Approx(12 / std::sqrt(160.0)));
  CHECK(apply(own::NormalizeRows{}, zeros({0, 3})).elements() == 0);
  CHECK(apply(own::NormalizeRows{}, zeros({3, 0})).shape() == Shape{3, 0});
  CHECK(std::isnan(item(apply<own::Mish>(full({1}, std::nan(""))))));
  CHECK(item(apply<own::Mish>(full({1}, 1e30))) == Approx(1e30));

  CHECK_THROWS_AS(apply(own::NormalizeRows{}, zeros({})), ShapeError);
  CHECK_THROWS_AS(apply(own::NormalizeRows{}, zeros({2, 2}, DType::i32)), DTypeError);
  CHECK_THROWS_AS(apply<own::Mish>(zeros({2, 2}, DType::i32)), DTypeError);
  const Tensor elsewhere = Tensor::empty({2, 2}, DType::f32, dry(cuda()));
  CHECK_THROWS_AS(apply(own::NormalizeRows{}, elsewhere), DeviceError);
}
