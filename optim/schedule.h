#pragma once
// Learning rates as plain functions of the step (from 0).

#include <cstdint>

namespace thimble::optim {

/// rate, always.
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

}  // namespace thimble::optim
