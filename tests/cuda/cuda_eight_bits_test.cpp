// 8-bit tensors and 8-bit optimizer state on a CUDA device have the CPU's bits.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/quant/quantize.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/context.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using thimble::testing::has_cuda;

namespace cuda_eight_bits_test {

// Values over many magnitudes, with zeros of both signs.
Tensor sample(const Shape& shape, DType dtype = DType::f32) {
  RandomGenerator generator(11);
  const GeneratorScope random(generator);
  std::vector<float> values = to_host<float>(randn(shape));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = std::ldexp(values[i], static_cast<int>(i % 23) - 14);
    if (i >= 64 && i < 128) values[i] = i % 2 == 0 ? 0.0f : -0.0f;
  }
  return to_dtype(from_host(values, shape), dtype);
}

using Bits = std::vector<std::uint64_t>;

// A tensor's elements bit by bit (its codes, if it has scales), on any device. All NaN are equal.
Bits bits_of(const Tensor& t) {
  Bits bits;
  if (!is_floating(t.dtype()) || t.scale()) {
    const Tensor here = to_device(t.detach(), cpu);
    if (here.elements() == 0) return bits;
    const memory::Pin pin(here);
    const auto* const data = static_cast<const std::uint8_t*>(pin.data());
    return {data, data + here.bytes()};
  }
  for (const double value : to_host<double>(t)) {
    bits.push_back(std::isnan(value) ? ~std::uint64_t{0} : std::bit_cast<std::uint64_t>(value));
  }
  return bits;
}

void check_quantization(const Tensor& x, const Quantization& how) {
  const Tensor here = quantize(x, how), there = quantize(to_device(x, cuda()), how);
  CHECK(bits_of(there) == bits_of(here));
  CHECK(bits_of(*there.scale()) == bits_of(*here.scale()));
  CHECK(bits_of(dequantize(there, how, x.dtype())) == bits_of(dequantize(here, how, x.dtype())));
}

std::vector<Quantization> all_codes(const ScaleBlocks& blocks, DType scale) {
  return {{DType::i8, blocks, scale},
          {DType::f8e4m3, blocks, scale},
          {DType::f8e5m2, blocks, scale},
          {DType::u8, blocks, scale, true},
          {DType::u8, blocks, scale, false}};
}

std::vector<Bits> all_bits(const std::vector<optim::Named>& parameters, const optim::Optimizer& optimizer) {
  std::vector<Bits> all;
  for (const optim::Named& p : parameters) all.push_back(bits_of(p.tensor));
  for (const optim::Named& s : optimizer.state()) all.push_back(bits_of(s.tensor));
  return all;
}

optim::Named parameter(const std::string& name, const Shape& shape, DType dtype, memory::Device device) {
  Tensor p = to_device(sample(shape, dtype), device);
  p.require_grad();
  return {name, p};
}

}  // namespace cuda_eight_bits_test

using namespace cuda_eight_bits_test;

TEST_CASE("cuda: codes and scales have the CPU's bits", "[cuda][quantize]") {
  if (!has_cuda()) return;
  struct Row {
    Shape shape;
    ScaleBlocks blocks;
  };
  const Shape matrix{70, 37}, image{3, 5, 7, 33};
  const std::vector<Row> rows = {{{}, ScaleBlocks::per_tensor()},
                                 {{5, 131}, ScaleBlocks::per_tensor()},
                                 {{5, 4001}, ScaleBlocks::per_tensor()},                   // cut into parts
                                 {{2, 20'000}, ScaleBlocks::per_channel({2, 20'000}, 0)},  // cut, too
                                 {{20'000, 3}, ScaleBlocks::per_channel({20'000, 3}, 1)},  // cut, too
                                 {matrix, ScaleBlocks::per_channel(matrix, 0)},
                                 {matrix, ScaleBlocks::per_channel(matrix, 1)},
                                 {image, ScaleBlocks::per_channel(image, 0)},
                                 {image, ScaleBlocks::per_channel(image, -1)},
                                 {matrix, {16, 1}},
                                 {matrix, ScaleBlocks::square(8)},
                                 {matrix, ScaleBlocks::square(32)},
                                 {image, ScaleBlocks::per_row_block(12)},
                                 {{3, 411}, ScaleBlocks::flat(32)},
                                 {{3, 411}, ScaleBlocks::flat(256)},
                                 {{3, 411}, ScaleBlocks::flat(1000)},
                                 {{6, 72}, ScaleBlocks::flat(8)},  // whole blocks of eight, in registers
                                 {{5, 448}, ScaleBlocks::flat(64)},
                                 {{5, 768}, ScaleBlocks::flat(256)},
                                 {{7, 384}, ScaleBlocks::per_row_block(128)},
                                 {{0, 4}, ScaleBlocks::flat(8)}};
  for (const Row& row : rows) {
    for (const DType scale : {DType::f32, DType::f16, DType::u8}) {
      for (const Quantization& how : all_codes(row.blocks, scale)) {
        INFO(to_string(row.shape) << " in blocks of " << row.blocks.rows << " x " << row.blocks.columns << ", "
                                  << to_string(how.dtype) << (how.is_signed ? "" : " without sign") << ", scales in "
                                  << to_string(scale));
        check_quantization(sample(row.shape), how);
      }
    }
  }
}

