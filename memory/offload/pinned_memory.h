#pragma once
// The host's pinned memory, for a GPU's copies beside its kernels, as a resource.
//
// Policy
// - A separate ledger counts the bytes of a GPU's tiers, beside the ledgers of the GPU's arena, which counts only
//   device bytes, and of the host's. memory::summary(cuda()) has a line for it.
// - Each block is taken from the driver and given back to it. That is slow, so tiers take large blocks. None moves.
// - On a dry device there is no memory; the books are as on a real one.

#include <memory>

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

}  // namespace thimble
