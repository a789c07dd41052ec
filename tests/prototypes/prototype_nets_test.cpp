// Nets written with the library that it does not have: a U-Net, a Llama block, a GRU, a mixture of experts. Each is
// compared with loops, a property that it must have, and central differences.

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/gradcheck.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/step/profile.h>
#include <thimble/optim/adam.h>

#include "prototype_check.h"
#include "support/catch.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

using Tensors = std::span<const Tensor>;

void check_gradients(const std::vector<Tensor>& operands, FunctionRef<Tensor(Tensors)> f) {
  const GradcheckResult result = gradcheck(f, operands, {});
  INFO(result.report);
  CHECK(result.passed);
}

// U-Net ---------------------------------------------------------------------------------------------------------------

// (N, H, W, C) -> (N, 2 H, 2 W, C): every pixel becomes four.
Tensor upsample(const Tensor& x) {
  const std::int64_t n = x.size(0), h = x.size(1), w = x.size(2), c = x.size(3);
  return reshape(expand(reshape(x, {n, h, 1, w, 1, c}), {n, h, 2, w, 2, c}), {n, 2 * h, 2 * w, c});
}

class UNet final : public nn::Layer {
 public:
  explicit UNet(const nn::TensorOptions& on)
      : down_(child<nn::Conv2d>("down", 1, 4, 3, Conv2dOptions{.padding = 1}, true, on)),
        middle_(child<nn::Conv2d>("middle", 4, 4, 3, Conv2dOptions{.padding = 1}, true, on)),
        up_(child<nn::Conv2d>("up", 8, 1, 3, Conv2dOptions{.padding = 1}, true, on)) {}

 protected:
  Tensor forward(const Tensor& x) override {
    const Tensor skip = silu(down_(x));                                                        // (N, H, W, 4)
    const Tensor low = silu(middle_(avg_pool2d(skip, {.kernel = {2, 2}, .stride = {2, 2}})));  // (N, H/2, W/2, 4)
    return up_(concat({skip, upsample(low)}, 3));                                              // (N, H, W, 1)
  }

 private:
  nn::Conv2d &down_, &middle_, &up_;
};

class UNetRun final : public nn::TrainingRun {
 public:
  explicit UNetRun(memory::Device device) : net_({device}), adam_(net_.trainable(), {.rate = 1e-2}) {
    x_ = device.is_dry ? Tensor::empty({2, 8, 8, 1}, DType::f32, device) : wave({2, 8, 8, 1}, 0, DType::f32);
  }
  void step() override {
    const Tensor loss = nn::training_step(
        adam_, [&](std::int64_t) { return mse_loss(net_(x_), x_ * 0.5); }, options_);
    if (!loss.device().is_dry) losses.push_back(item(loss));
  }
  nn::StepOptions& options() override { return options_; }
  std::int64_t parameters() const override { return net_.parameter_count(); }
  static inline std::vector<double> losses;

 private:
  UNet net_;
  optim::Adam adam_;
  Tensor x_;
  nn::StepOptions options_;
};

// Llama ---------------------------------------------------------------------------------------------------------------

// Rotary positions (Su et al. 2021, equation 34): pairs (i, i + D/2) of x (B, T, H, D) turn by (first + t)
// 10000^(-2i/D).
Tensor rotate(const Tensor& x, double first) {
  const std::int64_t length = x.size(1), half = x.size(3) / 2;
  std::vector<double> angles;
  for (std::int64_t t = 0; t < length; ++t) {
    for (std::int64_t i = 0; i < half; ++i) {
      angles.push_back((first + double(t)) * std::pow(10000.0, -double(i) / double(half)));
    }
  }
  const Tensor angle = from_host(angles, {length, 1, half}), c = cos(angle), s = sin(angle);
  const std::vector<Tensor> pair = chunk(x, 2, -1);
  return concat({pair[0] * c - pair[1] * s, pair[1] * c + pair[0] * s}, -1);
}

// (B, T, K, D) -> (B, T, K groups, D): each key head serves `groups` query heads.
Tensor repeat_heads(const Tensor& x, std::int64_t groups) {
  const Shape shape{x.size(0), x.size(1), x.size(2), groups, x.size(3)};
  return reshape(expand(unsqueeze(x, 3), shape), {x.size(0), x.size(1), x.size(2) * groups, x.size(3)});
}

