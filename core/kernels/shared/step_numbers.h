#pragma once
// What changes from step to step in a recorded training step (core/launch/launch_graph.h). A recording repeats its
// kernels with the arguments that they had; those that depend on the step stand in a block of device memory instead,
// where the kernels read them, and the block is written before each replay.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <thimble/core/kernels/fp8.h>
#include <thimble/core/kernels/optimizer.h>

namespace thimble::kernels {

struct StepNumbers {
  double rate = 0;                ///< of the optimizer
  double gradient_factor = 1;     ///< that it multiplies gradients by
  double loss_scale = 1;          ///< that backward starts from
  std::int64_t update = 1;        ///< its count of updates, this one included
  std::uint64_t random_step = 0;  ///< of the generator
};

/// A kernel's arguments in another step. Those of random numbers, and the step that an amax is recorded for, change
/// where they are of the step that was recorded.
void go_to(UpdateArgs& args, const StepNumbers& recorded, const StepNumbers& now) noexcept;
void go_to(RandomSite& site, const StepNumbers& recorded, const StepNumbers& now) noexcept;
void go_to(Fp8ScaleArgs& args, const StepNumbers& recorded, const StepNumbers& now) noexcept;

/// The block: every launch that depends on the step has a slot in it, in the order of launches.
class StepBlock {
 public:
  static constexpr std::size_t alignment = 16;
  /// Writes a slot's bytes for a step.
  using Fill = std::function<void(const StepNumbers& recorded, const StepNumbers& now, std::byte* to)>;

  /// Of a step that is recorded with these numbers: `bytes` of device memory from `place` on, aligned to `alignment`.
  StepBlock(std::byte* place, std::size_t bytes, const StepNumbers& recorded)
      : place_(place), capacity_(bytes), recorded_(recorded) {}

  /// Where a launch finds its slot on the device. Throws PlanError when the block is full.
  const void* add(std::size_t bytes, Fill fill);

  /// Of all slots so far.
  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t slots() const noexcept { return slots_.size(); }
  /// What the block is to hold for a step: to[0 .. bytes()).
  void write(const StepNumbers& now, std::byte* to) const;

 private:
  struct Slot {
    std::size_t offset;
    Fill fill;
  };
  std::byte* place_;
  std::size_t capacity_;
  StepNumbers recorded_;
  std::size_t bytes_ = 0;
  std::vector<Slot> slots_;
};

/// That of the step which this thread records; null: launches take their arguments as they are.
StepBlock* current_step_block() noexcept;

/// Makes a block the current one for a scope.
class StepBlockScope {
 public:
  explicit StepBlockScope(StepBlock& block) noexcept;
  ~StepBlockScope();
  StepBlockScope(const StepBlockScope&) = delete;
  StepBlockScope& operator=(const StepBlockScope&) = delete;

 private:
  StepBlock* before_;
};

}  // namespace thimble::kernels
