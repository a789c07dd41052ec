// Launches captured once and replayed (core/launch/launch_graph.h).

#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/shared/step_numbers.h>
#include <thimble/core/launch/launch_graph.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;

TEST_CASE("cuda graph: a replay does the same with what is there now", "[cuda][graph]") {
  if (!thimble::testing::has_cuda()) return;
  const Tensor x = from_host(std::vector<float>{-1, 2, -3, 4}, {4}, cuda());
  const Tensor y = zeros({4}, DType::f32, cuda());
  const memory::Stack own = memory::make_resource(cuda());
  const auto forward = [&] {
    const ResourceScope scope(own.top);
    copy_into(y, relu(x) * x);
  };
  forward();  // pages and library handles exist before the capture
  const std::vector<float> expected = to_host<float>(y);
  fill(y, 0);
  LaunchGraph graph(cuda(), {x, y}, forward);
  CHECK(to_host<float>(y) == std::vector<float>(4));  // a capture runs nothing
  CHECK(graph.launches() == 3);
  graph.replay();
  CHECK(to_host<float>(y) == expected);
  copy_into(x, from_host(std::vector<float>{5, -6, 7, -8}, {4}, cuda()));
  graph.replay();
  CHECK(to_host<float>(y) == std::vector<float>{25, 0, 49, 0});
  graph.replay();
  CHECK(to_host<float>(y) == std::vector<float>{25, 0, 49, 0});
}

TEST_CASE("cuda graph: what cannot be recorded throws, and nothing is recorded then", "[cuda][graph]") {
  CHECK_THROWS_AS(LaunchGraph(cpu, {}, [] {}), DeviceError);
  CHECK_THROWS_AS(LaunchGraph(dry(cuda()), {}, [] {}), DeviceError);
  if (!thimble::testing::has_cuda()) return;
  const Tensor x = from_host(std::vector<float>{-1, 2, -3, 4}, {4}, cuda());
  CHECK_THROWS_AS(LaunchGraph(cuda(), {x}, [&] { item(sum(x)); }), DeviceError);
  CHECK_THROWS_AS(LaunchGraph(cuda(), {x}, [&] { from_host(std::vector<float>{1}, {1}, cuda()); }), DeviceError);
  CHECK_THROWS_AS(LaunchGraph(cuda(), {x}, [&] { throw ValueError("its own"); }), ValueError);
  CHECK(item(sum(x)) == 2);  // launches run again
}

TEST_CASE("cuda graph: parts are replayed one by one", "[cuda][graph]") {
  LaunchGraph::Cut outside;
  CHECK_THROWS_AS(outside(), Error);
  if (!thimble::testing::has_cuda()) return;
  const Tensor x = full({3}, 1, DType::f32, cuda()), y = zeros({3}, DType::f32, cuda());
  LaunchGraph::Cut cut;
  LaunchGraph graph(
      cuda(), {x, y},
      [&] {
        copy_into(y, x);
        cut();
        fill(x, 5), fill(y, 7);
      },
      &cut);
  CHECK(graph.parts() == 2);
  CHECK(graph.launches() == 3);
  CHECK_THROWS_AS(cut(), Error);
  graph.replay(0);
  CHECK(to_host<float>(y) == std::vector<float>{1, 1, 1});
  graph.replay(1);
  CHECK(to_host<float>(y) == std::vector<float>{7, 7, 7});
  graph.replay(0);
  CHECK(to_host<float>(y) == std::vector<float>{5, 5, 5});
  graph.replay();
  CHECK(to_host<float>(y) == std::vector<float>{7, 7, 7});
  CHECK_THROWS_AS(graph.replay(2), ValueError);
  const auto failing = [&] {
    cut();
    throw ValueError("its own");
  };
  CHECK_THROWS_AS(LaunchGraph(cuda(), {x}, failing, &cut), ValueError);
  CHECK_THROWS_AS(cut(), Error);
}

TEST_CASE("launch graph: each slot of what changes from step to step is aligned", "[core]") {
  alignas(16) std::byte place[64];
  kernels::StepBlock block(place, sizeof place, {});
  const auto fill = [](const kernels::StepNumbers&, const kernels::StepNumbers&, std::byte*) {};
  CHECK(block.add(1, fill) == place);
  CHECK(block.add(17, fill) == place + 16);
  CHECK(block.add(16, fill) == place + 48);
  CHECK(block.bytes() == 64);
  CHECK_THROWS_AS(block.add(1, fill), PlanError);
}
