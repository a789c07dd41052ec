// A leaf's gradient is its own: no other leaf, and nobody who gave it to backward, shares its bytes.

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/layout/gather.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"

using namespace thimble;

namespace {

Tensor leaf(double value) {
  Tensor t = full({2, 3}, value);
  t.require_grad();
  return t;
}

using Build = std::function<Tensor(const Tensor& a, const Tensor& b)>;

// Backward from a seed of threes; then a's gradient is overwritten.
void check_apart(const char* what, const Build& build, double expected_a, double expected_b) {
  INFO(what);
  const Tensor a = leaf(1), b = leaf(2);
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = build(a, b);
  }
  const Tensor seed = full(y.shape(), 3);
  tape.backward(y, seed);
  const auto all = [](const Tensor& t, double value) {
    for (const double v : to_host<double>(t)) CHECK(v == value);
  };
  all(a.grad(), expected_a);
  all(b.grad(), expected_b);
  CHECK(a.grad().storage() != b.grad().storage());
  CHECK(a.grad().storage() != seed.storage());
  CHECK(b.grad().storage() != seed.storage());
  fill(a.grad(), 100);
  all(b.grad(), expected_b);
  all(seed, 3);
}

}  // namespace

TEST_CASE("leaf gradient: two leaves of one sum have one each", "[autograd]") {
  check_apart(
      "add", [](const Tensor& a, const Tensor& b) { return add(a, b); }, 3, 3);
  check_apart(
      "sub", [](const Tensor& a, const Tensor& b) { return sub(a, b); }, 3, -3);
  check_apart(
      "views",
      [](const Tensor& a, const Tensor& b) {
        return add(reshape(a, {6}), reshape(reshape(b, {3, 2}), {6}));
      },
      3, 3);
  check_apart(
      "twice", [](const Tensor& a, const Tensor& b) { return add(add(a, b), add(b, a)); }, 6, 6);
  check_apart(
      "in a segment",
      [](const Tensor& a, const Tensor& b) { return checkpoint([&](const Tensor& t) { return add(t, b); }, a); }, 3, 3);
}

TEST_CASE("leaf gradient: the seed of a leaf's own backward stays the caller's", "[autograd]") {
  const Tensor a = leaf(1), seed = full({2, 3}, 3);
  Tape tape;
  tape.backward(a, seed);
  CHECK(a.grad().storage() != seed.storage());
  CHECK_THROWS_AS(tape.backward(a, full({6}, 3)), ShapeError);
  tape.backward(a, seed);
  for (const double v : to_host<double>(a.grad())) CHECK(v == 6);
  for (const double v : to_host<double>(seed)) CHECK(v == 3);
}

TEST_CASE("leaf gradient: the hook hears of every leaf once, with its whole gradient", "[autograd]") {
  const auto check = [](const char* what, const Build& build, const std::vector<double>& gradients) {
    INFO(what);
    const Tensor a = leaf(1), b = leaf(2);
    std::vector<double> heard;
    const auto look = [&](const std::shared_ptr<Leaf>& of) {
      CHECK((of == a.leaf() || of == b.leaf()));
      REQUIRE(of->grad.defined());
      heard.push_back(to_host<double>(of->grad)[5]);
    };
    const LeafHook hook = look;
    Tape tape;
    Tensor y;
    {
      const Recording on(tape);
      y = build(a, b);
    }
    tape.backward(y, full(y.shape(), 3), &hook);
    std::sort(heard.begin(), heard.end());
    CHECK(heard == gradients);
  };
  check("a leaf itself", [](const Tensor& a, const Tensor&) { return a; }, {3});
  check("the other leaf", [](const Tensor&, const Tensor& b) { return b; }, {3});
  check("a view", [](const Tensor& a, const Tensor&) { return reshape(a, {6}); }, {3});
  check("twice", [](const Tensor& a, const Tensor&) { return add(a, a); }, {6});
  check("both", [](const Tensor& a, const Tensor& b) { return sub(a, add(b, b)); }, {-6, 3});
}

TEST_CASE("gradients: of a concat, one that waits long is copied out, so that the whole goes", "[autograd]") {
  constexpr std::int64_t rows = 64, width = 32;
  constexpr std::size_t unit = rows * width * 4;
  // Bytes at most of a backward in which a skip waits for the backward of `steps` nodes and two wide products, and the
  // gradient of x.
  const auto pass = [](memory::Device device, int steps) {
    memory::Options options;
    options.trace = true;
    const memory::Stack stack = memory::make_resource(device, std::move(options));
    const ResourceScope scope(stack.top);
    RandomGenerator generator(3);
    const GeneratorScope random(generator);
    const Tensor x = randn({rows, width}, DType::f32, device).require_grad();
    const Tensor wide = full({16 * width, width}, 0.25, DType::f32, device),
                 narrow = full({width, 16 * width}, 0.25, DType::f32, device);
    const Tensor ones = full({rows, 2 * width}, 1, DType::f32, device);
    Tape tape;
    Tensor loss;
    {
      const Recording on(tape);
      const Tensor skip = 2 * x;
      Tensor y = linear(linear(3 * x, wide), narrow);
      for (int i = 0; i < steps; ++i) y = 1 * y;
      loss = sum(concat({skip, y}, 1) * ones);
    }
    const std::size_t begin = stack.trace->event_count();
    tape.backward(loss);
    std::size_t peak = 0;
    const std::vector<CategoryBytes> lines = timeline(stack.trace->events());
    for (std::size_t i = begin; i < lines.size(); ++i) {
      peak = std::max(peak, std::accumulate(lines[i].begin(), lines[i].end(), std::size_t{0}));
    }
    return std::pair(peak, device.is_dry ? std::vector<float>() : to_host<float>(x.grad()));
  };
  const auto longest = static_cast<int>(ops::Concat::longest_wait);
  // Between concat and skip are 3 * x, two products and the steps.
  CHECK(pass(dry(cpu), longest - 4).first == pass(dry(cpu), longest - 3).first + unit);
  for (const int steps : {longest - 4, longest - 3}) {
    const auto [peak, gradient] = pass(cpu, steps);
    CHECK(peak == pass(dry(cpu), steps).first);
    for (const float g : gradient) REQUIRE(g == 2 + 3 * 0.25f * 0.25f * 16 * width * width);
  }
}
