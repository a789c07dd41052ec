// Rows of the operator table: reductions. Then cases beyond a table: long reductions, NaN, ties, empty tensors, errors.

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/ops/reduction/reduction.h>
#include <thimble/core/tensor/view.h>
#include <thimble/core/threads/parallel.h>

#include "support/catch.h"
#include "support/kernel_data.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

using Values = std::vector<double>;
using Arrays = std::vector<HostArray>;

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double inf = std::numeric_limits<double>::infinity();

// `max(x, 0.0)` is no maximum over axis 0, `sum(x, true)` no sum over axis 1, and true is no correction.
static_assert(std::is_convertible_v<int, Axes> && std::is_convertible_v<std::int64_t, Axes>);
static_assert(!std::is_convertible_v<double, Axes> && !std::is_convertible_v<float, Axes>);
static_assert(!std::is_convertible_v<bool, Axes>);
template <class... Args>
concept has_variance = requires(Args... args) {
  variance(args...);
};
static_assert(has_variance<Tensor, int, int, bool> && has_variance<Tensor, int, int> && has_variance<Tensor, int>);
static_assert(!has_variance<Tensor, int, bool> && !has_variance<Tensor, int, bool, bool>);
static_assert(!has_variance<Tensor, int, double> && !has_variance<Tensor, bool>);
template <class Axis>
concept names_axes = requires(Tensor x, Axis axis) {
  sum(x, axis), mean(x, axis), thimble::max(x, axis), thimble::min(x, axis), argmax(x, axis), logsumexp(x, axis);
};
static_assert(names_axes<int> && !names_axes<bool> && !names_axes<double>);

const Shape shape{3, 5, 7};
constexpr std::int64_t n = 3 * 5 * 7;

// The plain definition: gathers each output's elements and calls f on them.
Values reduce(const HostArray& x, const std::vector<int>& axes, double (*f)(const Values&)) {
  const auto is_reduced = [&](int axis) {
    return axes.empty() || std::find(axes.begin(), axes.end(), axis) != axes.end();
  };
  std::int64_t outputs = 1;
  for (int axis = 0; axis < x.shape.rank(); ++axis) outputs *= is_reduced(axis) ? 1 : x.shape[axis];
  std::vector<Values> groups(static_cast<std::size_t>(outputs));
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(x.values.size()); ++i) {
    std::int64_t rest = i, output = 0, stride = 1;
    for (int axis = x.shape.rank() - 1; axis >= 0; --axis) {
      const std::int64_t at = rest % x.shape[axis];
      rest /= x.shape[axis];
      if (is_reduced(axis)) continue;
      output += at * stride;
      stride *= x.shape[axis];
    }
    groups[static_cast<std::size_t>(output)].push_back(x[i]);
  }
  Values y;
  for (const Values& group : groups) y.push_back(f(group));
  return y;
}

double sum_of(const Values& v) {
  long double total = 0;
  for (const double x : v) total += x;
  return static_cast<double>(total);
}
double mean_of(const Values& v) { return sum_of(v) / static_cast<double>(v.size()); }
double squares_of(const Values& v) {
  const double mean = mean_of(v);
  Values squares;
  for (const double x : v) squares.push_back((x - mean) * (x - mean));
  return sum_of(squares);
}
double sample_variance(const Values& v) { return squares_of(v) / static_cast<double>(v.size() - 1); }
double population_variance(const Values& v) { return squares_of(v) / static_cast<double>(v.size()); }
double max_of(const Values& v) { return *std::max_element(v.begin(), v.end()); }
double min_of(const Values& v) { return *std::min_element(v.begin(), v.end()); }
double argmax_of(const Values& v) { return static_cast<double>(std::max_element(v.begin(), v.end()) - v.begin()); }
double argmin_of(const Values& v) { return static_cast<double>(std::min_element(v.begin(), v.end()) - v.begin()); }
double logsumexp_of(const Values& v) {
  const double largest = max_of(v);
  Values terms;
  for (const double x : v) terms.push_back(std::exp(x - largest));
  return largest + std::log(sum_of(terms));
}

double norm_of(const Values& v) {
  Values squares;
  for (const double x : v) squares.push_back(x * x);
  return std::sqrt(sum_of(squares));
}

using Function = Tensor (*)(const Tensor&, const Axes&, bool);

