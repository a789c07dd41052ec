// Rows of the operator table: LSTM and GRU over sequences, against loops over units.

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/recurrent.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

using Values = std::vector<double>;
using Arrays = std::vector<HostArray>;

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

struct Sizes {
  std::int64_t steps, samples, inputs, width;
};

// sum over k of weight[row, k] from[k], plus a bias.
double product_of(const HostArray& weight, std::int64_t row, const double* from, std::int64_t count, double bias) {
  double sum = bias;
  for (std::int64_t k = 0; k < count; ++k) sum += weight[row * count + k] * from[k];
  return sum;
}

// Operands x, h, c (LSTM only), weight_ih, weight_hh, then the biases if any. Returns all hidden states, for an LSTM
// followed by its cells.
Values recurrent_reference(const Arrays& in, const Sizes& s, bool is_lstm, bool is_reverse) {
  const std::size_t first = is_lstm ? 3 : 2;
  const HostArray &w_ih = in[first], &w_hh = in[first + 1];
  const bool has_bias = in.size() > first + 2;
  Values h = in[1].values, c = is_lstm ? in[2].values : Values();
  Values y(static_cast<std::size_t>(s.steps * s.samples * s.width));
  const auto bias = [&](std::size_t which, std::int64_t row) { return has_bias ? in[first + 2 + which][row] : 0; };
  for (std::int64_t k = 0; k < s.steps; ++k) {
    const std::int64_t t = is_reverse ? s.steps - 1 - k : k;
    const Values before = h;
    for (std::int64_t n = 0; n < s.samples; ++n) {
      const double* const x = in[0].values.data() + (t * s.samples + n) * s.inputs;
      const double* const state = before.data() + n * s.width;
      for (std::int64_t u = 0; u < s.width; ++u) {
        const auto of_x = [&](std::int64_t gate) {
          return product_of(w_ih, gate * s.width + u, x, s.inputs, bias(0, gate * s.width + u));
        };
        const auto of_h = [&](std::int64_t gate) {
          return product_of(w_hh, gate * s.width + u, state, s.width, bias(1, gate * s.width + u));
        };
        const auto at = static_cast<std::size_t>(n * s.width + u);
        if (is_lstm) {
          const auto gate = [&](std::int64_t g) { return of_x(g) + of_h(g); };
          c[at] = sigmoid_of(gate(1)) * c[at] + sigmoid_of(gate(0)) * std::tanh(gate(2));
          h[at] = sigmoid_of(gate(3)) * std::tanh(c[at]);
        } else {
          const double r = sigmoid_of(of_x(0) + of_h(0)), z = sigmoid_of(of_x(1) + of_h(1));
          h[at] = (1 - z) * std::tanh(of_x(2) + r * of_h(2)) + z * before[at];
        }
        y[static_cast<std::size_t>((t * s.samples + n) * s.width + u)] = h[at];
      }
    }
  }
  if (is_lstm) y.insert(y.end(), c.begin(), c.end());
  return y;
}

OperatorCase recurrent_row(const Sizes& s, bool is_lstm, bool is_reverse, bool has_bias) {
  const std::int64_t rows = (is_lstm ? 4 : 3) * s.width;
  std::vector<Operand> operands{{{s.steps, s.samples, s.inputs}}, {{s.samples, s.width}, -1, 1}};
  if (is_lstm) operands.push_back({{s.samples, s.width}, -1, 1});
  operands.push_back({{rows, s.inputs}, -0.7, 0.7});
  operands.push_back({{rows, s.width}, -0.7, 0.7});
  if (has_bias) {
    operands.push_back({{rows}, -0.5, 0.5});
    operands.push_back({{rows}, -0.5, 0.5});
  }
  const std::int64_t units = s.samples * s.width, cells = is_lstm ? (s.steps + 1) * units : 0;
  std::int64_t kept = is_lstm ? (5 * s.steps + 1) * units : s.steps * units;  // the result, an LSTM's gates
  for (std::size_t i = 0; i < operands.size(); ++i)
    kept += is_lstm && (i == 2 || i > 4) ? 0 : operands[i].shape.elements();
  return {is_lstm ? "lstm" : "gru",
          operands,
          [=](auto in) {
            const std::size_t first = is_lstm ? 3 : 2;
            RecurrentWeights w{in[first], in[first + 1], {}, {}};
            if (has_bias) w.bias_ih = in[first + 2], w.bias_hh = in[first + 3];
            if (!is_lstm) return gru(in[0], in[1], w, is_reverse);
            const LstmResult result = lstm(in[0], in[1], in[2], w, is_reverse);
            return concat({result.output, unsqueeze(result.cell, 0)}, 0);
          },
          [=](const Arrays& in) { return recurrent_reference(in, s, is_lstm, is_reverse); },
          [=](std::int64_t e, auto) { return kept * e + cells * std::max<std::int64_t>(e, 4); },
          6};
}

}  // namespace

