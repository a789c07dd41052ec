// Seconds of a plan, by hand: products by their multiply-adds, the rest by the bytes that are read and written.

#include <cmath>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/graph.h>
#include <thimble/core/ops/copy.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/fit/cost.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/fit/stages.h>

#include "support/catch.h"

using namespace thimble;

namespace {

constexpr double call_s = 1e-3;

// Reaches these rates.
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
  // The place of the n-th node of that name.
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
  CHECK(is_near(a.backward, first + call_s));  // of the weight alone
  CHECK(is_near(b.forward, second + call_s));
  CHECK(is_near(b.backward, 2 * second + call_s));
}

TEST_CASE("roofline: all else by its bytes", "[fit]") {
  const Recorded recorded;
  const std::vector<nn::NodeTimes> times = nn::node_times(recorded.graph, machine(1e15, 1e6));
  // exp keeps its result: forward reads and writes (8, 4), backward reads result and gradient and writes one.
  const nn::NodeTimes t = times[recorded.node("exp")];
  const double bytes = 8 * 4 * sizeof(float);
  CHECK(is_near(t.forward, 2 * bytes / 1e6 + call_s));
  CHECK(is_near(t.backward, 3 * bytes / 1e6 + call_s));
  // The second product reads (8, 32) and (4, 32) and writes (8, 4); backward the same again and the gradients.
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
  // Two gradients are read and one is written, after each micro-batch but the first.
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
    sum(add(square(y), exp(y)));  // y is read twice: a cut behind it would leave a stage without a product
  }
  const TapeGraph graph = TapeGraph::of(tape);
  const std::vector<std::uint32_t> cuts = nn::cut_points(graph);
  REQUIRE(cuts.size() == 3);
  CHECK(cuts[0] == 0);
  CHECK(cuts[1] == 1);  // behind the first product, whose result is read twice
  CHECK(cuts[2] == graph.nodes.size());
}
