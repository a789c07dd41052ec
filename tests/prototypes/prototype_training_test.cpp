// Ways of training that the library does not have: adapters on a frozen base, two competing nets, half precision with
// 8-bit state, a cache of keys and values; and the contents of a file. All compared with hand arithmetic.

#include <cmath>
#include <cstring>

#include <thimble/autograd/functions.h>
#include <thimble/core/tensor/view.h>
#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/layers/init.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/precision/precision.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

#include "prototype_check.h"
#include "support/catch.h"
#include "support/files.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

/// base(x) + x A^T B^T (Hu et al. 2021, section 4.1), with any layer as its base.
class Adapted final : public nn::Layer {
 public:
  Adapted(nn::Linear& base, std::int64_t rank)
      : down(add_parameter("down", to_dtype(wave({rank, base.inputs()}, 5), base.weight.dtype()))),
        up(add_parameter("up", zeros({base.weight.size(0), rank}, base.weight.dtype()))),
        base_(base) {
    child("base", base);
  }
  nn::Parameter down, up;
  std::vector<optim::Named> adapters() const { return {{"down", down}, {"up", up}}; }

 protected:
  Tensor forward(const Tensor& x) override { return base_(x) + linear(linear(x, down), up); }

 private:
  nn::Linear& base_;
};

}  // namespace

// A step computes gradients only for its optimizer's parameters; every other leaf is constant in it.
TEST_CASE("prototype: LoRA trains the adapters alone") {
  nn::Linear base(3, 2, {cpu, DType::f64});
  Adapted net(base, 1);
  const std::vector<double> weight = to_host<double>(base.weight), bias = to_host<double>(base.bias);
  const std::vector<double> down = to_host<double>(net.down);
  const Tensor x = wave({4, 3}, 1), target = wave({4, 2}, 2);
  CHECK(distance(net(x), base(x)) == 0);  // up is 0: nothing is adapted yet
  optim::Sgd sgd(net.adapters(), {.rate = 0.5});
  const auto step = [&] { return nn::training_step(sgd, [&](std::int64_t) { return mse_loss(net(x), target); }); };

  // The first update by hand: d loss / d up = 2/8 sum over rows of (y - target) (down x); down stays, since up is 0.
  const std::vector<double> y = to_host<double>(base(x)), t = to_host<double>(target), in = to_host<double>(x);
  std::vector<double> up(2);
  for (std::size_t r = 0; r < 4; ++r) {
    double inner = 0;
    for (std::size_t c = 0; c < 3; ++c) inner += down[c] * in[r * 3 + c];
    for (std::size_t o = 0; o < 2; ++o) up[o] -= 0.5 * 0.25 * (y[r * 2 + o] - t[r * 2 + o]) * inner;
  }
  const double first = item(step());
  CHECK(distance(net.up, up) < 1e-14);
  CHECK(distance(net.down, down) == 0);
  double last = first;
  for (int i = 0; i < 60; ++i) last = item(step());
  CHECK(last < first);
  CHECK(distance(net.down, down) > 0);
  CHECK(distance(base.weight, weight) == 0);
  CHECK(distance(base.bias, bias) == 0);
  CHECK(!base.weight.grad().defined());
  CHECK(!base.bias.grad().defined());
}

TEST_CASE("prototype: two optimizers take turns, each with the gradients of its own loss") {
  // A generator g x and a discriminator d x as numbers: g falls on g d, d on d^2 - g d.
  Tensor g = full({1}, 0.5, DType::f64), d = full({1}, 2, DType::f64);
  g.require_grad(), d.require_grad();
  optim::Sgd of_g({{"g", g}}, {.rate = 0.25}), of_d({{"d", d}}, {.rate = 0.125});
  double g_by_hand = 0.5, d_by_hand = 2;
  for (int turn = 0; turn < 5; ++turn) {
    nn::training_step(of_g, [&](std::int64_t) { return sum(g * d); });
    g_by_hand -= 0.25 * d_by_hand;
    nn::training_step(of_d, [&](std::int64_t) { return sum(d * d - g * d); });
    d_by_hand -= 0.125 * (2 * d_by_hand - g_by_hand);
    CHECK(item(g) == Approx(g_by_hand).epsilon(1e-14));
    CHECK(item(d) == Approx(d_by_hand).epsilon(1e-14));
    CHECK(!g.grad().defined());
    CHECK(!d.grad().defined());
  }
}

