// A leaf's gradient is its own: no other leaf, and nobody who gave it to backward, shares its bytes.

#include <algorithm>
#include <functional>
#include <vector>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/tensor/copy.h>

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
