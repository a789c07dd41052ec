#pragma once
// A short chain of products and tanhs; tests name its spills node by node.

#include <cstddef>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/graph.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/generator.h>

namespace spill_test {

using namespace thimble;

// x -> tanh(linear(x, w)) three times, and the mean of squares. Nodes: linear, tanh, ..., square, mean.
struct Chain {
  explicit Chain(memory::Device device = cpu) {
    RandomGenerator generator(3);
    const GeneratorScope random(generator);
    x = randn({64, 32}, DType::f32, device);
    x.storage()->set_category(memory::Category::input);
    for (int i = 0; i < 3; ++i) {
      w.push_back(mul(randn({32, 32}, DType::f32, device), 0.2).require_grad());
      w.back().storage()->set_category(memory::Category::parameter);
    }
  }
  Tensor loss() const {
    Tensor t = x;
    for (const Tensor& weight : w) {
      t = linear(t, weight);
      t = tanh(t);
    }
    t = square(t);
    return mean(t);
  }
  std::vector<std::vector<float>> gradients() const {
    std::vector<std::vector<float>> list;
    for (const Tensor& weight : w) list.push_back(to_host<float>(weight.grad()));
    return list;
  }
  TapePlan plan() const {
    Tape tape;
    tape.observe();
    const Recording on(tape);
    loss();
    TapePlan all;
    for (const TapeGraph::Node& node : TapeGraph::of(tape).nodes) all.types.push_back(node.type);
    all.fates.assign(all.types.size(), Fate::keep);
    return all;
  }
  Tensor x;
  std::vector<Tensor> w;
};
inline constexpr std::size_t chain_bytes = 64 * 32 * sizeof(float);  // of one activation

}  // namespace spill_test
