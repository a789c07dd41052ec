#pragma once
// Adam-mini (Zhang et al. 2024, arXiv:2406.16793, algorithm 1): Adam with one second moment for each block of a
// parameter that shares a curvature.

#include <thimble/optim/optimizer.h>

namespace thimble::optim {

struct AdamMiniOptions {
  double rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;                      ///< decoupled: p *= 1 - rate decay
  int smallest_decayed_rank = 0;                ///< tensors of lower rank are not decayed
  std::shared_ptr<Tier> tier = nullptr;         ///< for the state between updates; null keeps it here
  NarrowUpdate narrow = NarrowUpdate::rounded;  ///< of parameters narrower than f32 (optim/narrow.h)
};

/// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) mean of g^2 over the block;  p -= rate / c1 * m / (sqrt(v / c2) +
/// epsilon), c = 1 - b^step. A block is a row of a tensor of rank 2 and more (of one output, or of one token of an
/// embedding); else the whole tensor. The paper joins the rows of a head of queries and keys; here each is separate,
/// which costs 4 bytes a row. State: 4 bytes per element and 4 per block, plus the extra of `narrow`. An update takes
/// at most 16 MiB of temporary bytes, or 16 bytes per element of 8 rows if these are more.
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
