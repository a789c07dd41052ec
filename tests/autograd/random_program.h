#pragma once
// Random programs and plans: segments and spills must not change their results.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/graph.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>

#include "support/random_plans.h"

namespace random_program_test {

using namespace thimble;

using random_plans::pick;
using random_plans::Random;
using random_plans::random_plan;

// A program of random operators over tensors of one shape (6, 4, 8), with shared parameters, batch norm and dropout.
class RandomProgram {
 public:
  explicit RandomProgram(std::uint64_t seed, memory::Device device = cpu) : seed_(seed) {
    RandomGenerator generator(seed);
    const GeneratorScope scope(generator);
    for (int i = 0; i < 3; ++i) matrices_.push_back(mul(randn({8, 8}, DType::f32, device), 0.4));
    for (int i = 0; i < 3; ++i) vectors_.push_back(add(mul(randn({8}, DType::f32, device), 0.2), 1.0));
    for (Tensor& t : matrices_) t.require_grad();
    for (Tensor& t : vectors_) t.require_grad();
    constant_ = randn({6, 4, 8}, DType::f32, device);
    input_ = randn({6, 4, 8}, DType::f32, device);
    mean_ = full({8}, 0, DType::f32, device);
    variance_ = full({8}, 1, DType::f32, device);
    if (seed % 3 == 0) input_.require_grad();
  }

  // Runs forward; with `has_segments` each operator may open or close segments.
  Tensor forward(bool has_segments) {
    Random random(seed_);
    Random cuts(seed_ + 1000);
    std::vector<std::unique_ptr<SegmentScope>> open;
    std::vector<Tensor> pool{input_, constant_};
    const std::size_t count = 6 + pick(random, 14);
    for (std::size_t i = 0; i < count; ++i) {
      if (has_segments) {
        while (!open.empty() && pick(cuts, 4) == 0) open.pop_back();
        while (open.size() < 4 && pick(cuts, 3) == 0) {
          open.push_back(std::make_unique<SegmentScope>(pick(cuts, 2) == 0 ? drop_all : keep_costly));
        }
      }
      const PathScope path("op" + std::to_string(i));
      pool.push_back(step(random, pool));
      if (pool.size() > 4 && pick(random, 2) == 0) pool.erase(pool.begin());
    }
    Tensor sum_of_all;
    for (const Tensor& t : pool) sum_of_all = sum_of_all.defined() ? add(sum_of_all, t) : t;
    while (!open.empty()) open.pop_back();
    return mean(square(add(sum_of_all, linear(pool.back(), matrices_[0]))));
  }

  std::vector<Tensor> leaves() const {
    std::vector<Tensor> all = matrices_;
    all.insert(all.end(), vectors_.begin(), vectors_.end());
    if (input_.requires_grad()) all.push_back(input_);
    return all;
  }
  std::vector<Tensor> statistics() const { return {mean_, variance_}; }

 private:
  Tensor step(Random& random, const std::vector<Tensor>& pool) {
    const Tensor& x = pool[pick(random, pool.size())];
    const Tensor& y = pool[pick(random, pool.size())];
    const Tensor& w = matrices_[pick(random, 3)];
    const Tensor& v = vectors_[pick(random, 3)];
    const Tensor& u = vectors_[pick(random, 3)];
    switch (pick(random, 16)) {
      case 0:
        return linear(x, w);
      case 1:
        return linear(x, w, v, kernels::Activation::gelu_tanh);
      case 2:
        return gelu(x);
      case 3:
        return relu(x);
      case 4:
        return tanh(x);
      case 5:
        return add(x, y);
      case 6:
        return mul(x, sigmoid(y));
      case 7:
        return layer_norm(x, v, u);
      case 8:
        return batch_norm(x, v, u, mean_, variance_);
      case 9:
        return batch_norm_relu(x, v, u, mean_, variance_);
      case 10:
        return batch_norm_add_relu(x, y, v, u, mean_, variance_);
      case 11:
        return dropout(x, 0.3);
      case 12:
        return reshape(linear(reshape(x, {24, 8}), w), {6, 4, 8});
      case 13:
        return softmax(x, -1);
      case 14:
        return concat({slice(x, 1, 0, 2), slice(y, 1, 2, 4)}, 1);
      default:
        return exp(mul(tanh(x), v));
    }
  }

  std::uint64_t seed_;
  std::vector<Tensor> matrices_, vectors_;
  Tensor constant_, input_, mean_, variance_;
};

inline TapeGraph observed(std::uint64_t seed) {
  RandomProgram program(seed);
  RandomGenerator generator(seed);
  const GeneratorScope random(generator);
  Tape tape;
  tape.observe();
  generator.start_pass();
  const Recording on(tape);
  program.forward(false);
  return TapeGraph::of(tape);
}

// Spills random tensors at random nodes; half of them leave when the program no longer holds the bytes.
inline void add_spills(const TapeGraph& graph, Random& random, TapePlan& plan) {
  const auto count = static_cast<std::uint32_t>(graph.nodes.size());
  const auto from = [&](std::uint32_t first) {
    return first + static_cast<std::uint32_t>(pick(random, count - first));
  };
  for (std::uint32_t n = 0; n < count; ++n) {
    if (pick(random, 3) == 0) continue;
    TapePlan::Spill spill;
    spill.node = n;
    const auto saved = static_cast<std::size_t>(graph.nodes[n].type->saved_tensors);
    spill.which = saved > 0 && pick(random, 4) == 0 ? static_cast<std::int32_t>(pick(random, saved)) : spill.result;
    const std::uint32_t until = graph.values[graph.nodes[n].output].program_until;
    spill.away_after = until != TapeGraph::none && pick(random, 2) == 0 ? std::max(n, until) : from(n);
    spill.gone_after = pick(random, 2) == 0 ? spill.away_after : from(spill.away_after);
    spill.back_before = from(n);
    plan.spills.push_back(spill);
  }
}

// Packs instead, and only results.
inline void pack_spills(TapePlan& plan, DType dtype) {
  std::erase_if(plan.spills, [](const TapePlan::Spill& spill) { return spill.which != spill.result; });
  for (TapePlan::Spill& spill : plan.spills) {
    spill.form = TapePlan::Spill::Form::pack;
    spill.dtype = dtype;
    spill.gone_after = spill.away_after;
  }
}

}  // namespace random_program_test
