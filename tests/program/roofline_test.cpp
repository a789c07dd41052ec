// Seconds of a plan by hand: products from their multiply-adds, the rest from bytes read and written.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/graph.h>
#include <thimble/bench/timing/ceiling.h>
#include <thimble/bench/timing/timing.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/stack.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/fit/cost.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/fit/stages.h>

#include "support/catch.h"

using namespace thimble;

namespace {

constexpr double call_s = 1e-3;

// A machine with these rates.
nn::Hardware machine(double multiply_adds_per_s, double bytes_per_s) {
  nn::Hardware made = nn::hardware("cpu");
  made.f32_per_s = multiply_adds_per_s;
  made.tf32_per_s = made.narrow_per_s = 0;
  made.bytes_per_s = bytes_per_s;
  made.call_s = call_s;
  return made;
}

Tensor leaf(const Shape& shape) {
  Tensor t = zeros(shape, DType::f32, dry(cpu));
  t.require_grad();
  return t;
}

// x (8, 16), which needs no gradient, through two products and an exp.
struct Recorded {
  Tensor x = zeros({8, 16}, DType::f32, dry(cpu)), first = leaf({32, 16}), second = leaf({4, 32});
  TapeGraph graph;

  Recorded() {
    Tape tape;
    tape.observe();
    {
      const Recording on(tape);
      sum(exp(linear(linear(x, first), second)));
    }
    graph = TapeGraph::of(tape);
  }
  // The index of the n-th node with this name.
  std::size_t node(const std::string& name, int n = 0) const {
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      if (graph.nodes[i].type->name == name && n-- == 0) return i;
    }
    FAIL("no node " << name);
    return 0;
  }
};

bool is_near(double a, double b) { return std::abs(a - b) <= 1e-9 * b; }

}  // namespace

TEST_CASE("roofline: a product once forward, and once backward for each operand that needs a gradient", "[fit]") {
  const Recorded recorded;
  const std::vector<nn::NodeTimes> times = nn::node_times(recorded.graph, machine(1e6, 1e15));
  const nn::NodeTimes a = times[recorded.node("linear", 0)], b = times[recorded.node("linear", 1)];
  const double first = 8 * 16 * 32 / 1e6, second = 8 * 32 * 4 / 1e6;
  INFO(a.forward << " " << a.backward << " " << b.forward << " " << b.backward);
  CHECK(is_near(a.forward, first + call_s));
  CHECK(is_near(a.backward, first + call_s));  // only the weight's gradient
  CHECK(is_near(b.forward, second + call_s));
  CHECK(is_near(b.backward, 2 * second + call_s));
}

TEST_CASE("roofline: all else by its bytes", "[fit]") {
  const Recorded recorded;
  const std::vector<nn::NodeTimes> times = nn::node_times(recorded.graph, machine(1e15, 1e6));
  // exp keeps its result: forward reads and writes (8, 4); backward reads result and gradient, and writes one.
  const nn::NodeTimes t = times[recorded.node("exp")];
  const double bytes = 8 * 4 * sizeof(float);
  CHECK(is_near(t.forward, 2 * bytes / 1e6 + call_s));
  CHECK(is_near(t.backward, 3 * bytes / 1e6 + call_s));
  // The second product reads (8, 32) and (4, 32) and writes (8, 4); backward reads all three and writes the gradients.
  const nn::NodeTimes p = times[recorded.node("linear", 1)];
  const double in = (8 * 32 + 4 * 32) * sizeof(float);
  CHECK(is_near(p.forward, (in + bytes) / 1e6 + call_s));
  CHECK(is_near(p.backward, (in + bytes + in) / 1e6 + call_s));
  double sum = 0;
  for (const nn::NodeTimes& one : times) sum += one.forward + one.backward;
  CHECK(is_near(nn::step_seconds(times), sum));
}

TEST_CASE("roofline: micro-batches take the time of each, and of adding the gradients", "[fit]") {
  models::Setup setup;
  setup.model = "mlp";
  setup.sizes.image = 8, setup.sizes.width = 64;
  setup.batch = 8;
  const nn::Hardware machine_ = machine(1e9, 1e6);
  nn::Planner one(models::zero_batch_run(setup), cpu, machine_);
  setup.batch = 32;
  setup.micro_batches = 4;
  nn::Planner four(models::zero_batch_run(setup), cpu, machine_);
  // After each micro-batch but the first, two gradients are read and one is written.
  const double adding = 3 * 3 * sizeof(float) * static_cast<double>(four.parameters()) / machine_.bytes_per_s;
  // Each loss, one element, is multiplied by a quarter, forward and backward.
  const double scaling = 4 * 2 * (call_s + 2 * sizeof(float) / machine_.bytes_per_s);
  const double expected = 4 * one.kept_step_s() + scaling + adding;
  INFO(four.kept_step_s() << ", by hand " << expected << ", of that adding " << adding);
  CHECK(std::abs(four.kept_step_s() - expected) < 1e-6);
  CHECK(adding > 0.01);
}

