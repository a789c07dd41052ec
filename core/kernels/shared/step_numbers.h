#pragma once
// Numbers that change from step to step in a captured training step (core/launch/launch_graph.h). A capture repeats its
// kernels with their arguments, so the arguments that depend on the step are in a block of device memory, which each
// replay updates before the kernels read it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <thimble/core/kernels/fp8.h>
#include <thimble/core/kernels/optimizer.h>

namespace thimble::kernels {

struct StepNumbers {
  double rate = 0;                ///< the optimizer's
  double gradient_factor = 1;     ///< multiplies gradients
  double loss_scale = 1;          ///< the initial dy of backward
  std::int64_t update = 1;        ///< the optimizer's count of updates, including this one
  std::uint64_t random_step = 0;  ///< the generator's
};

/// Moves a kernel's arguments to another step. The step of a random site or a recorded amax changes only if it is the
/// captured step.
void go_to(UpdateArgs& args, const StepNumbers& recorded, const StepNumbers& now) noexcept;
void go_to(RandomSite& site, const StepNumbers& recorded, const StepNumbers& now) noexcept;
void go_to(Fp8ScaleArgs& args, const StepNumbers& recorded, const StepNumbers& now) noexcept;

/// A block of device memory with a slot for every launch that depends on the step, in the order of launches.
class StepBlock {
 public:
  static constexpr std::size_t alignment = 16;
  /// Writes a slot's bytes for a step.
  using Fill = std::function<void(const StepNumbers& recorded, const StepNumbers& now, std::byte* to)>;

  /// For a step captured with these numbers: `bytes` of device memory from `place` on, aligned to `alignment`.
  StepBlock(std::byte* place, std::size_t bytes, const StepNumbers& recorded)
      : place_(place), capacity_(bytes), recorded_(recorded) {}

  /// The device address of a launch's slot. Throws PlanError when the block is full.
  const void* add(std::size_t bytes, Fill fill);

  /// Bytes of all slots so far.
  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t slots() const noexcept { return slots_.size(); }
  /// The block's contents for a step: to[0 .. bytes()).
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

/// The block of the step that this thread captures; null when launches use their arguments.
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
