// Numbers at the ends of f32's range: a functor, a softmax or a loss in f32 is within rounding of f64, and overflows
// only where the result does.

#include <cmath>
#include <limits>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/kernels/functors/binary.h>
#include <thimble/core/kernels/functors/reduction_functors.h>
#include <thimble/core/kernels/functors/unary.h>
#include <thimble/core/ops/copy.h>

#include "support/catch.h"

namespace ops_range_test {

using namespace thimble;

const std::vector<float>& magnitudes() {
  static const std::vector<float> all = [] {
    std::vector<float> values{0};
    for (const float m : {1e-45f, 1e-40f, 1.2e-38f, 1e-30f, 1e-20f, 1e-19f, 1e-10f, 1e-5f,  0.3f,   1.0f,   3.0f,
                          9.0f,   13.0f,  14.0f,    30.0f,  38.0f,  39.0f,  88.0f,  104.0f, 300.0f, 1e4f,   1e6f,
                          1e9f,   1e13f,  1e15f,    1e19f,  2e19f,  1e25f,  1e30f,  1e38f,  2e38f,  3.4e38f}) {
      values.insert(values.end(), {m, -m});
    }
    return values;
  }();
  return all;
}

/// Relative error of an f32 function, or absolute error of a backward from a rounded result.
bool is_near(double got, double right) {
  const auto narrow = static_cast<float>(right);
  if (std::isnan(right)) return true;  // f64 has no result, either
  if (std::isinf(narrow)) return got == static_cast<double>(narrow);
  return std::abs(got - right) <= 1e-5 * std::abs(right) + 2e-7;
}

template <class Op>
void check_unary(const Op& op) {
  for (const float x : magnitudes()) {
    const double wide = static_cast<double>(x), y = op.template fwd<double>(wide);
    const float narrow = op.template fwd<float>(x);
    INFO(Op::name << "(" << x << ") is " << narrow << ", in f64 " << y);
    CHECK(is_near(static_cast<double>(narrow), y));
    for (const float dy : {1.0f, -0.5f}) {
      constexpr int keeps = functor::keeps<Op, 0>;
      const auto d = static_cast<double>(dy);
      float got = 0;
      double right = 0;
      if constexpr (keeps == 1) {
        got = op.template bwd<float>(functor::In<float>{x}, dy),
        right = op.template bwd<double>(functor::In<double>{wide}, d);
      } else if constexpr (keeps == 8) {
        if (std::isinf(narrow)) continue;  // f32 does not have the result
        got = op.template bwd<float>(functor::Out<float>{narrow}, dy),
        right = op.template bwd<double>(functor::Out<double>{y}, d);
      }
      INFO("its gradient for " << dy << " is " << got << ", in f64 " << right);
      CHECK(is_near(static_cast<double>(got), right));
    }
  }
}

}  // namespace ops_range_test

TEST_CASE("ops_range: functors and their gradients in f32") {
  using namespace ops_range_test;
  using namespace ops;
  check_unary(Neg{});
  check_unary(Abs{});
  check_unary(Exp{});
  check_unary(Log{});
  check_unary(Sqrt{});
  check_unary(Square{});
  for (const double exponent : {0.5, -1.0, 2.0, 3.0}) check_unary(Pow{exponent});
  check_unary(Clamp{-3, 1e29});
  check_unary(Tanh{});
  check_unary(Sigmoid{});
  check_unary(Relu{});
  check_unary(LeakyRelu{});
  check_unary(GeluTanh{});
  check_unary(GeluErf{});
  check_unary(Silu{});
  check_unary(Sin{});
  check_unary(Cos{});
  check_unary(Softplus{});
  check_unary(Erf{});
  check_unary(DivScalar{3});
  check_unary(ScalarSub{2});
  check_unary(AddScalar{2});
  check_unary(MulScalar{0.25});
}

TEST_CASE("ops_range: functors of two operands in f32") {
  using namespace ops_range_test;
  for (const float a : magnitudes()) {
    for (const float b : magnitudes()) {
      const auto x = static_cast<double>(a), y = static_cast<double>(b);
      INFO("of " << a << " and " << b);
      if (std::abs(x - y) <= static_cast<double>(std::numeric_limits<float>::max())) {
        const ops::SquaredDifference square;
        CHECK(is_near(static_cast<double>(square.bwd_lhs<float>({a}, {b}, 0.25f)),
                      square.bwd_lhs<double>({x}, {y}, 0.25)));
        CHECK(is_near(static_cast<double>(square.bwd_rhs<float>({a}, {b}, 0.25f)),
                      square.bwd_rhs<double>({x}, {y}, 0.25)));
      }
      if (a < -80) continue;  // the sigmoid is a subnormal number, or 0
      const ops::SwiGlu gate;
      const double scale = std::abs(y) > 1e4 ? std::abs(y) : 1;  // an absolute error of the sigmoid times b
      const auto near = [&](float got, double right) {
        return is_near(static_cast<double>(got), right) || std::abs(static_cast<double>(got) - right) <= 2e-7 * scale;
      };
      CHECK(near(gate.fwd<float>(a, b), gate.fwd<double>(x, y)));
      CHECK(near(gate.bwd_lhs<float>({a}, {b}, 1), gate.bwd_lhs<double>({x}, {y}, 1)));
      CHECK(near(gate.bwd_rhs<float>({a}, 1), gate.bwd_rhs<double>({x}, 1)));
    }
  }
}

