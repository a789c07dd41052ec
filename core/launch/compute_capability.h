#pragma once
// The compute capability of CUDA devices. Memory depends on it: a layer makes other copies if the device has units for
// its products.
//
// Policy
// - A real device is queried once.
// - A dry device has the capability of the GPU of its number, so that a prediction holds for the machine it is made on.
// - Without such a GPU it has an H100's. AssumedCapability overrides both (`thimble plan --hardware`).

#include <string>

#include <thimble/core/device.h>

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

// ---- TF32 for f32 products on a CUDA device: operands rounded to 11 significant bits (f32 has 24), sums in f32. It is
// several times as fast on tensor cores, with a relative error up to 2^-11 of each operand, and off by default.
//
//   const Tf32Scope fast(true);
//
// Policy
// - It affects f32 operands of products and convolutions by cuBLASLt and cuDNN, and of attention, whose kernels use
//   tensor cores for heads of 16, 32, ..., 128 (core/kernels/cuda_workspace.h), in forward and backward. Other kernels,
//   other dtypes and the CPU ignore it.
// - A run is deterministic with and without it, and predicted bytes are equal. Results differ, so it must not change
//   within a run that is compared, resumed or recomputed.

/// Whether this thread allows it.
bool allows_tf32() noexcept;

/// Sets it for a scope.
class Tf32Scope {
 public:
  explicit Tf32Scope(bool is_allowed) noexcept;
  ~Tf32Scope();
  Tf32Scope(const Tf32Scope&) = delete;
  Tf32Scope& operator=(const Tf32Scope&) = delete;

 private:
  bool before_;
};

}  // namespace thimble
