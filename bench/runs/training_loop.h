#pragma once
// The steps of a run: training, evaluations, checkpoints and curves, and what becomes of them when something fails.
//
// - A checkpoint holds a state whose loss is a number, and no other: one that the next step finds to have none is taken
//   back. A step whose loss is not a number, and that the loss scaler did not skip, ends the run at once; so does an
//   evaluation, and a state that holds a NaN.
// - What fails between two checkpoints (memory, data) ends the run after a checkpoint of the last whole step.
// - A checkpoint on the way that cannot be written is said, and the next one is tried. The last one that cannot is an
//   error, after everything else is written.
// - Curves that cannot be written any more are said once, and given up.

#include <exception>
#include <memory>

#include <thimble/bench/runs/kept_checkpoints.h>
#include <thimble/bench/runs/training.h>
#include <thimble/nn/log/tensorboard.h>
#include <thimble/nn/step/step.h>

namespace thimble::bench {

/// Curves for TensorBoard, where a folder is named.
class TrainingLog {
 public:
  TrainingLog(const std::string& folder, const memory::Stack& stack);
  /// From here on the ledger's peak is that of the next step. A replay asks for no bytes and needs those of the step
  /// that was recorded.
  void begin_step(bool is_replay);
  void end_step(const TrainProgress& progress);
  /// Why it was given up; empty: it was not.
  const std::string& error() const noexcept { return error_; }

 private:
  void write(const TrainProgress& progress);

  const memory::Stack& stack_;
  std::unique_ptr<tensorboard::EventWriter> writer_;
  std::string error_;
  bool is_replay_ = false;
  CategoryBytes bytes_{};  // of the last step that asked for them
};

class TrainingLoop {
 public:
  TrainingLoop(const PreparedTraining& prepared, const memory::Stack& stack, Training& training, TrainReport& report,
               const TrainControl& control);

  /// Trains until the steps are done, the control wants no more, or the loss is no number. Throws what a step throws.
  void run(const TrainObserver& observer);
  /// Throws what the last checkpoint failed with, where it did.
  void rethrow_failed_save() const;

 private:
  TrainProgress one_step(std::int64_t step);
  bool is_skipped(std::int64_t skipped_before);
  void diverge(std::int64_t step, const std::string& what);
  void stop(std::int64_t step);
  void save(bool is_last);
  void rescue() noexcept;
  void say(const std::string& text) const;
  template <class F>
  auto rescued(F&& f) {
    try {
      return f();
    } catch (const nn::PartialUpdateError&) {
      throw;  // some parameters are of the step, others are not: nothing to keep
    } catch (...) {
      rescue();
      throw;
    }
  }

  const PreparedTraining& prepared_;
  const memory::Stack& stack_;
  Training& training_;
  TrainReport& report_;
  const TrainControl& control_;
  TrainingLog log_;
  CheckpointKeeper keeper_;
  std::exception_ptr failed_save_;
  double first_ms_ = 0, later_ms_ = 0;
};

}  // namespace thimble::bench
