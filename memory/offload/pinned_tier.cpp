#include <thimble/memory/offload/pinned_tier.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/numbers/integers.h>
#include <thimble/core/tensor/context.h>

namespace thimble::memory {

namespace {

void check(Device device) {
  if (!device.is_cuda()) throw DeviceError("pinned memory: for " + to_string(device) + "; expected a CUDA device");
}

}  // namespace

PinnedMemory::PinnedMemory(Device device) : device_(device.is_dry ? dry(cpu) : cpu) {
  check(device);
  if (device.is_dry) return;
  const kernels::DeviceRuntime& runtime = kernels::device_runtime(device);
  allocate_ = runtime.allocate_pinned;
  free_ = runtime.free_pinned;
}

Block* PinnedMemory::allocate(const Request& request) {
  auto block = std::make_unique<Block>();
  if (allocate_) block->address = static_cast<std::byte*>(allocate_(request.bytes));
  block->bytes = request.bytes;
  block->category = request.category;
  block->path = request.path;
  return block.release();
}

void PinnedMemory::deallocate(Block* block, Stream) noexcept {
  const std::unique_ptr<Block> own(block);
  if (own && own->address) free_(own->address);
}

const std::shared_ptr<Ledger>& pinned_ledger(Device device) {
  check(device);
  // One for every possible CUDA device, dry ones last; never destroyed, like the default resources.
  static auto* const ledgers = new std::array<std::shared_ptr<Ledger>, 2 * 256>;
  static std::mutex mutex;
  const std::lock_guard guard(mutex);
  std::shared_ptr<Ledger>& ledger = (*ledgers)[(device.is_dry ? 256u : 0u) + device.index];
  if (!ledger) ledger = std::make_shared<Ledger>(std::make_shared<PinnedMemory>(device));
  return ledger;
}

namespace {

constexpr std::size_t slot_alignment = 512;
constexpr std::size_t smallest_slab = std::size_t{2} << 20, largest_slab = std::size_t{64} << 20;

std::size_t slot_bytes(std::size_t bytes) { return round_up(bytes, slot_alignment); }

/// Size of the next slab: for a slot of `slot` bytes, after `committed` bytes of slabs, with `left` bytes of capacity.
std::size_t next_slab_bytes(std::size_t slot, std::size_t committed, std::size_t left) {
  const std::size_t grown = std::max(slot, std::clamp(committed, smallest_slab, largest_slab));
  return std::min(round_up(grown, smallest_slab), left);
}

}  // namespace

class PinnedTier::State {
  /// One block of pinned memory, with slots up to `used`.
  struct Slab {
    Tensor memory;
    std::unique_ptr<WritePin> pin;  // null on a dry device
    std::size_t bytes = 0, used = 0;

    std::byte* at(std::size_t offset) const { return pin ? static_cast<std::byte*>(pin->data()) + offset : nullptr; }
  };

  /// A ticket's bytes, and their running transfer if any.
  struct Entry {
    std::byte* slot = nullptr;  // null on a dry device
    std::size_t bytes = 0;
    void* transfer = nullptr;
  };

  /// Slots of one size.
  struct Slots {
    std::vector<std::byte*> free;
    std::size_t count = 0;
  };