TEST_CASE("ops_recurrent: lstm and gru") {
  for (const bool is_lstm : {true, false}) {
    for (const bool is_reverse : {false, true}) {
      check_operator(recurrent_row({5, 3, 4, 6}, is_lstm, is_reverse, true));
      check_operator(recurrent_row({3, 2, 1, 1}, is_lstm, is_reverse, false));
    }
    check_operator(recurrent_row({1, 2, 3, 2}, is_lstm, true, true));
    check_operator(recurrent_row({4, 0, 3, 2}, is_lstm, false, true));
    // More units than a tile, more steps than are computed together.
    OperatorCase large = recurrent_row({3, 150, 2, 3}, is_lstm, true, true);
    large.is_gradcheck_exact = false;
    large.why_no_gradcheck = "its size";
    check_operator(large);
    large = recurrent_row({2, 1, 2, 131}, is_lstm, false, true);
    large.is_gradcheck_exact = false;
    large.why_no_gradcheck = "its size";
    large.tolerance = 20;
    check_operator(large);
  }
}

TEST_CASE("ops_recurrent: products of a sequence are counted") {
  const Tensor x = zeros({5, 2, 3}), none;  // (T, N, C)
  const std::array<Tensor, 5> lstm{x, none, none, zeros({16, 3}), zeros({16, 4})};
  const std::array<Tensor, 4> gru{x, none, zeros({12, 3}), zeros({12, 4})};
  CHECK(ops::Lstm().multiply_adds(lstm, none) == 10 * (48 + 64));
  CHECK(ops::Gru().multiply_adds(gru, none) == 10 * (36 + 48));
}

TEST_CASE("ops_recurrent: absent states are zeros, and a sequence in two halves is the whole one") {
  const Tensor x = randn({6, 2, 3}), w_ih = randn({16, 3}), w_hh = randn({16, 4});
  const RecurrentWeights w{w_ih, w_hh, randn({16}), Tensor()};
  const Tensor zero = zeros({2, 4});
  const LstmResult whole = lstm(x, Tensor(), Tensor(), w), same = lstm(x, zero, zero, w);
  CHECK(to_host<float>(whole.output) == to_host<float>(same.output));
  const LstmResult first = lstm(slice(x, 0, 0, 2), Tensor(), Tensor(), w);
  const LstmResult second = lstm(slice(x, 0, 2, 6), select(first.output, 0, 1), first.cell, w);
  CHECK(to_host<float>(concat({first.output, second.output}, 0)) == to_host<float>(whole.output));
  CHECK(to_host<float>(second.cell) == to_host<float>(whole.cell));
  const RecurrentWeights g{slice(w_ih, 0, 0, 12), slice(w_hh, 0, 0, 12), Tensor(), randn({12})};
  CHECK(to_host<float>(gru(x, Tensor(), g)) == to_host<float>(gru(x, zero, g)));
  CHECK(to_host<float>(flip(gru(x, zero, g, true), 0)) == to_host<float>(gru(flip(x, 0), zero, g)));

  CHECK_THROWS_AS(gru(x, zero, w), ShapeError);
  CHECK_THROWS_AS(lstm(x, zero, zeros({2, 3}), w), ShapeError);
  CHECK_THROWS_AS(lstm(slice(x, 0, 0, 0), zero, zero, w), ShapeError);
  CHECK_THROWS_AS(lstm(select(x, 0, 0), zero, zero, w), ShapeError);
  CHECK_THROWS_AS(lstm(cast(x, DType::f64), zero, zero, w), DTypeError);
  const auto one_dtype = Catch::EndsWith("; expected one floating dtype");
  CHECK_THROWS_WITH(lstm(x, zero, cast(zero, DType::f64), w), one_dtype);
  CHECK_THROWS_WITH(lstm(x, cast(zero, DType::f64), zero, w), one_dtype);
  CHECK_THROWS_WITH(gru(x, cast(zero, DType::f64), g), one_dtype);
}

TEST_CASE("recurrent: biases of any strides") {
  const Tensor x = randn({4, 2, 3}), h = randn({2, 5}), ih = randn({15, 3}), hh = randn({15, 5}), b = randn({30});
  const Tensor strided = slice(b, 0, 0, 30, 2), dense = clone(strided);
  CHECK(to_host<float>(gru(x, h, {ih, hh, strided, strided})) == to_host<float>(gru(x, h, {ih, hh, dense, dense})));
}
