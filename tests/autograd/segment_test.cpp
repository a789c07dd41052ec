// Segments, whatever they nest, drop or keep, give the plain run's results bit for bit.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/graph.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/stack.h>

#include "random_program.h"
#include "support/catch.h"
#include "support/refusal.h"

using namespace thimble;

namespace {

using namespace random_program_test;

struct Outcome {
  std::vector<std::vector<float>> values;
  std::size_t nodes = 0;
  std::size_t peak = 0;
  friend bool operator==(const Outcome& a, const Outcome& b) { return a.values == b.values; }
};

// One step of a random program; returns every number that a step can change.
Outcome run(std::uint64_t seed, bool has_segments, std::shared_ptr<const TapePlan> plan = nullptr) {
  const auto stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  Outcome outcome;
  {
    RandomProgram program(seed);
    RandomGenerator generator(seed);
    const GeneratorScope random(generator);
    Tape tape;
    tape.follow(std::move(plan));
    for (int pass = 0; pass < 2; ++pass) {  // gradients add up over passes, statistics move twice
      generator.start_pass();
      Tensor loss;
      {
        const Recording on(tape);
        loss = program.forward(has_segments);
      }
      outcome.nodes = tape.node_count();
      outcome.peak = stack.ledger->max_allocated();
      outcome.values.push_back(to_host<float>(loss));
      tape.backward(loss);
      CHECK(tape.kept_bytes() == 0);
      CHECK(stack.ledger->bytes(memory::Category::activation) == 0);
    }
    for (const Tensor& leaf : program.leaves()) {
      outcome.values.push_back(leaf.grad().defined() ? to_host<float>(leaf.grad()) : std::vector<float>());
    }
    for (const Tensor& t : program.statistics()) outcome.values.push_back(to_host<float>(t));
  }
  CHECK(stack.ledger->bytes() == 0);
  return outcome;
}

// y = x; counts its runs and keeps x.
struct Counted {
  static constexpr const char* name = "counted";
  static constexpr ops::Cost cost = ops::Cost::matmul;
  struct Saved {
    Tensor x;
  };
  std::vector<int>* runs;
  std::size_t index;

  Tensor forward(const Tensor& x, ops::Needs needs, Saved& saved) const {
    ++(*runs)[index];
    if (needs.any()) saved.x = x;
    return clone(x);
  }
  ops::Gradients backward(Saved, Tensor dy, ops::Needs) const { return {dy}; }
};

// y = x, in 3 ms.
struct Slow {
  static constexpr const char* name = "slow";
  struct Saved {
    Tensor x;
  };
  Tensor forward(const Tensor& x, ops::Needs needs, Saved& saved) const {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    if (needs.any()) saved.x = x;
    return clone(x);
  }
  ops::Gradients backward(Saved, Tensor dy, ops::Needs) const { return {dy}; }
};

struct Thrower {
  static constexpr const char* name = "thrower";
  struct Saved {
    Tensor x;
  };
  int* calls;
  int failing_call;

  Tensor forward(const Tensor& x, ops::Needs needs, Saved& saved) const {
    if (++*calls == failing_call) throw ValueError("thrower: call " + std::to_string(failing_call));
    if (needs.any()) saved.x = x;
    return clone(x);
  }
  ops::Gradients backward(Saved, Tensor dy, ops::Needs) const { return {dy}; }
};

Tensor leaf(Tensor t) {
  t.require_grad();
  return t;
}

}  // namespace

TEST_CASE("segment: random programs with random segments and plans have the bits of the plain run", "[segment]") {
  std::size_t smaller = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    INFO("seed " << seed);
    const Outcome plain = run(seed, false);
    const Outcome segmented = run(seed, true);
    CHECK(segmented == plain);
    smaller += segmented.peak < plain.peak;
    const TapeGraph graph = observed(seed);
    Random random(seed);
    for (int i = 0; i < 4; ++i) {
      const auto plan = std::make_shared<TapePlan>(random_plan(graph, random));
      const Outcome planned = run(seed, i % 2 == 1, plan);
      CHECK(planned.nodes == graph.nodes.size());
      CHECK(planned == plain);
    }
  }
  CHECK(smaller > 70);
}

