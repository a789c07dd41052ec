#include <thimble/bench/runs/training_loop.h>

#include <chrono>
#include <cmath>
#include <cstdio>

#include <thimble/core/error.h>
#include <thimble/nn/files/tensor_io.h>

namespace thimble::bench {
namespace training_loop_detail {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::string is_text(const char* what, double loss) {
  char text[80];
  std::snprintf(text, sizeof text, "%s is %g", what, loss);
  return text;
}

}  // namespace training_loop_detail

TrainingLog::TrainingLog(const std::string& folder, const memory::Stack& stack) : stack_(stack) {
  if (folder.empty()) return;
  try {
    writer_ = std::make_unique<tensorboard::EventWriter>(folder);
  } catch (const FileError& error) {
    error_ = error.what();
  }
}

void TrainingLog::begin_step(bool is_replay) {
  is_replay_ = is_replay;
  if (writer_ && !is_replay) stack_.ledger->reset_peak();
}

void TrainingLog::end_step(const TrainProgress& progress) {
  if (!writer_) return;
  try {
    write(progress);
  } catch (const FileError& error) {
    error_ = error.what();
    writer_.reset();
  }
}

void TrainingLog::write(const TrainProgress& progress) {
  writer_->scalar("loss", progress.loss, progress.step);
  writer_->scalar("rate", progress.items_per_s, progress.step);
  writer_->scalar("learning_rate", progress.rate, progress.step);
  if (!is_replay_) bytes_ = stack_.ledger->peak_by_category();
  for (std::size_t i = 0; i < category_count; ++i) {
    writer_->scalar("bytes/" + std::string(to_string(static_cast<Category>(i))), static_cast<double>(bytes_[i]),
                    progress.step);
  }
  if (progress.evaluation) {
    writer_->scalar("validation_loss", progress.evaluation->loss, progress.step);
    if (progress.evaluation->accuracy) {
      writer_->scalar("validation_accuracy", *progress.evaluation->accuracy, progress.step);
    }
  }
  writer_->flush();
}

TrainingLoop::TrainingLoop(const PreparedTraining& prepared, const memory::Stack& stack, Training& training,
                           TrainReport& report, const TrainControl& control)
    : prepared_(prepared),
      stack_(stack),
      training_(training),
      report_(report),
      control_(control),
      log_(prepared.options.log, stack),
      keeper_(prepared) {}

void TrainingLoop::run(const TrainObserver& observer) {
  using training_loop_detail::is_text;
  const TrainOptions& options = prepared_.options;
  report_.log_error = log_.error();
  if (!report_.log_error.empty()) say("--log: " + report_.log_error + "; training goes on without");
  for (std::int64_t step = prepared_.first_step; step < options.steps; ++step) {
    const std::int64_t done = step + 1, skipped = training_.scaler() ? training_.scaler()->state().skipped_steps : 0;
    TrainProgress progress = rescued([&] { return one_step(step); });
    report_.steps = done;
    if (!std::isfinite(progress.loss) && !is_skipped(skipped)) return diverge(done, is_text("the loss", progress.loss));
    if (std::isfinite(progress.loss)) keeper_.confirm();  // of the state that was saved last
    const Wish wish = control_.wish ? control_.wish() : Wish::go_on;
    const bool is_last = done == options.steps || wish == Wish::stop;
    const auto is_due = [&](std::int64_t every) { return every > 0 && done % every == 0; };
    if (wish != Wish::stop && (is_last || is_due(options.eval_every))) {
      training_.rest();
      progress.evaluation = report_.validation = rescued([&] { return training_.evaluate(); });
      report_.has_validation = true;
      const double loss = report_.validation.loss;
      if (!std::isfinite(loss)) return diverge(done, is_text("the validation loss", loss));
    }
    if (is_last || wish == Wish::save || is_due(options.save_every)) {
      try {
        save(is_last);
      } catch (const nn::NotFiniteError& error) {
        return diverge(done, error.what());
      }
    }
    const bool had_log = log_.error().empty();
    log_.end_step(progress);
    if (had_log && !log_.error().empty()) {
      report_.log_error = log_.error();
      say("--log: " + report_.log_error + "; training goes on without");
    }
    if (observer) observer(progress);
    if (wish == Wish::save) say("after step " + std::to_string(done) + ": " + keeper_.text());
    if (wish == Wish::stop) return stop(done);
  }
}

void TrainingLoop::rethrow_failed_save() const {
  if (failed_save_) std::rethrow_exception(failed_save_);
}

TrainProgress TrainingLoop::one_step(std::int64_t step) {
  using training_loop_detail::Clock;
  const nn::RecordedStep* const recorded = training_.recorded();
  log_.begin_step(recorded != nullptr && recorded->is_recorded());
  const Clock::time_point start = Clock::now();
  TrainProgress progress;
  Placed* const placed = prepared_.options.records_steps ? nullptr : stack_.placed.get();
  if (placed != nullptr) placed->begin_step(static_cast<std::size_t>(step - prepared_.first_step));
  progress.loss = training_.step(step);
  if (placed != nullptr) {
    placed->end_step();
    placed->require_kept();
  }
  const double ms = training_loop_detail::ms_since(start);
  if (training_.recorded() != nullptr) report_.recorded_launches = training_.recorded()->launches();
  if (step == prepared_.first_step) {
    report_.loss_first = progress.loss;
    first_ms_ = ms;
  } else {
    later_ms_ += ms;
  }
  const auto later = static_cast<double>(step - prepared_.first_step);
  report_.loss_last = progress.loss;
  report_.ms_per_step = later > 0 ? later_ms_ / later : first_ms_;
  const auto items = static_cast<double>(prepared_.options.setup.batch * prepared_.data->items_per_sample());
  report_.items_per_s = items / report_.ms_per_step * 1000;

  const Arena::Statistics arena = stack_.arena->statistics();
  progress.step = step + 1;
  progress.rate = training_.optimizer().rate();
  progress.bytes = arena.committed_bytes;
  progress.peak_bytes = arena.peak_committed_bytes;
  progress.items_per_s = items / ms * 1000;
  progress.seconds_left = static_cast<double>(prepared_.options.steps - step - 1) * report_.ms_per_step / 1000;
  return progress;
}

/// Whether the step changed no parameter, because its scaled gradients were too large.
bool TrainingLoop::is_skipped(std::int64_t skipped_before) {
  return training_.scaler() != nullptr && training_.scaler()->state().skipped_steps > skipped_before;
}

void TrainingLoop::diverge(std::int64_t step, const std::string& what) {
  keeper_.take_back();
  report_.end = TrainEnd::diverged;
  report_.end_text = "step " + std::to_string(step) + ": " + what + "; training has stopped, and " + keeper_.text();
}

void TrainingLoop::stop(std::int64_t step) {
  report_.end = TrainEnd::stopped;
  report_.end_text = "stopped after step " + std::to_string(step) + " of " + std::to_string(prepared_.options.steps) +
                     "; " + keeper_.text();
}

void TrainingLoop::save(bool is_last) {
  try {
    keeper_.save(training_);
  } catch (const nn::NotFiniteError&) {
    throw;
  } catch (const Error& error) {
    if (is_last) {
      failed_save_ = std::current_exception();
    } else {
      say(std::string("a checkpoint could not be written; training goes on: ") + error.what());
    }
  }
}

/// Before an exception leaves: what was reached is written. A step that throws has changed nothing.
void TrainingLoop::rescue() noexcept {
  try {
    if (!keeper_.is_on() || steps_done(training_) <= keeper_.saved_step()) return;
    keeper_.save(training_);
    say("training has failed; " + keeper_.text());
  } catch (const std::exception& error) {
    try {
      say(std::string("training has failed, and so has its checkpoint: ") + error.what() + "; " + keeper_.text());
    } catch (...) {  // NOLINT(bugprone-empty-catch): the first failure is on its way and says why
    }
  }
}

void TrainingLoop::say(const std::string& text) const {
  if (control_.say) control_.say(text);
}

}  // namespace thimble::bench