TEST_CASE("ops_range: softmax, logsumexp and cross entropy of large logits") {
  using namespace ops_range_test;
  using Rows = std::vector<float>;
  for (const Rows& row :
       {Rows{3e38f, -3e38f, 0, 1}, Rows{1e38f, 1e38f, 1e38f, -1}, Rows{-3e38f, -3.4e38f, -3e38f, -3.2e38f},
        Rows{1e19f, 1e20f, -1e20f, 5}, Rows{1e-40f, -1e-40f, 1e-45f, 0}}) {
    const auto run = [&](DType dtype, int which) {
      Tensor x = to_dtype(from_host(std::vector<double>(row.begin(), row.end()), {1, 4}), dtype);
      x.require_grad();
      Tape tape;
      Tensor y;
      {
        const Recording on(tape);
        y = which == 0   ? softmax(x, -1)
            : which == 1 ? log_softmax(x, -1)
            : which == 2 ? logsumexp(x, -1)
                         : cross_entropy(x, from_host(std::vector<std::int64_t>{1}, {1}));
      }
      tape.backward(y, full(y.shape(), 0.75, dtype));
      std::vector<double> values = to_host<double>(y);
      for (const double d : to_host<double>(x.grad())) values.push_back(d);
      return values;
    };
    for (int which = 0; which < 4; ++which) {
      const std::vector<double> got = run(DType::f32, which), right = run(DType::f64, which);
      for (std::size_t i = 0; i < right.size(); ++i) {
        INFO("function " << which << " of " << row[0] << ", ..., value " << i << ": " << got[i] << ", in f64 "
                         << right[i]);
        CHECK(is_near(got[i], right[i]));
      }
    }
  }
}

// Here l = log sum e^x lacks the digits of log sum e^(x - max x).
TEST_CASE("ops_range: cross entropy of logits that differ less than their largest one rounds") {
  using namespace thimble;
  using Rows = std::vector<double>;
  for (const double base : {1.5e3, -2e5, 1e7, 1e30, -3e38}) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      for (const double smoothing : {0.0, 0.2}) {
        const double step = std::abs(base) > 1e6 ? 0 : 1;
        Tensor x = to_dtype(from_host(Rows{base, base + step, base, base + 2 * step, 0, 0, 0, 0}, {2, 4}), dtype);
        x.require_grad();
        const Tensor targets = from_host(std::vector<std::int64_t>{2, 2}, {2});
        Tape tape;
        Tensor y;
        {
          const Recording on(tape);
          y = cross_entropy(x, targets, {.label_smoothing = smoothing, .reduction = LossReduction::none});
        }
        tape.backward(y, full(y.shape(), 1, y.dtype()));
        const Rows e{1, std::exp(step), 1, std::exp(2 * step)};
        const double sum = e[0] + e[1] + e[2] + e[3];
        INFO("logits of " << base << ", smoothing " << smoothing);
        CHECK(to_host<double>(y)[0] == Approx(std::log(sum) - smoothing * 0.75 * step));
        for (std::size_t i = 0; i < 4; ++i) {
          const double right = e[i] / sum - smoothing / 4 - (i == 2 ? 1 - smoothing : 0);
          CHECK(to_host<double>(x.grad())[i] == Approx(right).epsilon(2e-6).margin(1e-7));
        }
      }
    }
  }
}

TEST_CASE("ops_range: variances and means of squares whose squares f32 does not have") {
  using namespace thimble;
  const Tensor x = from_host(std::vector<float>{1e19f, 2e19f, -1e19f, 3e19f}, {4});
  CHECK(item(variance(x)) == Approx(2.9166667e38));
  CHECK(item(variance(from_host(std::vector<float>{1e-23f, 3e-23f}, {2}))) == Approx(2e-46).margin(1.5e-45));
  CHECK(item(mse_loss(full({64}, 1e19), zeros({64}))) == Approx(1e38));
  // Neither sum nor length is in range, but their quotients are.
  const Tensor largest = full({2, 4}, 3e38);
  CHECK(to_host<double>(variance(largest, -1)) == std::vector<double>{0, 0});
  CHECK(to_host<double>(variance(largest, 0, 0)) == std::vector<double>{0, 0, 0, 0});
  CHECK(to_host<double>(cosine_similarity(largest, largest)) == std::vector<double>{1, 1});
}