struct Reduction {
  const char* name;
  Function function;
  double (*reference)(const Values&);
  std::int64_t x_kept, extra_kept, places_kept;  // per input element: e; per output: s; per output: one byte
  bool has_gradient = true;
};

OperatorCase row_of(const Reduction& r, const std::vector<int>& axes, bool keep_axes) {
  const auto run = [=](std::span<const Tensor> in) { return r.function(in[0], Axes(axes), keep_axes); };
  const auto reference = [=](const Arrays& in) { return reduce(in[0], axes, r.reference); };
  std::int64_t outputs = 1;
  for (int axis = 0; axis < 3; ++axis) {
    const bool is_kept = !axes.empty() && std::find(axes.begin(), axes.end(), axis) == axes.end();
    if (is_kept) outputs *= shape[axis];
  }
  std::string name = r.name;
  for (const int axis : axes) name += " " + std::to_string(axis);
  OperatorCase row{name + (keep_axes ? " kept" : ""), {{shape}}, run, reference};
  row.kept_bytes = [=](std::int64_t e, std::int64_t s) {
    return r.x_kept * n * e + outputs * (r.extra_kept * s + r.places_kept);
  };
  row.has_gradient = r.has_gradient;
  row.tolerance = 2;
  return row;
}

std::vector<double> host(const Tensor& t) { return to_host<double>(t); }

Tensor matrix(const Values& values, std::int64_t rows, DType dtype = DType::f32) {
  return to_dtype(from_host(values, {rows, static_cast<std::int64_t>(values.size()) / rows}), dtype);
}

}  // namespace

TEST_CASE("ops: reductions") {
  const std::vector<Reduction> reductions{
      {"sum", sum, sum_of, 0, 0, 0},
      {"mean", mean, mean_of, 0, 0, 0},
      {"variance", [](auto& x, auto& axes, bool keep) { return variance(x, axes, 1, keep); }, sample_variance, 1, 1, 0},
      {"variance 0", [](auto& x, auto& axes, bool keep) { return variance(x, axes, 0, keep); }, population_variance, 1,
       1, 0},
      {"max", thimble::max, max_of, 0, 0, 1},
      {"min", thimble::min, min_of, 0, 0, 1},
      {"argmax", argmax, argmax_of, 0, 0, 0, false},
      {"argmin", argmin, argmin_of, 0, 0, 0, false},
      {"logsumexp", logsumexp, logsumexp_of, 1, 1, 0},
  };
  for (const Reduction& reduction : reductions) {
    check_operator(row_of(reduction, {}, false));
    check_operator(row_of(reduction, {2}, false));
    check_operator(row_of(reduction, {0}, true));
    check_operator(row_of(reduction, {1}, false));
    check_operator(row_of(reduction, {0, 2}, true));
  }
}

