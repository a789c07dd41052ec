#pragma once
// Adafactor (Shazeer & Stern 2018, arXiv:1804.04235): approximates the second moment of a matrix by the means of its
// rows and columns.

#include <thimble/optim/optimizer.h>

namespace thimble::optim {

struct AdafactorOptions {
  double rate = 1e-2;
  bool has_relative_step = false;   ///< the rate is min(1e-2, 1 / sqrt(step)) instead (algorithm 5)
  bool scales_by_parameter = true;  ///< and is multiplied by max(epsilon2, rms of the parameter)
  double beta1 = 0;                 ///< > 0 adds a first moment of the update, 4 bytes per element
  double decay = 0.8;               ///< beta2 of step t is 1 - t^-decay (section 7.2)
  double epsilon1 = 1e-30;          ///< added to squares
  double epsilon2 = 1e-3;           ///< lower bound of a parameter's rms
  double clip = 1;                  ///< largest rms of an update (section 6)
  double weight_decay = 0;          ///< decoupled: p *= 1 - rate decay
  int smallest_decayed_rank = 0;    ///< tensors of lower rank are not decayed
  std::shared_ptr<memory::Tier> tier = nullptr;
  NarrowUpdate narrow = NarrowUpdate::rounded;  ///< of parameters narrower than f32 (optim/moments.h)
};

/// Means of squares are limited to 3.4e38. A mean at the limit keeps the updates of its row and column small until it
/// decays.
///
/// State: for a parameter seen as a matrix (elements / last axis, last axis) with more than one row and column, 4 bytes
/// for each row and column; otherwise 4 per element. Plus the extra of `narrow`. A parameter's rms is over the updated
/// numbers: the master copy's, for example.
class Adafactor final : public Optimizer {
 public:
  /// Throws ValueError for options out of range, DTypeError for f64 parameters, because arithmetic is in f32, and as
  /// make_extra does. State: `<parameter>.row_moment` and `.column_moment`, or `.second_moment`; `.first_moment` with
  /// beta1; `.master` or `.compensation`.
  Adafactor(std::vector<Named> parameters, AdafactorOptions options);
  bool makes_rate() const noexcept override { return options_.has_relative_step; }
  const char* name() const noexcept override { return "adafactor"; }
  std::vector<Setting> settings() const override;
  bool is_elementwise() const noexcept override { return false; }
  bool takes_gradient_factor() const noexcept override { return true; }

 private:
  void update(std::span<const std::size_t> indices) override;
  kernels::AdafactorArgs arguments(std::size_t index, const Addresses& at) const;

  AdafactorOptions options_;
  std::vector<kernels::AdafactorArgs> list_;  // the current update's; reserved for all parameters
};

}  // namespace thimble::optim
