#include <thimble/memory/policies/placed.h>

#include <algorithm>
#include <cassert>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/context.h>

namespace thimble::memory {
namespace {

[[noreturn]] void refuse_events(std::size_t at, std::uint64_t block, const char* what) {
  throw ValueError("make_step_placement: event " + std::to_string(at) + " " + what + " block " + std::to_string(block) +
                   "; the events are no stretch of a trace");
}

/// Whether two plans place the same blocks, allocated and freed in the same order. Unplaced blocks between them (state
/// that a first step makes) may differ.
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

}  // namespace

StepPlacement make_step_placement(std::span<const Trace::Event> events, const PlacementOptions& options,
                                  const StepPlacement* like) {
  struct Life {
    std::size_t lower;  // index into the plan's events
    bool is_over;
  };
  StepPlacement plan;
  std::unordered_map<std::uint64_t, Life> lives;  // of blocks that the step allocates
  struct Free {
    std::size_t at, lower;
  };
  std::vector<Free> frees;
  for (std::size_t at = 0; at < events.size(); ++at) {
    const Trace::Event& event = events[at];
    if (event.action == Trace::Action::allocate) {
      if (!lives.emplace(event.block, Life{plan.events.size(), false}).second) {
        refuse_events(at, event.block, "allocates again");
      }
      plan.events.push_back({event.bytes, event.alignment, StepPlacement::not_placed, event.category, event.path});
    } else if (event.action == Trace::Action::free) {
      const auto found = lives.find(event.block);
      if (found == lives.end()) continue;  // allocated before the step
      if (found->second.is_over) refuse_events(at, event.block, "frees again");
      found->second.is_over = true;
      frees.push_back({plan.events.size(), found->second.lower});
      plan.events.push_back({});
    }
  }
  // Number blocks in order of allocation, so that an index does not depend on the order of frees.
  std::sort(frees.begin(), frees.end(), [](const Free& a, const Free& b) { return a.lower < b.lower; });
  for (const Free& free : frees) {
    const auto block = static_cast<std::uint32_t>(plan.buffers.size());
    StepPlacement::Event& allocation = plan.events[free.lower];
    plan.buffers.push_back({block, free.lower, free.at, allocation.bytes, allocation.alignment});
    allocation.block = plan.events[free.at].block = block;
  }
  const bool is_like = like != nullptr && places_alike(*like, plan);
  plan.placement = is_like ? like->placement : place(plan.buffers, options);
  return plan;
}

namespace {

std::string text(const PlanDeviation::Side& side, const char* who) {
  using Event = PlanDeviation::Event;
  if (side.event == Event::end) return std::string(who) + " ends";
  return std::string(who) + (side.event == Event::free ? " frees " : " allocates ") + std::to_string(side.bytes) +
         " bytes of " + std::string(to_string(side.category)) + " in '" + std::string(path_name(side.path)) + "'";
}

PlanDeviation::Side side_of(PlanDeviation::Event event, const Block& block) {
  return {event, block.bytes, block.category, block.path};
}

}  // namespace

std::string to_string(const PlanDeviation& deviation) {
  return "step " + std::to_string(deviation.step) + ", event " + std::to_string(deviation.event) + ": " +
         text(deviation.planned, "the plan") + ", " + text(deviation.done, "the step");
}

PlacedArena::PlacedArena(std::shared_ptr<Resource> upstream, std::vector<StepPlacement> plans)
    : Decorator(upstream), plans_(make_plans(plans)), arena_(dynamic_cast<Arena*>(upstream.get())) {
  counts_.region_bytes = plans_.region_bytes;
}

PlacedArena::Plans PlacedArena::make_plans(const std::vector<StepPlacement>& plans) {
  if (plans.empty()) throw ValueError("placed: no plans; expected at least one");
  Plans made;
  std::size_t handle_count = 0;
  for (const StepPlacement& plan : plans) {
    check_placement(plan.buffers, plan.placement.offsets, plan.placement.height);
    handle_count += plan.buffers.size();
    made.region_bytes = std::max(made.region_bytes, plan.placement.height);
  }
  made.handles = std::vector<Handle>(handle_count);
  Handle* handles = made.handles.data();
  for (const StepPlacement& plan : plans) {
    add_plan(plan, handles, made);
    handles += plan.buffers.size();
  }
  return made;
}

void PlacedArena::set_plans(const std::vector<StepPlacement>& plans) {
  Plans made = make_plans(plans);
  const std::lock_guard guard(*lock());
  if (is_in_replay_ || live_ > 0 || holds_ > 0) {
    throw PlanError("placed: plans changed during a step or while its blocks live; change them between two steps");
  }
  give_region_back();
  region_address_ = nullptr;
  plans_ = std::move(made);
  counts_.region_bytes = plans_.region_bytes;
}

PlacedArena::~PlacedArena() {
  assert(live() == 0 && "a placed arena outlives its blocks");
  if (region_ != nullptr) {
    --region_->pins;
    upstream_deallocate(region_, nullptr);
  }
}

/// Throws ValueError unless every placed block is allocated once, at its lower, and freed once, at its upper.
void PlacedArena::add_plan(const StepPlacement& plan, Handle* handles, Plans& plans) {
  const auto refuse = [](std::size_t at, const char* why) {
    throw ValueError("placed: event " + std::to_string(at) + " of a plan " + why);
  };
  std::vector<Event> events;
  std::vector<PlanDeviation::Side> sides;
  events.reserve(plan.events.size() + 1);
  sides.reserve(plan.events.size() + 1);
  std::size_t placed_events = 0;
  std::uint32_t live = 0;
  for (std::size_t at = 0; at < plan.events.size(); ++at) {
    const StepPlacement::Event& event = plan.events[at];
    const bool is_free = event.bytes == 0;
    sides.push_back({PlanDeviation::Event::allocation, event.bytes, event.category, event.path});
    if (event.block == StepPlacement::not_placed) {
      if (is_free) refuse(at, "frees a block that is not placed");
      events.push_back({event.bytes, nullptr, event.alignment, live});
      continue;
    }
    if (event.block >= plan.buffers.size()) refuse(at, "names a block that the plan does not have");
    const Buffer& buffer = plan.buffers[event.block];
    const bool is_planned =
        is_free ? buffer.upper == at
                : buffer.lower == at && buffer.bytes == event.bytes && buffer.alignment == event.alignment;
    if (!is_planned) refuse(at, "is not in the lifetime of its block");
    ++placed_events;
    Handle* const handle = handles + event.block;
    if (is_free) {
      sides.back() = sides[buffer.lower];
      sides.back().event = PlanDeviation::Event::free;
      events.push_back({0, handle, 0, live--});
      continue;
    }
    handle->bytes = event.bytes;
    handle->offset = plan.placement.offsets[event.block];
    plans.region_alignment = std::max(plans.region_alignment, std::size_t{event.alignment});
    events.push_back({event.bytes, handle, event.alignment, live++});
  }
  if (placed_events != 2 * plan.buffers.size()) refuse(plan.events.size(), "is missing: a block has no two events");
  events.push_back({0, nullptr, 0, live});
  sides.emplace_back();
  plans.events.push_back(std::move(events));
  plans.sides.push_back(std::move(sides));
}

Block* PlacedArena::allocate(const Request& request) {
  const std::lock_guard hold(*lock());
  return do_allocate(request);
}

void PlacedArena::deallocate(Block* block, Stream stream) noexcept {
  if (block == nullptr) return;
  const std::lock_guard hold(*lock());
  do_deallocate(block, stream);
}

/// The block of the next event if that is this request and placed; else null, with nothing changed.
Block* PlacedArena::take_planned(const Request& request) noexcept {
  const Event& planned = *next_;
  if (planned.bytes != request.bytes || planned.alignment != request.alignment) return nullptr;
  Handle* const handle = planned.handle;
  if (handle == nullptr || launch_detail::depth > 0) return nullptr;
  ++next_;
  handle->category = request.category;
  handle->path = request.path;
  return handle;
}

Block* PlacedArena::do_allocate(const Request& request) {
  if (Block* const block = take_planned(request)) return block;
  if (launch_detail::depth > 0) {
    throw Error("placed: allocate inside a launch; an operator allocates all it needs before it launches");
  }
  return allocate_unplaced(request);
}

/// Serves a request that the plan does not place, or that deviates from it.
Block* PlacedArena::allocate_unplaced(const Request& request) {
  if (!is_in_replay_) {
    refuse_in_strict();
    return allocate_dynamically(request);
  }
  if (next_ == end_ || next_->bytes != request.bytes || next_->alignment != request.alignment) {
    deviate({PlanDeviation::Event::allocation, request.bytes, request.category, request.path});
    refuse_in_strict();
    return allocate_dynamically(request);
  }
  Block* const block = allocate_dynamically(request);  // may throw, so advance afterwards
  ++next_;
  return block;
}

void PlacedArena::do_deallocate(Block* block, Stream stream) noexcept {
  // If the next event has the handle of a live block, it is its free: a plan allocates each handle once.
  if (next_->handle == block) {
    ++next_;
  } else if (!is_placed(block)) {
    if (has_left_) outside_bytes_ -= static_cast<std::int64_t>(block->bytes);
    upstream_deallocate(block, stream);
  } else {
    if (is_in_replay_) deviate(side_of(PlanDeviation::Event::free, *block));
    --live_;
  }
}

void PlacedArena::do_relabel(Block* block, Category category) noexcept {
  if (is_placed(block)) {
    block->category = category;
  } else {
    upstream_relabel(block, category);
  }
}

Block* PlacedArena::allocate_dynamically(const Request& request) {
  Block* block = nullptr;
  try {
    block = upstream_allocate(request);
  } catch (const OutOfMemory&) {
    if (give_region_back() == 0) throw;
    block = upstream_allocate(request);
  }
  if (has_left_) {
    outside_bytes_ += static_cast<std::int64_t>(request.bytes);
    counts_.bytes_above_plan =
        std::max(counts_.bytes_above_plan, static_cast<std::size_t>(std::max<std::int64_t>(outside_bytes_, 0)));
  }
  return block;
}

void PlacedArena::deviate(const PlanDeviation::Side& done) noexcept {
  const auto at = static_cast<std::size_t>(next_ - first_);
  ++counts_.deviations;
  counts_.last_deviation = at;
  last_deviation_ = PlanDeviation{counts_.steps - 1, at, plans_.sides[current_][at], done};
  if (!counts_.first_deviation) counts_.first_deviation = last_deviation_;
  has_left_ = true;
  outside_bytes_ = 0;
  stop_replay();
}

void PlacedArena::refuse_in_strict() const {
  if (!is_strict_ || !has_left_) return;
  throw PlanError("placed: " + to_string(*last_deviation_) + "; expected steps that keep their plan");
}

void PlacedArena::stop_replay() noexcept {
  live_ = live();
  is_in_replay_ = false;
  next_ = &no_event;
}

void PlacedArena::take_region() {
  if (region_ != nullptr || plans_.region_bytes == 0) return;
  region_ = upstream_allocate({.bytes = plans_.region_bytes, .alignment = plans_.region_alignment});
  ++region_->pins;
  if (region_->address == region_address_) return;
  region_address_ = region_->address;
  for (Handle& handle : plans_.handles) handle.address = region_address_ + handle.offset;
}

std::size_t PlacedArena::give_region_back() noexcept {
  if (region_ == nullptr || is_in_replay_ || live_ > 0 || holds_ > 0) return 0;
  --region_->pins;
  upstream_deallocate(region_, nullptr);
  region_ = nullptr;
  return plans_.region_bytes;
}

PlacedArena::Hold::Hold(PlacedArena& placed) : placed_(placed) {
  {
    const std::lock_guard guard(*placed_.lock());
    placed_.take_region();
    ++placed_.holds_;
  }
  if (placed_.arena_ != nullptr) freeze_ = std::make_unique<Arena::Freeze>(*placed_.arena_);
}

PlacedArena::Hold::~Hold() {
  const std::lock_guard guard(*placed_.lock());
  --placed_.holds_;
}

void PlacedArena::begin(std::size_t plan) {
  finish();
  if (is_strict_ && live_ > 0) {
    throw PlanError("placed: a step begins while " + std::to_string(live_) +
                    " blocks of the one before live in the region; expected steps that free all blocks they allocate");
  }
  is_in_step_ = false;
  take_region();
  is_in_step_ = true;
  has_left_ = false;
  last_deviation_.reset();
  ++counts_.steps;
  if (live_ > 0) {
    ++counts_.dynamic_steps;
    return;
  }
  current_ = std::min(plan, plans_.events.size() - 1);
  const std::vector<Event>& events = plans_.events[current_];
  first_ = next_ = events.data();
  end_ = first_ + events.size() - 1;
  is_in_replay_ = true;
}

void PlacedArena::finish() noexcept {
  if (is_in_replay_ && next_ != end_) deviate({});
  stop_replay();
  has_left_ = false;
}

void PlacedArena::begin_step() {
  const std::lock_guard guard(*lock());
  begin(static_cast<std::size_t>(counts_.steps));
}

void PlacedArena::begin_step(std::size_t plan) {
  const std::lock_guard guard(*lock());
  begin(plan);
}

void PlacedArena::end_step() noexcept {
  const std::lock_guard guard(*lock());
  finish();
  is_in_step_ = false;
}

bool PlacedArena::is_in_step() const {
  const std::lock_guard guard(*lock());
  return is_in_step_;
}

void PlacedArena::set_strict(bool is_strict) {
  const std::lock_guard guard(*lock());
  is_strict_ = is_strict;
}

void PlacedArena::require_kept() const {
  const std::lock_guard guard(*lock());
  if (!is_strict_ || !last_deviation_) return;
  throw PlanError("placed: " + to_string(*last_deviation_) + "; expected steps that keep their plan");
}

std::size_t PlacedArena::release_region() noexcept {
  const std::lock_guard guard(*lock());
  return give_region_back();
}

bool PlacedArena::is_replaying() const {
  const std::lock_guard guard(*lock());
  return is_in_replay_;
}

const PlacedArena* PlacedArena::find(const Resource& resource) noexcept {
  const Resource* at = &resource;
  while (at != nullptr) {
    if (const auto* const placed = dynamic_cast<const PlacedArena*>(at)) return placed;
    const auto* const decorator = dynamic_cast<const Decorator*>(at);
    at = decorator != nullptr ? &decorator->upstream() : nullptr;
  }
  return nullptr;
}

PlacedArena* PlacedArena::find(Resource& resource) noexcept {
  return const_cast<PlacedArena*>(find(std::as_const(resource)));
}

PlacedArena::Statistics PlacedArena::statistics() const {
  const std::lock_guard guard(*lock());
  Statistics all = counts_;
  all.live_blocks = live();
  all.is_region_held = region_ != nullptr;
  return all;
}

}  // namespace thimble::memory
