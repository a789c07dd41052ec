#include <array>
#include <mutex>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/memory/stack.h>

namespace thimble {

std::unique_ptr<memory::Backing> memory::make_backing(memory::Device device) {
  if (device.is_cpu() && device.index != 0) throw DeviceError("cpu:" + std::to_string(device.index) + ": expected cpu");
  if (device.is_dry) return memory::make_dry_backing(device);
  if (device.is_cpu()) return memory::make_cpu_backing();
  return memory::make_cuda_backing(device);
}

std::shared_ptr<memory::Resource> default_resource(memory::Device device) { return memory::default_stack(device).top; }

namespace memory {

Stack make_resource(Device device, Options options) {
  Stack stack;
  stack.arena = std::make_shared<Arena>(make_backing(device), options.arena);
  stack.top = stack.arena;
  if (!options.plans.empty()) {
    stack.top = stack.placed = std::make_shared<PlacedArena>(stack.top, std::move(options.plans));
  }
  if (options.limit_bytes != 0) stack.top = stack.limit = std::make_shared<Limit>(stack.top, options.limit_bytes);
  stack.top = stack.ledger = std::make_shared<Ledger>(stack.top);
  if (options.trace) stack.top = stack.trace = std::make_shared<Trace>(stack.top);
  return stack;
}

const Stack& default_stack(Device device) {
  // One slot for every possible device: kind, dryness, index. Never destroyed, because static tensors may outlive them.
  static constinit std::array<Stack*, 2 * 2 * 256> stacks{};
  static std::mutex mutex;
  const std::size_t slot = (device.is_cuda() ? 512u : 0u) + (device.is_dry ? 256u : 0u) + device.index;
  const std::lock_guard guard(mutex);
  if (stacks[slot] == nullptr) stacks[slot] = new Stack(make_resource(device));
  return *stacks[slot];
}

}  // namespace memory
}  // namespace thimble
