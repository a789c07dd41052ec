#pragma once
// Whether f32 products on a CUDA device may be computed in TF32: operands rounded to 11 significant bits (f32 has 24),
// sums in f32. Several times as fast on tensor cores, with a relative error up to 2^-11 of each operand, so it is off
// by default.
//
//   const Tf32Scope fast(true);
//
// Policy
// - It affects f32 operands of products and convolutions by cuBLASLt and cuDNN, and of attention, whose kernels run on
//   tensor cores in heads of 16, 32, ..., 128 (core/kernels/cuda_workspace.h); forward and backward. Other kernels,
//   other dtypes and the CPU ignore it.
// - A run is deterministic with and without it, and predicted bytes are equal. Results differ: a run that is compared,
//   resumed or recomputed has it on throughout or off throughout.

namespace thimble {

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
