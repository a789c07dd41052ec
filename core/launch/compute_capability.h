#pragma once
// The compute capability of CUDA devices, where memory depends on it: a layer makes other copies for products that the
// device has units for.
//
// Policy
// - A real device is asked, once.
// - A dry device has the capability of the GPU of its number, so that a machine measures what it predicted.
// - Without such a GPU it has the capability of an H100, or of the scope's choice: `thimble plan --hardware`.

#include <string>

#include <thimble/core/tensor/device.h>

namespace thimble {

/// 10 major + minor: 80 on A100, 90 on H100, 0 on a CPU.
int compute_capability(memory::Device device);

/// "9.0"
std::string capability_text(int capability);

/// Sets the capability of this thread's dry devices for a scope; 0 restores the default.
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
