#include <thimble/optim/accumulate.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/graph.h>
#include <thimble/autograd/spare_tape.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/copy.h>
#include <thimble/core/kernels/shared/step_numbers.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/optim/pipeline.h>
#include <thimble/optim/ranks.h>

namespace thimble::optim {

namespace {

/// seed = the replayed step's scale, read from its block.
void copy_live_scale(const Tensor& seed, kernels::StepBlock& block) {
  const void* const scale =
      block.add(sizeof(double), [](const kernels::StepNumbers&, const kernels::StepNumbers& now, std::byte* to) {
        std::memcpy(to, &now.loss_scale, sizeof now.loss_scale);
      });
  Shape same = seed.shape();  // becomes strides that repeat the one value
  for (int axis = 0; axis < same.rank(); ++axis) same[axis] = 0;
  launch(seed.device(), [&](const Addresses& at) {
    kernels::copy_kernels(seed.device())
        .copy({seed.shape(), scale, DType::f64, same, at(seed), seed.dtype(), seed.strides()});
  });
}

// Undefined, which means 1, without a scale. A scale that falls to 1 still gets a seed, because all steps of a run must
// request the same bytes.
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

/// Checks the micro-batches; returns the sum of their weights.
double sum_of_weights(std::int64_t count, std::int64_t samples, std::span<const MicroBatch> parts) {
  if (count < 1) throw ValueError("accumulate_gradients: " + std::to_string(count) + " micro-batches; at least 1");
  if (parts.empty()) {
    if (count == 1 || samples >= 1) return static_cast<double>(count);
    throw ValueError("accumulate_gradients: " + std::to_string(count) + " micro-batches of " + std::to_string(samples) +
                     " samples; at least 1, as random operators draw by the sample's number in the whole batch");
  }
  if (static_cast<std::int64_t>(parts.size()) != count) {
    throw ValueError("accumulate_gradients: " + std::to_string(parts.size()) + " parts for " + std::to_string(count) +
                     " micro-batches; expected one for each");
  }
  double total = 0;
  for (const MicroBatch& part : parts) {
    if (part.samples < 1 || !(part.weight >= 0) || !std::isfinite(part.weight)) {
      throw ValueError("accumulate_gradients: a micro-batch of " + std::to_string(part.samples) +
                       " samples and weight " + std::to_string(part.weight) +
                       "; expected at least 1 sample and a finite weight >= 0");
    }
    total += part.weight;
  }
  if (!(total > 0)) {
    throw ValueError("accumulate_gradients: all micro-batches weigh 0, so there is no mean over what counts in them");
  }
  return total;
}

/// Checks a loss, except that it depends on a trained leaf, which the tape checks.
void check_loss(const Tensor& loss) {
  const auto expected = [](const std::string& got) {
    return "accumulate_gradients: expected a loss of one floating element, got " + got;
  };
  if (!loss.defined()) throw ValueError(expected("an undefined tensor; return what a loss function gives"));
  if (loss.elements() != 1) throw ShapeError(expected(describe(loss) + "; mean() or sum() of it is one"));
  if (!is_floating(loss.dtype())) throw DTypeError(expected(describe(loss) + "; losses of floating tensors are"));
}

std::size_t chunks_of(const Pipeline& stage) {
  std::size_t count = 1;
  for (const StagePass& pass : stage.passes()) count = std::max(count, pass.chunk + 1);
  return count;
}

/// Runs the stage's passes. Holds results sent to the next chunk without their bytes.
void run_passes(Pipeline& stage, FunctionRef<void(Tape&, std::size_t chunk)> prepare,
                FunctionRef<Tensor(const StagePass&, Tape&)> forward,
                FunctionRef<void(const StagePass&, Tape&, Tensor)> backward) {
  struct UnderWay {
    SpareTape tape;
    Tensor result;
  };
  std::vector<std::deque<UnderWay>> under_way(chunks_of(stage));  // per chunk, in the order of their backwards
  for (const StagePass& pass : stage.passes()) {
    stage.begin_pass(pass);
    std::deque<UnderWay>& of_chunk = under_way[pass.chunk];
    if (pass.is_forward) {
      UnderWay& last = of_chunk.emplace_back();
      prepare(*last.tape, pass.chunk);
      last.result = forward(pass, *last.tape);
      if (pass.makes_loss) continue;
      stage.send_result(last.result);
      last.result = last.result.without_bytes();
    } else {
      backward(pass, *of_chunk.front().tape, std::exchange(of_chunk.front().result, Tensor()));
      of_chunk.pop_front();
    }
  }
  stage.end_passes();
}

}  // namespace

Tensor accumulate_gradients(std::int64_t count, std::int64_t samples, FunctionRef<Tensor(std::int64_t)> loss_of,
                            const RecordingOptions& recording, const LeafHook* on_gradient,
                            std::optional<double> loss_scale, std::span<const MicroBatch> parts) {
  Ranks* const ranks = recording.ranks;
  const std::int64_t all = ranks != nullptr ? count * ranks->size() : count;
  const std::int64_t first = ranks != nullptr ? ranks->rank() : 0, stride = ranks != nullptr ? ranks->size() : 1;
  if (ranks != nullptr && !parts.empty()) parts = ranks->all_parts(parts);
  const double total_weight = sum_of_weights(all, samples, parts);
  const auto part_at = [&](std::int64_t i) {
    return parts.empty() ? MicroBatch{samples, 1} : parts[static_cast<std::size_t>(i)];
  };
  const PassScope passes(current_generator());
  const auto watched = [&](const std::shared_ptr<tape::Leaf>& leaf) {
    if (recording.stage && recording.stage->take_gradient(leaf)) return;
    if (recording.watch) (*recording.watch)(leaf);
    if (on_gradient) (*on_gradient)(leaf);
    if (ranks) ranks->take_gradient(leaf);
  };
  const LeafHook both(watched);
  const LeafHook* const told = recording.watch || ranks || recording.stage ? &both : on_gradient;
  const auto first_sample = [&](std::int64_t number) {
    std::int64_t sum = 0;
    for (std::int64_t k = 0; k < number; ++k) sum += part_at(k).samples;
    return sum;
  };
  Tensor total;
  std::vector<Tensor> losses;  // this rank's, if there are several ranks
  // Each chunk of a stage records separately, with its own plan and graph.
  const std::size_t chunks = recording.stage != nullptr ? chunks_of(*recording.stage) : 1;
  std::shared_ptr<const TapePlan> plan = recording.plan;
  const auto is_other = [&](const MicroBatch& part) { return part.samples != parts.front().samples; };
  if (plan && std::any_of(parts.begin(), parts.end(), is_other)) {
    auto of_any_size = std::make_shared<TapePlan>(*plan);  // the plan was made for one micro-batch's sizes
    of_any_size->sizes.clear();
    plan = std::move(of_any_size);
  }
  std::vector<std::shared_ptr<const TapePlan>> plans;
  if (plan && chunks > 1) plans = split(*plan, chunks);
  std::vector<TapeGraph> graphs(recording.graph ? chunks : 0);
  std::vector<std::vector<std::size_t>> gradient_bytes(graphs.size());
  const auto prepare = [&](Tape& tape, std::size_t chunk) {
    if (recording.graph) tape.observe(&gradient_bytes[chunk]);
    tape.follow(plans.empty() ? plan : plans[chunk], recording.tier);
    tape.train(recording.leaves);
    tape.time(recording.times);
  };
  const auto forward = [&](const StagePass& pass, Tape& tape) {
    const std::int64_t number = pass.micro_batch * stride + first;
    current_generator().start_pass(first_sample(number));
    if (tape::Transaction* const step = context().transaction) step->set_micro_batch(pass.micro_batch);
    Tensor loss;
    {
      const Recording on(tape);
      loss = loss_of(pass.micro_batch);
      if (pass.makes_loss) check_loss(loss);
      if (pass.makes_loss && all > 1) loss = loss * (part_at(number).weight / total_weight);
    }
    if (recording.nodes) *recording.nodes = tape.node_count();
    if (recording.operators) TapeGraph::append_operators(tape, *recording.operators);
    if (recording.graph) graphs[pass.chunk] = TapeGraph::of(tape);
    return loss;
  };
  const auto backward = [&](const StagePass& pass, Tape& tape, Tensor loss) {
    const std::int64_t number = pass.micro_batch * stride + first;
    if (tape::Transaction* const step = context().transaction) step->set_micro_batch(pass.micro_batch);
    if (!pass.makes_loss) {
      tape.backward(loss, recording.stage->receive_gradient(), told);
    } else {
      tape.backward(loss, seed_of(loss, loss_scale), told);
      if (part_at(number).weight == 0) fill(loss.detach(), 0);  // the mean over nothing is NaN
    }
    if (ranks) {
      ranks->end_micro_batch(pass.chunk);
      if (pass.makes_loss) losses.push_back(loss.detach());
    } else {
      total = total.defined() ? add(total, loss.detach()) : loss.detach();
    }
  };
  if (recording.stage == nullptr) {
    const SpareTape tape;
    prepare(*tape, 0);
    for (std::int64_t i = 0; i < count; ++i) backward({false, i}, *tape, forward({true, i}, *tape));
  } else {
    run_passes(*recording.stage, prepare, forward, backward);
  }
  for (std::size_t c = 0; c < graphs.size(); ++c) {
    if (gradient_bytes[c].size() != graphs[c].nodes.size()) continue;  // the last forward was of another micro-batch
    for (std::size_t n = 0; n < gradient_bytes[c].size(); ++n) graphs[c].nodes[n].gradient_bytes = gradient_bytes[c][n];
  }
  if (recording.graph) *recording.graph = join(std::move(graphs));
  if (ranks != nullptr) ranks->complete_gradients();
  if (recording.stage != nullptr) recording.stage->complete_gradients();
  if (!losses.empty()) total = ranks->sum_losses(losses);
  return recording.stage != nullptr ? recording.stage->share_loss(total) : total;
}

}  // namespace thimble::optim
