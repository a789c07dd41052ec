#include <thimble/nn/trainer/training_loop.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include <thimble/core/error.h>
#include <thimble/dist/communicator.h>
#include <thimble/memory/units.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::nn {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::string is_text(const char* what, double loss) {
  char text[80];
  std::snprintf(text, sizeof text, "%s is %g", what, loss);
  return text;
}

}  // namespace

TrainControl agreed_control(const TrainControl& control, dist::Communicator* ranks) {
  if (ranks == nullptr) return control;
  TrainControl all = control;
  all.wish = [wish = control.wish, ranks,
              wishes = std::vector<Wish>(static_cast<std::size_t>(ranks->size()))]() mutable {
    const Wish own = wish ? wish() : Wish::go_on;
    ranks->all_gather(&own, sizeof(own), wishes.data());
    return *std::max_element(wishes.begin(), wishes.end());
  };
  return all;
}

bool LoopReport::is_finite() const noexcept {
  return end != TrainEnd::diverged && std::isfinite(loss_last) && (!evaluation || std::isfinite(evaluation->loss));
}

TrainingLoop::TrainingLoop(LoopedRun& run, const LoopOptions& options, const memory::Stack& stack, LoopReport& report,
                           const TrainControl& control)
    : run_(run),
      options_(options),
      stack_(stack),
      report_(report),
      control_(control),
      log_(options.log, stack.ledger),
      keeper_({options.rank.value_or(0) == 0 ? options.save : "", options.keep, options.resume, options.resumed_steps}),
      skipped_before_(run.skipped_steps()) {
  report_.steps = options.first_step;
}

void TrainingLoop::run(const TrainObserver& observer) {
  report_.log_error = log_.error();
  if (!report_.log_error.empty()) say("curves: " + report_.log_error + "; training goes on without");
  for (std::int64_t step = options_.first_step; step < options_.steps; ++step) {
    const std::int64_t done = step + 1, skipped = run_.skipped_steps();
    Progress progress = rescued([&] { return one_step(step); });
    report_.steps = done;
    const auto is_number = [](double loss) { return std::isfinite(loss); };
    const bool is_finite =
        is_number(progress.loss) && std::all_of(progress.losses.begin(), progress.losses.end(), is_number);
    // A step that the loss scaler skipped, because its gradients were too large, changed no parameter.
    if (!is_finite && run_.skipped_steps() == skipped) {
      const auto found = std::find_if_not(progress.losses.begin(), progress.losses.end(), is_number);
      return diverge(done, is_text("the loss", found != progress.losses.end() ? *found : progress.loss));
    }
    if (is_finite) keeper_.confirm();  // of the state that was saved last
    const Wish wish = control_.wish ? control_.wish() : Wish::go_on;
    bool is_last = done == options_.steps || wish == Wish::stop;
    const auto is_due = [&](std::int64_t every) { return every > 0 && done % every == 0; };
    if (wish != Wish::stop && (is_last || is_due(options_.evaluate_every))) {
      progress.evaluation = rescued([&] { return run_.evaluate(); });
      if (progress.evaluation) {
        progress.evaluation->loss = without_sign_of_nan(progress.evaluation->loss);
        report_.evaluation = progress.evaluation;
      }
      if (progress.evaluation && !std::isfinite(progress.evaluation->loss)) {
        return diverge(done, is_text("the validation loss", progress.evaluation->loss));
      }
    }
    log_step(progress);
    if (observer) observer(progress);
    if (progress.evaluation && run_.is_best(progress.evaluation->loss)) save_best();
    const bool has_no_patience = !is_last && options_.patience > 0 && run_.worse_evaluations() >= options_.patience;
    is_last = is_last || has_no_patience;
    if (is_last || wish == Wish::save || is_due(options_.save_every)) {
      try {
        save(is_last);
      } catch (const NotFiniteError& error) {
        return diverge(done, error.what());
      }
    }
    if (wish == Wish::save) say("after step " + std::to_string(done) + ": " + keeper_.text());
    if (wish == Wish::stop) return stop(done);
    if (has_no_patience) return end_worse(done);
  }
}

void TrainingLoop::log_step(const Progress& progress) {
  const bool had_log = log_.error().empty();
  StepCurves curves{progress.step, progress.loss, progress.rate, progress.items_per_s, {}, {}};
  if (progress.evaluation) {
    curves.validation_loss = progress.evaluation->loss;
    curves.validation_accuracy = progress.evaluation->accuracy;
  }
  log_.end_step(curves);
  if (!had_log || log_.error().empty()) return;
  report_.log_error = log_.error();
  say("curves: " + report_.log_error + "; training goes on without");
}