TEST_CASE("cuda: codes of every floating dtype, and of what is not finite", "[cuda][quantize]") {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f64, DType::f16, DType::bf16, DType::f8e4m3}) {
    INFO(to_string(dtype));
    for (const Quantization& how : all_codes(ScaleBlocks::flat(64), DType::f32)) {
      for (const Shape& shape : {Shape{3, 100}, Shape{3, 128}}) check_quantization(sample(shape, dtype), how);
    }
  }
  std::vector<float> values = to_host<float>(sample({40, 16}));
  values[70] = std::numeric_limits<float>::quiet_NaN();
  values[200] = -std::numeric_limits<float>::infinity();
  values[300] = 1e-42f;
  for (const ScaleBlocks& blocks : {ScaleBlocks::flat(32), ScaleBlocks::per_tensor(), ScaleBlocks{0, 1, false}}) {
    for (const DType scale : {DType::f32, DType::f16, DType::u8}) {
      for (const Quantization& how : all_codes(blocks, scale)) {
        INFO(to_string(how.dtype) << ", scales in " << to_string(scale));
        check_quantization(from_host(values, {40, 16}), how);
      }
    }
  }
  for (const DType dtype : {DType::i8, DType::f8e4m3, DType::f8e5m2, DType::bf16}) {
    const Tensor x = sample({3, 411});
    CHECK(bits_of(unpack(pack(to_device(x, cuda()), dtype), DType::f32)) ==
          bits_of(unpack(pack(x, dtype), DType::f32)));
  }
  const Quantization how{DType::u8, ScaleBlocks::flat(256), DType::f32};
  CHECK(bits_of(quantize(zeros({3, 411}, DType::f32, cuda()), how)) == bits_of(quantize(zeros({3, 411}), how)));
}

namespace {

std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name, const std::vector<optim::Named>& list) {
  using namespace optim;
  const MomentFormat moments{name == "adamw_bf16" ? DType::bf16 : DType::u8, 100, {}};
  AdamOptions adam{0.02, 0.8, 0.95, 1e-6, 0.1, name != "adam8", 2};
  adam.moments = moments;
  const SgdOptions sgd{
      .rate = 0.02, .momentum = 0.9, .weight_decay = 0.1, .nesterov = name == "nesterov8", .moments = moments};
  if (name.starts_with("adamw") || name == "adam8") return std::make_unique<Adam>(list, adam);
  if (name == "momentum8" || name == "nesterov8") return std::make_unique<Sgd>(list, sgd);
  if (name == "adafactor") return std::make_unique<Adafactor>(list, AdafactorOptions{.rate = 0.05});
  const AdafactorOptions all{.rate = 0.05,
                             .has_relative_step = true,
                             .scales_by_parameter = false,
                             .beta1 = 0.9,
                             .clip = 0.3,
                             .weight_decay = 0.1,
                             .smallest_decayed_rank = 2};
  return std::make_unique<Adafactor>(list, all);
}

