// Batch norm and group norm on a CUDA device have the CPU's bits, forward and backward: rows in words of 16 bytes, and
// element by element for a misaligned operand. On a GPU if there is one, otherwise on tests/emulated.

#include <bit>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using thimble::testing::has_cuda;

namespace {

enum class Norm { batch, batch_relu, batch_relu6, batch_add_relu, fixed_relu, group };

struct Case {
  Norm norm;
  DType dtype;
  Shape shape;
};

// The result and the gradients of x, weight, bias and residual, on the CPU; operands begin `askew` elements after an
// aligned address.
std::vector<Tensor> run(const Case& c, memory::Device device, std::int64_t askew) {
  RandomGenerator generator(3);
  const auto operand = [&](const Shape& shape, double centre) {
    const std::int64_t n = shape.elements();
    const Tensor flat = normal({n + askew}, centre, 1, c.dtype, cpu, generator.next_site(0));
    // Equal numbers at any address: the first n of the flat tensor.
    Tensor moved = Tensor::empty({n + askew}, c.dtype, cpu);
    copy_into(view::slice(moved, 0, askew, n + askew), view::slice(flat, 0, 0, n));
    Tensor t = view::reshape(view::slice(to_device(moved, device), 0, askew, n + askew), shape);
    t.require_grad();
    return t;
  };
  const std::int64_t channels = c.shape[c.shape.rank() - 1];
  const Tensor x = operand(c.shape, 0.2), residual = operand(c.shape, 0), weight = operand({channels}, 1),
               bias = operand({channels}, 0.1), dy = operand(c.shape, 0);
  BatchNormOptions options;
  options.training = c.norm != Norm::fixed_relu;
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    switch (c.norm) {
      case Norm::batch:
        y = batch_norm(x, weight, bias, {}, {}, options);
        break;
      case Norm::batch_relu:
        y = batch_norm_relu(x, weight, bias, {}, {}, options);
        break;
      case Norm::batch_relu6:
        y = batch_norm_relu6(x, mul(weight, 5.0), bias, {}, {}, options);
        break;
      case Norm::batch_add_relu:
        y = batch_norm_add_relu(x, residual, weight, bias, {}, {}, options);
        break;
      case Norm::fixed_relu:
        y = batch_norm_relu(x, weight, bias, full({channels}, 0.1, c.dtype, device),
                            full({channels}, 1.3, c.dtype, device), options);
        break;
      case Norm::group:
        y = group_norm(x, 4, weight, bias);
        break;
    }
  }
  tape.backward(y, dy);
  std::vector<Tensor> results{to_device(y, cpu)};
  for (const Tensor& t : {x, weight, bias}) results.push_back(to_device(t.grad(), cpu));
  if (c.norm == Norm::batch_add_relu) results.push_back(to_device(residual.grad(), cpu));
  return results;
}

bool same_values(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = to_host<double>(a), y = to_host<double>(b);
  bool same = x.size() == y.size();
  for (std::size_t i = 0; same && i < x.size(); ++i) {
    same = std::bit_cast<std::uint64_t>(x[i]) == std::bit_cast<std::uint64_t>(y[i]);
  }
  return same;
}

}  // namespace

TEST_CASE("cuda_norm: eights of channels, single elements and the CPU agree bitwise", "[cuda]") {
  if (!has_cuda()) return;
  for (const Norm norm :
       {Norm::batch, Norm::batch_relu, Norm::batch_relu6, Norm::batch_add_relu, Norm::fixed_relu, Norm::group}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      for (const Shape& shape : {Shape{3, 7, 5, 24}, Shape{2, 1100, 8}, Shape{5, 3, 12}}) {  // 12: no eights
        const Case c{norm, dtype, shape};
        INFO("norm " << static_cast<int>(norm) << " " << to_string(dtype) << " of " << to_string(shape));
        const std::vector<Tensor> here = run(c, cpu, 0), there = run(c, cuda(), 0), askew = run(c, cuda(), 1);
        for (std::size_t i = 0; i < here.size(); ++i) {
          INFO("result " << i);
          CHECK(same_values(there[i], here[i]));
          CHECK(same_values(askew[i], here[i]));
        }
      }
    }
  }
}

TEST_CASE("cuda_norm: sums over the rows of layer norm have the CPU's order", "[cuda]") {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    // The bias's gradient is just such a sum, over more rows than one block has.
    const auto gradient = [&](memory::Device device) {
      RandomGenerator generator(9);
      const Shape shape{700, 33};
      const Tensor x = to_device(normal(shape, 0.3, 1, dtype, cpu, generator.next_site(0)), device);
      const Tensor dy = to_device(normal(shape, 0, 1, dtype, cpu, generator.next_site(0)), device);
      Tensor bias = to_device(normal({33}, 0, 1, dtype, cpu, generator.next_site(0)), device);
      bias.require_grad();
      Tape tape;
      Tensor y;
      {
        const Recording on(tape);
        y = layer_norm(x, full({33}, 1, dtype, device), bias);
      }
      tape.backward(y, dy);
      return to_device(bias.grad(), cpu);
    };
    CHECK(same_values(gradient(cuda()), gradient(cpu)));
  }
}
