#pragma once
// Learning rates as plain functions of the step (from 0).

#include <cstdint>
#include <limits>

namespace thimble::optim {

double constant_rate(double rate, std::int64_t step);

/// rate x factor^(step / every): steps down by `factor` every `every` steps. Throws ValueError when every < 1.
double step_rate(double rate, std::int64_t step, std::int64_t every, double factor = 0.1);

/// Linear from rate / warmup to rate over `warmup` steps, then a half cosine down to `lowest` at `total` (Loshchilov &
/// Hutter 2017, equation 5, without restarts), `lowest` after it. Throws ValueError unless 0 <= warmup <= total.
double cosine_rate(double rate, std::int64_t step, std::int64_t warmup, std::int64_t total, double lowest = 0);

/// One cycle (Smith & Topin 2019, arXiv:1708.07120; as PyTorch's OneCycleLR anneals it): a half cosine from rate /
/// `start_factor` up to `rate` over the first `rise` of `total` steps, then one down to rate / (start_factor x
/// end_factor) at the last step, which stays after it. Throws ValueError unless total >= 1, 0 < rise < 1 and both
/// factors >= 1.
double one_cycle_rate(double rate, std::int64_t step, std::int64_t total, double rise = 0.3, double start_factor = 25,
                      double end_factor = 1e4);

struct PlateauOptions {
  double factor = 0.1;         ///< multiplies the rate at each fall; > 0 and < 1
  std::int64_t patience = 10;  ///< consecutive evaluations allowed without a new least loss
  double threshold = 1e-4;     ///< relative improvement that a new least loss must exceed
  double least_factor = 0;     ///< the product of all falls stays at or above it
};

/// A rate that falls when evaluations stop improving (as PyTorch's ReduceLROnPlateau with mode min and no cooldown).
class Plateau {
 public:
  struct State {
    double least_loss = std::numeric_limits<double>::infinity();
    std::int64_t worse = 0;  ///< evaluations in a row since the least loss, or the last fall
    double factor = 1;       ///< the product of all falls
    friend bool operator==(const State&, const State&) = default;
  };
  /// Throws ValueError for options out of range.
  explicit Plateau(const PlateauOptions& options);
  /// Adds an evaluation's loss; NaN is no new least loss.
  void add(double loss) noexcept;
  const State& state() const noexcept { return state_; }
  /// Throws ValueError unless worse >= 0, 0 <= factor <= 1 and the loss is a number.
  void set_state(const State& state);

 private:
  PlateauOptions options_;
  State state_;
};

}  // namespace thimble::optim