TEST_CASE("segment: how often a node runs", "[segment]") {
  const Tensor x = leaf(full({4}, 0.5));
  const auto count = [&](auto&& build, std::size_t nodes) {
    std::vector<int> runs(nodes, 0);
    Tape tape;
    Tensor loss;
    {
      const Recording on(tape);
      loss = sum(build([&](const Tensor& t, std::size_t i) { return apply(Counted{&runs, i}, t); }));
    }
    tape.backward(loss);
    for (const float g : to_host<float>(x.grad())) CHECK(g == 1);
    x.grad() = Tensor();
    return runs;
  };
  using Runs = std::vector<int>;
  CHECK(count([&](auto op) { return op(op(op(x, 0), 1), 2); }, 3) == Runs{1, 1, 1});
  // Outside segments each runs once; in a segment of depth d at most d + 1 times.
  CHECK(count([&](auto op) { return checkpoint([&](const Tensor& t) { return op(op(op(t, 0), 1), 2); }, x); }, 3) ==
        Runs{2, 2, 2});
  CHECK(count(
            [&](auto op) {
              return checkpoint(
                  [&](const Tensor& t) {
                    const Tensor u = checkpoint([&](const Tensor& v) { return op(op(v, 0), 1); }, t);
                    return checkpoint([&](const Tensor& v) { return op(op(v, 2), 3); }, u);
                  },
                  x);
            },
            4) == Runs{3, 3, 2, 2});  // the second inner segment is not rerun just to be closed again
  // The policy keeps both results, so each runs once.
  CHECK(count(
            [&](auto op) {
              return checkpoint_with(
                  keep_costly, [&](const Tensor& t) { return op(op(t, 0), 1); }, x);
            },
            2) == Runs{1, 1});
  // Early stop: a rerun skips nodes that backward does not need, such as an end that nothing inside reads.
  CHECK(count(
            [&](auto op) {
              return checkpoint([&](const Tensor& t) { return mul(square(op(t, 0)), full({4}, 1)); }, op(x, 1)) +
                     checkpoint([&](const Tensor& t) { return add(op(t, 2).detach(), x); }, x).detach();
            },
            3)[2] == 1);
}

TEST_CASE("segment: all runs of a node after the first are in its time", "[segment]") {
  const Tensor x = leaf(full({4}, 0.5));
  Tape tape;
  TapeTimes times;
  tape.time(&times);
  Tensor loss;
  {
    const Recording on(tape);
    loss = sum(checkpoint(
        [](const Tensor& t) {
          const Tensor u = checkpoint([](const Tensor& v) { return exp(apply(Slow{}, v)); }, t);
          return checkpoint([](const Tensor& v) { return exp(exp(v)); }, u);
        },
        x));
  }
  tape.backward(loss);
  CHECK(times.forward[0] >= 0.003);
  CHECK(times.recompute[0] >= 0.006);  // once for the outer segment, once for the inner one

  TapeTimes least;
  least.keep_least({{1, 5}, {2, 6}, {3, 7}});
  least.keep_least({{2, 4}, {1, 7}, {4, 5}});
  CHECK(least.forward == std::vector<double>{1, 4});
  CHECK(least.recompute == std::vector<double>{1, 6});
  CHECK(least.backward == std::vector<double>{3, 5});
}

TEST_CASE("segment: joined recordings share nothing", "[segment]") {
  TapeGraph one;
  one.storages = {{8, memory::Category::input}, {16, memory::Category::activation}};
  one.values.resize(2);
  one.values[0].storage = 0;
  one.values[1] = {1, {4}, DType::f32, 0, false, 0};
  one.nodes.resize(1);
  one.nodes[0].inputs = {0, TapeGraph::none};
  one.nodes[0].saved = {1};
  one.nodes[0].output = 1;
  const TapeGraph all = join({one, one});
  REQUIRE(all.values.size() == 4);
  CHECK(all.ends == std::vector<std::uint32_t>{1, 2});
  CHECK(all.values[2].storage == 2);
  CHECK(all.values[3].storage == 3);
  CHECK(all.values[3].producer == 1);
  CHECK(all.values[2].program_until == TapeGraph::none);
  CHECK(all.values[3].program_until == 1);
  CHECK(all.nodes[1].inputs == std::vector<std::uint32_t>{2, TapeGraph::none});
  CHECK(all.nodes[1].saved == std::vector<std::uint32_t>{3});
  CHECK(all.nodes[1].output == 3);
}