TEST_CASE("roofline: a loss stays with the last product", "[fit]") {
  const Tensor x = zeros({8, 16}, DType::f32, dry(cpu)), first = leaf({32, 16}), second = leaf({4, 32});
  Tape tape;
  tape.observe();
  {
    const Recording on(tape);
    const Tensor h = linear(x, first);
    const Tensor y = linear(add(exp(h), h), second);
    sum(add(square(y), exp(y)));  // y is read twice: a cut after it would leave a stage without a product
  }
  const TapeGraph graph = TapeGraph::of(tape);
  const std::vector<std::uint32_t> cuts = nn::cut_points(graph);
  REQUIRE(cuts.size() == 3);
  CHECK(cuts[0] == 0);
  CHECK(cuts[1] == 1);  // after the first product, whose result is read twice
  CHECK(cuts[2] == graph.nodes.size());
}

// ---- The machine's ceiling: the loops really make the multiply-adds they count.

using kernels::Isa;

TEST_CASE("ceiling: every chain of every instruction set makes every round", "[ceiling]") {
  for (const auto& [isa, lanes] : {std::pair{Isa::generic, 4}, {Isa::avx2, 8}, {Isa::avx512, 16}}) {
    CAPTURE(to_string(isa));
    if (!kernels::is_supported(isa)) {
      CHECK_THROWS_AS(bench::fma_chains(isa, 1, 1, 1), ValueError);
      continue;
    }
    const double start = bench::fma_chains(isa, 0, 1, 1);
    CHECK(start == (0 + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10 + 11) * lanes);
    CHECK(bench::fma_chains(isa, 1000, 1, 1) - start == 1000 * 12 * lanes);
    // From i to 2 i + 3, 4 i + 9, 8 i + 21, 16 i + 45: shows a missing multiplication, unlike the sums above.
    CHECK(bench::fma_chains(isa, 4, 2, 3) == 16 * start + 45 * 12 * lanes);
  }
}

TEST_CASE("ceiling: rates of instruction sets and threads", "[ceiling]") {
  for (const Isa isa : {Isa::generic, kernels::best_isa()}) CHECK(bench::ceiling_gflops(isa, 1, 0.01) > 0);
  CHECK_THROWS_AS(bench::ceiling_gflops(Isa::generic, 0, 0), ValueError);
  CHECK_THROWS_AS(bench::ceiling_gflops(Isa::generic, thread_count() + 1, 0), ValueError);
}

TEST_CASE("ceiling: the triad of every instruction set computes what it is counted for", "[ceiling]") {
  constexpr std::int64_t n = 48;
  bench::Lines a = bench::lines(n * sizeof(float)), b = a, c = a;
  for (std::int64_t i = 0; i < n; ++i) {
    bench::floats(b)[i] = static_cast<float>(std::sin(i));
    bench::floats(c)[i] = static_cast<float>(std::cos(3 * i));
  }
  for (const Isa isa : {Isa::generic, Isa::avx2, Isa::avx512}) {
    CAPTURE(to_string(isa));
    for (const bool streams : {false, true}) {
      if (!kernels::is_supported(isa)) {
        CHECK_THROWS_AS(bench::triad(isa, bench::floats(a), bench::floats(b), bench::floats(c), 3, n, streams),
                        ValueError);
        continue;
      }
      std::fill_n(bench::floats(a), n, 0.0f);
      // Even the widest vector beyond the end stays unchanged.
      bench::triad(isa, bench::floats(a), bench::floats(b), bench::floats(c), 3, n - 16, streams);
      for (std::int64_t i = 0; i < n; ++i) {
        const float product = 3 * bench::floats(c)[i];
        CHECK(bench::floats(a)[i] == (i < n - 16 ? bench::floats(b)[i] + product : 0));
      }
    }
  }
  CHECK(bench::memory_gbs(kernels::best_isa(), 1, 1000, 0.001) > 0);
  CHECK(bench::memory_gbs(Isa::generic, thread_count(), 1, 0) > 0);
  CHECK_THROWS_AS(bench::memory_gbs(Isa::generic, thread_count() + 1, 16, 0), ValueError);
  CHECK_THROWS_AS(bench::memory_gbs(Isa::generic, 1, 0, 0), ValueError);
}

