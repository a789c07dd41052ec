#pragma once
// What a CUDA device can compute, where a rule of memory depends on it: which products have units for them decides
// which copies a layer makes.
//
// Policy
// - A real device is asked, once.
// - A dry device has the capability of the GPU of its number, so that a machine measures what it predicted.
// - Without such a GPU it has that of an H100, for which plans are made, or what a scope says: `thimble plan
// --hardware`.

#include <string>

#include <thimble/core/tensor/device.h>

namespace thimble {

/// 10 major + minor: 80 of an A100, 90 of an H100. 0 of a CPU.
int compute_capability(Device device);

/// "9.0"
std::string capability_text(int capability);

/// Gives this thread's dry devices a capability, for a scope; 0: the capability that they have without one.
class AssumedCapability {
 public:
  explicit AssumedCapability(int capability) noexcept;
  ~AssumedCapability();
  AssumedCapability(const AssumedCapability&) = delete;
  AssumedCapability& operator=(const AssumedCapability&) = delete;

 private:
  int before_;
};

}  // namespace thimble