TEST_CASE("segment: what is kept", "[segment]") {
  const auto stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  constexpr std::size_t bytes = 64 * sizeof(float);
  const Tensor x = leaf(full({64}, 0.5));
  Tensor loss;
  const auto kept = [&](FatePolicy policy) {
    std::vector<int> runs(3, 0);
    Tape tape;
    const Recording on(tape);
    loss = checkpoint_with(
        policy,
        [&](const Tensor& in) {
          Tensor t = square(in);  // not costly
          for (std::size_t i = 0; i < 3; ++i) t = tanh(exp(apply(Counted{&runs, i}, t)));
          return t;
        },
        x * 2.0);
    return stack.ledger->bytes(memory::Category::activation);
  };
  CHECK(kept(drop_all) == bytes);         // the segment's input
  CHECK(kept(keep_costly) == 4 * bytes);  // plus the three costly results
}

TEST_CASE("segment: errors", "[segment]") {
  const Tensor x = leaf(full({4}, 0.5));
  const auto stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  Tape tape;
  SECTION("a failure while running again") {
    int calls = 0;
    const auto record = [&] {
      const Recording on(tape);
      return sum(checkpoint([&](const Tensor& t) { return exp(apply(Thrower{&calls, 2}, exp(t))); }, x));
    };
    const Tensor loss = record();
    CHECK_THROWS_AS(tape.backward(loss), ValueError);
    CHECK(tape.node_count() == 0);
    CHECK_FALSE(x.grad().defined());
    tape.backward(record());
    CHECK(x.grad().defined());
  }
  SECTION("a source that was overwritten") {
    Tensor inner;
    Tensor loss;
    {
      const Recording on(tape);
      inner = x * 2.0;
      loss = sum(checkpoint([](const Tensor& t) { return exp(exp(t)); }, inner));
    }
    fill(inner, 3);
    std::string message;
    try {
      tape.backward(loss);
    } catch (const AutogradError& error) {
      message = error.what();
    }
    CHECK(message.find("exp: f32 (4) on cpu, kept for backward, was overwritten") == 0);
  }
  SECTION("a plan of another program") {
    tape.observe();
    {
      const Recording on(tape);
      sum(exp(tanh(x)));
    }
    TapePlan plan;
    for (const TapeGraph::Node& node : TapeGraph::of(tape).nodes) plan.types.push_back(node.type);
    plan.fates.assign(plan.types.size(), Fate::drop);
    plan.segments.push_back({0, 2, TapePlan::none});
    Tape planned;
    planned.follow(std::make_shared<TapePlan>(plan));
    {
      const Recording on(planned);
      CHECK_THROWS_AS(tanh(exp(x)), PlanError);
    }
    planned.clear();
    {
      TapePlan sized = plan;  // also compares shapes and dtypes of operands and results
      sized.sizes = TapeGraph::of(tape).sizes();
      Tape other;
      other.follow(std::make_shared<TapePlan>(sized));
      const Recording on(other);
      const auto why = [](const auto& f) { return refusal_test::refusal<PlanError>(f); };
      CHECK(why([] { exp(zeros({4}).require_grad()); }) == "plan: node 0 is exp in '', the plan has tanh");
      CHECK(why([] { tanh(zeros({5}).require_grad()); }) ==
            "plan: node 0, tanh in '', makes f32 (5) on cpu of f32 (5) on cpu; the plan has f32 (4)");
      CHECK(why([] { tanh(zeros({4}, DType::f64).require_grad()); }) ==
            "plan: node 0, tanh in '', makes f64 (4) on cpu of f64 (4) on cpu; the plan has f32 (4)");
      for (TapePlan::Size& size : sized.sizes) size.dtype = DType::bf16;  // the same operands in bf16
      Tape narrow;
      narrow.follow(std::make_shared<TapePlan>(sized));
      const Recording on_narrow(narrow);
      CHECK(why([&] { tanh(x); }).ends_with("of f32 (4) on cpu; the plan has bf16 (4)"));
      for (TapePlan::Size& size : sized.sizes) size.dtype = DType::f32, ++size.operands;
      Tape changed;
      changed.follow(std::make_shared<TapePlan>(sized));
      const Recording on_changed(changed);
      CHECK(why([&] { tanh(x); }).ends_with("; the plan has operands of other sizes"));
    }
    {
      const Recording on(planned);
      const Tensor early = tanh(x);
      CHECK_THROWS_AS(planned.follow(nullptr), AutogradError);
      CHECK_THROWS_AS(planned.backward(early, full({4}, 1)), PlanError);  // ends before the plan does
    }
    const auto invalid = [&](std::vector<TapePlan::Segment> segments) {
      TapePlan wrong = plan;
      wrong.segments = std::move(segments);
      CHECK_THROWS_AS(wrong.innermost(), PlanError);
    };
    invalid({{1, 1, TapePlan::none}});
    invalid({{0, 9, TapePlan::none}});
    invalid({{0, 2, 0}});
    invalid({{0, 2, TapePlan::none}, {1, 3, TapePlan::none}});
    invalid({{0, 1, TapePlan::none}, {1, 2, 0}});
    TapePlan few_sizes = plan;
    few_sizes.sizes = TapeGraph::of(tape).sizes();
    CHECK_NOTHROW(few_sizes.validate());
    few_sizes.sizes.pop_back();
    CHECK_THROWS_WITH(few_sizes.validate(), "plan: sizes of 2 nodes for 3");
    plan.fates.pop_back();
    CHECK_THROWS_AS(plan.innermost(), PlanError);
  }
  CHECK_THROWS_AS(TapeGraph::of(Tape()), AutogradError);
}

