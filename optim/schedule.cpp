#include <thimble/optim/schedule.h>

#include <cmath>
#include <numbers>
#include <string>

#include <thimble/core/error.h>

namespace thimble::optim {

double constant_rate(double rate, std::int64_t) { return rate; }

double step_rate(double rate, std::int64_t step, std::int64_t every, double factor) {
  if (every < 1) throw ValueError("step_rate: every " + std::to_string(every) + " steps; it must be >= 1");
  return rate * std::pow(factor, static_cast<double>(step / every));
}

double cosine_rate(double rate, std::int64_t step, std::int64_t warmup, std::int64_t total, double lowest) {
  if (warmup < 0 || total < warmup) {
    throw ValueError("cosine_rate: warm-up " + std::to_string(warmup) + " of " + std::to_string(total) +
                     " steps; expected 0 <= warm-up <= total");
  }
  if (step < warmup) return rate * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (step >= total) return lowest;
  const double done = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
  return lowest + 0.5 * (rate - lowest) * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace thimble::optim