TEST_CASE("ceiling: reading sums every float once", "[ceiling]") {
  constexpr std::int64_t n = 1280;
  bench::Lines x = bench::lines(n * sizeof(float));
  for (std::int64_t i = 0; i < n; ++i) bench::floats(x)[i] = static_cast<float>(i + 1);
  for (const Isa isa : {Isa::generic, Isa::avx2, Isa::avx512}) {
    CAPTURE(to_string(isa));
    if (!kernels::is_supported(isa)) {
      CHECK_THROWS_AS(bench::read_sum(isa, bench::floats(x), n), ValueError);
      continue;
    }
    CHECK(bench::read_sum(isa, bench::floats(x), n) == n * (n + 1) / 2);  // integers below 2^24
    CHECK(bench::read_sum(isa, bench::floats(x), 0) == 0);
  }
  CHECK_THROWS_AS(bench::read_sum(Isa::generic, bench::floats(x), 100), ValueError);
}

// ---- The time of a step: the table that step_benchmark prints.

TEST_CASE("step_profile: bytes, products and times by kind of operator", "[step_profile]") {
  const memory::Stack stack = memory::make_resource(dry(cpu));
  const ResourceScope scope(stack.top);
  const auto leaf = [](const Shape& shape) { return zeros(shape, DType::f32, dry(cpu)).require_grad(); };
  const Tensor x = zeros({5, 3}, DType::f32, dry(cpu)), w = leaf({4, 3}), b = leaf({4}), u = leaf({2, 4});
  TapeGraph graph;
  {
    Tape tape;
    tape.observe();
    {
      const Recording on(tape);
      const Tensor h = linear(x, w, b);                                           // (5, 4)
      sum(add(linear(reshape(h, {5, 4}), u), zeros({2}, DType::f32, dry(cpu))));  // (5, 2)
    }
    graph = TapeGraph::of(tape);
  }
  REQUIRE(graph.nodes.size() == 5);  // linear, reshape, linear, add, sum
  TapeTimes times;
  times.forward = {1, 0, 2, 9, 0.5};
  times.recompute = {0, 0, 0.25, 0, 0};
  times.backward = {3, 0, 4, 0, 0.5};
  const std::vector<bench::OperatorTime> list = bench::operator_times(graph, times);
  REQUIRE(list.size() == 4);
  CHECK(list[0].name == "linear");
  CHECK(list[0].calls == 2);
  CHECK(list[0].forward_s == 3);
  CHECK(list[0].recompute_s == 0.25);
  CHECK(list[0].backward_s == 7);
  // Forward: x 15, w 12, b 4, h 20; then h 20, u 8 and the result 10.
  CHECK(list[0].forward_bytes == 4 * (51 + 38));
  // Backward: dh 20, x 15, dw 12, db 4; then dy 10, saved h 20 and u 8, dh 20 and du 8.
  CHECK(list[0].backward_bytes == 4 * (51 + 66));
  // 5 x 4 x 3 forward and once in backward, since x needs no gradient; 5 x 2 x 4 forward and twice in backward.
  CHECK(list[0].multiply_adds == 2 * 60 + 3 * 40);
  CHECK(list[1].name == "add");
  CHECK(list[1].seconds() == 9);
  CHECK(bench::multiply_adds(graph) == list[0].multiply_adds);
  for (const bench::OperatorTime& time : list) {
    if (time.name == "reshape") CHECK(time.forward_bytes + time.backward_bytes == 0);
  }
  times.forward.pop_back();
  CHECK_THROWS_AS(bench::operator_times(graph, times), ValueError);
}

TEST_CASE("step_profile: attention makes two products forward and five backward", "[step_profile]") {
  const Tensor qkv = zeros({2, 6, 3 * 8}).require_grad(), q = zeros({2, 6, 2, 4}).require_grad();
  Tape tape;
  tape.observe();
  const Recording on(tape);
  attention(qkv, 2, {.causal = false});
  attention(q, q, q, {.causal = false});
  CHECK(bench::multiply_adds(TapeGraph::of(tape)) == 2 * 7 * (2 * 6 * 6 * 8));  // samples, queries, keys, channels
  attention(q, q, q, {.causal = true, .window = 3});  // half of the keys, of which half but a quarter count
  CHECK(bench::multiply_adds(TapeGraph::of(tape)) == (2 + 0.375) * 7 * (2 * 6 * 6 * 8));
}

TEST_CASE("step_profile: times are of the nodes that a recording shows", "[step_profile]") {
  const Tensor x = full({2, 3}, 0.5, DType::f32), w = full({4, 3}, 0.25, DType::f32).require_grad();
  const auto net = [&] { return sum(linear(cast(x, DType::bf16), cast(w, DType::bf16))); };  // x leads to no parameter
  TapeGraph graph;
  {
    Tape tape;
    tape.observe();
    const Recording on(tape);
    net();
    graph = TapeGraph::of(tape);
  }
  TapeTimes times;
  Tape tape;
  tape.time(&times);
  {
    const Recording on(tape);
    tape.backward(net());
  }
  REQUIRE(graph.nodes.size() == 4);
  CHECK(times.forward.size() == graph.nodes.size());
  CHECK(bench::operator_times(graph, times).size() == 3);
}