TEST_CASE("ops: norm") {
  const Reduction norms[] = {
      {"norm", [](auto& x, auto& axes, bool keep) { return norm(x, 2, axes, keep); }, norm_of, 1, 0, 0},
      {"norm 1", [](auto& x, auto& axes, bool keep) { return norm(x, 1, axes, keep); },
       [](const Values& v) {
         double total = 0;
         for (const double x : v) total += std::abs(x);
         return total;
       },
       1, 0, 0},
      {"norm inf", [](auto& x, auto& axes, bool keep) { return norm(x, inf, axes, keep); },
       [](const Values& v) {
         double largest = 0;
         for (const double x : v) largest = std::max(largest, std::abs(x));
         return largest;
       },
       1, 0, 0},
      {"norm 3", [](auto& x, auto& axes, bool keep) { return norm(x, 3, axes, keep); },
       [](const Values& v) {
         double total = 0;
         for (const double x : v) total += std::pow(std::abs(x), 3);
         return std::cbrt(total);
       },
       1, 0, 0},
  };
  for (const Reduction& reduction : norms) {
    for (const std::vector<int>& axes : {std::vector<int>{}, {2}, {0, 1}}) {
      OperatorCase row = row_of(reduction, axes, axes.size() == 2);
      const std::int64_t outputs = axes.empty() ? 1 : axes.size() == 1 ? 15 : 7;
      row.kept_bytes = nullptr;
      if (reduction.reference == norm_of) row.kept_bytes = [=](std::int64_t e, auto) { return (n + outputs) * e; };
      row.tolerance = 8;
      check_operator(row);
    }
  }
  Tensor leaf = matrix({0, 0, 3, 4}, 2);
  leaf.require_grad();
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = norm(leaf, 2, 1);
  }
  tape.backward(y, full({2}, 1));
  CHECK(host(y) == Values{0, 5});
  CHECK(host(leaf.grad()) == Values{0, 0, static_cast<double>(0.6f), static_cast<double>(0.8f)});  // no NaN at 0
  for (const double p : {1.5, 2.0, 3.0, 4.0}) {
    for (const double factor : {0.0, 1e-38, 1e-30, 1e-13, 1.0, 1e10, 1e30}) {
      INFO("p " << p << ", factor " << factor);
      std::vector<Values> got;
      for (const DType dtype : {DType::f32, DType::f64}) {  // powers of these numbers are in f64's range
        Tensor of = matrix({3 * factor, -4 * factor, 0, factor}, 2, dtype);
        of.require_grad();
        Tape records;
        {
          const Recording on(records);
          y = norm(of, p);
        }
        records.backward(y, full({}, 1, dtype));
        got.push_back(host(of.grad()));
        got.back().push_back(factor == 0 ? host(y)[0] : host(y)[0] / factor);
      }
      for (std::size_t i = 0; i < got[0].size(); ++i) CHECK(std::abs(got[0][i] - got[1][i]) <= 2e-6);
      const double sum = std::pow(3, p) + std::pow(4, p) + 1, expected = std::pow(4 / std::pow(sum, 1 / p), p - 1);
      CHECK(std::abs(got[1][1] + (factor == 0 ? 0 : expected)) <= 1e-6);
      CHECK(std::abs(got[1][4] - (factor == 0 ? 0 : std::pow(sum, 1 / p))) <= 1e-6);
    }
  }
  CHECK(host(norm(full({2}, inf), 3)) == Values{inf});
  CHECK(host(norm(zeros({2, 0}), 3, 1)) == Values{0, 0});
  CHECK(host(norm(zeros({2, 0}), 2, 1)) == Values{0, 0});
  CHECK(host(norm(full({4}, 300, DType::f16))) == Values{600});  // squares beyond f16
  CHECK_THROWS_AS(norm(zeros({2}), 0), ValueError);
  CHECK_THROWS_AS(norm(arange(3)), DTypeError);
}

TEST_CASE("ops: axes are named in every way") {
  const Tensor x = randn({3, 5, 7}, DType::f64);
  CHECK(host(sum(x, -1)) == host(sum(x, 2)));
  CHECK(host(sum(x, {-3, 2})) == host(sum(x, {2, 0})));
  CHECK(host(sum(x, {})) == host(sum(x, {0, 1, 2})));
  CHECK(sum(x, {0, 2}, true).shape() == Shape{1, 5, 1});
  CHECK(sum(x, {0, 2}).shape() == Shape{5});
  CHECK(sum(x).shape() == Shape{});
  CHECK(host(sum(sum(x))) == host(sum(x)));
  CHECK_THROWS_AS(sum(x, 3), ShapeError);
  CHECK_THROWS_AS(mean(x, {0, -3}), ShapeError);
  CHECK_THROWS_AS(variance(x, 0, 2), ValueError);
  const std::vector<int> too_many(9, 0);
  CHECK_THROWS_AS(Axes(too_many), ShapeError);
}

TEST_CASE("ops: reductions of two stages") {
  // Longer than one range, along a contiguous axis and across it; 131,073 elements are three ranges.
  const std::int64_t length = 131073, columns = 3;
  const Tensor x = normal({columns, length}, 3, 2, DType::f32);
  const Tensor across = contiguous(view::transpose(x));  // (length, columns)
  const HostArray array{x.shape(), host(x)};
  const auto check = [&](const char* name, Function f, double (*reference)(const Values&), double tolerance) {
    INFO(name);
    const Values along = host(f(x, 1, false)), expected = reduce(array, {1}, reference);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(std::abs(along[i] - expected[i]) <= tolerance * (1 + std::abs(expected[i])));
    }
    CHECK(along == host(f(across, 0, false)));  // the layout changes no bit
    CHECK(along == host(f(view::transpose(across), 1, false)));
    const int before = thread_count();
    for (const int threads : {1, 2, 5}) {
      set_thread_count(threads);
      CHECK(along == host(f(x, 1, false)));
      CHECK(along == host(f(across, 0, false)));
    }
    set_thread_count(before);
    const kernel_test::Settings settings;
    for (const kernels::Isa isa : kernel_test::supported()) {
      kernels::set_isa(isa);
      CHECK(along == host(f(x, 1, false)));
      CHECK(along == host(f(across, 0, false)));
    }
  };
  check("sum", sum, sum_of, 2e-7);
  check("mean", mean, mean_of, 2e-7);
  check(
      "variance", [](auto& t, auto& axes, bool keep) { return variance(t, axes, 1, keep); }, sample_variance, 1e-6);
  check("max", thimble::max, max_of, 0);
  check("min", thimble::min, min_of, 0);
  check("argmax", argmax, argmax_of, 0);
  check("argmin", argmin, argmin_of, 0);
  check("logsumexp", logsumexp, logsumexp_of, 2e-7);
}

