// Rows of the operator table: elementwise operators and views.

#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/gradcheck.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

using Values = std::vector<double>;
using Arrays = std::vector<HostArray>;

const Shape shape{3, 5, 7};
constexpr std::int64_t n = 3 * 5 * 7;

// y[i] = f(x[i])
template <class F>
auto map(F f) {
  return [f](const Arrays& in) {
    Values y;
    for (const double x : in[0].values) y.push_back(f(x));
    return y;
  };
}

// Broadcast (3, 5, 7) with (5, 1).
template <class F>
auto zip(F f) {
  return [f](const Arrays& in) {
    Values y;
    for (std::int64_t i = 0; i < n; ++i) y.push_back(f(in[0][i], in[1][i / 7 % 5]));
    return y;
  };
}

// Broadcast (3, 1, 7) with (5, 1).
template <class F>
auto outer(F f) {
  return [f](const Arrays& in) {
    Values y;
    for (std::int64_t i = 0; i < n; ++i) y.push_back(f(in[0][i / 35 * 7 + i % 7], in[1][i / 7 % 5]));
    return y;
  };
}

double gelu_tanh(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_erf(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2)); }
double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

std::int64_t nothing(std::int64_t, std::int64_t) { return 0; }
std::int64_t one(std::int64_t e, std::int64_t) { return n * e; }

OperatorCase unary(const char* name, Tensor (*f)(const Tensor&), double (*reference)(double),
                   std::int64_t (*kept)(std::int64_t, std::int64_t), double low = -2, double high = 2) {
  return {name, {{shape, low, high}}, [f](auto in) { return f(in[0]); }, map(reference), kept};
}

OperatorCase binary(const char* name, Tensor (*f)(const Tensor&, const Tensor&), double (*reference)(double, double),
                    std::int64_t lhs, std::int64_t rhs, std::int64_t out) {
  return {name,
          {{shape}, {{5, 1}, 0.5, 2}},
          [f](auto in) { return f(in[0], in[1]); },
          zip(reference),
          [=](std::int64_t e, std::int64_t) { return (lhs * n + rhs * 5 + out * n) * e; }};
}

}  // namespace

TEST_CASE("ops: unary elementwise") {
  const std::vector<OperatorCase> rows{
      unary(
          "neg", neg, [](double x) { return -x; }, nothing),
      unary(
          "abs", abs, [](double x) { return std::abs(x); }, one),
      unary(
          "exp", exp, [](double x) { return std::exp(x); }, one),
      unary(
          "log", log, [](double x) { return std::log(x); }, one, 0.2, 4),
      unary(
          "sqrt", sqrt, [](double x) { return std::sqrt(x); }, one, 0.2, 4),
      unary(
          "rsqrt", rsqrt, [](double x) { return 1 / std::sqrt(x); }, one, 0.2, 4),
      unary(
          "square", square, [](double x) { return x * x; }, one),
      unary(
          "tanh", thimble::tanh, [](double x) { return std::tanh(x); }, one),
      unary("sigmoid", sigmoid, sigmoid_of, one),
      unary(
          "relu", relu, [](double x) { return x > 0 ? x : 0; }, one),
      unary(
          "relu6", relu6, [](double x) { return std::clamp(x, 0.0, 6.0); }, one, -2, 8),
      unary(
          "silu", silu, [](double x) { return x * sigmoid_of(x); }, one),
      unary(
          "reciprocal", reciprocal, [](double x) { return 1 / x; }, one, 0.3, 3),
      {"pow 2.5",
       {{shape, 0.2, 3}},
       [](auto in) { return thimble::pow(in[0], 2.5); },
       map([](double x) { return std::pow(x, 2.5); }),
       one,
       3},
      {"clamp",
       {{shape}},
       [](auto in) { return clamp(in[0], -0.5, 1); },
       map([](double x) { return std::clamp(x, -0.5, 1.0); }),
       one},
      {"leaky_relu",
       {{shape}},
       [](auto in) { return leaky_relu(in[0], 0.1); },
       map([](double x) { return x > 0 ? x : 0.1 * x; }),
       one},
      {"gelu tanh", {{shape, -4, 4}}, [](auto in) { return gelu(in[0]); }, map(gelu_tanh), one, 2},
      {"gelu erf", {{shape, -4, 4}}, [](auto in) { return gelu(in[0], GeluForm::erf); }, map(gelu_erf), one, 2},
      {"add scalar", {{shape}}, [](auto in) { return in[0] + 1.5; }, map([](double x) { return x + 1.5; }), nothing},
      {"mul scalar", {{shape}}, [](auto in) { return 2.5 * in[0]; }, map([](double x) { return x * 2.5; }), nothing},
      {"less a scalar", {{shape}}, [](auto in) { return in[0] - 1.5; }, map([](double x) { return x - 1.5; }), nothing},
      {"from a scalar", {{shape}}, [](auto in) { return 1.5 - in[0]; }, map([](double x) { return 1.5 - x; }), nothing},
      {"div scalar", {{shape}}, [](auto in) { return in[0] / 3.0; }, map([](double x) { return x / 3; }), nothing},
      unary(
          "sin", thimble::sin, [](double x) { return std::sin(x); }, one, -4, 4),
      unary(
          "cos", thimble::cos, [](double x) { return std::cos(x); }, one, -4, 4),
      unary(
          "softplus", softplus, [](double x) { return std::log1p(std::exp(x)); }, one, -6, 6),
      unary(
          "erf", thimble::erf, [](double x) { return std::erf(x); }, one, -3, 3),
  };
  for (const OperatorCase& row : rows) check_operator(row);
}

