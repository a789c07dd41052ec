#pragma once
// A training step that is captured as a CUDA graph and then replayed by one call.
//
//   nn::CapturedStep step(*stack.placed, optimizer, [&](std::int64_t) { return model.loss(batch); }, options);
//   for (...) {
//     nn::load_input(batch.input, next.input), nn::load_input(batch.target, next.target);
//     const Tensor loss = step.run();
//   }
//
// Policy
// - The first two steps run as training_step does, the first one and a steady one, so that pages, libraries and plans
//   exist. The third is captured; it and all later steps are replays, with the same bits.
// - A capture repeats addresses. So it needs a placed arena (memory/policies/placed.h) with the plans of steps whose
//   loss goes with them (nn::plan_steps of a run whose step() drops it): all blocks of a step are in its region. From
//   then on the region stays, no block of its arena moves, and requests that would need a move are refused.
// - It repeats arguments, except those that change from step to step: the optimizer's rate, count of updates and
//   gradient factor, and the generator's step are in device memory (core/kernels/shared/step_numbers.h), and one copy
//   writes them before each replay. Set them between steps as usual.
// - If a loss scaler reads gradients (a dynamic scale, clipping under a scale) a step is two graphs, and the host
//   decides between them, as in a step that is not captured: it reads the sums of squares that the first graph wrote,
//   and replays the update or skips it.
// - It repeats no work of the host: only those three steps call `loss_of`, and the one after a drop(). `loss_of` reads
//   its batch from tensors that stay, and must not read a value (item, to_host), upload one, or depend on the step in
//   another way.

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

/// Copies a dense tensor of the host into an existing one of a CUDA device, without further bytes there: a captured
/// step gets its next batch this way. On a dry device it copies nothing. Throws ShapeError or DTypeError when they
/// differ in these, DeviceError for other devices.
void load_input(const Tensor& to, const Tensor& from);

class CapturedStep {
 public:
  /// `placed`, `optimizer`, what `loss_of` uses and the thread's generator must outlive it. Takes its block of device
  /// memory from the resource in force, which must be on top of `placed`: 64 KiB and 128 bytes for each parameter (kept
  /// and counted as workspace), a number for the loss, and, if a loss scaler reads gradients, 8 bytes for each
  /// parameter. Throws DeviceError unless parameters are on a CUDA device (a dry one allocates the same and captures
  /// nothing); PlanError for features that need the host in every step: tiers (of gradients, saved tensors, optimizer
  /// state), a profile or an observed graph, and for micro-batches that differ (StepOptions::parts).
  CapturedStep(PlacedArena& placed, optim::Optimizer& optimizer, std::function<Tensor(std::int64_t)> loss_of,
               StepOptions options = {});
  ~CapturedStep();
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;

  /// One step. Returns its mean loss, of shape () in f32 (f64 for f64 parameters), not read; the next step overwrites
  /// it. Throws what training_step throws; PlanError for a captured step that leaves its plan (the next one would have
  /// other addresses), and DeviceError for one that reads a value. A step that could not be captured has changed
  /// nothing: optimizer and generator are as before.
  Tensor run();

  /// Drops the capture and its hold on the region, so that others may use its bytes between two steps (an evaluation).
  /// The next step is captured again: it calls `loss_of`, and has the same bits.
  void drop() noexcept;

  bool is_captured() const noexcept { return hold_ != nullptr; }
  /// Kernels and copies of a replay; 0 before there is one, and on a dry device.
  std::size_t launches() const noexcept { return graph_ ? graph_->launches() : 0; }
  /// Bytes that are copied to the device before a replay.
  std::size_t step_bytes() const noexcept { return block_ ? block_->bytes() : 0; }

 private:
  class Judge;
  void run_once(const StepOptions& options);
  void capture();
  void replay();
  void replay_part(std::size_t part, const kernels::StepNumbers& now);
  kernels::StepNumbers numbers() const;
  bool looks() const { return options_.scaler != nullptr && options_.scaler->looks(options_.clip_norm); }

  PlacedArena& placed_;
  optim::Optimizer& optimizer_;
  std::function<Tensor(std::int64_t)> loss_of_;
  StepOptions options_;
  RandomGenerator& generator_;
  memory::Device device_;
  Tensor memory_;               // (bytes) of u8, the block's
  Tensor loss_;                 // ()
  Tensor sums_;                 // (parameters) in f64: squares of gradients; undefined: nothing reads them
  std::int64_t sum_count_ = 0;  // of them that a captured step writes
  std::size_t steps_ = 0;
  std::vector<std::byte> image_;  // of the block, on the host
  std::optional<kernels::StepBlock> block_;
  std::unique_ptr<PlacedArena::Hold> hold_;
  std::unique_ptr<LaunchGraph> graph_;  // null on a dry device
};

}  // namespace thimble::nn
