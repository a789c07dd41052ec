// Answers to the exercises of chapter 2, docs/book/02-what-backward-remembers.md.

#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/gradcheck.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/ops/random.h>

#include "support/catch.h"

using namespace thimble;

namespace {

/// Bytes of all results that the tape holds, without parameters and inputs.
std::size_t held_bytes(const Tape& tape) { return tape.kept_bytes(memory::Category::activation); }

/// y = x^3. Its slope 3 x^2 needs x, or y where the sign does not matter; x is cheaper to use.
struct Cube {
  static constexpr const char* name = "cube";
  template <class T>
  T fwd(T x) const {
    return x * x * x;
  }
  template <class T>
  T bwd(functor::In<T> x, T dy) const {
    return T(3) * x * x * dy;
  }
};

Tensor input(const Shape& shape) {
  const Tensor t = randn(shape);
  t.storage()->set_category(memory::Category::input);
  return t;
}

Tensor leaf(const Shape& shape) {
  Tensor t = randn(shape);
  t.storage()->set_category(memory::Category::parameter);
  t.require_grad();
  return t;
}

}  // namespace

TEST_CASE("exercise 2.1: the sigmoid keeps its output", "[exercise]") {
  const Tensor x = input({10, 100}), v = leaf({100, 100}), w = leaf({100, 10});
  Tape tape;
  Tensor z;
  {
    const Recording on(tape);
    z = matmul(sigmoid(matmul(x, v)), w);
  }
  // 10 x 100 numbers: the sigmoid's output, which the second product also keeps. It is held once.
  CHECK(held_bytes(tape) == 1000 * 4);
}

TEST_CASE("exercise 2.2: an addition keeps nothing", "[exercise]") {
  const Tensor w = leaf({64, 64}), last = leaf({64, 4});
  const auto held = [&](bool is_residual) {
    const Tensor x = input({8, 64});
    Tape tape;
    Tensor z;
    {
      const Recording on(tape);
      const Tensor h = matmul(x, w), y = relu(h);
      z = is_residual ? add(x, y) : y;
      z = matmul(z, last);
    }
    return held_bytes(tape);
  };
  // Without the addition ReLU's output is the product's input, and both keep it. With it they keep two tensors: the
  // bytes come from the product after the addition, which reads another tensor.
  CHECK(held(false) == 8 * 64 * 4);
  CHECK(held(true) == 2 * 8 * 64 * 4);
  const Tensor a = leaf({8, 64}), b = leaf({8, 64});
  Tape tape;
  Tensor sum;
  {
    const Recording on(tape);
    sum = add(a, b);
  }
  CHECK(tape.node_count() == 1);
  CHECK(tape.kept(0).empty());
}

TEST_CASE("exercise 2.3: an operator of one's own", "[exercise]") {
  const std::vector<Tensor> operands{randn({4, 6}, DType::f64)};
  const GradcheckResult check =
      gradcheck([](std::span<const Tensor> in) { return apply<Cube>(in[0]); }, std::span<const Tensor>(operands));
  INFO(check.report);
  CHECK(check.passed);
}