TEST_CASE("ops: binary and ternary elementwise") {
  std::vector<OperatorCase> rows{
      binary(
          "add", add, [](double a, double b) { return a + b; }, 0, 0, 0),
      binary(
          "sub", sub, [](double a, double b) { return a - b; }, 0, 0, 0),
      binary(
          "mul", mul, [](double a, double b) { return a * b; }, 1, 1, 0),
      binary(
          "swiglu", swiglu, [](double a, double b) { return a * sigmoid_of(a) * b; }, 1, 1, 0),
      binary(
          "div", thimble::div, [](double a, double b) { return a / b; }, 0, 1, 1),
      binary(
          "minimum", minimum, [](double a, double b) { return std::min(a, b); }, 1, 1, 0),
      binary(
          "maximum", maximum, [](double a, double b) { return std::max(a, b); }, 1, 1, 0),
  };
  const auto both = [&](const char* name, Tensor (*f)(const Tensor&, const Tensor&),
                        double (*reference)(double, double), std::int64_t lhs, std::int64_t rhs, std::int64_t out) {
    OperatorCase row = binary(name, f, reference, 0, 0, 0);
    row.operands[0] = {{3, 1, 7}};
    row.reference = outer(reference);
    row.kept_bytes = [=](std::int64_t e, std::int64_t) { return (lhs * 21 + rhs * 5 + out * n) * e; };
    rows.push_back(row);
  };
  both(
      "add, both broadcast", add, [](double a, double b) { return a + b; }, 0, 0, 0);
  both(
      "sub, both broadcast", sub, [](double a, double b) { return a - b; }, 0, 0, 0);
  both(
      "mul, both broadcast", mul, [](double a, double b) { return a * b; }, 1, 1, 0);
  both(
      "div, both broadcast", thimble::div, [](double a, double b) { return a / b; }, 0, 1, 1);
  both(
      "minimum, both broadcast", minimum, [](double a, double b) { return std::min(a, b); }, 1, 1, 0);
  both(
      "maximum, both broadcast", maximum, [](double a, double b) { return std::max(a, b); }, 1, 1, 0);
  const auto comparison = [&](const char* name, Tensor (*f)(const Tensor&, const Tensor&),
                              double (*reference)(double, double)) {
    OperatorCase row = binary(name, f, reference, 0, 0, 0);
    row.has_gradient = false;
    rows.push_back(row);
  };
  comparison("equal", equal, [](double a, double b) { return double(a == b); });
  comparison("not_equal", not_equal, [](double a, double b) { return double(a != b); });
  comparison("less", less, [](double a, double b) { return double(a < b); });
  comparison("less_equal", less_equal, [](double a, double b) { return double(a <= b); });
  comparison("greater", greater, [](double a, double b) { return double(a > b); });
  comparison("greater_equal", greater_equal, [](double a, double b) { return double(a >= b); });
  // Scales that are powers of two, so that all dtypes give equal codes; some values are clipped.
  const auto rounded = [](const Arrays& in) {
    Values y;
    for (std::int64_t i = 0; i < n; ++i) {
      const double s = in[1][i / 7 % 5];
      y.push_back((std::clamp(std::nearbyint(in[0][i] / s) + 3, 1.0, 12.0) - 3) * s);
    }
    return y;
  };
  OperatorCase fake = {"fake_quantize",
                       {{shape}, constant({5, 1})},
                       [](auto in) { return fake_quantize(in[0], in[1], 3, 1, 12); },
                       rounded,
                       [](std::int64_t e, std::int64_t) { return (n + 5) * e; }};
  fake.operands[1].values = {0.125, 0.25, 0.5, 0.0625, 1};
  fake.is_gradcheck_exact = false;
  fake.why_no_gradcheck = "the gradient passes straight through steps";
  rows.push_back(fake);
  rows.push_back({"where",
                  {{shape, 0, 1, false, true}, {shape}, {{5, 1}}},
                  [](auto in) { return where(in[0], in[1], in[2]); },
                  [](const Arrays& in) {
                    Values y;
                    for (std::int64_t i = 0; i < n; ++i) y.push_back(in[0][i] != 0 ? in[1][i] : in[2][i / 7 % 5]);
                    return y;
                  },
                  [](std::int64_t, std::int64_t) { return n; }});
  rows.push_back({"masked_fill",
                  {{shape}, {{5, 1}, 0, 1, false, true}},
                  [](auto in) { return masked_fill(in[0], in[1], 2.5); },
                  [](const Arrays& in) {
                    Values y;
                    for (std::int64_t i = 0; i < n; ++i) y.push_back(in[1][i / 7 % 5] != 0 ? 2.5 : in[0][i]);
                    return y;
                  },
                  [](std::int64_t, std::int64_t) { return 5; }});
  const auto triangle = [&](const char* name, Tensor (*f)(const Tensor&, std::int64_t), std::int64_t diagonal,
                            bool (*is_inside)(std::int64_t column, std::int64_t border)) {
    rows.push_back({name,
                    {{shape}},
                    [=](auto in) { return f(in[0], diagonal); },
                    [=](const Arrays& in) {
                      Values y;
                      for (std::int64_t i = 0; i < n; ++i) {
                        y.push_back(is_inside(i % 7, i / 7 % 5 + diagonal) ? in[0][i] : 0);
                      }
                      return y;
                    },
                    [](std::int64_t, std::int64_t) { return 5 * 7; }});
  };
  triangle("tril", tril, 1, [](std::int64_t column, std::int64_t border) { return column <= border; });
  triangle("triu", triu, -1, [](std::int64_t column, std::int64_t border) { return column >= border; });
  for (const OperatorCase& row : rows) check_operator(row);
}

