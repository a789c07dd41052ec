#pragma once
// The host's pinned memory as a resource, for copies that run concurrently with a GPU's kernels.
//
// Policy
// - A separate ledger counts the bytes of a GPU's tiers: the ledger of the GPU's arena counts only device bytes.
//   memory::summary(cuda()) has a line for it.
// - The driver allocates and frees each block, which is slow, so tiers take large blocks. Blocks never move.
// - A dry device has no memory; its books are as on a real one.

#include <cstddef>
#include <memory>

#include <thimble/memory/offload/tier.h>
#include <thimble/memory/policies/ledger.h>

namespace thimble::memory {

/// Pinned memory for `device`, a CUDA device; its tensors are on the cpu (for a dry device on dry(cpu)). The
/// constructor throws DeviceError for a missing device, allocate OutOfMemory.
class PinnedMemory final : public Resource {
 public:
  explicit PinnedMemory(Device device);

  Block* allocate(const Request& request) override;
  void deallocate(Block* block, Stream stream) noexcept override;
  void relabel(Block* block, Category category) noexcept override { block->category = category; }
  Device device() const noexcept override { return device_; }

 private:
  Device device_;
  void* (*allocate_)(std::size_t bytes) = nullptr;  // null on a dry device
  void (*free_)(void* memory) noexcept = nullptr;
};

/// The ledger over a device's pinned memory, made at first use. Tiers allocate from it.
const std::shared_ptr<Ledger>& pinned_ledger(Device device);

// ---- A tier in the host's memory, for the tensors of a GPU.
//
// Policy
// - Its memory is pinned and comes in slabs, booked as workspace under "offload"; it takes no device memory. A write
//   takes a slot: the last freed one of its size, or a new one in the first slab with room. If none has room, the tier
//   adds a slab as large as all before together, but at least 2 MiB and at most 64 MiB, or the slot's size, in whole
//   2 MiB. Training steps write the same sizes, so the tier stops growing after the first step.
// - Its bytes depend only on the sizes of the writes and drops, so a dry run predicts them exactly.
// - Transfers run on the device's copy stream, after earlier kernels and concurrently with later ones. wait() and
//   drop() make later kernels wait for the transfer; the host never waits. So later launches may reuse the memory as
//   soon as wait() returns.
// - A dry device has no memory; slots, slabs and capacity are as on a real one.
//
// Terms
//   slab   one block of pinned memory; lives as long as the tier

class PinnedTier final : public Tier {
 public:
  /// For the memory of `device`, a CUDA device, real or dry. The capacity, rounded up to 512, bounds the slabs' bytes;
  /// 0 is unbounded. Throws DeviceError for the cpu, which needs no copy in its own memory, and for a missing device.
  explicit PinnedTier(Device device, std::size_t capacity_bytes = 0);
  ~PinnedTier() override;
  PinnedTier(const PinnedTier&) = delete;
  PinnedTier& operator=(const PinnedTier&) = delete;

  Device device() const noexcept override;
  /// Throws FileError when the capacity is used up, OutOfMemory when the host has no pinned memory left; nothing has
  /// changed then.
  Ticket write(const void* from, std::size_t bytes, Stream stream = nullptr) override;
  void read(Ticket ticket, void* to, Stream stream = nullptr) override;
  void wait(Ticket ticket) override;
  void drop(Ticket ticket) noexcept override;
  TierStatistics statistics() const override;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace thimble::memory
