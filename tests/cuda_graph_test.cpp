// Launches recorded once and replayed (cuda/graph.h); in builds with CUDA alone.

#include <thimble/autograd/functions.h>
#include <thimble/core/context.h>
#include <thimble/core/copy.h>
#include <thimble/core/error.h>
#include <thimble/cuda/graph.h>
#include <thimble/memory/stack.h>

#include "catch.h"
#include "operator_table.h"

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
  forward();  // pages and libraries' handles are there before anything is recorded
  gpu::Graph graph(cuda(), {x, y}, forward);
  CHECK(graph.nodes() == 3);
  copy_into(x, from_host(std::vector<float>{5, -6, 7, -8}, {4}, cuda()));
  graph.replay();
  CHECK(to_host<float>(y) == std::vector<float>{25, 0, 49, 0});
  graph.replay();
  CHECK(to_host<float>(y) == std::vector<float>{25, 0, 49, 0});
  CHECK_THROWS_AS(gpu::Graph(cuda(), {x}, [&] { item(sum(x)); }), DeviceError);  // a value cannot be read meanwhile
}
