#pragma once
// Loss scaling (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2): the loss is multiplied by a scale, so that
// backward does not round gradients too small for f16 to zero, and the optimizer divides gradients by it as it reads
// them.

#include <cstdint>
#include <vector>

#include <thimble/core/tensor/tensor.h>
#include <thimble/optim/optimizer.h>

namespace thimble::optim {

struct GradScalerOptions {
  double scale = 65536;    ///< initial scale
  bool is_dynamic = true;  ///< false keeps the scale, examines no gradient, and skips no step
  double growth = 2;       ///< of the scale after `interval` good steps in a row ...
  std::int64_t interval = 2000;
  double backoff = 0.5;  ///< ... and after a step whose gradients are not all finite, which is skipped
  double most = 0x1p24;  ///< bounds of the scale
  double least = 1;
};

/// A scaler's state in a checkpoint.
struct GradScalerState {
  double scale = 0;
  std::int64_t good_steps = 0;     ///< consecutive, since the last change of the scale
  std::int64_t skipped_steps = 0;  ///< in total
  friend bool operator==(const GradScalerState&, const GradScalerState&) = default;
};

/// Scales losses and decides whether to skip steps. nn::training_step does the following, as must a hand-written loop:
///
///   tape.backward(loss, full({}, scaler.scale()));
///   const GradScaler::Verdict verdict = scaler.judge(parameters, clip_norm);
///   optimizer.set_gradient_factor(verdict.gradient_factor);
///   if (!verdict.is_skipped) optimizer.step();
///   scaler.record(verdict);
///
/// On a dry device, which has no values, a step is never skipped: that branch needs more memory.
class GradScaler {
 public:
  using Options = GradScalerOptions;
  using State = GradScalerState;
  struct Verdict {
    bool is_skipped = false;
    double gradient_factor = 1;  ///< 1 / scale, times the clipping factor
  };

  /// Throws ValueError: scales that are not positive and finite, not least <= scale <= most, growth < 1, backoff
  /// outside (0, 1], interval < 1.
  explicit GradScaler(const Options& options = {});

  double scale() const noexcept { return state_.scale; }
  bool is_dynamic() const noexcept { return options_.is_dynamic; }
  const Options& options() const noexcept { return options_; }

  /// Examines the scaled gradients in one pass that writes nothing: their sum of squares in f64 gives the norm, and is
  /// finite only if they are (f64 gradients beyond 1e154 count as infinite). If `clip_norm` > 0, the factor also clips
  /// by the global norm of the unscaled gradients, as clip_grad_norm does. A static scale without clipping examines
  /// nothing. Workspace: 8 bytes per parameter tensor. Changes no state.
  Verdict judge(const std::vector<Named>& parameters, double clip_norm = 0) const;
  /// Whether judge examines gradients.
  bool looks(double clip_norm) const noexcept { return options_.is_dynamic || clip_norm > 0; }
  /// judge()'s verdict from the sums of squares of all gradients (gradient_square_sums), which it reads.
  Verdict judge_sums(const Tensor& square_sums, double clip_norm) const;
  /// Counts the step and adjusts the scale. A static scale stays.
  void record(const Verdict& verdict) noexcept;

  const State& state() const noexcept { return state_; }
  /// Throws ValueError for a scale outside the options' bounds, or negative counts.
  void set_state(const State& state);

 private:
  Options options_;
  State state_;
};

}  // namespace thimble::optim
