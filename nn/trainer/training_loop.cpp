#include <thimble/nn/trainer/training_loop.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>

#include <thimble/core/error.h>
#include <thimble/dist/communicator.h>
#include <thimble/memory/units.h>
#include <thimble/nn/files/tensor_io.h>
#include <thimble/nn/log/tensorboard.h>
#include <thimble/nn/trainer/checkpoint_keeper.h>
#include <thimble/nn/trainer/trainer_core.h>

namespace thimble::nn {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::string is_text(const char* what, double loss) { return std::string(what) + " is " + format_short(loss); }

/// Gives every rank the strongest wish of all ranks after each step. `ranks` may be null.
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

class TrainingLoop {
 public:
  TrainingLoop(LoopedRun& run, const TrainerOptions& options, const LoopOptions& looped, const memory::Stack& stack,
               RunReport& report, const TrainControl& control);

  void run(const TrainObserver& observer);

 private:
  void train(const TrainObserver& observer);
  Progress one_step(std::int64_t step);
  void log_step(const Progress& progress);
  void diverge(std::int64_t step, const std::string& what);
  void stop(std::int64_t step);
  void save_best();
  void end_worse(std::int64_t step);
  void save(bool is_last);
  void rescue() noexcept;
  void write();
  void say(const std::string& text) const;
  template <class F>
  auto rescued(F&& f) {
    try {
      return f();
    } catch (const PartialUpdateError&) {
      throw;  // only some parameters are updated: no state to save
    } catch (...) {
      rescue();
      throw;
    }
  }

