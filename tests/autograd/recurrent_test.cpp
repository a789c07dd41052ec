// Recurrent nets of any length: a GRU unrolled over sequences of 3 to 70 steps, its states joined by stack(), compared
// with a hand-written loop.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/ops/copy.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"

using namespace thimble;

namespace {

using Values = std::vector<double>;

constexpr std::size_t rows = 2, inputs = 3, width = 4;

Values spread(std::size_t count, double start) {
  Values values(count);
  for (double& v : values) v = std::sin(start += 2.3) * 0.8;
  return values;
}

/// The weights of a GRU (Cho et al. 2014, with the reset gate after the product, as in cuDNN): for each gate z, r, n
/// the input's weights (W, I), the state's (W, W), and a bias (W).
constexpr std::size_t per_gate = width * inputs + width * width + width;

/// Mean over all states of (state * importance)^2, with one importance per step.
double loss_by_hand(const Values& weights, const Values& x, std::size_t steps) {
  const auto gate = [&](std::size_t which, std::size_t unit, const double* in, const double* state, double factor) {
    const double* const w = weights.data() + which * per_gate;
    double of_input = w[width * inputs + width * width + unit], of_state = 0;
    for (std::size_t i = 0; i < inputs; ++i) of_input += in[i] * w[unit * inputs + i];
    for (std::size_t i = 0; i < width; ++i) of_state += state[i] * w[width * inputs + unit * width + i];
    return of_input + factor * of_state;
  };
  const auto sigmoid_of = [](double v) { return 1 / (1 + std::exp(-v)); };
  const Values importance = spread(steps, 9);
  Values h(rows * width, 0);
  double total = 0;
  for (std::size_t t = 0; t < steps; ++t) {
    Values next(rows * width);
    for (std::size_t b = 0; b < rows; ++b) {
      const double* const in = x.data() + (t * rows + b) * inputs;
      const double* const state = h.data() + b * width;
      for (std::size_t u = 0; u < width; ++u) {
        const double z = sigmoid_of(gate(0, u, in, state, 1)), r = sigmoid_of(gate(1, u, in, state, 1));
        const double n = std::tanh(gate(2, u, in, state, r));
        next[b * width + u] = (1 - z) * n + z * state[u];
      }
    }
    h = next;
    for (const double v : h) total += v * v * importance[t] * importance[t];
  }
  return total / static_cast<double>(steps * rows * width);
}

/// The GRU in tensors: leaves W, U, b of each gate.
struct Gru {
  std::vector<Tensor> leaves;

  explicit Gru(const Values& weights) {
    std::size_t at = 0;
    const auto next = [&](const Shape& shape) {
      const auto count = static_cast<std::size_t>(shape.elements());
      leaves.push_back(from_host(Values(weights.begin() + static_cast<std::ptrdiff_t>(at),
                                        weights.begin() + static_cast<std::ptrdiff_t>(at + count)),
                                 shape));
      leaves.back().require_grad();
      at += count;
    };
    for (int gate = 0; gate < 3; ++gate) {
      next({4, 3}), next({4, 4}), next({4});
    }
  }

  Tensor cell(const Tensor& x, const Tensor& h) const {
    const auto of_input = [&](std::size_t gate) { return linear(x, leaves[3 * gate], leaves[3 * gate + 2]); };
    const auto of_state = [&](std::size_t gate) { return linear(h, leaves[3 * gate + 1]); };
    const Tensor z = sigmoid(of_input(0) + of_state(0)), r = sigmoid(of_input(1) + of_state(1));
    const Tensor n = tanh(of_input(2) + r * of_state(2));
    return n + z * (h - n);
  }

  /// x (T, rows, inputs).
  Tensor loss(const Tensor& x, bool has_segments) const {
    const std::int64_t steps = x.size(0);
    Tensor h = zeros({2, 4}, DType::f64);
    std::vector<Tensor> states;
    for (std::int64_t t = 0; t < steps; ++t) {
      const Tensor in = reshape(slice(x, 0, t, t + 1), {2, 3});
      h = has_segments ? checkpoint([&] { return cell(in, h); }) : cell(in, h);
      states.push_back(h);
    }
    const Tensor importance = from_host(spread(static_cast<std::size_t>(steps), 9), {steps, 1, 1});
    return mean(square(stack(states) * importance));  // (T, rows, width)
  }

  Values values(bool of_gradients) const {
    Values all;
    for (const Tensor& t : leaves) {
      const Values own = to_host<double>(of_gradients ? t.grad() : t);
      all.insert(all.end(), own.begin(), own.end());
    }
    return all;
  }
};

/// Central differences of loss_by_hand().
Values gradient_by_hand(Values weights, const Values& x, std::size_t steps) {
  constexpr double h = 1e-5;
  Values gradient;
  for (double& w : weights) {
    const double before = w;
    w = before + h;
    const double above = loss_by_hand(weights, x, steps);
    w = before - h;
    const double below = loss_by_hand(weights, x, steps);
    w = before;
    gradient.push_back((above - below) / (2 * h));
  }
  return gradient;
}

}  // namespace

TEST_CASE("recurrent: a GRU over sequences of many lengths, in one tape after the other", "[recurrent]") {
  const Values weights = spread(3 * per_gate, 1);
  const Gru gru(weights);
  Tape tape;
  for (const std::size_t steps : {3, 31, 32, 33, 7, 64, 70, 5}) {
    INFO(steps << " steps");
    const Values xs = spread(steps * rows * inputs, 5);
    const Tensor x = from_host(xs, {static_cast<std::int64_t>(steps), 2, 3});
    const Values expected = gradient_by_hand(weights, xs, steps);
    Values plain;
    for (const bool has_segments : {false, true}) {
      for (const Tensor& leaf : gru.leaves) leaf.grad() = Tensor();
      Tensor loss;
      {
        const Recording on(tape);
        loss = gru.loss(x, has_segments);
      }
      tape.backward(loss);
      CHECK(std::abs(item(loss) - loss_by_hand(weights, xs, steps)) < 1e-13);
      const Values got = gru.values(true);
      REQUIRE(got.size() == expected.size());
      double largest = 0;
      for (const double g : expected) largest = std::max(largest, std::abs(g));
      CHECK(largest > 1e-3);
      for (std::size_t i = 0; i < got.size(); ++i) {
        INFO("weight " << i << ": " << got[i] << ", by hand " << expected[i]);
        CHECK(std::abs(got[i] - expected[i]) <= 1e-8 * largest);
      }
      if (!has_segments) plain = got;
      CHECK(got == plain);
    }
  }
}

TEST_CASE("recurrent: training steps of changing lengths", "[recurrent][step]") {
  constexpr double rate = 0.5;
  Values weights = spread(3 * per_gate, 1);
  const Gru gru(weights);
  std::vector<optim::Named> parameters;
  for (std::size_t i = 0; i < gru.leaves.size(); ++i) parameters.push_back({std::to_string(i), gru.leaves[i]});
  optim::Sgd sgd(parameters, {.rate = rate});
  for (const std::size_t steps : {9, 40, 2, 66}) {
    const Values xs = spread(steps * rows * inputs, static_cast<double>(steps));
    const Tensor x = from_host(xs, {static_cast<std::int64_t>(steps), 2, 3});
    const Values gradient = gradient_by_hand(weights, xs, steps);
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= rate * gradient[i];
    nn::training_step(sgd, [&](std::int64_t) { return gru.loss(x, false); });
    const Values got = gru.values(false);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - weights[i]) <= 1e-8);
  }
}
