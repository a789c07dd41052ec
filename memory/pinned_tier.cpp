#include <thimble/memory/pinned_tier.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>

namespace thimble {
namespace pinned_tier_detail {

constexpr std::size_t slot_alignment = 512;

/// What a ticket names, and its transfer while there is one.
struct Entry {
  std::size_t offset = 0;
  std::size_t bytes = 0;
  void* transfer = nullptr;
};

std::size_t rounded_up(std::size_t bytes) { return (bytes + slot_alignment - 1) / slot_alignment * slot_alignment; }

}  // namespace pinned_tier_detail

class PinnedTier::State {
  using Entry = pinned_tier_detail::Entry;

 public:
  State(Device device, std::size_t capacity_bytes)
      : device_(device), capacity_(pinned_tier_detail::rounded_up(capacity_bytes)) {
    if (device.is_cpu()) throw DeviceError("pinned tier: " + to_string(device) + "; allowed: a CUDA device");
    if (capacity_bytes == 0) throw ValueError("pinned tier: a capacity of 0 bytes; at least 1 is allowed");
    if (device.is_dry) return;
    runtime_ = &kernels::device_runtime(device);
    memory_ = static_cast<std::byte*>(runtime_->allocate_pinned(capacity_));
  }
  ~State() {
    if (!memory_) return;
    for (auto& [ticket, entry] : entries_) finish(entry);
    try {
      runtime_->synchronize(device_);  // nothing reads or writes the memory any more
    } catch (const DeviceError&) {     // the next launch reports it
    }
    runtime_->free_pinned(memory_);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Device device() const noexcept { return device_; }

  Ticket write(const void* from, std::size_t bytes) {
    if (bytes == 0) throw ValueError("pinned tier: a write of 0 bytes");
    const std::lock_guard lock(mutex_);
    Entry entry{slot_for(bytes), bytes, nullptr};
    try {
      if (memory_) entry.transfer = runtime_->begin_transfer(device_, memory_ + entry.offset, from, bytes);
      entries_.emplace(last_ticket_ + 1, entry);
    } catch (...) {
      free_[pinned_tier_detail::rounded_up(bytes)].push_back(entry.offset);
      throw;
    }
    ++statistics_.writes;
    statistics_.bytes_written += bytes;
    statistics_.live_bytes += bytes;
    return ++last_ticket_;
  }

  void read(Ticket ticket, void* to) {
    const std::lock_guard lock(mutex_);
    Entry& entry = find(ticket);
    if (memory_) {
      if (entry.transfer) runtime_->end_transfer(device_, std::exchange(entry.transfer, nullptr));
      entry.transfer = runtime_->begin_transfer(device_, to, memory_ + entry.offset, entry.bytes);
    }
    ++statistics_.reads;
    statistics_.bytes_read += entry.bytes;
  }

  void wait(Ticket ticket) {
    const std::lock_guard lock(mutex_);
    Entry& entry = find(ticket);
    if (entry.transfer) runtime_->end_transfer(device_, std::exchange(entry.transfer, nullptr));
  }

  void drop(Ticket ticket) noexcept {
    const std::lock_guard lock(mutex_);
    const auto at = entries_.find(ticket);
    if (at == entries_.end()) return;
    finish(at->second);
    statistics_.live_bytes -= at->second.bytes;
    free_[pinned_tier_detail::rounded_up(at->second.bytes)].push_back(at->second.offset);
    entries_.erase(at);
  }

  TierStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

 private:
  std::size_t slot_for(std::size_t bytes) {
    const std::size_t size = pinned_tier_detail::rounded_up(bytes);
    std::vector<std::size_t>& free = free_[size];
    if (!free.empty()) {
      const std::size_t offset = free.back();
      free.pop_back();
      return offset;
    }
    if (size > capacity_ || statistics_.committed_bytes > capacity_ - size) {
      throw FileError(
          "pinned memory of " + to_string(device_), statistics_.committed_bytes,
          "no room for " + std::to_string(bytes) + " bytes within the capacity of " + std::to_string(capacity_));
    }
    const std::size_t offset = statistics_.committed_bytes;
    statistics_.committed_bytes += size;
    return offset;
  }

  Entry& find(Ticket ticket) {
    const auto at = entries_.find(ticket);
    if (at == entries_.end()) throw ValueError("pinned tier: ticket " + std::to_string(ticket) + " is not there");
    return at->second;
  }

  void finish(Entry& entry) noexcept {
    if (!entry.transfer) return;
    try {
      runtime_->end_transfer(device_, std::exchange(entry.transfer, nullptr));
    } catch (const DeviceError&) {  // the next launch reports it
    }
  }

  Device device_;
  std::size_t capacity_;
  const kernels::DeviceRuntime* runtime_ = nullptr;
  std::byte* memory_ = nullptr;  // null on a dry device
  mutable std::mutex mutex_;
  std::map<Ticket, Entry> entries_;
  std::map<std::size_t, std::vector<std::size_t>> free_;  // offsets of slots, by size
  Ticket last_ticket_ = 0;
  TierStatistics statistics_;
};

PinnedTier::PinnedTier(Device device, std::size_t capacity_bytes)
    : state_(std::make_unique<State>(device, capacity_bytes)) {}
PinnedTier::~PinnedTier() = default;

Device PinnedTier::device() const noexcept { return state_->device(); }
Ticket PinnedTier::write(const void* from, std::size_t bytes, Stream) { return state_->write(from, bytes); }
void PinnedTier::read(Ticket ticket, void* to, Stream) { state_->read(ticket, to); }
void PinnedTier::wait(Ticket ticket) { state_->wait(ticket); }
void PinnedTier::drop(Ticket ticket) noexcept { state_->drop(ticket); }
TierStatistics PinnedTier::statistics() const { return state_->statistics(); }

}  // namespace thimble