TEST_CASE("ops: elementwise work that is shared by threads") {
  const std::int64_t wide = 30011;  // two rows are four portions of a thread
  const char* const why = "larger than central differences are worth; the same operators are checked above";
  OperatorCase unary_row{"silu",
                         {{{2, wide}}},
                         [](auto in) { return silu(in[0]); },
                         map([](double x) { return x * sigmoid_of(x); }),
                         [=](std::int64_t e, std::int64_t) { return 2 * wide * e; }};
  OperatorCase binary_row{"mul",
                          {{{2, wide}}, {{2, 1}}},
                          [](auto in) { return mul(in[0], in[1]); },
                          [=](const Arrays& in) {
                            Values y;
                            for (std::int64_t i = 0; i < 2 * wide; ++i) y.push_back(in[0][i] * in[1][i / wide]);
                            return y;
                          },
                          [=](std::int64_t e, std::int64_t) { return (2 * wide + 2) * e; }};
  OperatorCase ternary_row{"where",
                           {{{2, wide}, 0, 1, false, true}, {{2, wide}}, {{wide}}},
                           [](auto in) { return where(in[0], in[1], in[2]); },
                           [=](const Arrays& in) {
                             Values y;
                             for (std::int64_t i = 0; i < 2 * wide; ++i) {
                               y.push_back(in[0][i] != 0 ? in[1][i] : in[2][i % wide]);
                             }
                             return y;
                           },
                           [=](std::int64_t, std::int64_t) { return 2 * wide; }};
  for (OperatorCase* row : {&unary_row, &binary_row, &ternary_row}) {
    row->is_gradcheck_exact = false;
    row->why_no_gradcheck = why;
    check_operator(*row);
  }
}