TEST_CASE("segment: a plan for several recordings in a row is split where each ends", "[segment]") {
  constexpr Fate keep = Fate::keep, drop = Fate::drop;
  TapePlan plan;
  plan.fates = {keep, drop, drop, drop, keep};
  plan.types.assign(5, nullptr);
  plan.segments = {{1, 4, TapePlan::none}, {1, 2, 0}, {2, 4, 0}};
  plan.spills = {{.node = 1, .away_after = 3, .gone_after = 4, .back_before = 2},
                 {.node = 3, .away_after = 3, .gone_after = 4, .back_before = 3}};
  plan.ends = {3, 5};
  const auto parts = split(plan, 2);
  REQUIRE(parts.size() == 2);
  CHECK(parts[0]->fates == std::vector<Fate>{keep, drop, drop});
  CHECK(parts[0]->segments == std::vector<TapePlan::Segment>{{1, 3, TapePlan::none}, {1, 2, 0}, {2, 3, 0}});
  CHECK(parts[0]->spills ==
        std::vector<TapePlan::Spill>{{.node = 1, .away_after = 2, .gone_after = 2, .back_before = 2}});
  CHECK(parts[1]->fates == std::vector<Fate>{drop, keep});
  CHECK(parts[1]->segments == std::vector<TapePlan::Segment>{{0, 1, TapePlan::none}, {0, 1, 0}});
  CHECK(parts[1]->spills ==
        std::vector<TapePlan::Spill>{{.node = 0, .away_after = 0, .gone_after = 1, .back_before = 0}});
  for (const auto& part : parts) CHECK_NOTHROW(part->innermost());
  CHECK_THROWS_WITH(split(plan, 3), "plan: it is for 2 recordings in a row, and followed by 3");
  plan.ends.clear();
  CHECK_THROWS_WITH(split(plan, 2), "plan: it is for 1 recordings in a row, and followed by 2");
}

