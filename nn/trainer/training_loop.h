#pragma once
// Runs training steps, evaluations, checkpoints and curves, and handles failures.
//
// - A checkpoint holds only a state with a finite loss: if the next step computes another, the file is removed. A loss
//   that is not finite ends the run at once, unless the loss scaler skipped the step; so does an evaluation that is not
//   finite, or a state with a NaN.
// - A step is followed by its evaluation, its curves, the observer and its checkpoint. So the checkpoint contains the
//   observer's writes to buffers of the model (an average of the weights).
// - A failure between two checkpoints (memory, data) ends the run after a checkpoint of the last whole step.
// - If an intermediate checkpoint cannot be written, the run reports it and continues. If the last one cannot, the run
//   throws after it has written everything else.
// - If curves can no longer be written, the run reports it once and stops writing them.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <thimble/memory/process/outside.h>
#include <thimble/memory/stack.h>
#include <thimble/memory/summary.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/grad_scaler.h>

namespace thimble::dist {
class Communicator;
}

namespace thimble::nn {

struct TrainerOptions;

struct Evaluation {
  double loss = 0;                 ///< mean over samples
  std::optional<double> accuracy;  ///< fraction of samples whose largest score is their class
};

/// Describes a finished step.
struct Progress {
  std::int64_t step = 0;       ///< steps done
  double loss = 0;             ///< of the first part, before its update; NaN if the batch was skipped
  std::vector<double> losses;  ///< of all parts
  double rate = 0;
  bool is_skipped = false;                ///< no plan fits the batch, and nothing was trained
  std::optional<Evaluation> evaluation;   ///< if one was due
  std::size_t bytes = 0, peak_bytes = 0;  ///< committed by the arena: now, and the peak so far
  double ms = 0;
  double items_per_s = 0;  ///< 0 if the run defines no items
  double seconds_left = 0;
};
using TrainObserver = std::function<void(const Progress& progress)>;

/// A request from outside the run, read after each step.
enum class Wish : std::uint8_t { go_on, save, stop };
struct TrainControl {
  std::function<Wish()> wish = {};                        ///< defaults to Wish::go_on
  std::function<void(const std::string& text)> say = {};  ///< receives failures that do not end the run, in one line
};

/// complete: all steps are done. stopped: Wish::stop ended the run after a checkpoint, if it saves any. diverged: the
/// run ended at a loss that is not finite, and wrote nothing after that. no_better: TrainerOptions::patience ended the
/// run after a checkpoint, if it saves any.
enum class TrainEnd : std::uint8_t { complete, stopped, diverged, no_better };

/// Options of a loop, in addition to TrainerOptions.
struct LoopOptions {
  std::int64_t resumed_steps = 0;  ///< steps of the checkpoint that the run resumes from; the run may have done more
  double items_per_step = 0;       ///< for Progress::items_per_s
  /// All ranks that run the loop; null for one rank. Rank 0 keeps the files; all ranks write checkpoints with it. Every
  /// rank gets the strongest wish of all ranks after each step. A step that fails on one rank ends the run on all,
  /// without a checkpoint.
  dist::Communicator* ranks = nullptr;
};

/// Figures of one of several ranks.
struct RankFigures {
  std::size_t predicted_peak_bytes = 0, measured_peak_bytes = 0;  ///< committed by its arena
  memory::CategoryBytes peak_by_category{};    ///< requested by its tensors at their peak; with a log, of the last step
  std::size_t state_bytes = 0;                 ///< of the optimizer's state
  std::size_t tier_bytes = 0;                  ///< in the rank's tiers
  std::size_t process_peak_bytes = 0;          ///< peak of the rank's process since the run's set-up; 0 if unknown
  std::uint64_t sent_bytes = 0, messages = 0;  ///< to other ranks, in the whole run
};

/// Result of run(). Bytes are the arena's unless noted.
struct RunReport {
  TrainEnd end = TrainEnd::complete;
  std::string end_text;    ///< unless all steps are done: the step, the reason and the last checkpoint, in one line
  std::string log_error;   ///< why curves are missing, if they are
  std::int64_t steps = 0;  ///< done at the end
  std::int64_t skipped_steps = 0;  ///< of this run: skipped by the loss scaler, or because no plan fits the batch
  double loss_first = 0, loss_last = 0;
  std::optional<Evaluation> evaluation;     ///< the last one
  double ms_per_step = 0, items_per_s = 0;  ///< over all steps but the first, if there are several

