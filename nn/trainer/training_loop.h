#pragma once
// The steps of a run: training, evaluations, checkpoints, curves, and the handling of failures.
//
// - A checkpoint holds only a state whose loss is finite: if the next step finds that it is not, the file is removed. A
//   loss that is not finite ends the run at once, unless the loss scaler skipped the step; so does such an evaluation,
//   and a state with a NaN.
// - After a step come its evaluation, its curves, the observer, and its checkpoint: an observer's writes to buffers of
//   the model (an average of the weights) are in the checkpoint of the same step.
// - A failure between two checkpoints (memory, data) ends the run after a checkpoint of the last whole step.
// - If an intermediate checkpoint cannot be written, the run reports it and continues. If the last one cannot, the run
//   throws, after it has written everything else.
// - If curves can no longer be written, the run reports it once and stops writing them.

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <thimble/memory/stack.h>
#include <thimble/nn/log/tensorboard.h>
#include <thimble/nn/step/step.h>
#include <thimble/nn/trainer/checkpoint_keeper.h>

namespace thimble::dist {
class Communicator;
}

namespace thimble::nn {

struct Evaluation {
  double loss = 0;                 ///< mean over samples
  std::optional<double> accuracy;  ///< share of samples whose largest score is their class
};

/// After a step.
struct Progress {
  std::int64_t step = 0;       ///< steps done
  double loss = 0;             ///< of the first part, before its update; NaN of a batch that was skipped
  std::vector<double> losses;  ///< of all parts
  double rate = 0;
  bool is_skipped = false;                ///< the batch was skipped, as no plan fits it: nothing was trained
  std::optional<Evaluation> evaluation;   ///< when there was one
  std::size_t bytes = 0, peak_bytes = 0;  ///< committed by the arena now, and at most
  double ms = 0;
  double items_per_s = 0;  ///< 0 if the run does not define items
  double seconds_left = 0;
};
using TrainObserver = std::function<void(const Progress& progress)>;

/// Requests from outside of the run, read after each step.
enum class Wish : std::uint8_t { go_on, save, stop };
struct TrainControl {
  std::function<Wish()> wish = {};                        ///< none: continue
  std::function<void(const std::string& text)> say = {};  ///< gets failures after which the run continues, in one line
};

/// Every rank gets the strongest wish of all of them after each step. `ranks` may be null.
TrainControl agreed_control(const TrainControl& control, dist::Communicator* ranks);

/// complete: all steps are done. stopped: on a wish, after a requested checkpoint. diverged: at once, at a loss that is
/// not finite; nothing was written after that. no_better: LoopOptions::patience was used up, after a requested
/// checkpoint.
enum class TrainEnd : std::uint8_t { complete, stopped, diverged, no_better };

struct LoopOptions {
  std::int64_t first_step = 0;      ///< steps that are done
  std::int64_t steps = 0;           ///< in all
  std::int64_t evaluate_every = 0;  ///< steps between evaluations, and one at the end; 0: only that one
  std::string save = {};            ///< a checkpoint, at the end and every `save_every` steps; empty: none
  std::int64_t save_every = 0;      ///< 0: only at the end
  std::int64_t keep = 1;            ///< checkpoints that stay: the newest, and older ones as `<save>.step-K`
  std::string best = {};            ///< a checkpoint of the least validation loss so far
  std::int64_t patience = 0;        ///< evaluations in a row without a new least loss that end the run; 0 disables it
  std::string resume = {};          ///< the checkpoint that the run resumes from
  std::int64_t resumed_steps = 0;   ///< that it has done; steps by hand may have come since
  std::string log = {};             ///< a folder for TensorBoard; empty: none
  double items_per_step = 0;        ///< counted by Progress::items_per_s; 0: nothing
  /// This rank among several that all run the loop; none: it is the only one. Rank 0 keeps the files, and all write
  /// checkpoints with it. A step that fails on one of them ends all, without a checkpoint.
  std::optional<int> rank = {};
};

struct LoopReport {
  TrainEnd end = TrainEnd::complete;
  std::string end_text;            ///< of another end: the step, why, and the checkpoint that there is, in one line
  std::string log_error;           ///< why curves are missing; empty: none are
  std::int64_t steps = 0;          ///< done at the end
  std::int64_t skipped_steps = 0;  ///< of this run: by the loss scaler, or as no plan fits the batch
  double loss_first = 0, loss_last = 0;
  std::optional<Evaluation> evaluation;     ///< the last one
  double ms_per_step = 0, items_per_s = 0;  ///< over all steps but the first, where there are several

  /// Whether the run did not diverge, and its last losses are numbers.
  bool is_finite() const noexcept;
};

/// A run as its loop drives it. An error of a function ends the run.
class LoopedRun {
 public:
  virtual ~LoopedRun() = default;
  /// Step `step`, from 0: fills in loss, losses and rate.
  virtual void train_step(std::int64_t step, Progress& progress) = 0;
  /// None: the run has no evaluation.
  virtual std::optional<Evaluation> evaluate() = 0;
  virtual void write_checkpoint(const std::string& path) = 0;
  /// Called instead when no file can be written: tells the reason to the other ranks, which wait to take part.
  virtual void refuse_checkpoint([[maybe_unused]] const std::string& why) {}
  /// Steps that have used a batch: updates, and those that were skipped.
  virtual std::int64_t steps_done() = 0;
  /// Whether a step failed after some of its updates.
  virtual bool is_in_step() { return false; }
  /// Notes the loss of an evaluation. Returns whether it is the least so far; a resumed run remembers the earlier ones.
  virtual bool is_best([[maybe_unused]] double loss) { return false; }
  /// Evaluations in a row since the best one.
  virtual std::int64_t worse_evaluations() { return 0; }
  /// Of these, skipped ones: by the loss scaler, or as no plan fits the batch.
  virtual std::int64_t skipped_steps() = 0;
  /// Whether the next step replays a recorded one, which requests nothing from the arena.
  virtual bool is_replay() const { return false; }
};

class TrainingLoop {
 public:
  /// All of these must outlive it; the run takes its bytes from `stack`.
  TrainingLoop(LoopedRun& run, const LoopOptions& options, const memory::Stack& stack, LoopReport& report,
               const TrainControl& control);

  /// Trains until the steps are done, the control ends it, or the loss is not finite. Throws what a step throws.
  void run(const TrainObserver& observer);
  /// Throws the error of the last checkpoint, if it failed.
  void rethrow_failed_save() const;

 private:
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
      throw;  // some parameters are updated, others are not: nothing to keep
    } catch (...) {
      rescue();
      throw;
    }
  }

  LoopedRun& run_;
  const LoopOptions& options_;
  const memory::Stack& stack_;
  LoopReport& report_;
  const TrainControl& control_;
  TrainingLog log_;
  CheckpointKeeper keeper_;
  std::exception_ptr failed_save_;
  std::int64_t skipped_before_;  // by runs before this one
  double first_ms_ = 0, later_ms_ = 0;
};

}  // namespace thimble::nn
