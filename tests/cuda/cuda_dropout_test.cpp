// Dropout on a CUDA device, four elements in a word and one by one: the CPU's bits, forward and backward. On a GPU
// where there is one, else on tests/emulated.

#include <bit>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/view.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using thimble::testing::has_cuda;

namespace {

// The result and x's gradient; x begins `askew` elements behind an aligned address.
std::vector<double> run(const Shape& shape, DType dtype, memory::Device device, std::int64_t askew) {
  RandomGenerator values(4);
  const std::int64_t n = shape.elements();
  const Tensor flat = normal({n + askew}, 0, 1, dtype, cpu, values.next_site(0));
  Tensor moved = Tensor::empty({n + askew}, dtype, cpu);
  copy_into(view::slice(moved, 0, askew, n + askew), view::slice(flat, 0, 0, n));
  Tensor x = view::reshape(view::slice(to_device(moved, device), 0, askew, n + askew), shape);
  x.require_grad();
  RandomGenerator generator(6);
  const GeneratorScope scope(generator);
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = dropout(x, 0.3);
  }
  tape.backward(y, to_device(normal(shape, 0, 1, dtype, cpu, values.next_site(0)), device));
  std::vector<double> all = to_host<double>(y);
  for (const double g : to_host<double>(x.grad())) all.push_back(g);
  return all;
}

}  // namespace

TEST_CASE("cuda_dropout: words, single elements and the CPU agree bitwise", "[cuda]") {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const Shape& shape : {Shape{8, 64}, Shape{6, 20, 4}, Shape{3, 5, 7}, Shape{1, 4}}) {
      const std::vector<double> here = run(shape, dtype, cpu, 0);
      std::size_t dropped = 0;
      for (const double v : here) dropped += v == 0;
      if (here.size() > 100) CHECK((dropped > here.size() / 5 && dropped < here.size() / 2));
      for (const std::int64_t askew : {0, 1}) {
        INFO(to_string(dtype) << " of " << to_string(shape) << ", askew by " << askew);
        const std::vector<double> there = run(shape, dtype, cuda(), askew);
        std::size_t different = here.size() != there.size();
        for (std::size_t i = 0; i < std::min(here.size(), there.size()); ++i) {
          different += std::bit_cast<std::uint64_t>(here[i]) != std::bit_cast<std::uint64_t>(there[i]);
        }
        CHECK(different == 0);
      }
    }
  }
}
