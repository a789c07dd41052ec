#include <thimble/memory/placed.h>

#include <algorithm>
#include <cassert>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/launch_depth.h>

namespace thimble {
namespace placed_detail {

[[noreturn]] void refuse_events(std::size_t at, std::uint64_t block, const char* what) {
  throw ValueError("make_step_plan: event " + std::to_string(at) + " " + what + " block " + std::to_string(block) +
                   "; the events are no stretch of a trace");
}

/// Whether two plans place the same blocks, allocated and freed in the same order: what they do not place (state that a
/// first step makes) may lie anywhere between.
bool places_alike(const StepPlan& a, const StepPlan& b) {
  const auto is_like = [](const memory::Buffer& x, const memory::Buffer& y) {
    return x.bytes == y.bytes && x.alignment == y.alignment;
  };
  if (!std::equal(a.buffers.begin(), a.buffers.end(), b.buffers.begin(), b.buffers.end(), is_like)) return false;
  const auto next = [](const std::vector<StepPlan::Event>& events, std::size_t at) {
    while (at < events.size() && events[at].block == StepPlan::not_placed) ++at;
    return at;
  };
  std::size_t i = next(a.events, 0), k = next(b.events, 0);
  while (i < a.events.size() && k < b.events.size()) {
    if (!(a.events[i] == b.events[k])) return false;
    i = next(a.events, i + 1), k = next(b.events, k + 1);
  }
  return i == a.events.size() && k == b.events.size();
}

}  // namespace placed_detail

StepPlan make_step_plan(std::span<const Trace::Event> events, const memory::PlacementOptions& options,
                        const StepPlan* like) {
  struct Life {
    std::size_t lower;  // index into the plan's events
    bool is_over;
  };
  StepPlan plan;
  std::unordered_map<std::uint64_t, Life> lives;  // of blocks that are allocated here
  struct Free {
    std::size_t at, lower;
  };
  std::vector<Free> frees;
  for (std::size_t at = 0; at < events.size(); ++at) {
    const Trace::Event& event = events[at];
    if (event.action == Trace::Action::allocate) {
      if (!lives.emplace(event.block, Life{plan.events.size(), false}).second) {
        placed_detail::refuse_events(at, event.block, "allocates again");
      }
      plan.events.push_back({event.bytes, event.alignment, StepPlan::not_placed});
    } else if (event.action == Trace::Action::free) {
      const auto found = lives.find(event.block);
      if (found == lives.end()) continue;  // lived before the step
      if (found->second.is_over) placed_detail::refuse_events(at, event.block, "frees again");
      found->second.is_over = true;
      frees.push_back({plan.events.size(), found->second.lower});
      plan.events.push_back({});
    }
  }
  // In order of their allocation, so that an index is the same however the frees lie.
  std::sort(frees.begin(), frees.end(), [](const Free& a, const Free& b) { return a.lower < b.lower; });
  for (const Free& free : frees) {
    const auto block = static_cast<std::uint32_t>(plan.buffers.size());
    StepPlan::Event& allocation = plan.events[free.lower];
    plan.buffers.push_back({block, free.lower, free.at, allocation.bytes, allocation.alignment});
    allocation.block = plan.events[free.at].block = block;
  }
  const bool is_like = like != nullptr && placed_detail::places_alike(*like, plan);
  plan.placement = is_like ? like->placement : memory::place(plan.buffers, options);
  return plan;
}

Placed::Placed(std::shared_ptr<Resource> upstream, std::vector<StepPlan> plans)
    : Decorator(upstream), arena_(dynamic_cast<Arena*>(upstream.get())) {
  if (plans.empty()) throw ValueError("placed: no plans; at least one is needed");
  std::size_t blocks = 0;
  for (const StepPlan& plan : plans) {
    memory::check_placement(plan.buffers, plan.placement.offsets, plan.placement.height);
    blocks += plan.buffers.size();
    region_bytes_ = std::max(region_bytes_, plan.placement.height);
  }
  handles_ = std::make_unique<Handle[]>(blocks);
  handle_count_ = blocks;
  Handle* handles = handles_.get();
  for (const StepPlan& plan : plans) {
    add_plan(plan, handles);
    handles += plan.buffers.size();
  }
  counts_.region_bytes = region_bytes_;
}

Placed::~Placed() {
  assert(live() == 0 && "a placed arena outlives its blocks");
  if (region_ != nullptr) {
    --region_->pins;
    upstream_deallocate(region_, nullptr);
  }
}

/// Throws ValueError unless every placed block is allocated once, at its lower, and freed once, at its upper.
void Placed::add_plan(const StepPlan& plan, Handle* handles) {
  const auto refuse = [](std::size_t at, const char* why) {
    throw ValueError("placed: event " + std::to_string(at) + " of a plan " + why);
  };
  std::vector<Event> events;
  events.reserve(plan.events.size() + 1);
  std::size_t placed_events = 0;
  std::uint32_t live = 0;
  for (std::size_t at = 0; at < plan.events.size(); ++at) {
    const StepPlan::Event& event = plan.events[at];
    const bool is_free = event.bytes == 0;
    if (event.block == StepPlan::not_placed) {
      if (is_free) refuse(at, "frees a block that is not placed");
      events.push_back({event.bytes, nullptr, event.alignment, live});
      continue;
    }
    if (event.block >= plan.buffers.size()) refuse(at, "names a block that is not there");
    const memory::Buffer& buffer = plan.buffers[event.block];
    const bool is_planned =
        is_free ? buffer.upper == at
                : buffer.lower == at && buffer.bytes == event.bytes && buffer.alignment == event.alignment;
    if (!is_planned) refuse(at, "is not in the lifetime of its block");
    ++placed_events;
    Handle* const handle = handles + event.block;
    if (is_free) {
      events.push_back({0, handle, 0, live--});
      continue;
    }
    handle->bytes = event.bytes;
    handle->offset = plan.placement.offsets[event.block];
    region_alignment_ = std::max(region_alignment_, std::size_t{event.alignment});
    events.push_back({event.bytes, handle, event.alignment, live++});
  }
  if (placed_events != 2 * plan.buffers.size()) refuse(plan.events.size(), "is missing: a block has no two events");
  events.push_back({0, nullptr, 0, live});
  plans_.push_back(std::move(events));
}

// In a replay on the thread that the lock is biased to, a request is a comparison: these two call nothing then. All
// else goes the usual way.
Block* Placed::allocate(const Request& request) {
  ResourceLock& guard = *lock();
  if (guard.enter_by_bias()) {
    Block* const block = take_planned(request);
    guard.leave(true);
    if (block != nullptr) return block;
  }
  return Decorator::allocate(request);
}

void Placed::deallocate(Block* block, Stream stream) noexcept {
  ResourceLock& guard = *lock();
  if (block != nullptr && guard.enter_by_bias()) {
    const bool is_planned = next_->handle == block;
    next_ += is_planned;
    guard.leave(true);
    if (is_planned) return;
  }
  Decorator::deallocate(block, stream);
}

/// The block of the next event, if that is this request and placed; else null, and nothing has changed.
Block* Placed::take_planned(const Request& request) noexcept {
  const Event& planned = *next_;
  if (planned.bytes != request.bytes || planned.alignment != request.alignment) return nullptr;
  Handle* const handle = planned.handle;
  if (handle == nullptr || launch_detail::depth > 0) return nullptr;
  ++next_;
  handle->category = request.category;
  handle->path = request.path;
  return handle;
}

Block* Placed::do_allocate(const Request& request) {
  if (Block* const block = take_planned(request)) return block;
  if (launch_detail::depth > 0) {
    throw Error("placed: allocate inside a launch; an operator allocates all it needs before it launches");
  }
  return allocate_unplaced(request);
}

/// A request that the plan does not place, or that is not the planned one.
Block* Placed::allocate_unplaced(const Request& request) {
  if (!is_in_replay_) return allocate_dynamically(request);
  if (next_ == end_ || next_->bytes != request.bytes || next_->alignment != request.alignment) {
    deviate();
    return allocate_dynamically(request);
  }
  Block* const block = allocate_dynamically(request);  // not yet past the event: this may throw
  ++next_;
  return block;
}

void Placed::do_deallocate(Block* block, Stream stream) noexcept {
  // A live block is the next event's only where that is its free: the plan allocates a handle once.
  if (next_->handle == block) {
    ++next_;
  } else if (!is_placed(block)) {
    upstream_deallocate(block, stream);
  } else {
    if (is_in_replay_) deviate();
    --live_;
  }
}

void Placed::do_relabel(Block* block, Category category) noexcept {
  if (is_placed(block)) {
    block->category = category;
  } else {
    upstream_relabel(block, category);
  }
}

Block* Placed::allocate_dynamically(const Request& request) {
  try {
    return upstream_allocate(request);
  } catch (const OutOfMemory&) {
    if (give_region_back() == 0) throw;
  }
  return upstream_allocate(request);
}

void Placed::deviate() noexcept {
  ++counts_.deviations;
  counts_.last_deviation = static_cast<std::size_t>(next_ - first_);
  stop_replay();
}

void Placed::stop_replay() noexcept {
  live_ = live();
  is_in_replay_ = false;
  next_ = &no_event;
}

void Placed::take_region() {
  if (region_ != nullptr || region_bytes_ == 0) return;
  region_ = upstream_allocate({.bytes = region_bytes_, .alignment = region_alignment_});
  ++region_->pins;
  if (region_->address == region_address_) return;
  region_address_ = region_->address;
  for (std::size_t i = 0; i < handle_count_; ++i) handles_[i].address = region_address_ + handles_[i].offset;
}

std::size_t Placed::give_region_back() noexcept {
  if (region_ == nullptr || is_in_replay_ || live_ > 0 || holds_ > 0) return 0;
  --region_->pins;
  upstream_deallocate(region_, nullptr);
  region_ = nullptr;
  return region_bytes_;
}

Placed::Hold::Hold(Placed& placed) : placed_(placed) {
  {
    const std::lock_guard guard(*placed_.lock());
    placed_.take_region();
    ++placed_.holds_;
  }
  if (placed_.arena_ != nullptr) still_ = std::make_unique<Arena::Still>(*placed_.arena_);
}

Placed::Hold::~Hold() {
  const std::lock_guard guard(*placed_.lock());
  --placed_.holds_;
}

void Placed::begin(std::size_t plan) {
  finish();
  is_in_step_ = false;
  take_region();
  is_in_step_ = true;
  ++counts_.steps;
  if (live_ > 0) {
    ++counts_.dynamic_steps;
    return;
  }
  const std::vector<Event>& events = plans_[std::min(plan, plans_.size() - 1)];
  first_ = next_ = events.data();
  end_ = first_ + events.size() - 1;
  is_in_replay_ = true;
}

void Placed::finish() noexcept {
  if (is_in_replay_ && next_ != end_) deviate();
  stop_replay();
}

void Placed::begin_step() {
  const std::lock_guard guard(*lock());
  begin(static_cast<std::size_t>(counts_.steps));
}

void Placed::begin_step(std::size_t plan) {
  const std::lock_guard guard(*lock());
  begin(plan);
}

void Placed::end_step() noexcept {
  const std::lock_guard guard(*lock());
  finish();
  is_in_step_ = false;
}

bool Placed::is_in_step() const {
  const std::lock_guard guard(*lock());
  return is_in_step_;
}

std::size_t Placed::release_region() noexcept {
  const std::lock_guard guard(*lock());
  return give_region_back();
}

bool Placed::is_replaying() const {
  const std::lock_guard guard(*lock());
  return is_in_replay_;
}

const Placed* Placed::find(const Resource& resource) noexcept {
  const Resource* at = &resource;
  while (at != nullptr) {
    if (const auto* const placed = dynamic_cast<const Placed*>(at)) return placed;
    const auto* const decorator = dynamic_cast<const Decorator*>(at);
    at = decorator != nullptr ? &decorator->upstream() : nullptr;
  }
  return nullptr;
}

Placed* Placed::find(Resource& resource) noexcept { return const_cast<Placed*>(find(std::as_const(resource))); }

Placed::Statistics Placed::statistics() const {
  const std::lock_guard guard(*lock());
  Statistics all = counts_;
  all.live_blocks = live();
  all.is_region_held = region_ != nullptr;
  return all;
}

}  // namespace thimble
