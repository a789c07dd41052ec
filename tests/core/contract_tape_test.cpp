// The tape's part of the memory contract: backward frees as it goes, keeps and computes only for gradients that a
// parameter needs, and refuses overwritten tensors.

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/stack.h>
#include <thimble/models/model.h>

#include "support/catch.h"

using namespace thimble;

namespace {

Tensor leaf(Tensor t) {
  t.require_grad();
  return t;
}

// Records `function` on `tape` and returns its result.
template <class F>
Tensor recorded(Tape& tape, F&& function) {
  const Recording on(tape);
  return function();
}

// x + y + z by value. Notes the requested gradients, and runs `at_backward` in backward.
struct Spy {
  static constexpr const char* name = "spy";
  struct Saved {
    Tensor x, y, z;
  };
  std::vector<std::uint32_t>* asked_forward;
  std::vector<std::uint32_t>* asked_backward;

  Tensor forward(const Tensor& x, const Tensor& y, const Tensor& z, ops::Needs needs, Saved& saved) const {
    asked_forward->push_back(needs.bits());
    if (needs[0]) saved.x = x;
    if (needs[1]) saved.y = y;
    if (needs[2]) saved.z = z;
    return add(add(x, y), z);
  }
  ops::Gradients backward(Saved saved, Tensor dy, ops::Needs needs) const {
    asked_backward->push_back(needs.bits());
    for (int i = 0; i < 3; ++i) {
      const Tensor& kept = i == 0 ? saved.x : i == 1 ? saved.y : saved.z;
      if (kept.defined() != needs[i]) throw Error("spy: kept what was not asked for");
    }
    return {needs[0] ? dy : Tensor(), needs[1] ? dy : Tensor(), needs[2] ? dy : Tensor()};
  }
};

// A copy of x that reads the ledger in backward.
struct LedgerProbe {
  static constexpr const char* name = "ledger_probe";
  using Saved = SavesNothing;
  const memory::Ledger* ledger;
  std::vector<std::size_t>* activation_bytes;

  Tensor forward(const Tensor& x, ops::Needs, Saved&) const { return clone(x); }
  ops::Gradients backward(Saved, Tensor dy, ops::Needs) const {
    activation_bytes->push_back(ledger->bytes(memory::Category::activation));
    return {dy};
  }
};

}  // namespace

TEST_CASE("contract tape: after backward only parameters, gradients and inputs live", "[contract]") {
  for (const char* name : {"mlp", "resnet18", "char-gpt"}) {
    INFO(name);
    const auto stack = memory::make_resource(cpu);
    const ResourceScope scope(stack.top);
    models::ModelOptions sizes;
    sizes.width = 16;
    if (std::string(name) == "char-gpt") {
      sizes.layers = 2, sizes.heads = 4, sizes.sequence = 8, sizes.dropout = 0.1;
    } else {
      sizes.image = 16;
    }
    const auto model = models::make_model(name, sizes);
    const models::Batch batch = model->empty_batch(3, cpu);
    memory::CategoryBytes expected = stack.ledger->bytes_by_category();
    const auto parameter = static_cast<std::size_t>(memory::Category::parameter);
    CHECK(expected[static_cast<std::size_t>(memory::Category::activation)] == 0);
    CHECK(expected[parameter] >= static_cast<std::size_t>(model->parameter_count()) * sizeof(float));
    {
      Tape tape;
      const Tensor loss = recorded(tape, [&] { return model->loss(batch); });
      CHECK(stack.ledger->bytes(memory::Category::activation) > 0);
      tape.backward(loss);
      CHECK(tape.node_count() == 0);
      CHECK(tape.kept_bytes() == 0);
    }
    expected[static_cast<std::size_t>(memory::Category::gradient)] =
        static_cast<std::size_t>(model->parameter_count()) * sizeof(float);
    CHECK(stack.ledger->bytes_by_category() == expected);
  }
}

