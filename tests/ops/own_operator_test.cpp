// User-defined operators, from examples/own_operators.h, as rows of the operator table: they get every check of a
// built-in operator.

#include "../examples/own_operators.h"

#include <cmath>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"
#include "support/operator_table.h"

/// User-defined names, next to `using namespace thimble`.
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

namespace {

enum class Gives : std::uint8_t { right, few, many, none, other_size, other_shape, other_dtype, no_result };

/// 2 x; `gives` selects the error of its results.
struct Twice {
  static constexpr const char* name = "twice";
  static constexpr ops::Cost cost = ops::Cost::elementwise;
  struct Saved {
    Tensor x;
  };
  Gives gives = Gives::right;
  Tensor forward(const Tensor& x, const Tensor&, ops::Needs needs, Saved& saved) const {
    if (needs.any()) saved.x = x;
    return gives == Gives::no_result ? Tensor() : mul(x, 2);
  }
  ops::Gradients backward(Saved, Tensor dy, ops::Needs) const {
    const Tensor dx = mul(dy, 2);
    switch (gives) {
      case Gives::few:
        return {dx};
      case Gives::many:
        return {dx, dx, dx};
      case Gives::none:
        return {dx, Tensor()};
      case Gives::other_size:
        return {view::slice(dx, 0, 0, 1), dx};
      case Gives::other_shape:
        return {view::reshape(dx, {2, 1}), dx};
      case Gives::other_dtype:
        return {dx, to_dtype(dx, DType::f64)};
      default:
        return {dx, dx};
    }
  }
};

}  // namespace

TEST_CASE("own operator: gradients that are not those of the operands are refused by name") {
  const auto error_of = [](Gives gives, bool is_segment) -> std::string {
    Tensor x = full({2}, 3), y = full({2}, 4);
    x.require_grad(), y.require_grad();
    Tape tape;
    try {
      const auto run = [&](const Tensor& in) { return mul(apply(Twice{gives}, in, y), in); };  // x has two gradients
      Tensor loss;
      {
        const Recording on(tape);
        loss = sum(is_segment ? checkpoint(run, x) : run(x));
      }
      tape.backward(loss);
    } catch (const std::exception& error) {
      return error.what();
    }
    CHECK(to_host<float>(x.grad()) == std::vector<float>{12, 12});
    return "no error";
  };
  const std::pair<Gives, const char*> rows[] = {
      {Gives::right, "no error"},
      {Gives::few, "twice: backward gave no gradient for operand 1"},
      {Gives::many, "twice: backward gave 3 gradients for 2 operands"},
      {Gives::none, "twice: backward gave no gradient for operand 1"},
      {Gives::other_size, "twice: backward gave f32 (1) on cpu for operand 0, which has 2 elements"},
      {Gives::other_shape, "twice: backward gave f32 (2, 1) on cpu for operand 0, which has another shape or dtype"},
      {Gives::other_dtype, "twice: backward gave f64 (2) on cpu for operand 1, which has another shape or dtype"},
      {Gives::no_result, "twice: forward gave no tensor"}};
  for (const auto& [gives, text] : rows) {
    CHECK_THAT(error_of(gives, false), Catch::Contains(text));
    CHECK_THAT(error_of(gives, true), Catch::Contains(text));
  }
  Tensor x = full({2}, 3);
  x.require_grad();
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = mul(x, x);
  }
  CHECK_THROWS_AS(tape.backward(y, zeros({2}, DType::f64)), DTypeError);
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