struct Llama {
  static constexpr std::int64_t width = 8, heads = 4, key_heads = 2, depth = 2;
  // in: x (B, T, 8), weights q (8, 8), k and v (4, 8), out (8, 8), gate and up (12, 8), down (8, 12)
  static Tensor attend(Tensors in, double first) {
    const Tensor x = rms_norm(in[0]);
    const std::int64_t batch = x.size(0), length = x.size(1);
    const Tensor q = rotate(reshape(linear(x, in[1]), {batch, length, heads, depth}), first);
    const Tensor k = rotate(reshape(linear(x, in[2]), {batch, length, key_heads, depth}), first);
    const Tensor v = reshape(linear(x, in[3]), {batch, length, key_heads, depth});
    const Tensor y = attention(q, repeat_heads(k, heads / key_heads), repeat_heads(v, heads / key_heads));
    return in[0] + linear(reshape(y, x.shape()), in[4]);
  }
  static Tensor run(Tensors in, double first = 0) {
    const Tensor y = attend(in, first), z = rms_norm(y);
    return y + linear(silu(linear(z, in[5])) * linear(z, in[6]), in[7]);
  }
  static std::vector<Tensor> operands() {
    return {wave({1, 5, width}, 0), wave({8, 8}, 1),  wave({4, 8}, 2),  wave({4, 8}, 3),
            wave({8, 8}, 4),        wave({12, 8}, 5), wave({12, 8}, 6), wave({8, 12}, 7)};
  }
};

// GRU -----------------------------------------------------------------------------------------------------------------

// Cho et al. 2014 as in PyTorch: x (T, B, I), w (3 H, I), u (3 H, H), in the order reset, update, new -> (T, B, H).
Tensor gru(const Tensor& x, const Tensor& w, const Tensor& u) {
  const std::int64_t hidden = u.size(1);
  Tensor h = zeros({x.size(1), hidden}, x.dtype());
  std::vector<Tensor> states;
  for (std::int64_t t = 0; t < x.size(0); ++t) {
    const std::vector<Tensor> a = chunk(linear(select(x, 0, t), w), 3, 1), b = chunk(linear(h, u), 3, 1);
    const Tensor reset = sigmoid(a[0] + b[0]), update = sigmoid(a[1] + b[1]);
    h = (1.0 - update) * thimble::tanh(a[2] + reset * b[2]) + update * h;
    states.push_back(unsqueeze(h, 0));
  }
  return concat(states, 0);
}

std::vector<double> gru_by_hand(const Tensor& xs, const Tensor& ws, const Tensor& us) {
  const auto x = to_host<double>(xs), w = to_host<double>(ws), u = to_host<double>(us);
  const auto steps = std::size_t(xs.size(0)), batch = std::size_t(xs.size(1)), in = std::size_t(xs.size(2));
  const auto hidden = std::size_t(us.size(1));
  std::vector<double> h(batch * hidden), all;
  for (std::size_t t = 0; t < steps; ++t) {
    std::vector<double> next = h;
    for (std::size_t b = 0; b < batch; ++b) {
      for (std::size_t j = 0; j < hidden; ++j) {
        std::array<double, 3> a{}, c{};
        for (std::size_t g = 0; g < 3; ++g) {
          for (std::size_t i = 0; i < in; ++i) a[g] += w[(g * hidden + j) * in + i] * x[(t * batch + b) * in + i];
          for (std::size_t i = 0; i < hidden; ++i) c[g] += u[(g * hidden + j) * hidden + i] * h[b * hidden + i];
        }
        const double reset = 1 / (1 + std::exp(-a[0] - c[0])), update = 1 / (1 + std::exp(-a[1] - c[1]));
        next[b * hidden + j] = (1 - update) * std::tanh(a[2] + reset * c[2]) + update * h[b * hidden + j];
      }
    }
    h = next;
    all.insert(all.end(), h.begin(), h.end());
  }
  return all;
}

// Mixture of experts --------------------------------------------------------------------------------------------------

// Every row of x (N, C) goes to the expert with the largest gate: y = p_e E_e x (Fedus et al. 2021, equation 2).
// gate (E, C), experts (C, C) each.
Tensor mixture(const Tensor& x, const Tensor& gate, Tensors experts) {
  const Tensor p = softmax(linear(x, gate));           // (N, E)
  const Tensor chosen = argmax(p.detach(), -1, true);  // (N, 1)
  Tensor y;
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const Tensor is_other = not_equal(chosen, full({}, double(e), DType::i64));  // (N, 1)
    const Tensor weight = masked_fill(slice(p, 1, std::int64_t(e), std::int64_t(e) + 1), is_other, 0);
    const Tensor part = linear(x, experts[e]) * weight;
    y = y.defined() ? y + part : part;
  }
  return y;
}

}  // namespace