TEST_CASE("segment: once backward is past a segment, what it read is gone, dead branches and all", "[segment]") {
  for (const bool has_dead_branch : {false, true}) {
    for (const bool is_nested : {false, true}) {
      INFO((has_dead_branch ? "dead branch" : "no dead branch") << (is_nested ? ", nested" : ""));
      const auto stack = memory::make_resource(cpu);
      const ResourceScope scope(stack.top);
      const Tensor x = leaf(full({1024}, 0.5));
      Tape tape;
      Tensor loss;
      {
        const Recording on(tape);
        const auto body = [&](const Tensor& t) {
          if (has_dead_branch) exp(tanh(t));  // nothing reads it
          return square(tanh(t));
        };
        const Tensor h = x * 2.0;
        loss = sum(is_nested ? checkpoint([&](const Tensor& t) { return checkpoint(body, exp(t)); }, h)
                             : checkpoint(body, h));
      }
      std::size_t before_segment = ~std::size_t{0};
      const auto look = [&](const std::shared_ptr<tape::Leaf>&) {
        before_segment = stack.ledger->bytes(memory::Category::activation);
      };
      const LeafHook hook = look;
      tape.backward(loss, {}, &hook);
      CHECK(before_segment == 0);
      CHECK(x.grad().defined());
    }
  }
}

TEST_CASE("segment: an operand that running it again does not read is not kept", "[segment]") {
  const auto stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  const Tensor x = leaf(full({64}, 0.5));
  Tape tape;
  Tensor loss;
  {
    const Recording on(tape);
    const Tensor read_again = x * 2.0, constant = full({64}, 3);
    loss = sum(checkpoint(
        [&](const Tensor& t) {
          exp(constant);  // needs no gradient, and nothing reads its result
          return exp(t);
        },
        read_again));
  }
  CHECK(stack.ledger->bytes(memory::Category::activation) == 64 * sizeof(float));
  tape.backward(loss);
  CHECK(stack.ledger->bytes(memory::Category::activation) == 0);
}

TEST_CASE("segment: a source that is overwritten between two nodes that run again is told", "[segment]") {
  for (const bool is_overwritten : {false, true}) {
    const Tensor x = leaf(full({4}, 0.5)), w = leaf(full({4}, 2));
    Tape tape;
    Tensor source, loss;
    {
      const Recording on(tape);
      Tensor other;  // recomputed after w's hook: backward reaches the product first
      source = x * 2.0;
      const Tensor product = checkpoint(
          [&](const Tensor& t) {
            other = exp(t);
            return mul(w, full({4}, 3));
          },
          source);
      loss = add(sum(product), sum(other));
    }
    const auto overwrite = [&](const std::shared_ptr<tape::Leaf>& of) {
      if (is_overwritten && of == w.leaf()) fill(source, 7);
    };
    const LeafHook hook = overwrite;
    if (is_overwritten) {
      CHECK_THROWS_AS(tape.backward(loss, {}, &hook), AutogradError);
    } else {
      CHECK_NOTHROW(tape.backward(loss, {}, &hook));
      for (const float g : to_host<float>(x.grad())) CHECK(g == Approx(2 * std::exp(1.0)));
    }
  }
}

TEST_CASE("tape: an observed backward notes the bytes of all gradients before each node", "[tape]") {
  const Tensor w = zeros({256}).require_grad(), v = zeros({256}).require_grad();  // 1024 bytes each
  std::vector<std::size_t> bytes;
  Tape tape;
  tape.observe(&bytes);
  const auto loss = [&] {
    const Recording on(tape);
    const Tensor a = w * 2.0;
    return mean(square(concat({tanh(a), a * v}, 0)));
  };
  // Of w * 2: a and v. Of tanh: the two windows on one storage, a and v. Of a * v: the windows. Of concat: its result.
  // Of square and mean: one number.
  tape.backward(loss());
  CHECK(bytes == std::vector<std::size_t>{2048, 4096, 2048, 2048, 4, 4});
  tape.backward(loss());  // now v and w already have gradients
  CHECK(bytes == std::vector<std::size_t>{3072, 5120, 4096, 4096, 2052, 2052});
}
