#pragma once
// Captures a training step as a CUDA graph and replays it with one call.
//
//   nn::CapturedStep step(*stack.placed, optimizer, [&](std::int64_t) { return model.loss(batch); }, options);
//   for (...) {
//     nn::load_input(batch.input, next.input), nn::load_input(batch.target, next.target);
//     const Tensor loss = step.run();
//   }
//
// Policy
// - The first two steps, the first and a steady one, run as training_step does, so that pages, libraries and plans
//   exist. The third step is captured; it and all later steps are replays, with the same bits.
// - A capture repeats addresses. So it needs a placed arena (memory/policies/placed.h) whose plans free the loss with
//   the step (nn::plan_steps of a run whose step() drops it): the region then holds all blocks of a step. From the
//   capture on, the region stays, no block of its arena moves, and requests that would need a move are refused.
// - A capture repeats arguments, except numbers in device memory that one copy writes before each replay
//   (core/kernels/shared/step_numbers.h): the optimizer's rate, count of updates and gradient factor, and the
//   generator's step. Set them between steps as usual.
// - If a loss scaler reads gradients (a dynamic scale, or clipping under a scale), a step is two graphs. The host reads
//   the sums of squares that the first graph wrote, and replays the update or skips it, as in an uncaptured step.
// - A replay runs no code of the program: only the first three steps, and the one after a drop(), call `loss_of`. It
//   reads its batch from tensors that stay, and must not read a value (item, to_host), upload one, or depend on the
//   step in any other way.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <thimble/core/kernels/shared/step_numbers.h>
#include <thimble/core/launch/launch_graph.h>
#include <thimble/memory/policies/placed.h>
#include <thimble/nn/step/step.h>

namespace thimble::nn {

/// Copies a dense host tensor into an existing one on a CUDA device without allocating: a captured step gets its next
/// batch this way. On a dry device it copies nothing. Throws ShapeError or DTypeError if shapes or dtypes differ,
/// DeviceError for other devices or strides.
void load_input(const Tensor& to, const Tensor& from);

class CapturedStep {
 public:
  /// `placed`, `optimizer`, the objects that `loss_of` uses and the thread's generator must outlive it. The current
  /// resource must be on top of `placed`. It allocates 64 KiB and 128 bytes for each parameter (workspace), a number
  /// for the loss, and, if a loss scaler reads gradients, 8 bytes for each parameter. Throws DeviceError unless
  /// parameters are on a CUDA device (a dry one allocates the same and captures nothing); PlanError for parameter
  /// groups, for features that need the host in every step (tiers of gradients, saved tensors or optimizer state; a
  /// profile; an observed graph), and for micro-batches that differ (StepOptions::parts).
  CapturedStep(memory::PlacedArena& placed, optim::Optimizer& optimizer, std::function<Tensor(std::int64_t)> loss_of,
               StepOptions options = {});
  ~CapturedStep();
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;

  /// Runs one step. Returns its mean loss without reading it: shape () in f32 (f64 for f64 parameters), overwritten by
  /// the next step. Throws any error of training_step; PlanError for a captured step that leaves its plan, because the
  /// next one would have other addresses; DeviceError for one that reads a value. A step that could not be captured
  /// leaves optimizer and generator as they were.
  Tensor run();

  /// Drops the capture and releases the region, so that others may use its bytes between two steps (an evaluation). The
  /// next step calls `loss_of` and is captured again, with the same bits.
  void drop() noexcept;

  bool is_captured() const noexcept { return hold_ != nullptr; }
  /// Kernels and copies of a replay; 0 before the capture, and on a dry device.
  std::size_t launches() const noexcept { return graph_ ? graph_->launches() : 0; }
  /// Bytes copied to the device before each replay.
  std::size_t step_bytes() const noexcept { return block_ ? block_->bytes() : 0; }

 private:
  class Judge;
  void run_once(const StepOptions& options);
  void capture();
  void replay();
  void replay_part(std::size_t part, const kernels::StepNumbers& now);
  kernels::StepNumbers numbers() const;
  bool looks() const { return options_.scaler != nullptr && options_.scaler->looks(options_.clip_norm); }

  memory::PlacedArena& placed_;
  optim::Optimizer& optimizer_;
  std::function<Tensor(std::int64_t)> loss_of_;
  StepOptions options_;
  RandomGenerator& generator_;
  memory::Device device_;
  Tensor memory_;               // (bytes) of u8, for block_
  Tensor loss_;                 // ()
  Tensor sums_;                 // (parameters) in f64: squares of gradients; undefined if unused
  std::int64_t sum_count_ = 0;  // sums that a captured step writes
  std::size_t steps_ = 0;
  std::vector<std::byte> image_;  // copy of the block on the host
  std::optional<kernels::StepBlock> block_;
  std::unique_ptr<memory::PlacedArena::Hold> hold_;
  std::unique_ptr<LaunchGraph> graph_;  // null on a dry device
};

}  // namespace thimble::nn
