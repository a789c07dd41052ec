#include <thimble/optim/schedule.h>

#include <algorithm>
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

double one_cycle_rate(double rate, std::int64_t step, std::int64_t total, double rise, double start_factor,
                      double end_factor) {
  if (total < 1 || !(rise > 0 && rise < 1) || !(start_factor >= 1) || !(end_factor >= 1)) {
    throw ValueError("one_cycle_rate: expected total >= 1, 0 < rise < 1 and factors >= 1, got total " +
                     std::to_string(total) + ", rise " + std::to_string(rise) + ", start_factor " +
                     std::to_string(start_factor) + ", end_factor " + std::to_string(end_factor));
  }
  const auto anneal = [](double from, double to, double done) {
    return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * done));
  };
  const double start = rate / start_factor, end = start / end_factor;
  const double top = rise * static_cast<double>(total) - 1, last = static_cast<double>(total - 1);
  const double now = std::min(static_cast<double>(step), last);
  if (now <= top) return top > 0 ? anneal(start, rate, now / top) : rate;
  return anneal(rate, end, (now - top) / (last - top));
}

}  // namespace thimble::optim
