#pragma once
// A tier in the host's memory, for the tensors of a GPU.
//
// Policy
// - All of its memory is pinned and taken when the tier is made. A write takes a slot: the last one freed of the same
//   size, or a new one behind all others; a training step writes the same sizes again and again.
// - Transfers go to the device's copy stream: behind the kernels launched before, beside those launched after. wait()
//   and drop() put the kernels launched later behind the transfer; the host never waits (GPUs only: there is no other
//   thread). So memory may be reused as soon as wait() returns, by what is launched from then on.
// - On a dry device there is no memory; slots and capacity are as on a real one.

#include <cstddef>
#include <memory>

#include <thimble/memory/tier.h>

namespace thimble {

class PinnedTier final : public Tier {
 public:
  /// For the memory of `device`, a CUDA device or a dry one; the capacity is rounded up to 512. Throws ValueError
  /// (capacity 0), DeviceError (the cpu, which needs no copy in its own memory; a device that is not there),
  /// OutOfMemory.
  PinnedTier(Device device, std::size_t capacity_bytes);
  ~PinnedTier() override;
  PinnedTier(const PinnedTier&) = delete;
  PinnedTier& operator=(const PinnedTier&) = delete;

  Device device() const noexcept override;
  /// Throws FileError when the capacity is used up.
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