 public:
  State(Device device, std::size_t capacity_bytes)
      : device_(device),
        capacity_(capacity_bytes == 0 ? std::numeric_limits<std::size_t>::max() : slot_bytes(capacity_bytes)) {
    if (device.is_cpu()) throw DeviceError("pinned tier: " + to_string(device) + "; expected a CUDA device");
    if (!device.is_dry) runtime_ = &kernels::device_runtime(device);
  }
  ~State() {
    if (runtime_ == nullptr) return;
    for (auto& [ticket, entry] : entries_) finish(entry);
    try {
      runtime_->synchronize(device_);  // afterwards nothing uses the memory
    } catch (const DeviceError&) {     // the next launch reports it
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Device device() const noexcept { return device_; }

  Ticket write(const void* from, std::size_t bytes) {
    if (bytes == 0) throw ValueError("pinned tier: a write of 0 bytes");
    const std::lock_guard lock(mutex_);
    const Ticket ticket = last_ticket_ + 1;
    const auto at = entries_.try_emplace(ticket).first;
    Entry& entry = at->second;
    try {
      entry.slot = take_slot(slot_bytes(bytes));
      entry.bytes = bytes;
      if (runtime_) entry.transfer = runtime_->begin_transfer(device_, entry.slot, from, bytes);
    } catch (...) {
      if (entry.bytes != 0) give_slot(entry);
      entries_.erase(at);
      throw;
    }
    last_ticket_ = ticket;
    ++statistics_.writes;
    statistics_.bytes_written += bytes;
    statistics_.live_bytes += bytes;
    return ticket;
  }

  void read(Ticket ticket, void* to) {
    const std::lock_guard lock(mutex_);
    Entry& entry = find(ticket);
    if (runtime_) {
      if (entry.transfer) runtime_->end_transfer(device_, std::exchange(entry.transfer, nullptr));
      entry.transfer = runtime_->begin_transfer(device_, to, entry.slot, entry.bytes);
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
    give_slot(at->second);
    entries_.erase(at);
  }

  TierStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

 private:
  std::byte* take_slot(std::size_t bytes) {
    Slots& slots = slots_[bytes];
    if (!slots.free.empty()) {
      std::byte* const slot = slots.free.back();
      slots.free.pop_back();
      return slot;
    }
    slots.free.reserve(slots.count + 1);  // so that drop() allocates nothing
    Slab& slab = slab_for(bytes);
    std::byte* const slot = slab.at(slab.used);
    slab.used += bytes;
    ++slots.count;
    return slot;
  }

  void give_slot(const Entry& entry) noexcept {  // take_slot() made room in the list
    slots_[slot_bytes(entry.bytes)].free.push_back(entry.slot);
  }

  Slab& slab_for(std::size_t bytes) {
    for (Slab& slab : slabs_) {
      if (slab.bytes - slab.used >= bytes) return slab;
    }
    const std::size_t committed = statistics_.committed_bytes;
    if (bytes > capacity_ - committed) {
      throw FileError("pinned memory of " + to_string(device_), committed,
                      "no room for " + std::to_string(bytes) + " bytes within the capacity of " +
                          std::to_string(capacity_) + ", " + std::to_string(committed) + " of them are taken");
    }
    Slab slab;
    slab.bytes = next_slab_bytes(bytes, committed, capacity_ - committed);
    {
      const ResourceScope pinned(pinned_ledger(device_));
      const PathScope path(join_path(0, "offload"));  // not the writer's path
      slab.memory = Tensor::empty({static_cast<std::int64_t>(slab.bytes)}, DType::u8, device_.is_dry ? dry(cpu) : cpu,
                                  Category::workspace);
    }
    if (runtime_) slab.pin = std::make_unique<WritePin>(slab.memory);
    slabs_.push_back(std::move(slab));
    statistics_.committed_bytes += slabs_.back().bytes;
    return slabs_.back();
  }

  Entry& find(Ticket ticket) {
    const auto at = entries_.find(ticket);
    if (at == entries_.end())
      throw ValueError("pinned tier: ticket " + std::to_string(ticket) + " was never given or is dropped");
    return at->second;
  }

  void finish(Entry& entry) noexcept {
    if (!entry.transfer) return;
    try {
      runtime_->end_transfer(device_, std::exchange(entry.transfer, nullptr));
    } catch (const DeviceError&) {  // the next launch reports it
    }
  }

  const Device device_;
  const std::size_t capacity_;
  const kernels::DeviceRuntime* runtime_ = nullptr;  // null on a dry device
  mutable std::mutex mutex_;                         // guards the members below
  std::vector<Slab> slabs_;
  std::map<Ticket, Entry> entries_;
  std::map<std::size_t, Slots> slots_;  // by size
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

}  // namespace thimble::memory
