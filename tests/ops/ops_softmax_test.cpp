// Rows of the operator table: softmax and log-softmax; then long rows, layouts, masks and edges.

#include <cmath>
#include <functional>
#include <limits>

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
#include "support/near.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

using Values = std::vector<double>;
using Arrays = std::vector<HostArray>;
constexpr double inf = std::numeric_limits<double>::infinity();

// The plain definition over `length` elements at `stride`, of which the first `visible` take part.
void softmax_row(const double* x, double* y, std::int64_t length, std::int64_t stride, std::int64_t visible,
                 double scale, bool is_log) {
  double largest = -inf;
  for (std::int64_t i = 0; i < visible; ++i) largest = std::max(largest, scale * x[i * stride]);
  long double total = 0;
  for (std::int64_t i = 0; i < visible; ++i) total += std::exp(scale * x[i * stride] - largest);
  for (std::int64_t i = 0; i < length; ++i) {
    const double z = scale * x[i * stride] - largest;
    y[i * stride] = is_log ? z - static_cast<double>(std::log(total)) : static_cast<double>(std::exp(z) / total);
    if (i >= visible) y[i * stride] = 0;
  }
}

Values softmax_of(const HostArray& x, int axis, double scale, bool is_log, bool is_causal = false) {
  const std::int64_t length = x.shape[axis];
  std::int64_t stride = 1;
  for (int a = axis + 1; a < x.shape.rank(); ++a) stride *= x.shape[a];
  Values y(x.values.size());
  const std::int64_t queries = is_causal ? x.shape[axis - 1] : 1;
  std::int64_t row = 0;
  for (std::int64_t outer = 0; outer < x.shape.elements() / (length * stride); ++outer) {
    for (std::int64_t inner = 0; inner < stride; ++inner, ++row) {
      const std::int64_t at = outer * length * stride + inner;
      const std::int64_t visible = is_causal ? length - queries + row % queries + 1 : length;
      softmax_row(x.values.data() + at, y.data() + at, length, stride, visible, scale, is_log);
    }
  }
  return y;
}

const Shape shape{3, 4, 6};
constexpr std::int64_t n = 3 * 4 * 6;

OperatorCase row(const std::string& name, int axis, double scale, bool is_log, bool is_causal) {
  return {name,
          {{shape, -4, 4}},
          [=](auto in) {
            if (is_log) return log_softmax(in[0], axis);
            return is_causal ? causal_softmax(in[0], scale) : softmax(in[0], axis, scale);
          },
          [=](const Arrays& in) { return softmax_of(in[0], axis < 0 ? axis + 3 : axis, scale, is_log, is_causal); },
          [](std::int64_t e, std::int64_t) { return n * e; },
          2};
}

std::vector<float> host(const Tensor& t) { return to_host<float>(t); }

Tensor gradient(const std::function<Tensor(const Tensor&)>& f, const Tensor& x, const Tensor& seed) {
  Tensor leaf = clone(x);
  leaf.require_grad();
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = f(leaf);
  }
  tape.backward(y, clone(seed));
  return leaf.grad();
}

}  // namespace

TEST_CASE("ops: softmax") {
  check_operator(row("softmax", -1, 1, false, false));
  check_operator(row("softmax axis 0", 0, 1, false, false));
  check_operator(row("softmax axis 1", 1, 1, false, false));
  check_operator(row("softmax scaled", -1, 0.35, false, false));
  check_operator(row("softmax scaled down", 2, -1.5, false, false));
  check_operator(row("softmax causal", -1, 1, false, true));
  check_operator(row("softmax causal scaled", -1, 0.5, false, true));
  check_operator(row("log_softmax", -1, 1, true, false));
  check_operator(row("log_softmax axis 1", 1, 1, true, false));
}

