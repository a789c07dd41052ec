#include <thimble/memory/policies/trace.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include <thimble/core/error.h>

namespace thimble::memory {

Trace::Trace(std::shared_ptr<Resource> upstream) : Decorator(std::move(upstream)) {}

void Trace::record(const Event& event) noexcept {
  try {
    events_.push_back(event);
  } catch (const std::bad_alloc&) {
    is_complete_ = false;  // reported by events()
  }
}

Block* Trace::do_allocate(const Request& request) {
  Block* const block = upstream_allocate(request);
  const auto alignment = static_cast<std::uint32_t>(request.alignment);
  try {
    live_.emplace(block, Live{next_id_, alignment});
  } catch (const std::bad_alloc&) {
    upstream_deallocate(block, nullptr);
    throw OutOfMemory("trace: the host has no memory for its table of blocks", {.requested_bytes = request.bytes});
  }
  record({Action::allocate, request.category, request.path, alignment, next_id_++, request.bytes});
  return block;
}

void Trace::do_deallocate(Block* block, Stream stream) noexcept {
  if (const auto found = live_.find(block); found != live_.end()) {
    record({Action::free, block->category, block->path, 0, found->second.id, block->bytes});
    live_.erase(found);
  }
  upstream_deallocate(block, stream);
}

void Trace::do_relabel(Block* block, Category category) noexcept {
  if (const auto found = live_.find(block); found != live_.end()) {
    record({Action::relabel, category, block->path, 0, found->second.id, block->bytes});
  }
  upstream_relabel(block, category);
}

void Trace::restart() {
  const std::lock_guard guard(*lock());
  std::vector<std::pair<std::uint64_t, const Block*>> order;
  order.reserve(live_.size());
  for (const auto& [block, live] : live_) order.emplace_back(live.id, block);
  std::sort(order.begin(), order.end());
  events_.clear();
  is_complete_ = true;
  next_id_ = 0;
  for (const auto& [id, block] : order) {
    Live& live = live_.at(block);
    live.id = next_id_++;
    record({Action::allocate, block->category, block->path, live.alignment, live.id, block->bytes});
  }
}

std::vector<Trace::Event> Trace::events() const {
  const std::lock_guard guard(*lock());
  if (!is_complete_) throw OutOfMemory("trace: the host had no memory to record every event", {});
  return events_;
}

std::size_t Trace::event_count() const {
  const std::lock_guard guard(*lock());
  return events_.size();
}

std::vector<Trace::Lifetime> lifetimes(const std::vector<Trace::Event>& events) {
  std::vector<Trace::Lifetime> result;
  for (std::size_t time = 0; time < events.size(); ++time) {
    const Trace::Event& event = events[time];
    if (event.action == Trace::Action::allocate) {
      result.push_back({event.block, time, events.size(), event.bytes, event.alignment});
    } else if (event.action == Trace::Action::free) {
      result.at(event.block).upper = time;  // ids count allocations
    }
  }
  return result;
}

std::vector<CategoryBytes> timeline(const std::vector<Trace::Event>& events) {
  std::vector<CategoryBytes> result;
  result.reserve(events.size());
  std::vector<Category> category_of;  // by block id
  CategoryBytes live{};
  for (const Trace::Event& event : events) {
    const auto category = static_cast<std::size_t>(event.category);
    switch (event.action) {
      case Trace::Action::allocate:
        category_of.push_back(event.category);
        live[category] += event.bytes;
        break;
      case Trace::Action::free:
        live[category] -= event.bytes;
        break;
      case Trace::Action::relabel:
        live[static_cast<std::size_t>(category_of.at(event.block))] -= event.bytes;
        category_of[event.block] = event.category;
        live[category] += event.bytes;
        break;
    }
    result.push_back(live);
  }
  return result;
}

std::string to_csv(const std::vector<Trace::Event>& events) {
  std::string text = "id,lower,upper,size\n";
  for (const Trace::Lifetime& block : lifetimes(events)) {
    text += std::to_string(block.block) + "," + std::to_string(block.lower) + "," + std::to_string(block.upper) + "," +
            std::to_string(block.bytes) + "\n";
  }
  return text;
}

}  // namespace thimble::memory
