#include <thimble/optim/accumulate.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/graph.h>
#include <thimble/autograd/spare_tape.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/copy.h>
#include <thimble/core/kernels/shared/step_numbers.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/optim/ranks.h>

namespace thimble::optim {

namespace accumulate_detail {

/// seed = the scale of the step that is replayed, which stands in its block.
void copy_live_scale(const Tensor& seed, kernels::StepBlock& block) {
  const void* const scale =
      block.add(sizeof(double), [](const kernels::StepNumbers&, const kernels::StepNumbers& now, std::byte* to) {
        std::memcpy(to, &now.loss_scale, sizeof now.loss_scale);
      });
  Shape same = seed.shape();  // strides that go to the one value
  for (int axis = 0; axis < same.rank(); ++axis) same[axis] = 0;
  launch(seed.device(), [&](const Addresses& at) {
    kernels::copy_kernels(seed.device())
        .copy({seed.shape(), scale, DType::f64, same, at(seed), seed.dtype(), seed.strides()});
  });
}

// Undefined, which stands for 1, without a scale. A scale that comes down to 1 has a seed like any other, because all
// steps of a run ask for the same bytes.
Tensor seed_of(const Tensor& loss, std::optional<double> scale) {
  if (!scale) return Tensor();
  if (size_of(loss.dtype()) < size_of(DType::f32)) {
    if (*scale == 1) return Tensor();
    throw DTypeError("accumulate_gradients: the loss is " + describe(loss) + "; to be scaled it must be f32 or f64");
  }
  const Tensor seed = Tensor::empty(loss.shape(), loss.dtype(), loss.device());
  if (kernels::StepBlock* const block = kernels::current_step_block()) {
    copy_live_scale(seed, *block);
  } else {
    fill(seed, *scale);
  }
  return seed;
}

/// Checks the micro-batches; gives the sum of their weights.
double total_weight(std::int64_t count, std::int64_t samples, std::span<const MicroBatch> parts) {
  if (count < 1) throw ValueError("accumulate_gradients: " + std::to_string(count) + " micro-batches; at least 1");
  if (parts.empty()) {
    if (count == 1 || samples >= 1) return static_cast<double>(count);
    throw ValueError("accumulate_gradients: " + std::to_string(count) + " micro-batches of " + std::to_string(samples) +
                     " samples; at least 1, as random operators draw by the sample's number in the whole batch");
  }
  if (static_cast<std::int64_t>(parts.size()) != count) {
    throw ValueError("accumulate_gradients: " + std::to_string(parts.size()) + " parts for " + std::to_string(count) +
                     " micro-batches; one for each is needed");
  }
  double total = 0;
  for (const MicroBatch& part : parts) {
    if (part.samples < 1 || !(part.weight >= 0) || !std::isfinite(part.weight)) {
      throw ValueError("accumulate_gradients: a micro-batch of " + std::to_string(part.samples) +
                       " samples and weight " + std::to_string(part.weight) +
                       "; at least 1 sample and a finite weight >= 0 are needed");
    }
    total += part.weight;
  }
  if (!(total > 0)) {
    throw ValueError("accumulate_gradients: all micro-batches weigh 0, so there is no mean over what counts in them");
  }
  return total;
}

}  // namespace accumulate_detail

Tensor accumulate_gradients(std::int64_t count, std::int64_t samples, FunctionRef<Tensor(std::int64_t)> loss_of,
                            const RecordingOptions& recording, const LeafHook* on_gradient,
                            std::optional<double> loss_scale, std::span<const MicroBatch> parts) {
  Ranks* const ranks = recording.ranks;
  const std::int64_t all = ranks != nullptr ? count * ranks->size() : count;
  const std::int64_t first = ranks != nullptr ? ranks->rank() : 0, stride = ranks != nullptr ? ranks->size() : 1;
  if (ranks != nullptr && !parts.empty()) parts = ranks->all_parts(parts);
  const double total_weight = accumulate_detail::total_weight(all, samples, parts);
  const auto part_at = [&](std::int64_t i) {
    return parts.empty() ? MicroBatch{samples, 1} : parts[static_cast<std::size_t>(i)];
  };
  const SpareTape spare;
  Tape& tape = *spare;
  if (recording.graph) tape.observe();
  tape.follow(recording.plan, recording.tier);
  tape.train(recording.leaves);
  tape.time(recording.times);
  const PassScope passes(current_generator());
  const auto watched = [&](const std::shared_ptr<Leaf>& leaf) {
    if (recording.watch) (*recording.watch)(leaf);
    if (on_gradient) (*on_gradient)(leaf);
    if (ranks) ranks->take_gradient(leaf);
  };
  const LeafHook both(watched);
  const LeafHook* const told = recording.watch || ranks ? &both : on_gradient;
  Tensor total;
  std::vector<Tensor> losses;  // of this rank among several
  std::int64_t first_sample = 0;
  for (std::int64_t k = 0; k < first; ++k) first_sample += part_at(k).samples;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t number = i * stride + first;
    const MicroBatch part = part_at(number);
    current_generator().start_pass(first_sample);
    for (std::int64_t k = number; k < std::min(number + stride, all); ++k) first_sample += part_at(k).samples;
    Tensor loss;
    {
      const Recording on(tape);
      loss = loss_of(i);
      if (all > 1) loss = loss * (part.weight / total_weight);
    }
    if (recording.nodes) *recording.nodes = tape.node_count();
    if (recording.graph) *recording.graph = TapeGraph::of(tape);
    tape.backward(loss, accumulate_detail::seed_of(loss, loss_scale), told);
    if (part.weight == 0) fill(loss.detach(), 0);  // the mean over nothing is not a number
    if (ranks) {
      ranks->end_micro_batch();
      losses.push_back(loss.detach());
      continue;
    }
    total = total.defined() ? add(total, loss.detach()) : loss.detach();
  }
  if (ranks == nullptr) return total;
  ranks->complete_gradients();
  return ranks->sum_losses(losses);
}

}  // namespace thimble::optim
