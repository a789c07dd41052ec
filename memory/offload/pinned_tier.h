#pragma once
// A tier in the host's memory, for the tensors of a GPU.
//
// Policy
// - Its memory is pinned and comes in slabs, from memory/offload/pinned_memory.h, booked as workspace under "offload";
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

#include <cstddef>
#include <memory>

#include <thimble/memory/offload/tier.h>

namespace thimble {

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