TEST_CASE("prototype: bf16 with master weights and 8-bit state follows f32") {
  const std::int64_t width = 64, samples = 32;
  const auto train = [&](std::string_view policy, bool is_narrow) {
    RandomGenerator generator(1);
    const GeneratorScope scope(generator);
    const nn::Precision& precision = nn::precision(policy);
    nn::Sequential net;
    net.add<nn::Linear>(width, width, precision.on(cpu));
    net.add<nn::Activation>(silu);
    net.add<nn::Linear>(width, width, precision.on(cpu));
    optim::AdamOptions options{.rate = 1e-3};
    options.narrow = precision.update;
    if (is_narrow) options.moments.dtype = DType::u8;
    optim::Adam adam(net.trainable(), options);
    const Tensor x = wave({samples, width}, 0, precision.parameters);
    const Tensor target = wave({samples, width}, 1, DType::f32) * 0.5;
    std::vector<double> losses;
    for (int step = 0; step < 120; ++step) {
      losses.push_back(
          item(nn::training_step(adam, [&](std::int64_t) { return mse_loss(cast(net(x), DType::f32), target); })));
    }
    return std::pair(losses, adam.state_bytes());
  };
  const auto [wide, wide_bytes] = train("O0", false);
  const auto [narrow, narrow_bytes] = train("bf16", true);
  REQUIRE(std::isfinite(narrow.back()));
  CHECK(narrow.back() < 0.5 * narrow.front());
  CHECK(std::abs(narrow.back() - wide.back()) < 0.15 * wide.front());
  const std::size_t elements = 2 * (64 * 64 + 64);
  CHECK(wide_bytes == 8 * elements);  // two moments in f32
  // One-byte codes with a scale per 256 of them, twice (small tensors stay f32), and a 4-byte master weight.
  CHECK(static_cast<double>(narrow_bytes) < (2 + 8.0 / 256 + 4) * 1.05 * static_cast<double>(elements));
}

TEST_CASE("prototype: safetensors carry weights there and back") {
  const files_test::TemporaryFolder folder;
  nn::Sequential net, other;
  for (nn::Sequential* n : {&net, &other}) {
    n->add<nn::Conv2d>(2, 3, 3, Conv2dOptions{}, true);
    n->add<nn::BatchNorm2d>(3);
  }
  const Tensor x = wave({1, 5, 5, 2}, 0, DType::f32);
  for (nn::Sequential* n : {&net, &other}) n->eval();
  CHECK(distance(net(x), other(x)) > 0);
  nn::save_weights(net, folder / "a", {{"by", "a test"}});
  const nn::LoadedWeights loaded = nn::load_weights(other, folder / "a");
  CHECK(loaded.metadata.at("by") == "a test");
  CHECK(distance(net(x), other(x)) == 0);
  nn::save_weights(other, folder / "b", loaded.metadata);
  CHECK(files_test::read_text_file(folder / "a") == files_test::read_text_file(folder / "b"));

  // Reads it as a Python program would: a length, JSON, and floats with the kernels as (O, I, KH, KW).
  const std::string bytes = files_test::read_text_file(folder / "a");
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  const std::string json = bytes.substr(8, header);
  const std::string entry = "\"0.weight\":{\"dtype\":\"F32\",\"shape\":[3,2,3,3],\"data_offsets\":[";
  const std::size_t at = json.find(entry);
  REQUIRE(at != std::string::npos);
  const std::size_t begin = 8 + header + std::stoull(json.substr(at + entry.size()));
  const auto& conv = static_cast<nn::Conv2d&>(net[0]);
  const std::vector<float> expected = to_host<float>(view::permute(conv.weight, {0, 3, 1, 2}));
  CHECK(std::memcmp(bytes.data() + begin, expected.data(), expected.size() * sizeof(float)) == 0);
}

TEST_CASE("prototype: with keys and values kept, a token costs its own row alone") {
  const std::int64_t length = 7, heads = 2, depth = 4;
  const Tensor q = wave({1, length, heads, depth}, 0), k = wave({1, length, heads, depth}, 1),
               v = wave({1, length, heads, depth}, 2);
  const Tensor whole = attention(q, k, v);  // (1, T, H, D), causal
  const Shape shape = k.shape();
  const Tensor keys = zeros(shape, DType::f64), values = zeros(shape, DType::f64);  // the cache
  for (std::int64_t t = 0; t < length; ++t) {
    copy_into(view::slice(keys, 1, t, t + 1), view::slice(k, 1, t, t + 1));
    copy_into(view::slice(values, 1, t, t + 1), view::slice(v, 1, t, t + 1));
    const Tensor row =
        attention(view::slice(q, 1, t, t + 1), view::slice(keys, 1, 0, t + 1), view::slice(values, 1, 0, t + 1));
    CHECK(row.shape() == Shape{1, 1, heads, depth});
    CHECK(distance(row, view::slice(whole, 1, t, t + 1)) < 1e-14);
  }
}