TEST_CASE("contract tape: backward frees as it goes", "[contract]") {
  const auto stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  constexpr std::size_t bytes = 256 * sizeof(float);
  constexpr int depth = 8;
  std::vector<std::size_t> seen;
  const Tensor x = leaf(full({256}, 0.9));
  Tape tape;
  Tensor loss = recorded(tape, [&] {
    Tensor y = x;
    for (int i = 0; i < depth; ++i) y = apply(LedgerProbe{stack.ledger.get(), &seen}, square(y));
    return sum(y);
  });
  CHECK(stack.ledger->bytes(memory::Category::activation) == depth * bytes);  // every square keeps its operand
  tape.backward(loss);
  REQUIRE(seen.size() == depth);
  // The first probe comes before any square's backward; each square then frees what it kept.
  for (std::size_t i = 0; i < depth; ++i) CHECK(seen[i] == (depth - i) * bytes);
  CHECK(stack.ledger->bytes(memory::Category::activation) == 0);
}

TEST_CASE("contract tape: an overwritten tensor is refused by the operator that kept it", "[contract]") {
  const Tensor x = leaf(full({4}, 0.5));
  const auto refused = [&](Tensor (*function)(const Tensor&), bool overwrites_result) {
    Tape tape;
    Tensor y;
    const Tensor loss = recorded(tape, [&] {
      const PathScope path("net");
      const Tensor inner = x * 2.0;
      y = function(inner);
      if (!overwrites_result) fill(inner, 1);
      return sum(y);
    });
    if (overwrites_result) fill(y, 1);
    try {
      tape.backward(loss);
    } catch (const AutogradError& error) {
      CHECK(tape.node_count() == 0);  // and can be used again
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refused(exp, true).find("exp in net: f32 (4) on cpu, kept for backward, was overwritten") == 0);
  CHECK(refused(square, false).find("square in net:") == 0);
  CHECK(refused(exp, false).empty());    // its operand is not kept
  CHECK(refused(square, true).empty());  // its result is not kept
}

TEST_CASE("contract tape: a million nodes", "[contract]") {
  constexpr int count = 1000000;
  const Tensor x = leaf(full({1}, 1, DType::f64));
  Tape tape;
  const Tensor y = recorded(tape, [&] {
    Tensor t = x;
    for (int i = 0; i < count; ++i) t = t * 1.000001;
    return t;
  });
  CHECK(tape.node_count() == count);
  tape.backward(y);
  CHECK(item(x.grad()) == Approx(item(y)).epsilon(1e-12));  // dy/dx = 1.000001^count = y / 1
  recorded(tape, [&] {
    Tensor t = x;
    for (int i = 0; i < count; ++i) t = square(t);  // keeps its operand: a chain of a million tensors
    return t;
  });
  tape.clear();
  CHECK(tape.kept_bytes() == 0);
}

TEST_CASE("contract tape: no_grad and detach", "[contract]") {
  const Tensor x = leaf(full({3}, 2));
  Tape tape;
  const Tensor y = recorded(tape, [&] {
    Tensor constant;
    {
      const NoGrad off;
      constant = square(x);  // 4, not recorded
    }
    CHECK(tape.node_count() == 0);
    const Tensor cut = exp(x).detach();
    return sum(x * constant + x * cut);
  });
  tape.backward(y);
  for (const float g : to_host<float>(x.grad())) CHECK(g == Approx(4 + std::exp(2.0)));
  const Tensor off_tape = recorded(tape, [&] { return square(x.detach()); });
  CHECK(tape.node_count() == 0);
  CHECK_THROWS_AS(tape.backward(sum(off_tape)), AutogradError);
}

TEST_CASE("contract tape: gradients add up over backward passes", "[contract]") {
  RandomGenerator generator(3);
  const GeneratorScope scope(generator);
  const Tensor w = leaf(randn({5, 4}));
  const Tensor first = randn({3, 4}), second = randn({3, 4});
  Tape tape;
  const auto backward = [&](const Tensor& input) {
    tape.backward(recorded(tape, [&] { return sum(square(linear(input, w))); }));
    return to_host<float>(w.grad());
  };
  const std::vector<float> a = backward(first);
  w.grad() = Tensor();
  const std::vector<float> b = backward(second);
  w.grad() = Tensor();
  backward(first);
  const std::vector<float> both = backward(second);
  std::vector<float> expected(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) expected[i] = a[i] + b[i];
  CHECK(both == expected);
}

TEST_CASE("contract tape: nothing is kept or computed for operands that lead to no parameter", "[contract]") {
  const auto stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  const Tensor constant = full({8, 8}, 0.5);
  const Tensor w = leaf(full({8, 8}, 0.25));
  Tape tape;

  SECTION("the operator is told") {
    std::vector<std::uint32_t> forward, backward;
    const Tensor loss = recorded(tape, [&] {
      const Tensor unused = exp(constant);  // leads to no parameter: not recorded
      CHECK(tape.node_count() == 0);
      const Tensor a = apply(Spy{&forward, &backward}, constant, w, unused);
      const Tensor b = apply(Spy{&forward, &backward}, a, constant, w);
      const Tensor c = apply(Spy{&forward, &backward}, unused, unused, constant);
      return sum(apply(Spy{&forward, &backward}, c, b, b));
    });
    tape.backward(loss);
    CHECK(forward == std::vector<std::uint32_t>{2, 5, 0, 6});
    CHECK(backward == std::vector<std::uint32_t>{6, 5, 2});
    CHECK_FALSE(constant.requires_grad());
  }
  SECTION("a product keeps the other factor alone") {
    const Tensor y = recorded(tape, [&] { return mul(w, exp(constant)); });
    CHECK(tape.node_count() == 1);
    const std::vector<KeptTensor> kept = tape.kept(0);
    REQUIRE(kept.size() == 1);
    CHECK(kept[0].storage != w.storage().get());
    CHECK(tape.kept_bytes() == 8 * 8 * sizeof(float));
  }
  SECTION("a matrix product makes one gradient") {
    const auto allocations_of_backward = [&](const Tensor& lhs) {
      const Tensor y = recorded(tape, [&] { return matmul(lhs, w); });
      const Tensor seed = full({8, 8}, 1);
      w.grad() = Tensor();
      const std::size_t peak_before = stack.ledger->bytes();
      stack.ledger->reset_peak();
      tape.backward(y, seed);
      CHECK(w.grad().defined());
      const memory::CategoryBytes peak = stack.ledger->peak_by_category();
      CHECK(stack.ledger->max_allocated() >= peak_before);
      return peak[static_cast<std::size_t>(memory::Category::gradient)] +
             peak[static_cast<std::size_t>(memory::Category::temporary)] +
             peak[static_cast<std::size_t>(memory::Category::workspace)];
    };
    const Tensor other = leaf(full({8, 8}, 0.5));
    const std::size_t one = allocations_of_backward(constant);
    const std::size_t two = allocations_of_backward(other);
    CHECK(one + 8 * 8 * sizeof(float) <= two);
  }
}

TEST_CASE("contract tape: a list has as many operands as its operator takes", "[contract]") {
  std::vector<std::uint32_t> forward, backward;
  const std::vector<Tensor> list(4, full({2}, 1));
  const std::span<const Tensor> operands(list);
  for (const std::size_t given : {0, 2, 4}) {
    const auto run = [&] { apply_list(Spy{&forward, &backward}, operands.first(given)); };
    CHECK_THROWS_AS(run(), ValueError);
    CHECK_THROWS_WITH(run(), "spy: " + std::to_string(given) + " operands, and it takes 3");
  }
  CHECK(forward.empty());
  CHECK(item(sum(apply_list(Spy{&forward, &backward}, operands.first(3)))) == 6);
}