TEST_CASE("ops: softmax of rows of every length, layout, thread count and instruction set") {
  const kernel_test::Settings settings;
  for (const std::int64_t length : {1, 15, 16, 17, 100, 2048, 2049, 5000}) {
    INFO("length " << length);
    kernels::set_isa(kernels::best_isa());
    const Tensor x = normal({5, length}, 0, 3), dy = randn({5, length});
    const HostArray array{x.shape(), to_host<double>(x)};
    for (const bool is_log : {false, true}) {
      const auto f = [&](const Tensor& t) { return is_log ? log_softmax(t, -1) : softmax(t, -1); };
      const std::vector<float> y = host(f(x)), dx = host(gradient(f, x, dy));
      const Values expected = softmax_of(array, 1, 1, is_log);
      double worst = 0, gradient_sum = 0;
      for (std::size_t i = 0; i < y.size(); ++i) {
        worst = thimble_test::worse(worst, std::abs(y[i] - expected[i]) / (1 + std::abs(expected[i])));
      }
      CHECK(worst < 2e-6);
      for (const float g : dx) gradient_sum += g;
      CHECK(std::abs(gradient_sum) < 1e-3);  // adding a constant to all scores changes nothing

      const Tensor across = contiguous(view::transpose(x));  // (length, 5)
      const auto g = [&](const Tensor& t) { return is_log ? log_softmax(t, 0) : softmax(t, 0); };
      CHECK(host(view::transpose(g(across))) == y);
      CHECK(host(f(view::transpose(across))) == y);
      CHECK(host(view::transpose(gradient(g, across, contiguous(view::transpose(dy))))) == dx);
      const int before = thread_count();
      for (const int threads : {1, 2, 5}) {
        set_thread_count(threads);
        CHECK(host(f(x)) == y);
        CHECK(host(gradient(f, x, dy)) == dx);
      }
      set_thread_count(before);
      // With a fused multiply-add, vectors of any width have equal bits; without it, within rounding.
      for (const kernels::Isa set : kernel_test::fused()) {
        kernels::set_isa(set);
        CHECK(host(f(x)) == y);
        CHECK(host(gradient(f, x, dy)) == dx);
      }
      kernels::set_isa(kernels::Isa::generic);
      const std::vector<float> plain = host(f(x)), plain_dx = host(gradient(f, x, dy));
      for (std::size_t i = 0; i < y.size(); ++i) {
        CHECK(std::abs(plain[i] - y[i]) <= 1e-6 * (1 + std::abs(y[i])));
        CHECK(std::abs(plain_dx[i] - dx[i]) <= 4e-6 * (1 + std::abs(dx[i])));
      }
      kernels::set_isa(kernels::best_isa());
      // A row's bits do not depend on the other rows.
      CHECK(host(f(view::slice(x, 0, 3, 4))) == std::vector<float>(y.begin() + 3 * length, y.begin() + 4 * length));
    }
  }
}

TEST_CASE("ops: causal softmax is the softmax of what a query sees") {
  const Tensor scores = randn({2, 3, 5, 8});
  const Tensor y = causal_softmax(scores, 0.25);
  for (std::int64_t t = 0; t < 5; ++t) {
    const Tensor row = view::slice(view::slice(scores, 2, t, t + 1), 3, 0, t + 4);
    CHECK(host(softmax(row, -1, 0.25)) == host(view::slice(view::slice(y, 2, t, t + 1), 3, 0, t + 4)));
    for (const float hidden : host(view::slice(view::slice(y, 2, t, t + 1), 3, t + 4, 8))) CHECK(hidden == 0);
  }
  // Masked scores are not read: a NaN there changes nothing, and they pass no gradient.
  Tensor poisoned = clone(scores);
  fill(view::slice(view::slice(poisoned, 2, 0, 1), 3, 4, 8), std::nan(""));
  CHECK(host(causal_softmax(poisoned, 0.25)) == host(y));
  const Tensor dx = gradient([](const Tensor& t) { return causal_softmax(t, 0.25); }, scores, randn({2, 3, 5, 8}));
  for (const float g : host(view::slice(view::slice(dx, 2, 1, 2), 3, 5, 8))) CHECK(g == 0);

  CHECK_THROWS_AS(causal_softmax(randn({4, 3})), ShapeError);
  CHECK_THROWS_AS(causal_softmax(randn({4})), ShapeError);
  CHECK_THROWS_AS(softmax(randn({4, 3}), 2), ShapeError);
  CHECK_THROWS_AS(softmax(arange(4)), DTypeError);
}