TEST_CASE("ops: views") {
  const auto permuted = [](const Arrays& in) {  // (3, 5, 7) -> (7, 3, 5)
    Values y;
    for (int k = 0; k < 7; ++k) {
      for (int ij = 0; ij < 15; ++ij) y.push_back(in[0][ij * 7 + k]);
    }
    return y;
  };
  const std::vector<OperatorCase> rows{
      {"reshape",
       {{shape}},
       [](auto in) {
         return reshape(in[0], {15, -1});
       },
       map([](double x) { return x; }),
       nothing},
      {"permute",
       {{shape}},
       [](auto in) {
         return permute(in[0], {2, 0, 1});
       },
       permuted,
       nothing},
      {"transpose then reshape",
       {{shape}},
       [](auto in) {
         return reshape(permute(in[0], {2, 0, 1}), {-1});
       },
       permuted,
       nothing},
      {"slice",
       {{shape}},
       [](auto in) { return slice(in[0], 2, 1, 6, 2); },
       [](const Arrays& in) {
         Values y;
         for (int ij = 0; ij < 15; ++ij) {
           for (int k = 1; k < 6; k += 2) y.push_back(in[0][ij * 7 + k]);
         }
         return y;
       },
       nothing},
      {"expand",
       {{{5, 1}}},
       [](auto in) {
         return expand(in[0], {3, 5, 7});
       },
       [](const Arrays& in) {
         Values y;
         for (std::int64_t i = 0; i < n; ++i) y.push_back(in[0][i / 7 % 5]);
         return y;
       },
       nothing},
      {"split and product",
       {{shape}},
       [](auto in) {
         const auto parts = split(in[0], 1, {2, 2, 1});
         return add(parts[0], parts[1]);
       },
       [](const Arrays& in) {
         Values y;
         for (int i = 0; i < 3; ++i) {
           for (int j = 0; j < 14; ++j) y.push_back(in[0][i * 35 + j] + in[0][i * 35 + 14 + j]);
         }
         return y;
       },
       nothing},
      {"slice that counts from the end",
       {{shape}},
       [](auto in) { return slice(in[0], 2, -3, -1); },
       [](const Arrays& in) {
         Values y;
         for (int ij = 0; ij < 15; ++ij) y.push_back(in[0][ij * 7 + 4]), y.push_back(in[0][ij * 7 + 5]);
         return y;
       },
       nothing},
      {"select and chunk",
       {{{3, 6}}},
       [](auto in) {
         const auto halves = chunk(in[0], 2, 1);
         return sub(select(halves[0], 0, -1), select(halves[1], 0, 1));
       },
       [](const Arrays& in) {
         Values y;
         for (int k = 0; k < 3; ++k) y.push_back(in[0][12 + k] - in[0][6 + 3 + k]);
         return y;
       },
       nothing},
      {"squeeze, unsqueeze, flatten",
       {{shape}},
       [](auto in) { return flatten(squeeze(unsqueeze(in[0], 1), 1), 1); },
       map([](double x) { return x; }),
       nothing},
      {"dense",
       {{shape}},
       [](auto in) { return dense(transpose(in[0], 0, 1)); },
       [](const Arrays& in) {
         Values y;
         for (std::int64_t i = 0; i < n; ++i) y.push_back(in[0][i / 7 % 3 * 35 + i / 21 * 7 + i % 7]);
         return y;
       },
       nothing},
      {"cast",
       {{shape}},
       [](auto in) { return cast(cast(in[0], DType::f64), in[0].dtype()); },
       map([](double x) { return x; }),
       nothing},
  };
  for (const OperatorCase& row : rows) check_operator(row);
}

