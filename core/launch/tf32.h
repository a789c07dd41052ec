#pragma once
// Whether f32 products on a CUDA device may be computed in TF32: operands rounded to 11 significant bits (f32 has 24),
// sums in f32. Several times as fast on tensor cores, and up to 2^-11 of each operand less exact, so it is off unless
// somebody asks for it.
//
//   const Tf32Scope fast(true);
//
// Policy
// - It is about f32 operands: of products and convolutions by cuBLASLt and cuDNN, and of attention, whose own kernels
//   run on tensor cores in heads of 16, 32, ..., 128 (core/kernels/cuda_workspace.h); forward and backward. Other own
//   kernels, other dtypes and the CPU do not look at it.
// - A run is deterministic with it as without, and predicted bytes are the same. Results differ from those without: a
//   run that is compared, resumed or recomputed has it on throughout or off throughout.

namespace thimble {

/// In this thread; false unless a scope says otherwise.
bool allows_tf32() noexcept;

/// Allows it, or not, for a scope.
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
