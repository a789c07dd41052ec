#pragma once
// The attention kernel family: scaled dot-product attention in tiles, which never stores the (T, S) matrix of
// probabilities.

#include <cstddef>
#include <cstdint>
#include <optional>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>
#include <thimble/core/tensor/generator.h>

namespace thimble::kernels {

/// A tensor such as q, k or v: element d of head h of row t of sample b lies b batch + t row + h head + d elements
/// behind `data`.
struct AttentionOperand {
  const void* data = nullptr;
  std::int64_t batch = 0, row = 0, head = 0;
};
struct AttentionResult {
  void* data = nullptr;  ///< may be null
  std::int64_t batch = 0, row = 0, head = 0;
};

/// A factor for each row of keys or values: the factor of row t of head h of sample b lies b batch + t row + h head
/// elements behind `data`.
struct AttentionScales {
  const float* data = nullptr;  ///< defaults to 1 for every row
  std::int64_t batch = 0, row = 0, head = 0;
};

/// The caller's mask: element (b, h, t, s) lies b batch + h head + t query + s key elements behind `data`. Where a
/// boolean one is true, the query sees the key; a floating one is added to the score.
struct AttentionMask {
  const void* data = nullptr;
  DType dtype = DType::boolean;
  std::int64_t batch = 0, head = 0, query = 0, key = 0;  ///< 0 broadcasts
};

/// Shared by forward and backward. Probability (h, t, s) of sample b is dropped when its random word, word i % 4 of
/// block (i / 4, site.first_sample + b) with i = (h queries + t) keys + s, is below `threshold`: the mask that dropout
/// draws for a (B, H, T, S) tensor.
struct AttentionProblem {
  DType dtype = DType::f32;  ///< of all tensors but lse, which is f32, or f64 for f64
  std::int64_t batch = 0, heads = 0, queries = 0, keys = 0, width = 0;  ///< B, H, T, S >= 1, D
  /// Heads of q that share a head of k and v: head h of q reads head h / group. Divides `heads`. Gradients of k and v
  /// add up over a group's heads, in ascending order.
  std::int64_t group = 1;
  bool is_causal = false;   ///< query t sees only the keys s <= t + (keys - queries); keys >= queries
  std::int64_t window = 0;  ///< query t sees the keys less than this far from key t + (keys - queries); 0 disables it
  std::int64_t first_key = 0;  ///< earlier keys are hidden
  /// The document number of each key, ascending with repeats within a sample; samples lie `documents_batch` elements
  /// apart. A query sees only keys of its document.
  bool has_documents = false;
  const std::int32_t* documents = nullptr;
  std::int64_t documents_batch = 0;
  bool has_mask = false;
  AttentionMask mask;
  double scale = 1;
  bool has_dropout = false;
  std::uint32_t threshold = 0;
  double keep_scale = 1;
  RandomSite site;
  bool allows_tf32 =
      false;  ///< f32 may be rounded to TF32 before products (core/launch/compute_capability.h), but never on the CPU
  AttentionOperand q, k, v;
  /// The dtype of k and v if not `dtype`: floating, or i8 with k_scale and v_scale as row factors. CPU forward only.
  std::optional<DType> kept = {};
  AttentionScales k_scale, v_scale;
};

/// out = dropout(softmax(scale q k^T + mask)) v over the visible keys (attention_range.h, and the mask); lse[b, h, t] =
/// log sum_s exp(scale q k^T + mask), dense. Both are 0 for a query whose mask hides all keys.
struct AttentionArgs : AttentionProblem {
  AttentionResult out;
  void* lse = nullptr;  ///< may be null
};

/// The gradients of q, k and v. dq, dk and dv may alias q, k and v respectively, with the same strides.
struct AttentionGradArgs : AttentionProblem {
  AttentionOperand out, dout;
  const void* lse = nullptr;
  AttentionResult dq, dk, dv;
};

/// Workspace sizes are pure functions of sizes, dtype, thread count and instruction set, never of pointers, and grow
/// linearly with the number of keys. A workspace is aligned to 64 bytes.
struct AttentionKernels {
  std::size_t (*forward_bytes)(const AttentionProblem&, int threads) noexcept = nullptr;
  std::size_t (*backward_bytes)(const AttentionProblem&, int threads) noexcept = nullptr;
  void (*forward)(const AttentionArgs&, void* workspace, int threads) = nullptr;
  void (*backward)(const AttentionGradArgs&, void* workspace, int threads) = nullptr;
};

extern const AttentionKernels attention_cpu;
extern const AttentionKernels* const attention_cuda;  ///< null in a build without CUDA

/// The sizes of attention_cuda's workspaces without its kernels, in every build, because a dry run needs them.
extern const AttentionKernels attention_cuda_sizes;

/// Throws DeviceError when this build has no kernels for the device. A dry device has the sizes of the real one; its
/// kernels are not called.
const AttentionKernels& attention_kernels(memory::Device device);

}  // namespace thimble::kernels