// Three updates of a matrix, a vector and a small tensor on a device; returns parameters and state.
std::vector<Bits> after_updates(const std::string& name, DType dtype, memory::Device device) {
  std::vector<optim::Named> list;
  for (const Shape& shape : {Shape{130, 411}, Shape{1000}, Shape{7}}) {
    list.push_back(parameter("p" + std::to_string(list.size()), shape, dtype, device));
  }
  const std::unique_ptr<optim::Optimizer> optimizer = make_optimizer(name, list);
  for (int step = 1; step <= 3; ++step) {
    RandomGenerator generator(static_cast<std::uint64_t>(10 + step));
    const GeneratorScope random(generator);
    for (const optim::Named& p : list) {
      std::vector<float> g = to_host<float>(randn(p.tensor.shape()));
      for (std::size_t i = 0; i < g.size(); ++i) {
        g[i] = std::ldexp(g[i], -static_cast<int>(i % 19));
        if (step < 3 && i >= 256 && i < 512) g[i] = 0;
        if (step == 3 && i == 700 && !name.starts_with("adafactor")) g[i] = std::numeric_limits<float>::infinity();
      }
      p.tensor.grad() = to_device(to_dtype(from_host(g, p.tensor.shape()), dtype), device);
    }
    if (step > 1) optimizer->set_gradient_factor(0.375);
    optimizer->step();
  }
  return all_bits(list, *optimizer);
}

}  // namespace

TEST_CASE("cuda: optimizers with 8-bit and factored state have the CPU's bits", "[cuda][optim8]") {
  if (!has_cuda()) return;
  for (const char* const name :
       {"adam8", "adamw8", "adamw_bf16", "momentum8", "nesterov8", "adafactor", "adafactor with all options"}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      INFO(name << " in " << to_string(dtype));
      CHECK(after_updates(name, dtype, cuda()) == after_updates(name, dtype, cpu));
    }
  }
}

TEST_CASE("cuda: Adafactor's sums have the CPU's order for every shape", "[cuda][optim8]") {
  if (!has_cuda()) return;
  // One tile of columns and many; rows with more tiles, and columns with more values, than a team sums at once; more
  // and fewer rows than shares; rows of whole words and others.
  for (const Shape& shape : {Shape{2, 3}, Shape{200, 7}, Shape{3, 66'008}, Shape{2, 66'001}, Shape{65, 300},
                             Shape{70, 264}, Shape{4200, 40}, Shape{17'000, 8}, Shape{33'003}}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      INFO(to_string(shape) << " in " << to_string(dtype));
      const auto run = [&](memory::Device device) {
        const std::vector<optim::Named> list{parameter("p", shape, dtype, device)};
        optim::Adafactor optimizer(list, {.rate = 0.05, .beta1 = 0.5});
        list[0].tensor.grad() = to_device(sample(shape, dtype), device);
        optimizer.step();
        return all_bits(list, optimizer);
      };
      CHECK(run(cuda()) == run(cpu));
    }
  }
}

TEST_CASE("cuda: a gradient's factor, and every way to store a narrow parameter, have the CPU's bits", "[cuda]") {
  if (!has_cuda()) return;
  using namespace optim;
  for (const NarrowUpdate narrow :
       {NarrowUpdate::rounded, NarrowUpdate::master, NarrowUpdate::stochastic, NarrowUpdate::kahan}) {
    for (const bool is_adam : {true, false}) {
      INFO(to_string(narrow) << (is_adam ? ", adam" : ", momentum"));
      const auto run = [&](memory::Device device) {
        RandomGenerator generator(7);
        const GeneratorScope random(generator);
        const std::vector<Named> list{parameter("net.w", {1037}, DType::bf16, device)};
        std::unique_ptr<Optimizer> optimizer;
        if (is_adam) {
          optimizer = std::make_unique<Adam>(list, AdamOptions{.rate = 1e-2, .weight_decay = 0.1, .narrow = narrow});
        } else {
          optimizer = std::make_unique<Sgd>(list, SgdOptions{.rate = 1e-2, .momentum = 0.9, .narrow = narrow});
        }
        optimizer->set_gradient_factor(0.3);
        for (int step = 0; step < 3; ++step) {
          list[0].tensor.grad() = to_device(sample({1037}, DType::bf16), device);
          optimizer->step();
        }
        return all_bits(list, *optimizer);
      };
      CHECK(run(cuda()) == run(cpu));
    }
  }
}