  LoopedRun& run_;
  const TrainerOptions& options_;
  const std::optional<int> rank_;  // set if there are several
  const double items_per_step_;
  const memory::Stack& stack_;
  RunReport& report_;
  const TrainControl control_;
  TrainingLog log_;
  CheckpointKeeper keeper_;
  std::exception_ptr failed_save_;
  std::int64_t first_step_, skipped_before_;  // by earlier runs
  double first_ms_ = 0, later_ms_ = 0;
};

TrainingLoop::TrainingLoop(LoopedRun& run, const TrainerOptions& options, const LoopOptions& looped,
                           const memory::Stack& stack, RunReport& report, const TrainControl& control)
    : run_(run),
      options_(options),
      rank_(looped.ranks != nullptr ? std::optional<int>(looped.ranks->rank()) : std::nullopt),
      items_per_step_(looped.items_per_step),
      stack_(stack),
      report_(report),
      control_(agreed_control(control, looped.ranks)),
      log_(rank_.value_or(0) == 0 ? options.log : "", stack.ledger),
      keeper_({rank_.value_or(0) == 0 ? options.save : "", options.keep, options.resume, looped.resumed_steps}),
      first_step_(run.steps_done()),
      skipped_before_(run.skipped_steps()) {
  report_.steps = first_step_;
}

void TrainingLoop::run(const TrainObserver& observer) {
  train(observer);
  if (report_.end == TrainEnd::complete) run_.end();
  if (failed_save_) std::rethrow_exception(failed_save_);
}

void TrainingLoop::train(const TrainObserver& observer) {
  report_.log_error = log_.error();
  if (!report_.log_error.empty()) say("curves: " + report_.log_error + "; training goes on without");
  for (std::int64_t step = first_step_; step < options_.steps; ++step) {
    const std::int64_t done = step + 1, skipped = run_.skipped_steps();
    Progress progress = rescued([&] { return one_step(step); });
    report_.steps = done;
    const auto is_number = [](double loss) { return std::isfinite(loss); };
    const bool is_finite =
        is_number(progress.loss) && std::all_of(progress.losses.begin(), progress.losses.end(), is_number);
    // A step that the loss scaler skipped because its gradients were too large changed no parameter.
    if (!is_finite && run_.skipped_steps() == skipped) {
      const auto found = std::find_if_not(progress.losses.begin(), progress.losses.end(), is_number);
      return diverge(done, is_text("the loss", found != progress.losses.end() ? *found : progress.loss));
    }
    if (is_finite) keeper_.confirm();  // the state that was saved last
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

Progress TrainingLoop::one_step(std::int64_t step) {
  log_.begin_step(run_.is_replay());
  const Clock::time_point start = Clock::now();
  Progress progress;
  run_.train_step(step, progress);
  report_.skipped_steps = run_.skipped_steps() - skipped_before_;
  progress.loss = without_sign_of_nan(progress.loss);
  progress.ms = ms_since(start);
  if (step == first_step_) {
    report_.loss_first = progress.loss;
    first_ms_ = progress.ms;
  } else {
    later_ms_ += progress.ms;
  }
  const auto later = static_cast<double>(step - first_step_);
  if (!progress.is_skipped) report_.loss_last = progress.loss;
  report_.ms_per_step = later > 0 ? later_ms_ / later : first_ms_;
  report_.items_per_s = items_per_step_ / report_.ms_per_step * 1000;

  const memory::Arena::Statistics arena = stack_.arena->statistics();
  progress.step = step + 1;
  progress.bytes = arena.committed_bytes;
  progress.peak_bytes = arena.peak_committed_bytes;
  progress.items_per_s = items_per_step_ / progress.ms * 1000;
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

/// Saves the finished steps before an exception leaves. A step that failed after some of its updates is not a state to
/// save.
void TrainingLoop::rescue() noexcept {
  try {
    if (rank_ || !keeper_.is_on() || run_.steps_done() <= keeper_.saved_step()) return;
    if (run_.is_in_step()) return say("training has failed in the middle of a step; " + keeper_.text());
    write();
    say("training has failed; " + keeper_.text());
  } catch (const std::exception& error) {
    try {
      say(std::string("training has failed, and so has its checkpoint: ") + error.what() + "; " + keeper_.text());
    } catch (...) {  // NOLINT(bugprone-empty-catch): the first failure is on its way and gives the reason
    }
  }
}

void TrainingLoop::write() {
  if (options_.save.empty()) return;
  if (rank_.value_or(0) > 0) return run_.write_checkpoint(options_.save);
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

}  // namespace

bool RunReport::is_finite() const noexcept {
  return end != TrainEnd::diverged && std::isfinite(loss_last) && (!evaluation || std::isfinite(evaluation->loss));
}

std::vector<std::pair<std::string, std::size_t>> device_figures(const RunReport& report) {
  if (!report.device_use) return {};
  const memory::DeviceUse& use = *report.device_use;
  const kernels::LibraryUse& libraries = *report.libraries;
  return {{"device_total_bytes", use.total_bytes},
          {"device_used_bytes", use.used_bytes},
          {"device_outside_bytes", use.outside_bytes},
          {"context_bytes", use.context_bytes},
          {"handle_bytes", use.handle_bytes},
          {"cublaslt_calls", libraries.cublaslt.calls},
          {"cublaslt_refusals", libraries.cublaslt.refusals},
          {"cudnn_calls", libraries.cudnn.calls},
          {"cudnn_refusals", libraries.cudnn.refusals}};
}

std::string RunReport::differences() const {
  std::string list;
  const auto differs = [&list](const std::string& what, std::size_t measured, const char* than, std::size_t told) {
    list += (list.empty() ? "" : "; ") + what + " measured " + memory::exact_bytes(measured) + than +
            memory::exact_bytes(told);
  };
  const bool is_less_for_skipping = skipped_steps > 0 && measured_peak_bytes < predicted_peak_bytes;
  if (ranks.empty() && measured_peak_bytes != predicted_peak_bytes && !is_less_for_skipping) {
    differs("the arena's peak", measured_peak_bytes, ", predicted ", predicted_peak_bytes);
  }
  if (measured_tier_bytes > predicted_tier_bytes) {
    differs("the offloaded bytes", measured_tier_bytes, ", predicted ", predicted_tier_bytes);
  }
  const std::size_t promised = predicted_peak_bytes + outside.total();
  if (outside.total() > 0 && process_peak_bytes > promised) {
    differs("the process", process_peak_bytes, ", promised ", promised);
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::size_t measured = ranks[r].measured_peak_bytes, predicted = ranks[r].predicted_peak_bytes;
    if (measured == predicted || (skipped_steps > 0 && measured < predicted)) continue;
    differs("the arena's peak of rank " + std::to_string(r), measured, ", predicted ", predicted);
  }
  if (process_budget_bytes > 0 && process_peak_bytes > process_budget_bytes) {
    differs("the process", process_peak_bytes, ", its budget ", process_budget_bytes);
  }
  return list;
}

void run_loop(LoopedRun& run, const TrainerOptions& options, const LoopOptions& looped, const memory::Stack& stack,
              RunReport& report, const TrainControl& control, const TrainObserver& observer) {
  TrainingLoop(run, options, looped, stack, report, control).run(observer);
}

}  // namespace thimble::nn