TEST_CASE("ops: a variance far from zero keeps its digits") {
  const Tensor x = normal({4096}, 1e4, 1, DType::f32);
  const HostArray array{x.shape(), host(x)};
  CHECK(item(variance(x)) == Approx(reduce(array, {}, sample_variance)[0]).epsilon(1e-5));
}

TEST_CASE("ops: extremes meet NaN, infinities and ties") {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const Tensor x =
        matrix({1, not_a_number, 5, not_a_number, -inf, -inf, -inf, -inf, 2, 7, 7, -7, -0.0, 0.0, -0.0, 0.0}, 4, dtype);
    const Values top = host(thimble::max(x, 1)), bottom = host(thimble::min(x, 1));
    CHECK(std::isnan(top[0]));
    CHECK(std::isnan(bottom[0]));
    CHECK(top[1] == -inf);
    CHECK(top[2] == 7);
    CHECK(bottom[2] == -7);
    CHECK(host(argmax(x, 1)) == Values{1, 0, 1, 0});
    CHECK(host(argmin(x, 1)) == Values{1, 0, 3, 0});
    // Across, where neighbouring outputs are computed side by side.
    const Tensor across = contiguous(view::transpose(x));
    CHECK(host(argmax(across, 0)) == Values{1, 0, 1, 0});
    CHECK(host(argmin(across, 0)) == Values{1, 0, 3, 0});
    CHECK(std::isnan(host(thimble::max(across, 0))[0]));
  }
  // A tie's gradient goes to the first of the equal elements, a NaN's to the first NaN.
  Tensor x = matrix({2, 7, 7, -7, 1, not_a_number, 5, not_a_number}, 2);
  x.require_grad();
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = thimble::max(x, 1);
  }
  tape.backward(y, from_host(std::vector<float>{3, 4}, {2}));
  CHECK(host(x.grad()) == Values{0, 3, 0, 0, 0, 4, 0, 0});
}

TEST_CASE("ops: of equal extremes far apart the first has the place and the gradient") {
  // Ranges of 2^16 elements are searched separately, and then compared.
  constexpr std::int64_t range = 1 << 16, length = 3 * range + 5;
  struct Row {
    std::int64_t first, second;
  };
  for (const Row& row :
       {Row{0, range}, Row{range - 1, range}, Row{range + 3, length - 1}, Row{3 * range, length - 1}}) {
    for (const double extreme : {1.0, -1.0, inf, -inf, not_a_number}) {
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i32}) {
        if (!is_floating(dtype) && !std::isfinite(extreme)) continue;
        INFO(to_string(dtype) << ", " << extreme << " at " << row.first << " and " << row.second);
        Values values(length, 0.0);
        values[static_cast<std::size_t>(row.first)] = values[static_cast<std::size_t>(row.second)] = extreme;
        Tensor x = to_dtype(from_host(values, {length}), dtype);
        // In one row, and in two columns, which are searched together.
        const Tensor two = contiguous(view::expand(view::reshape(x, {length, 1}), {length, 2}));
        const auto first = static_cast<double>(row.first);
        if (!(extreme < 0)) CHECK((item(argmax(x)) == first && host(argmax(two, 0)) == Values{first, first}));
        if (!(extreme > 0)) CHECK((item(argmin(x)) == first && host(argmin(two, 0)) == Values{first, first}));
        if (dtype != DType::f32) continue;
        x.require_grad();
        Tape tape;
        Tensor y;
        {
          const Recording on(tape);
          y = extreme < 0 ? thimble::min(x) : thimble::max(x);
        }
        tape.backward(y);
        Values expected(length, 0.0);
        expected[static_cast<std::size_t>(row.first)] = 1;
        CHECK((host(x.grad()) == expected));
      }
    }
  }
}

