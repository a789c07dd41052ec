#pragma once
// Adam (Kingma & Ba 2015, algorithm 1) and AdamW (Loshchilov & Hutter 2019, algorithm 2).

#include <thimble/optim/optimizer.h>

namespace thimble::optim {

struct AdamOptions {
  double rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool is_decoupled = true;  ///< AdamW; false adds the decay to the gradient (Adam with L2)
  /// Tensors of lower rank (biases, norms) are not decayed. 0 decays all; 2 is usual for transformers.
  int smallest_decayed_rank = 0;
  std::shared_ptr<memory::Tier> tier = nullptr;  ///< for the state between updates; null keeps it here
  NarrowUpdate narrow = NarrowUpdate::rounded;   ///< of parameters narrower than f32 (optim/moments.h)
  MomentFormat moments = {};                     ///< how the two are stored (optim/moments.h)
};

/// Arithmetic is in f32, where a square above 3.4e38 is infinite: one gradient above 1.8e19 (with `gradient_factor`)
/// makes its element's second moment infinite for good. From then on that element only decays, all others go on, and
/// the next checkpoint is refused with NotFiniteError that names the moment. Moments in u8 share a scale, so the 256
/// elements of the block become NaN in the next step. Clipping (optim/clip.h) squares in f64 and prevents this.
///
/// State, in bytes per parameter element: moments in f32 8, in bf16 4, in u8 2 + 8 / 256, plus the extra of `narrow`.
class Adam final : public Optimizer {
 public:
  /// Throws ValueError for options out of range, DTypeError as make_extra does. State: `<parameter>.first_moment` and
  /// `.second_moment`, in u8 also `.first_moment_scale` and `.second_moment_scale`; `.master` or `.compensation`.
  Adam(std::vector<Named> parameters, AdamOptions options);
  /// "adam", or "adamw" with decoupled decay; "adam_bf16", "adam8" and so on with moments in bf16 and u8.
  const char* name() const noexcept override;
  std::vector<Setting> settings() const override;
  bool takes_gradient_factor() const noexcept override { return true; }

 private:
  void update(std::span<const std::size_t> indices) override;
  kernels::AdamArgs arguments(std::size_t index, const Addresses& at) const;

  AdamOptions options_;
  std::vector<kernels::AdamArgs> list_;  // the current update's; reserved for all parameters
};

// ---- Adam-mini (Zhang et al. 2024, arXiv:2406.16793, algorithm 1): Adam with one second moment for each block of a
// parameter that shares a curvature.

struct AdamMiniOptions {
  double rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;                       ///< decoupled: p *= 1 - rate decay
  int smallest_decayed_rank = 0;                 ///< tensors of lower rank are not decayed
  std::shared_ptr<memory::Tier> tier = nullptr;  ///< for the state between updates; null keeps it here
  NarrowUpdate narrow = NarrowUpdate::rounded;   ///< of parameters narrower than f32 (optim/moments.h)
};

/// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) mean of g^2 over the block;  p -= rate / c1 * m / (sqrt(v / c2) +
/// epsilon), c = 1 - b^step. A block is a row of a tensor of rank 2 and more (one output, or one token of an
/// embedding), else the whole tensor. The paper joins the rows of a head of queries and keys; here each row is a block,
/// which costs 4 bytes per row. State: 4 bytes per element and 4 per block, plus the extra of `narrow`. An update takes
/// at most 16 MiB of temporary bytes, or 16 bytes per element of 8 rows if that is more.
class AdamMini final : public Optimizer {
 public:
  /// Throws ValueError for options out of range, DTypeError for f64 parameters and as make_extra does. State:
  /// `<parameter>.first_moment`, `.second_moment` (one number per block).
  AdamMini(std::vector<Named> parameters, AdamMiniOptions options);
  const char* name() const noexcept override { return "adam-mini"; }
  std::vector<Setting> settings() const override;
  bool is_elementwise() const noexcept override { return false; }
  bool takes_gradient_factor() const noexcept override { return true; }
  bool is_capturable() const noexcept override { return false; }

 private:
  void update(std::span<const std::size_t> indices) override;
  void update_rows(std::size_t index, std::int64_t first, std::int64_t count, std::int64_t columns);

  AdamMiniOptions options_;
};

}  // namespace thimble::optim
