#pragma once
// The compute capability of CUDA devices, where memory depends on it: a layer makes other copies for products that the
// device has units for.
//
// Policy
// - A real device is asked, once.
// - A dry device has the capability of the GPU of its number, so that a machine measures what it predicted.
// - Without such a GPU it has the capability of an H100, or of the scope's choice: `thimble plan --hardware`.

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

// ---- Whether f32 products on a CUDA device may be computed in TF32: operands rounded to 11 significant bits (f32 has
// 24), sums in f32. Several times as fast on tensor cores, with a relative error up to 2^-11 of each operand, so it is
// off by default.
//
//   const Tf32Scope fast(true);
//
// Policy
// - It affects f32 operands of products and convolutions by cuBLASLt and cuDNN, and of attention, whose kernels run on
//   tensor cores in heads of 16, 32, ..., 128 (core/kernels/cuda_workspace.h); forward and backward. Other kernels,
//   other dtypes and the CPU ignore it.
// - A run is deterministic with and without it, and predicted bytes are equal. Results differ: a run that is compared,
//   resumed or recomputed has it on throughout or off throughout.

/// In this thread; false by default.
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
