#include <thimble/optim/grad_scaler.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <thimble/core/error.h>
#include <thimble/optim/clip.h>

namespace thimble::optim {
namespace {

void check(bool is_in_range, const char* option, double value) {
  if (!is_in_range) throw ValueError(std::string("grad_scaler: expected ") + option + ", got " + std::to_string(value));
}

}  // namespace

GradScaler::GradScaler(const Options& options) : options_(options), state_{options.scale, 0, 0} {
  check(options.least > 0 && std::isfinite(options.least), "least scale > 0", options.least);
  check(std::isfinite(options.most) && options.most >= options.least, "largest scale >= the least", options.most);
  check(options.scale >= options.least && options.scale <= options.most, "scale between the least and the largest",
        options.scale);
  check(options.growth >= 1 && std::isfinite(options.growth), "growth >= 1", options.growth);
  check(options.backoff > 0 && options.backoff <= 1, "backoff in (0, 1]", options.backoff);
  check(options.interval >= 1, "interval >= 1", static_cast<double>(options.interval));
}

GradScaler::Verdict GradScaler::judge(const std::vector<Named>& parameters, double clip_norm) const {
  check(clip_norm >= 0, "clip_norm > 0, or 0 for none", clip_norm);
  if (!looks(clip_norm)) return {false, 1 / state_.scale};
  check_distinct("grad_scaler", parameters);
  return judge_sums(gradient_square_sums(parameters), clip_norm);
}

GradScaler::Verdict GradScaler::judge_sums(const Tensor& sums, double clip_norm) const {
  Verdict verdict{false, 1 / state_.scale};
  if (!sums.defined() || sums.device().is_dry) return verdict;
  const double norm = norm_of(sums);  // of the scaled gradients
  verdict.is_skipped = options_.is_dynamic && !std::isfinite(norm);
  if (clip_norm > 0 && !verdict.is_skipped) {
    verdict.gradient_factor *= std::min(1.0, clip_norm / (norm / state_.scale + 1e-6));
  }
  return verdict;
}

void GradScaler::record(const Verdict& verdict) noexcept {
  if (!options_.is_dynamic) return;
  if (verdict.is_skipped) {
    state_.scale = std::max(options_.least, state_.scale * options_.backoff);
    state_.good_steps = 0;
    ++state_.skipped_steps;
  } else if (++state_.good_steps >= options_.interval) {
    state_.scale = std::min(options_.most, state_.scale * options_.growth);
    state_.good_steps = 0;
  }
}

void GradScaler::set_state(const State& state) {
  check(state.scale >= options_.least && state.scale <= options_.most, "scale between the least and the largest",
        state.scale);
  check(state.good_steps >= 0, "good steps >= 0", static_cast<double>(state.good_steps));
  check(state.skipped_steps >= 0, "skipped steps >= 0", static_cast<double>(state.skipped_steps));
  state_ = state;
}

}  // namespace thimble::optim
