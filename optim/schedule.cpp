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

namespace {

void require(bool is_in_range, const char* expected, double got) {
  if (!is_in_range) throw ValueError(std::string("plateau: expected ") + expected + ", got " + std::to_string(got));
}

}  // namespace

void Plateau::set_state(const State& state) {
  require(!std::isnan(state.least_loss), "a number as the least loss", state.least_loss);
  require(state.worse >= 0, "at least 0 worse evaluations", static_cast<double>(state.worse));
  require(state.factor >= 0 && state.factor <= 1, "0 <= factor <= 1", state.factor);
  state_ = state;
}

Plateau::Plateau(const PlateauOptions& options) : options_(options) {
  require(options.factor > 0 && options.factor < 1, "0 < factor < 1", options.factor);
  require(options.patience >= 0, "a patience of at least 0", static_cast<double>(options.patience));
  require(options.threshold >= 0 && options.threshold < 1, "0 <= threshold < 1", options.threshold);
  require(options.least_factor >= 0 && options.least_factor <= 1, "0 <= least_factor <= 1", options.least_factor);
}

void Plateau::add(double loss) noexcept {
  if (loss < state_.least_loss - options_.threshold * std::abs(state_.least_loss) ||
      (std::isinf(state_.least_loss) && std::isfinite(loss))) {
    state_.least_loss = loss;
    state_.worse = 0;
    return;
  }
  if (++state_.worse <= options_.patience) return;
  state_.worse = 0;
  state_.factor = std::max(options_.least_factor, state_.factor * options_.factor);
}

}  // namespace thimble::optim
