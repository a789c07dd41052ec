#include <thimble/memory/offload/pinned_memory.h>

#include <array>
#include <mutex>

#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>

namespace thimble {

namespace pinned_memory_detail {

void check(memory::Device device) {
  if (!device.is_cuda()) throw DeviceError("pinned memory: for " + to_string(device) + "; expected a CUDA device");
}

}  // namespace pinned_memory_detail

PinnedMemory::PinnedMemory(memory::Device device) : device_(device.is_dry ? dry(cpu) : cpu) {
  pinned_memory_detail::check(device);
  if (device.is_dry) return;
  const kernels::DeviceRuntime& runtime = kernels::device_runtime(device);
  allocate_ = runtime.allocate_pinned;
  free_ = runtime.free_pinned;
}

memory::Block* PinnedMemory::allocate(const Request& request) {
  auto block = std::make_unique<memory::Block>();
  if (allocate_) block->address = static_cast<std::byte*>(allocate_(request.bytes));
  block->bytes = request.bytes;
  block->category = request.category;
  block->path = request.path;
  return block.release();
}

void PinnedMemory::deallocate(memory::Block* block, Stream) noexcept {
  const std::unique_ptr<memory::Block> own(block);
  if (own && own->address) free_(own->address);
}

const std::shared_ptr<Ledger>& pinned_ledger(memory::Device device) {
  pinned_memory_detail::check(device);
  // One for every possible CUDA device, dry ones last; never destroyed, like the default resources.
  static auto* const ledgers = new std::array<std::shared_ptr<Ledger>, 2 * 256>;
  static std::mutex mutex;
  const std::lock_guard guard(mutex);
  std::shared_ptr<Ledger>& ledger = (*ledgers)[(device.is_dry ? 256u : 0u) + device.index];
  if (!ledger) ledger = std::make_shared<Ledger>(std::make_shared<PinnedMemory>(device));
  return ledger;
}

}  // namespace thimble
