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

}  // namespace thimble::optim