TEST_CASE("ops: softmax at the edges") {
  const Tensor x = from_host(std::vector<float>{1e30f, -1e30f, -std::numeric_limits<float>::infinity(), 1e30f}, {1, 4});
  CHECK(host(softmax(x)) == std::vector<float>{0.5f, 0, 0, 0.5f});
  const Tensor none = full({1, 3}, -inf);
  for (const float y : host(softmax(none))) CHECK(std::isnan(y));
  CHECK(softmax(Tensor::empty({0, 4})).shape() == Shape{0, 4});
  CHECK(softmax(Tensor::empty({4, 0})).shape() == Shape{4, 0});
  CHECK(host(softmax(full({1, 5000}, 10, DType::f16)))[4999] == Approx(0.0002).epsilon(1e-3));
}

TEST_CASE("ops: NaN makes its row NaN in softmax and cross entropy, wherever it is", "[ops]") {
  constexpr std::int64_t width = 75;  // two rounds of lanes and a remainder
  for (const std::int64_t at : {0, 31, 40, 63, 64, 74}) {
    INFO("element " << at);
    const Tensor x = randn({2, width}), target = zeros({2}, DType::i64);
    fill(view::slice(view::slice(x, 0, 0, 1), 1, at, at + 1), std::nan(""));
    for (const Tensor& y : {softmax(x), log_softmax(x)}) {
      const auto values = host(y);
      for (std::size_t i = 0; i < values.size(); ++i) CHECK(std::isnan(values[i]) == (i < width));
    }
    const auto losses = host(cross_entropy(x, target, {.reduction = LossReduction::none}));
    CHECK(std::isnan(losses[0]));
    CHECK_FALSE(std::isnan(losses[1]));
  }
}

TEST_CASE("ops: softmax's gradient is written where its result lay") {
  Tensor y = softmax(randn({4, 8}));
  const auto storage = y.storage().get();
  const ops::Softmax op{-1, 1, false};
  const Tensor dy = randn({4, 8});  // held here, so only y's buffer is free
  const std::vector<float> expected = host(op.backward({clone(y)}, clone(dy), ops::Needs(1))[0]);
  ops::Gradients gradients = op.backward({std::move(y)}, dy, ops::Needs(1));
  CHECK(gradients[0].storage().get() == storage);
  CHECK(host(gradients[0]) == expected);
}

TEST_CASE("ops: softmax of rows whose largest score comes early, in the middle or late") {
  constexpr std::int64_t length = 5000;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const std::int64_t peak : {0, 2047, 2048, 4096, 4999}) {
      Values values(length);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 7) - 800;
      values[static_cast<std::size_t>(peak)] = 64;
      const Tensor x = to_dtype(from_host(values, {1, length}), dtype);
      for (const bool is_log : {false, true}) {
        INFO(to_string(dtype) << ", largest at " << peak << (is_log ? ", log" : ""));
        const Values y = to_host<double>(is_log ? log_softmax(x, -1) : softmax(x, -1));
        const Values expected = softmax_of({x.shape(), to_host<double>(x)}, 1, 1, is_log);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < y.size(); ++i) {
          const double allowed = (dtype == DType::bf16 ? 4e-3 : 2e-6) * (1 + std::abs(expected[i]));
          wrong += std::abs(y[i] - expected[i]) <= allowed ? 0 : 1;  // NaN counts as wrong
        }
        CHECK(wrong == 0);
      }
    }
  }
}
