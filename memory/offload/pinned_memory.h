#pragma once
// The host's pinned memory, which a GPU's copies go to and come from beside its kernels, as a resource.
//
// Policy
// - A ledger of its own counts the bytes that a GPU's tiers hold, beside the ledgers of the GPU's arena, which counts
//   device bytes only, and of the host's. memory::summary(cuda()) has a line for it.
// - Each block is taken from the driver and given back to it. That is slow, so tiers take large blocks. None moves.
// - On a dry device there is no memory; the books are as on a real one.

#include <memory>

#include <thimble/memory/policies/ledger.h>

namespace thimble {

/// For the copies of `device`, a CUDA one; what is in it are tensors of the cpu (on a dry device of dry(cpu)). Throws
/// DeviceError for a device that is not there, and when a block is asked for OutOfMemory.
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

/// The books of a device's pinned memory, and the resource to take it from: made at first use, shared by all.
const std::shared_ptr<Ledger>& pinned_ledger(Device device);

}  // namespace thimble
