#pragma once
// The host's pinned memory, for a GPU's copies beside its kernels, as a resource.
//
// Policy
// - A separate ledger counts the bytes of a GPU's tiers, beside the ledgers of the GPU's arena, which counts only
//   device bytes, and of the host's. memory::summary(cuda()) has a line for it.
// - Each block is taken from the driver and given back to it. That is slow, so tiers take large blocks. None moves.
// - On a dry device there is no memory; the books are as on a real one.

#include <cstddef>
#include <memory>

#include <thimble/memory/offload/tier.h>
#include <thimble/memory/policies/ledger.h>

namespace thimble {

/// For the copies of `device`, a CUDA one; its tensors are on the cpu (for a dry device on dry(cpu)). Throws
/// DeviceError for a missing device, and OutOfMemory when a block is requested.
class PinnedMemory final : public memory::Resource {
 public:
  explicit PinnedMemory(memory::Device device);

  memory::Block* allocate(const Request& request) override;
  void deallocate(memory::Block* block, Stream stream) noexcept override;
  void relabel(memory::Block* block, Category category) noexcept override { block->category = category; }
  memory::Device device() const noexcept override { return device_; }

 private:
  memory::Device device_;
  void* (*allocate_)(std::size_t bytes) = nullptr;  // null on a dry device
  void (*free_)(void* memory) noexcept = nullptr;
};

/// The books of a device's pinned memory, and the resource to take it from: made at first use, shared by all.
const std::shared_ptr<Ledger>& pinned_ledger(memory::Device device);

// ---- A tier in the host's memory, for the tensors of a GPU.
//
// Policy
// - Its memory is pinned and comes in slabs, booked as workspace under "offload";
//   it takes no device memory. A write takes a slot: the last one freed of the same size, or a new one in the first
//   slab that has room behind its slots. If none has, the tier takes one more slab: as large as all before together,
//   but at least 2 MiB and at most 64 MiB, or the slot's size, in whole 2 MiB. A training step writes the same sizes
//   again and again: the tier stops growing after the first.
// - Its bytes depend only on the sizes of the writes and drops, so a dry run predicts them exactly.
// - Transfers go to the device's copy stream: behind earlier kernels, beside later ones. wait() and drop() make later
//   kernels wait for the transfer; the host never waits (GPUs only: there is no other thread). So later launches may
//   reuse the memory as soon as wait() returns.
// - On a dry device there is no memory; slots, slabs and capacity are as on a real one.
//
// Terms
//   slab   one block of pinned memory; the tier keeps it to its end

class PinnedTier final : public Tier {
 public:
  /// For the memory of `device`, a CUDA device or a dry one. The capacity bounds the slabs' bytes, rounded up to 512; 0
  /// is unbounded. Throws DeviceError (the cpu, which needs no copy in its own memory; a missing device).
  explicit PinnedTier(memory::Device device, std::size_t capacity_bytes = 0);
  ~PinnedTier() override;
  PinnedTier(const PinnedTier&) = delete;
  PinnedTier& operator=(const PinnedTier&) = delete;

  memory::Device device() const noexcept override;
  /// Throws FileError when the capacity is used up, OutOfMemory when the host lacks the pinned memory; nothing has
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

}  // namespace thimble
