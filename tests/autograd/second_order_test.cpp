// Backward records nothing, so a gradient is a constant: using one in a loss as if it were a variable is an error, and
// detach() states the intent.

#include <functional>
#include <string>
#include <vector>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/reduce.h>
#include <thimble/core/tensor/view.h>
#include <thimble/optim/clip.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"

using namespace thimble;

namespace {

using Values = std::vector<double>;

/// A leaf w = 2 and an input x = 3 that takes a gradient; the gradients of sum(x w^2) are 12 and 4.
struct Net {
  Tensor w = full({2}, 2), x = full({2}, 3);
  Tape tape;

  Net() {
    w.require_grad(), x.require_grad();
    tape.backward(recorded([&] { return sum(x * square(w)); }));
  }
  Tensor recorded(const std::function<Tensor()>& f) {
    const Recording on(tape);
    return f();
  }
  /// The error of a loss that uses a gradient; empty without one.
  std::string refusal(const std::function<Tensor()>& loss) {
    try {
      tape.backward(recorded(loss));
    } catch (const AutogradError& error) {
      tape.clear();
      return error.what();
    }
    return {};
  }
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("second order: a gradient in a loss is refused", "[second_order]") {
  Net net;
  const Tensor &w = net.w, &x = net.x;
  CHECK(w.grad().origin() == tape::Origin::gradient);
  const std::vector<std::pair<const char*, std::function<Tensor()>>> losses{
      {"a penalty beside the loss", [&] { return sum(square(w)) + sum(square(w.grad())); }},
      {"a product", [&] { return sum(w * w.grad()); }},
      {"of an input", [&] { return sum(w * x.grad()); }},
      {"a norm", [&] { return sum(w) + sqrt(sum(square(w.grad()))); }},
      {"a view of it",
       [&] {
         return sum(w) + sum(reshape(w.grad(), {1, 2}));
       }},
      {"a copy of it", [&] { return sum(w * clone(w.grad())); }},
      {"a view of core's", [&] { return sum(w * view::reshape(w.grad(), {2})); }},
      {"in another dtype", [&] { return sum(cast(w, DType::f64) * to_dtype(w.grad(), DType::f64)); }},
      {"a sum of core's", [&] { return sum(w) * reduce_sum(w.grad(), 1, false); }},
      {"through an operator of its own in a segment",
       [&] { return sum(w) + checkpoint([&] { return sum(square(w.grad())); }); }},
      {"in a segment", [&] { return checkpoint([&] { return sum(w * w.grad()); }); }},
      {"put together",
       [&] {
         return sum(concat({w, w.grad()}, 0));
       }},
  };
  for (const auto& [name, loss] : losses) {
    INFO(name);
    CHECK(
        contains(net.refusal(loss), "is a gradient or made of one, and second derivatives are not computed; detach()"));
  }
  CHECK(contains(net.refusal([&] {
    const PathScope path("critic");
    return sum(w * w.grad());
  }),
                 "mul in critic: operand 1, f32 (2) on cpu, is a gradient"));
  CHECK(contains(net.refusal([&] { return sum(square(w.grad())); }),
                 "is made of a gradient, and second derivatives are not computed"));
}

TEST_CASE("second order: so is what was made of one outside of the recording", "[second_order]") {
  Net net;
  const Tensor& w = net.w;
  const Tensor norm = sqrt(sum(square(w.grad())));
  Tensor of_clip;
  {
    optim::Sgd sgd({{"w", w}}, {});
    of_clip = optim::gradient_square_sums(sgd.parameters());
  }
  const Tensor copy = clone(w.grad());
  for (const Tensor& made : {norm, of_clip, copy, w.grad() * 0.5, cast(norm, DType::f64)}) {
    CHECK(made.origin() == tape::Origin::gradient);
    const DType dtype = made.dtype();
    CHECK(contains(net.refusal([&] { return sum(cast(w, dtype) * made); }), "second derivatives"));
  }
}

TEST_CASE("second order: detached it is a constant, and so is what an update makes of it", "[second_order]") {
  Net net;
  const Tensor& w = net.w;
  const Tensor before = clone(w.grad()).detach();
  CHECK(net.refusal([&] { return sum(square(w)) + sum(w * before); }).empty());
  CHECK(to_host<double>(w.grad()) == Values(2, 12 + 4 + 12));  // both gradients were added to it in place
  CHECK(w.grad().origin() == tape::Origin::gradient);
  w.grad() = full({2}, 1, w.dtype());  // the program's own, until backward adds to it
  CHECK(net.refusal([&] { return sum(square(w)); }).empty());
  CHECK(w.grad().origin() == tape::Origin::gradient);
  // Uses that do not depend on the gradient's size, and a hand-written update step.
  CHECK(net.refusal([&] { return sum(where(greater(w.grad(), full({2}, 0)), w, w * 2.0)); }).empty());
  Tensor next = w - w.grad() * 0.5;
  next.require_grad();
  CHECK(net.refusal([&] { return sum(square(next)); }).empty());
  copy_into(w, w - w.grad() * 0.5);
  CHECK(net.refusal([&] { return sum(square(w)); }).empty());
}

TEST_CASE("second order: what was given as a gradient is one once backward has added to it", "[second_order]") {
  Net net;
  const Tensor& w = net.w;
  w.grad() = full({2}, 1);
  CHECK(net.refusal([&] { return sum(w * 3.0); }).empty());
  CHECK(to_host<double>(w.grad()) == Values(2, 4));
  CHECK(contains(net.refusal([&] { return sum(w * w.grad()); }), "second derivatives"));
}