TEST_CASE("ops: parts of an axis, and slices that end where they begin") {
  const Tensor x = zeros({3, 6});
  CHECK_THROWS_AS(chunk(x, 0, 1), ShapeError);
  CHECK_THROWS_AS(chunk(x, 4, 1), ShapeError);
  CHECK(slice(x, 1, 0, 0).shape() == Shape{3, 0});
  CHECK(split(x, 1, {0, 6})[0].shape() == Shape{3, 0});
}

TEST_CASE("ops: operands that are undefined are refused by name") {
  const Tensor none, x = zeros({2, 2});
  const std::pair<const char*, std::function<Tensor()>> rows[] = {
      {"sum", [&] { return sum(none); }},
      {"variance", [&] { return variance(none); }},
      {"argmax", [&] { return argmax(none); }},
      {"logsumexp", [&] { return logsumexp(none); }},
      {"norm", [&] { return norm(none, HUGE_VAL); }},
      {"relu", [&] { return relu(none); }},
      {"add", [&] { return add(none, x); }},
      {"add", [&] { return add(x, none); }},
      {"swiglu", [&] { return swiglu(x, none); }},
      {"less", [&] { return less(x, none); }},
      {"where", [&] { return where(less(x, x), x, none); }},
      {"masked_fill", [&] { return masked_fill(none, less(x, x), 0); }},
      {"dropout", [&] { return dropout(none, 0.5); }},
      {"prod", [&] { return prod(none); }},
      {"cast", [&] { return cast(none, DType::f64); }},
      {"flip", [&] { return flip(none); }},
      {"empty_like", [&] { return Tensor::empty_like(none); }},
      {"to_device", [&] { return to_device(none, dry(cpu)); }},
      {"fill_uniform", [&] { return fill_uniform(none, 0, 1), none; }},
      {"require_grad", [&] { return Tensor(none).require_grad(); }},
      {"copy", [&] { return clone(none); }}};
  for (const auto& [name, call] : rows) {
    INFO(name);
    CHECK_THROWS_WITH(call(), Catch::StartsWith(name) && Catch::Contains("undefined"));
    CHECK_THROWS_AS(call(), ShapeError);
  }
}

TEST_CASE("ops: sizes and numbers at the ends of their ranges") {
  const Tensor x = from_host(std::vector<double>{1, 2, 3, 4}, {2, 2});
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max(),
                         least = std::numeric_limits<std::int64_t>::min();
  CHECK(to_host<double>(triu(x, most)) == Values{0, 0, 0, 0});
  CHECK(to_host<double>(tril(x, most)) == Values{1, 2, 3, 4});
  CHECK(to_host<double>(triu(x, least)) == Values{1, 2, 3, 4});
  CHECK(to_host<double>(tril(x, least)) == Values{0, 0, 0, 0});
  CHECK(to_host<double>(slice(x, 1, 0, 2, most)) == Values{1, 3});
  CHECK_THROWS_AS(arange(-1), ShapeError);
  CHECK_THROWS_AS(softmax(x, -1, std::nan("")), ValueError);
  CHECK_THROWS_AS(rms_norm(x, {}, HUGE_VAL), ValueError);
  for (const double bad : {std::nan(""), -HUGE_VAL, HUGE_VAL}) {
    CHECK_THROWS_WITH(leaky_relu(x, bad), Catch::StartsWith("leaky_relu: slope"));
    CHECK_THROWS_WITH(bce_with_logits(x, x, bad), Catch::StartsWith("bce_with_logits: positive_weight"));
    CHECK_THROWS_WITH(cosine_similarity(x, x, -1, bad), Catch::StartsWith("cosine_similarity: epsilon"));
    CHECK_THROWS_WITH(cosine_embedding_loss(x, x, full({2}, 1), bad),
                      Catch::StartsWith("cosine_embedding_loss: margin"));
  }
  CHECK_THROWS_AS(cosine_similarity(x, x, -1, -1e-8), ValueError);
}

