// Where a step's time goes: the table that step_benchmark prints.

#include <thimble/autograd/functions.h>
#include <thimble/bench/timing/ceiling.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"

using namespace thimble;

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
  // Forward: x 15, w 12, b 4, h 20; then h 20, u 8 and 10 of the result.
  CHECK(list[0].forward_bytes == 4 * (51 + 38));
  // Backward: dh 20, x 15, dw 12, db 4; then dy 10, h 20 and u 8 that it saved, dh 20 and du 8.
  CHECK(list[0].backward_bytes == 4 * (51 + 66));
  // 5 x 4 x 3 forward and once more, x needs no gradient; 5 x 2 x 4 forward and twice more.
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
