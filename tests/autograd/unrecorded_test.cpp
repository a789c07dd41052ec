// Functions that no tape sees, and values of other recordings, would silently cut a gradient: each is an error that
// names the remedy. A loss that cannot be differentiated explains why.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/quant/quantize.h>
#include <thimble/core/ops/reduce.h>
#include <thimble/core/ops/text.h>
#include <thimble/core/tensor/view.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/refusal.h"

using namespace thimble;
using refusal_test::refusal;

namespace {

using Values = std::vector<double>;

Tensor leaf(Tensor t) {
  t.require_grad();
  return t;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// 3 x, from functions that no tape sees; nothing that it calls is recorded.
struct Triple {
  static constexpr const char* name = "triple";
  using Saved = SavesNothing;
  Tensor forward(const Tensor& x, ops::Needs, Saved&) const {
    const Tensor y = to_dtype(to_dtype(clone(view::transpose(x)), DType::f64), DType::f32);
    return contiguous(view::transpose(y)) * 3.0;
  }
  ops::Gradients backward(Saved, Tensor dy, ops::Needs) const { return {clone(dy) * 3.0}; }
};

}  // namespace

TEST_CASE("unrecorded: functions of core refuse what needs a gradient", "[unrecorded]") {
  const Tensor p = leaf(full({2, 3}, 2)), to = zeros({2, 3});
  using Function = std::function<void(const Tensor&)>;
  const std::vector<std::pair<const char*, Function>> functions{
      {"clone in mine: ", [](const Tensor& t) { clone(t); }},
      {"use dense()", [](const Tensor& t) { contiguous(t); }},
      {"use cast()", [](const Tensor& t) { to_dtype(t, DType::f64); }},
      {"copy_into", [&](const Tensor& t) { copy_into(to, t); }},
      {"to_device", [](const Tensor& t) { to_device(t, dry(cpu)); }},
      {"the recorded function of its name", [](const Tensor& t) { view::slice(t, 0, 0, 1); }},
      {"the recorded function of its name",
       [](const Tensor& t) {
         view::reshape(t, {2, 1, 3});
       }},
      {"the recorded function of its name", [](const Tensor& t) { view::transpose(t); }},
      {"the recorded function of its name",
       [](const Tensor& t) {
         view::permute(t, {1, 0});
       }},
      {"the recorded function of its name",
       [](const Tensor& t) {
         view::expand(t, {4, 2, 3});
       }},
      {"the recorded function of its name", [](const Tensor& t) { view::unsqueeze(t, 0); }},
      {"use sum()", [](const Tensor& t) { reduce_sum(t, 1, false); }},
      {"use fake_quantize()", [](const Tensor& t) { quantize(t, {}); }},
  };
  Tape tape;
  const Recording on(tape);
  const Tensor y = transpose(transpose(p) * 2.0);  // not dense, so that contiguous() has something to do
  for (const auto& [text, function] : functions) {
    INFO(text);
    const PathScope path("mine");
    const std::string said = refusal<AutogradError>([&f = function, &y] { f(y); });
    INFO(said);
    CHECK(contains(said, text));
    CHECK(contains(said, " in mine: f32 (2, 3) on cpu needs a gradient"));
    CHECK(contains(said, "detach()"));
    if (!contains(text, "dense()")) CHECK_THROWS_AS(function(p), AutogradError);
    CHECK_NOTHROW(function(y.detach()));
    const NoGrad off;
    CHECK_NOTHROW(function(y));
  }
  // No error where nothing is cut.
  CHECK(contiguous(p).requires_grad());
  CHECK(to_dtype(p, DType::f32).requires_grad());
  CHECK(to_device(p, cpu).requires_grad());
}

TEST_CASE("unrecorded: constants, frozen leaves and looks at values are not refused", "[unrecorded]") {
  const Tensor p = leaf(full({2, 3}, 2)), c = full({2, 3}, 5);
  Tape tape;
  Tensor loss;
  {
    const Recording on(tape);
    const Tensor y = p * 2.0;
    loss = sum(y * clone(c)) + sum(y * view::transpose(clone(view::transpose(c))));
    CHECK(item(loss) == 4 * 5 * 6 * 2);
    CHECK(to_host<double>(transpose(y)) == Values(6, 4));
    CHECK(to_text(y).size() > 2);
    checkpoint([&] { return to_dtype(c * 2.0, DType::f64); });  // needs no gradient
    p.set_requires_grad(false);
    CHECK_NOTHROW(clone(p));
    p.set_requires_grad(true);
  }
  tape.backward(loss);
  CHECK_NOTHROW(clone(p));
}

TEST_CASE("unrecorded: the gradient that a copy has cut", "[unrecorded]") {
  const Tensor p = leaf(full({1}, 3));
  Tape tape;
  const auto gradient = [&](const std::function<Tensor()>& loss) {
    p.grad() = Tensor();
    Tensor y;
    {
      const Recording on(tape);
      y = loss();
    }
    tape.backward(y);
    return to_host<double>(p.grad());
  };
  CHECK_THROWS_AS(gradient([&] { return sum(square(clone(p))) + sum(p); }), AutogradError);
  tape.clear();
  CHECK(gradient([&] { return sum(square(dense(p))) + sum(p); }) == Values{7});
  CHECK(gradient([&] { return sum(square(clone(p.detach()))) + sum(p); }) == Values{1});
}

TEST_CASE("unrecorded: operators' own bodies use them, and are recorded once", "[unrecorded]") {
  const Tensor p = leaf(full({2, 3}, 2));
  Tape tape;
  Tensor loss;
  {
    const Recording on(tape);
    loss = sum(apply(Triple{}, p));
    CHECK(tape.node_count() == 2);
    CHECK(context().tape == &tape);
    CHECK_THROWS_AS(matmul(p, p), ShapeError);
    CHECK(context().tape == &tape);
  }
  tape.backward(loss);
  CHECK(to_host<double>(p.grad()) == Values(6, 3));
}

TEST_CASE("unrecorded: values of other recordings are refused", "[unrecorded]") {
  const Tensor w = leaf(full({2}, 2)), x = full({2}, 3);
  SECTION("a hidden state that is carried over") {
    Tape tape;
    Tensor h = zeros({2});
    const auto step = [&](const Tensor& state) {
      const Recording on(tape);
      const PathScope path("cell");
      h = tanh(state * w + x);
      return sum(h);
    };
    tape.backward(step(h));
    CHECK(contains(refusal<AutogradError>([&] { step(h); }),
                   "mul in cell: operand 0, f32 (2) on cpu, is of a recording that is over; detach() makes it a "
                   "constant"));
    tape.clear();
    CHECK_NOTHROW(tape.backward(step(h.detach())));
    tape.clear(), tape.clear();
    CHECK(contains(refusal<AutogradError>([&] { step(h); }), "is of a recording that is over"));
  }
  SECTION("the same in training steps") {
    optim::Sgd sgd({{"w", w}}, {.rate = 0.1});
    Tensor h = zeros({2});
    const auto step = [&](bool detaches) {
      nn::training_step(sgd, [&](std::int64_t) {
        h = tanh((detaches ? h.detach() : h) * w + x);
        return sum(h);
      });
    };
    step(false);
    step(true), step(true);
    CHECK(contains(refusal<AutogradError>([&] { step(false); }), "is of a recording that is over"));
  }
  SECTION("another tape") {
    Tape outer, inner;
    const Recording on(outer);
    const Tensor y = square(w);
    {
      const Recording within(inner);
      CHECK(
          contains(refusal<AutogradError>([&] { sum(y); }), "sum: operand 0, f32 (2) on cpu, was recorded on another"));
      const Tensor z = square(w) * y.detach();
      CHECK_NOTHROW(argmax(y));  // takes no gradient
      inner.backward(sum(z));
      CHECK(contains(refusal<AutogradError>([&] { inner.backward(sum(y)); }), "was recorded on another tape"));
    }
    CHECK(to_host<double>(w.grad()) == Values{16, 16});
    CHECK_NOTHROW(outer.backward(sum(y * 2.0)));
    CHECK(to_host<double>(w.grad()) == Values{16 + 8, 16 + 8});
  }
  SECTION("what needed no gradient may be used anywhere") {
    Tape tape, other;
    Tensor c;
    {
      const Recording on(tape);
      c = checkpoint([&] { return x * 2.0; });  // a value of the tape
      CHECK(c.origin() == tape::Origin::constant);
    }
    const Recording on(other);
    CHECK_NOTHROW(other.backward(checkpoint([&] { return sum(c * w); })));
    CHECK(to_host<double>(w.grad()) == Values{6, 6});
  }
}

TEST_CASE("unrecorded: a loss says why it has no gradient", "[unrecorded]") {
  const Tensor w = leaf(full({}, 2)), c = full({}, 3);
  Tape tape, other;
  const auto recorded = [](Tape& on_tape, const std::function<Tensor()>& f) {
    const Recording on(on_tape);
    return f();
  };
  const auto why = [&](const Tensor& loss) { return refusal<AutogradError>([&] { tape.backward(loss); }); };
  const std::string outside = "was computed where nothing is recorded";
  CHECK(contains(why(square(w)), outside));
  CHECK(contains(why(clone(square(w))), outside));
  CHECK(contains(why(view::reshape(w, {1})), outside));
  CHECK(contains(why(recorded(tape,
                              [&] {
                                const NoGrad off;
                                return square(w);
                              })),
                 outside));
  CHECK(contains(why(recorded(other, [&] { return square(w); })), "was recorded on another tape"));
  const Tensor done = recorded(tape, [&] { return square(w); });
  tape.backward(done);
  CHECK(contains(why(done), "is of a recording that is over: backward has run, or the tape was cleared"));
  const std::string constant = "depends on no leaf that needs a gradient";
  CHECK(contains(why(recorded(tape, [&] { return square(c); })), constant));
  CHECK(contains(why(recorded(tape, [&] { return square(w).detach(); })), constant));
  CHECK(contains(why(Tensor()), constant));
  w.set_requires_grad(false);
  CHECK(contains(why(w), constant));
  CHECK(contains(why(recorded(tape, [&] { return square(w); })), constant));
  w.set_requires_grad(true);
  w.grad() = Tensor();
  CHECK(why(recorded(tape, [&] { return square(w); })).empty());
  CHECK(item(w.grad()) == 4);
}

TEST_CASE("unrecorded: errors of operators name the module that they were called in", "[unrecorded]") {
  const PathScope model("gpt");
  const PathScope layer("mlp");
  const Tensor a = zeros({2, 3});
  const auto check = [&] {
    const std::string shape = refusal<ShapeError>([&] { matmul(a, a); });
    CHECK(contains(shape, "(2, 3)"));
    CHECK(shape.ends_with(", in gpt.mlp"));
    CHECK(shape.find("gpt.mlp") == shape.rfind("gpt.mlp"));
    CHECK(refusal<DTypeError>([&] { add(a, zeros({2, 3}, DType::f64)); }).ends_with(", in gpt.mlp"));
    CHECK(refusal<DeviceError>([&] { add(a, zeros({2, 3}, DType::f32, dry(cpu))); }).ends_with(", in gpt.mlp"));
    CHECK(refusal<ValueError>([&] { embedding(a, full({1}, 7, DType::i64)); }).ends_with(", in gpt.mlp"));
  };
  check();
  Tape tape;
  const Recording on(tape);
  check();
  const PathScope root(PathId{0});
  CHECK_FALSE(contains(refusal<ShapeError>([&] { matmul(a, a); }), ", in "));
}
