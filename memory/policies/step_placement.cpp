#include <thimble/memory/policies/step_placement.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include <thimble/core/error.h>

namespace thimble {
namespace step_placement_detail {

[[noreturn]] void refuse_events(std::size_t at, std::uint64_t block, const char* what) {
  throw ValueError("make_step_placement: event " + std::to_string(at) + " " + what + " block " + std::to_string(block) +
                   "; the events are no stretch of a trace");
}

/// Whether two plans place the same blocks, allocated and freed in the same order: unplaced blocks (state that a first
/// step makes) may be anywhere between.
bool places_alike(const StepPlacement& a, const StepPlacement& b) {
  const auto next = [](const std::vector<StepPlacement::Event>& events, std::size_t at) {
    while (at < events.size() && events[at].block == StepPlacement::not_placed) ++at;
    return at;
  };
  std::size_t i = next(a.events, 0), k = next(b.events, 0);
  while (i < a.events.size() && k < b.events.size()) {
    if (!(a.events[i] == b.events[k])) return false;
    i = next(a.events, i + 1), k = next(b.events, k + 1);
  }
  return i == a.events.size() && k == b.events.size();
}

}  // namespace step_placement_detail

StepPlacement make_step_placement(std::span<const memory::Trace::Event> events, const memory::PlacementOptions& options,
                                  const StepPlacement* like) {
  struct Life {
    std::size_t lower;  // index into the plan's events
    bool is_over;
  };
  StepPlacement plan;
  std::unordered_map<std::uint64_t, Life> lives;  // of blocks that are allocated here
  struct Free {
    std::size_t at, lower;
  };
  std::vector<Free> frees;
  for (std::size_t at = 0; at < events.size(); ++at) {
    const memory::Trace::Event& event = events[at];
    if (event.action == memory::Trace::Action::allocate) {
      if (!lives.emplace(event.block, Life{plan.events.size(), false}).second) {
        step_placement_detail::refuse_events(at, event.block, "allocates again");
      }
      plan.events.push_back({event.bytes, event.alignment, StepPlacement::not_placed, event.category, event.path});
    } else if (event.action == memory::Trace::Action::free) {
      const auto found = lives.find(event.block);
      if (found == lives.end()) continue;  // lived before the step
      if (found->second.is_over) step_placement_detail::refuse_events(at, event.block, "frees again");
      found->second.is_over = true;
      frees.push_back({plan.events.size(), found->second.lower});
      plan.events.push_back({});
    }
  }
  // In order of their allocation, so that an index does not depend on the order of frees.
  std::sort(frees.begin(), frees.end(), [](const Free& a, const Free& b) { return a.lower < b.lower; });
  for (const Free& free : frees) {
    const auto block = static_cast<std::uint32_t>(plan.buffers.size());
    StepPlacement::Event& allocation = plan.events[free.lower];
    plan.buffers.push_back({block, free.lower, free.at, allocation.bytes, allocation.alignment});
    allocation.block = plan.events[free.at].block = block;
  }
  const bool is_like = like != nullptr && step_placement_detail::places_alike(*like, plan);
  plan.placement = is_like ? like->placement : memory::place(plan.buffers, options);
  return plan;
}

}  // namespace thimble