TEST_CASE("ops: extremes of integers and where the place is kept") {
  const Tensor x = from_host(std::vector<std::int64_t>{3, std::int64_t{1} << 62, -(std::int64_t{1} << 62), 4}, {4});
  CHECK(to_host<std::int64_t>(thimble::max(x))[0] == std::int64_t{1} << 62);
  CHECK(to_host<std::int64_t>(thimble::min(x))[0] == -(std::int64_t{1} << 62));
  CHECK(to_host<std::int64_t>(sum(x))[0] == 7);
  CHECK(sum(to_dtype(x, DType::boolean)).dtype() == DType::i64);
  CHECK(item(sum(to_dtype(x, DType::boolean))) == 4);

  const auto kept = [](std::int64_t length) {
    Tensor t = rand({2, length});
    t.require_grad();
    Tape tape;
    {
      const Recording on(tape);
      thimble::max(t, 1);
    }
    return tape.kept_bytes();
  };
  CHECK(kept(256) == 2);  // u8
  CHECK(kept(257) == 8);  // i32
}

TEST_CASE("ops: reductions of nothing") {
  const Tensor x = Tensor::empty({2, 0}), none = Tensor::empty({0, 3});
  CHECK(host(sum(x, 1)) == Values{0, 0});
  CHECK(std::isnan(host(mean(x, 1))[0]));
  CHECK(std::isnan(host(variance(x, 1))[0]));
  CHECK(std::isnan(host(variance(Tensor(rand({2, 1})), 1))[0]));  // one element, correction 1
  CHECK(host(variance(rand({2, 1}), 1, 0)) == Values{0, 0});
  CHECK(host(logsumexp(x, 1)) == Values{-inf, -inf});
  CHECK_THROWS_AS(thimble::max(x, 1), ShapeError);
  CHECK_THROWS_AS(thimble::min(x), ShapeError);
  CHECK_THROWS_AS(argmax(x, 1), ShapeError);
  CHECK_THROWS_AS(argmin(x), ShapeError);
  CHECK(thimble::max(none, 1).shape() == Shape{0});
  CHECK(sum(none, 1).shape() == Shape{0});
}

TEST_CASE("ops: logsumexp at the edges") {
  const Tensor x = matrix({1000, 1000, -inf, -inf, -inf, 3, inf, 1, not_a_number, 0}, 5);
  const Values y = host(logsumexp(x, 1));
  CHECK(y[0] == Approx(1000 + std::log(2.0)));
  CHECK(y[1] == -inf);
  CHECK(y[2] == 3);
  CHECK(y[3] == inf);
  CHECK(std::isnan(y[4]));
  Tensor leaf = matrix({1000, 1000, -inf, -inf, -inf, 3}, 3);
  leaf.require_grad();
  Tape tape;
  Tensor result;
  {
    const Recording on(tape);
    result = logsumexp(leaf, 1);
  }
  tape.backward(result, full({3}, 1));
  const Values dx = host(leaf.grad());
  CHECK(dx[0] == Approx(0.5).epsilon(1e-4));  // half a bit of y = 1000.69 in f32 is 3e-5
  CHECK(dx[1] == dx[0]);
  CHECK(Values(dx.begin() + 2, dx.end()) == Values{0, 0, 0, 1});
}

TEST_CASE("ops: gradients of sum and mean take no room") {
  Tensor x = rand({64, 64});
  x.require_grad();
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = mean(x, {}, true);
  }
  const ops::Mean op{axis_mask("mean", {}, 2), true};
  ops::Gradients gradients = op.backward({x.shape()}, full({1, 1}, 2), ops::Needs(1));
  CHECK(gradients[0].storage()->bytes() == 4);
  CHECK(gradients[0].shape() == x.shape());
  tape.backward(y, full({1, 1}, 2));
  CHECK(x.grad().is_contiguous());
  CHECK(host(x.grad()) == Values(64 * 64, 2.0 / 4096));
}

TEST_CASE("ops: reductions refuse what has no meaning") {
  const Tensor integers = arange(4);
  CHECK_THROWS_AS(mean(integers), DTypeError);
  CHECK_THROWS_AS(variance(integers), DTypeError);
  CHECK_THROWS_AS(logsumexp(integers), DTypeError);
  for (const double p : {1.0, 2.0, 3.0}) CHECK_THROWS_WITH(norm(integers, p), "norm: i64 (4) on cpu is not floating");
}