TEST_CASE("ops: a gradient check names the first element that is wrong") {
  const Tensor x = from_host<double>({3, 0, 0}, {3});
  const auto half = [](std::span<const Tensor> in) { return mul(in[0].detach(), in[0]); };  // half the slope of x^2
  const GradcheckResult result = gradcheck(half, std::array{x});
  CHECK_FALSE(result.passed);
  CHECK(result.report.starts_with("operand 0 (3), element 0: "));
  CHECK(result.largest_error > 0);                                            // not just the last one
  CHECK(gradcheck(half, std::array{x}, {.relative_tolerance = 0.6}).passed);  // relative to the numerical one
  CHECK_FALSE(gradcheck([](std::span<const Tensor> in) { return log(in[0]); }, std::array{neg(x)}).passed);  // NaN
}

// ---- Numbers and tensors of integers.

TEST_CASE("ops: integers take no numbers that are none") {
  const Tensor ids = arange(4);
  CHECK_THROWS_AS(ids * 0.5, DTypeError);
  CHECK_THROWS_AS(0.5 * ids, DTypeError);
  CHECK_THROWS_AS(from_host(std::vector<std::uint8_t>{128}, {1}) * (1.0 / 255), DTypeError);
  CHECK_THROWS_AS(ids + 0.5, DTypeError);
  CHECK_THROWS_AS(ids - 0.5, DTypeError);
  CHECK_THROWS_AS(0.5 - ids, DTypeError);
  CHECK_THROWS_AS(ids / 2.0, DTypeError);
  CHECK_THROWS_AS(clamp(ids, 0.5, 1.5), DTypeError);
  CHECK_THROWS_AS(clamp(ids, 0, INFINITY), DTypeError);
  CHECK_THROWS_AS(ids + NAN, DTypeError);
  CHECK_THROWS_AS(ids * 0x1p63, DTypeError);
  CHECK_THROWS_AS(full({2}, 0.5, DType::i32), DTypeError);
  CHECK_THROWS_AS(masked_fill(ids, less(ids, ids), 0.5), DTypeError);
  CHECK_THROWS_WITH(
      ids * 0.5,
      "mul: 0.500000 is no integer of the tensor's, i64 (4) on cpu; use to_dtype(x, DType::f32) first, or an integer");
  CHECK_THROWS_AS(arange(2, DType::i8) + 300, DTypeError);
  CHECK_THROWS_AS(full({2}, 128, DType::i8), DTypeError);
  CHECK_THROWS_AS(full({2}, -1, DType::u8), DTypeError);
  CHECK_THROWS_AS(arange(129, DType::i8), DTypeError);
  CHECK(to_host<std::int64_t>((arange(2, DType::u8) + 255) - 255)[1] == 1);
  using Ids = std::vector<std::int64_t>;
  CHECK(to_host<std::int64_t>(ids + 1) == Ids{1, 2, 3, 4});
  CHECK(to_host<std::int64_t>(5.0 - ids * -2) == Ids{5, 7, 9, 11});
  CHECK(to_host<std::int64_t>(clamp(ids, 1, 2)) == Ids{1, 1, 2, 2});
  // As torch.clamp: bounds beyond the dtype change nothing, unless no number of the dtype is between them.
  CHECK_THROWS_AS(clamp(ids, 0, 0x1p63), DTypeError);
  CHECK(to_host<std::int64_t>(clamp(to_dtype(ids - 2, DType::i8), -1000, 1000)) == Ids{-2, -1, 0, 1});
  CHECK_THROWS_AS(clamp(arange(4, DType::u8), -5, -1), DTypeError);
  CHECK_THROWS_AS(clamp(arange(4, DType::i8), 128, 200), DTypeError);
  CHECK(to_host<float>(to_dtype(ids, DType::f32) * 0.5) == std::vector<float>{0, 0.5, 1, 1.5});
}

TEST_CASE("ops: a copy between windows on the same bytes", "[core]") {
  const Tensor t = reshape(to_dtype(arange(90'000), DType::f32), {300, 300}), expected = clone(transpose(t));
  copy_into(t, transpose(t));
  CHECK(to_host<float>(t) == to_host<float>(expected));
  CHECK_THROWS_AS(copy_into(expand(slice(t, 0, 0, 1), {300, 300}), t), ShapeError);
  CHECK_THROWS_AS(copy_into(t, Tensor()), ShapeError);
  CHECK_THROWS_AS(fill(Tensor(), 1), ShapeError);
  CHECK_THROWS_AS(to_host<float>(Tensor()), ShapeError);
}
