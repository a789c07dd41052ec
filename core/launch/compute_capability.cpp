#include <thimble/core/launch/compute_capability.h>

#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/tensor/context.h>

namespace thimble {
namespace {

constexpr int of_plans = 90;  // H100

}  // namespace

int compute_capability(memory::Device device) {
  if (!device.is_cuda()) return 0;
  if (device.is_dry && context().assumed_capability != 0) return context().assumed_capability;
  const kernels::DeviceRuntime* const runtime = kernels::device_runtime_cuda;
  const int own = runtime != nullptr ? runtime->capability(device.index) : 0;
  return own != 0 || !device.is_dry ? own : of_plans;
}

std::string capability_text(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

AssumedCapability::AssumedCapability(int capability) noexcept : before_(context().assumed_capability) {
  context().assumed_capability = capability;
}

AssumedCapability::~AssumedCapability() { context().assumed_capability = before_; }

bool allows_tf32() noexcept { return context().allows_tf32; }

Tf32Scope::Tf32Scope(bool is_allowed) noexcept : before_(context().allows_tf32) { context().allows_tf32 = is_allowed; }

Tf32Scope::~Tf32Scope() { context().allows_tf32 = before_; }

}  // namespace thimble