TEST_CASE("prototype: a U-Net") {
  const Tensor x = wave({1, 2, 3, 2}, 0);
  const std::vector<double> pixels = to_host<double>(x);
  std::vector<double> larger;
  for (std::size_t h = 0; h < 4; ++h) {
    for (std::size_t w = 0; w < 6; ++w) {
      for (std::size_t c = 0; c < 2; ++c) larger.push_back(pixels[(h / 2 * 3 + w / 2) * 2 + c]);
    }
  }
  CHECK(distance(upsample(x), larger) == 0);
  UNet net({cpu, DType::f64});
  check_gradients({wave({1, 4, 4, 1}, 1)}, [&](Tensors in) { return net(in[0]); });

  const nn::MakeRun make = [](memory::Device device) { return std::make_unique<UNetRun>(device); };
  UNetRun::losses.clear();
  const nn::MemoryProfile predicted = nn::profile_training(dry(cpu), make, 60);
  const nn::MemoryProfile measured = nn::profile_training(cpu, make, 60);
  CHECK(predicted.peak_bytes == measured.peak_bytes);
  CHECK(predicted.peak_live_bytes == measured.peak_live_bytes);
  REQUIRE(UNetRun::losses.size() == 60);
  CHECK(UNetRun::losses.back() < 0.2 * UNetRun::losses.front());
}

TEST_CASE("prototype: a Llama block") {
  std::vector<Tensor> in = Llama::operands();
  check_gradients(in, [](Tensors x) { return Llama::run(x); });
  // Rotary positions are relative: the first position does not matter.
  const Tensor y = Llama::run(in);
  CHECK(distance(Llama::run(in, 100), y) < 1e-12);
  // Later tokens are not seen.
  const std::vector<double> before = to_host<double>(slice(y, 1, 0, -1));
  in[0] = concat({slice(in[0], 1, 0, -1), wave({1, 1, 8}, 9)}, 1);
  const Tensor other = Llama::run(in);
  CHECK(distance(slice(other, 1, 0, -1), before) == 0);
  CHECK(distance(slice(other, 1, -1, 5), slice(y, 1, -1, 5)) > 1e-3);
  // Head h of the queries reads key head h / 2.
  const Tensor keys = wave({1, 3, 2, 2}, 3), repeated = repeat_heads(keys, 2);
  for (std::int64_t head = 0; head < 4; ++head) {
    CHECK(distance(slice(repeated, 2, head, head + 1), slice(keys, 2, head / 2, head / 2 + 1)) == 0);
  }
}

TEST_CASE("prototype: a GRU over sequences of several lengths") {
  const Tensor w = wave({9, 2}, 1), u = wave({9, 3}, 2);
  for (const std::int64_t length : {1, 3, 5, 9, 30}) {
    const Tensor x = wave({length, 2, 2}, double(length));
    CHECK(distance(gru(x, w, u), gru_by_hand(x, w, u)) < 1e-12);
  }
  check_gradients({wave({3, 2, 2}, 0), w, u}, [](Tensors in) { return gru(in[0], in[1], in[2]); });
}

TEST_CASE("prototype: a mixture of experts") {
  const std::int64_t rows = 6, width = 3;
  const Tensor x = wave({rows, width}, 0);
  std::vector<Tensor> weights{leaf({3, 3}, 2), leaf({3, 3}, 3), leaf({3, 3}, 4), leaf({3, 3}, 5)};  // gate, experts
  const auto values = to_host<double>(x), gate = to_host<double>(weights[0]);
  std::vector<double> expected;
  std::array<int, 3> chosen{};
  for (std::size_t r = 0; r < 6; ++r) {
    std::array<double, 3> score{};
    for (std::size_t e = 0; e < 3; ++e) {
      for (std::size_t c = 0; c < 3; ++c) score[e] += gate[e * 3 + c] * values[r * 3 + c];
    }
    const std::size_t best = std::size_t(std::max_element(score.begin(), score.end()) - score.begin());
    ++chosen[best];
    double total = 0;
    for (const double s : score) total += std::exp(s);
    const auto expert = to_host<double>(weights[best + 1]);
    for (std::size_t o = 0; o < 3; ++o) {
      double sum = 0;
      for (std::size_t c = 0; c < 3; ++c) sum += expert[o * 3 + c] * values[r * 3 + c];
      expected.push_back(std::exp(score[best]) / total * sum);
    }
  }
  const auto run = [&](Tensors in) { return mixture(x, in[0], in.subspan(1)); };
  CHECK(distance(run(weights), expected) < 1e-12);
  check_gradients(weights, run);
  Tape tape;
  Tensor loss;
  {
    const Recording on(tape);
    loss = sum(run(weights));
  }
  tape.backward(loss);
  for (std::size_t e = 0; e < 3; ++e) {  // an expert without a row gets no gradient
    CHECK((distance(weights[e + 1].grad(), std::vector<double>(9)) > 0) == (chosen[e] > 0));
  }
}