  std::size_t state_bytes = 0;                   ///< of the optimizers' state
  std::optional<optim::GradScalerState> scaler;  ///< at the end, if the loss is scaled
  std::size_t predicted_peak_bytes = 0;
  std::size_t measured_peak_bytes = 0;  ///< peak of committed bytes
  /// In the run's tiers: files, or the host's pinned memory.
  std::size_t predicted_tier_bytes = 0, measured_tier_bytes = 0;
  std::size_t rss_peak_bytes = 0;            ///< peak of the process since it started (VmHWM)
  memory::OutsideBytes outside;              ///< on the cpu: promised bound of the bytes outside the arena
  std::size_t process_peak_bytes = 0;        ///< peak of resident bytes since the run's set-up; 0 if unknown
  std::size_t process_budget_bytes = 0;      ///< 0 means no budget
  std::size_t control_group_peak_bytes = 0;  ///< of the control group, with other processes and caches; 0 without one
  std::size_t arena_rss_bytes = 0;           ///< of the arena's mapping at the end; 0 for a GPU's arena
  std::optional<memory::DeviceUse> device_use;            ///< of a GPU, at the end
  std::optional<kernels::LibraryUse> libraries;           ///< of a GPU: calls and refusals in this process
  std::size_t captured_launches = 0;                      ///< kernels and copies of a replay; 0 without captured steps
  std::optional<memory::PlacedArena::Statistics> placed;  ///< whether steps kept their plan; nullopt without placements
  std::vector<RankFigures> ranks;                         ///< empty for one rank

  /// Whether the run did not diverge, and its last losses are finite.
  bool is_finite() const noexcept;
  /// Lists measured bytes that break their predictions, in words; empty if all hold. On every rank the arena's peak
  /// must equal its prediction (or be less, if steps were skipped). Tiers must not exceed theirs, nor the process the
  /// predicted peak plus the bound outside the arena; processes of several ranks promise nothing.
  std::string differences() const;
};

/// device_use and libraries as JSON keys and values: device_total_bytes, device_used_bytes, device_outside_bytes,
/// context_bytes, handle_bytes, cublaslt_calls, cublaslt_refusals, cudnn_calls, cudnn_refusals; empty on the cpu.
std::vector<std::pair<std::string, std::size_t>> device_figures(const RunReport& report);

/// The interface between a run and its loop. An error of any function ends the run.
class LoopedRun {
 public:
  virtual ~LoopedRun() = default;
  /// Runs step `step`, from 0, and fills in loss, losses and rate.
  virtual void train_step(std::int64_t step, Progress& progress) = 0;
  /// Returns nullopt if the run has no evaluation.
  virtual std::optional<Evaluation> evaluate() = 0;
  virtual void write_checkpoint(const std::string& path) = 0;
  /// Called instead when no file can be written: tells the reason to the other ranks, which wait for the checkpoint.
  virtual void refuse_checkpoint([[maybe_unused]] const std::string& why) {}
  /// Steps that have used a batch: updates and skipped steps.
  virtual std::int64_t steps_done() = 0;
  /// Whether a step failed after some of its updates.
  virtual bool is_in_step() { return false; }
  /// Records the loss of an evaluation. Returns whether it is the least so far; a resumed run knows earlier ones.
  virtual bool is_best([[maybe_unused]] double loss) { return false; }
  /// Evaluations in a row since the best one.
  virtual std::int64_t worse_evaluations() { return 0; }
  /// Skipped steps among steps_done(): by the loss scaler, or because no plan fits the batch.
  virtual std::int64_t skipped_steps() = 0;
  /// Whether the next step replays a captured one, which requests nothing from the arena.
  virtual bool is_replay() const { return false; }
  /// Called after all steps: writes the run's other files.
  virtual void end() {}
};

/// Trains until all steps are done, the control ends the run, or the loss is not finite. The run takes its bytes from
/// `stack`. Throws any error of a step; at the end, the error of the last checkpoint, if it failed.
void run_loop(LoopedRun& run, const TrainerOptions& options, const LoopOptions& looped, const memory::Stack& stack,
              RunReport& report, const TrainControl& control, const TrainObserver& observer);

}  // namespace thimble::nn
