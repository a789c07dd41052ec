#include <thimble/core/kernels/shared/step_numbers.h>

#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>

namespace thimble::kernels {
void go_to(UpdateArgs& args, const StepNumbers&, const StepNumbers& now) noexcept {
  args.rate = now.rate;
  args.gradient_factor = now.gradient_factor;
  args.step = now.update;
  args.narrow.site.step = static_cast<std::uint64_t>(now.update);
}

void go_to(RandomSite& site, const StepNumbers& recorded, const StepNumbers& now) noexcept {
  if (site.step == recorded.random_step) site.step = now.random_step;
}

void go_to(Fp8ScaleArgs& args, const StepNumbers& recorded, const StepNumbers& now) noexcept {
  if (static_cast<std::uint64_t>(args.step) == recorded.random_step)
    args.step = static_cast<std::int64_t>(now.random_step);
}

const void* StepBlock::add(std::size_t bytes, Fill fill) {
  const std::size_t offset = bytes_;
  bytes_ += (bytes + alignment - 1) / alignment * alignment;
  if (bytes_ > capacity_) {
    throw PlanError("captured step: more than " + std::to_string(capacity_) + " bytes change from step to step, in " +
                    std::to_string(slots_.size() + 1) + " launches or more; expected a step with fewer");
  }
  slots_.push_back({offset, std::move(fill)});
  return place_ + offset;
}

void StepBlock::write(const StepNumbers& now, std::byte* to) const {
  for (const Slot& slot : slots_) slot.fill(recorded_, now, to + slot.offset);
}

StepBlock* current_step_block() noexcept { return context().step_block; }

StepBlockScope::StepBlockScope(StepBlock& block) noexcept : before_(context().step_block) {
  context().step_block = &block;
}

StepBlockScope::~StepBlockScope() { context().step_block = before_; }

}  // namespace thimble::kernels