void TrainingLoop::rethrow_failed_save() const {
  if (failed_save_) std::rethrow_exception(failed_save_);
}

Progress TrainingLoop::one_step(std::int64_t step) {
  log_.begin_step(run_.is_replay());
  const Clock::time_point start = Clock::now();
  Progress progress;
  run_.train_step(step, progress);
  report_.skipped_steps = run_.skipped_steps() - skipped_before_;
  progress.loss = without_sign_of_nan(progress.loss);
  progress.ms = ms_since(start);
  if (step == options_.first_step) {
    report_.loss_first = progress.loss;
    first_ms_ = progress.ms;
  } else {
    later_ms_ += progress.ms;
  }
  const auto later = static_cast<double>(step - options_.first_step);
  if (!progress.is_skipped) report_.loss_last = progress.loss;
  report_.ms_per_step = later > 0 ? later_ms_ / later : first_ms_;
  report_.items_per_s = options_.items_per_step / report_.ms_per_step * 1000;

  const Arena::Statistics arena = stack_.arena->statistics();
  progress.step = step + 1;
  progress.bytes = arena.committed_bytes;
  progress.peak_bytes = arena.peak_committed_bytes;
  progress.items_per_s = options_.items_per_step / progress.ms * 1000;
  progress.seconds_left = static_cast<double>(options_.steps - step - 1) * report_.ms_per_step / 1000;
  return progress;
}

void TrainingLoop::diverge(std::int64_t step, const std::string& what) {
  keeper_.take_back();
  report_.end = TrainEnd::diverged;
  report_.end_text = "step " + std::to_string(step) + ": " + what + "; training has stopped, and " + keeper_.text();
}

void TrainingLoop::save_best() {
  if (options_.best.empty()) return;
  try {
    run_.write_checkpoint(options_.best);
  } catch (const RankError&) {
    throw;
  } catch (const Error& error) {
    say(std::string("the best checkpoint could not be written; training goes on: ") + error.what());
  }
}

void TrainingLoop::end_worse(std::int64_t step) {
  report_.end = TrainEnd::no_better;
  report_.end_text = "ended after step " + std::to_string(step) + " of " + std::to_string(options_.steps) + ": " +
                     std::to_string(run_.worse_evaluations()) + " evaluations in a row without a new least loss; " +
                     keeper_.text();
}

void TrainingLoop::stop(std::int64_t step) {
  report_.end = TrainEnd::stopped;
  report_.end_text =
      "stopped after step " + std::to_string(step) + " of " + std::to_string(options_.steps) + "; " + keeper_.text();
}

void TrainingLoop::save(bool is_last) {
  try {
    write();
  } catch (const NotFiniteError&) {
    throw;
  } catch (const RankError&) {
    throw;
  } catch (const Error& error) {
    if (is_last) {
      failed_save_ = std::current_exception();
    } else {
      say(std::string("a checkpoint could not be written; training goes on: ") + error.what());
    }
  }
}

/// Saves the steps that were done, before an exception leaves. A step that failed after some of its updates is no state
/// to save.
void TrainingLoop::rescue() noexcept {
  try {
    if (options_.rank || !keeper_.is_on() || run_.steps_done() <= keeper_.saved_step()) return;
    if (run_.is_in_step()) return say("training has failed in the middle of a step; " + keeper_.text());
    write();
    say("training has failed; " + keeper_.text());
  } catch (const std::exception& error) {
    try {
      say(std::string("training has failed, and so has its checkpoint: ") + error.what() + "; " + keeper_.text());
    } catch (...) {  // NOLINT(bugprone-empty-catch): the first failure is on its way and says why
    }
  }
}

void TrainingLoop::write() {
  if (options_.save.empty()) return;
  if (options_.rank.value_or(0) > 0) return run_.write_checkpoint(options_.save);
  bool is_begun = false;
  try {
    keeper_.save(run_.steps_done(), [&](const std::string& path) {
      is_begun = true;
      run_.write_checkpoint(path);
    });
  } catch (const std::exception& error) {
    if (!is_begun) run_.refuse_checkpoint(error.what());
    throw;
  }
}

void TrainingLoop::say(const std::string& text) const {
  if (control_.say) control_.say(text);
}

}  // namespace thimble::nn
