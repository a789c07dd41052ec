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

/// complete: all steps are done. stopped: on a wish, after a requested checkpoint. diverged: at once, at a loss that is
/// not finite; nothing was written after that. no_better: TrainerOptions::patience was used up, after a requested
/// checkpoint.
enum class TrainEnd : std::uint8_t { complete, stopped, diverged, no_better };

/// Of a loop, beside TrainerOptions.
struct LoopOptions {
  std::int64_t resumed_steps = 0;  ///< that the checkpoint has done which the run resumes from; more may have followed
  double items_per_step = 0;       ///< counted by Progress::items_per_s; 0: nothing
  /// All of several ranks run the loop; null: it is the only one. Rank 0 keeps the files, and all write checkpoints
  /// with it. Every rank gets the strongest wish of all of them after each step. A step that fails on one of them ends
  /// all, without a checkpoint.
  dist::Communicator* ranks = nullptr;
};

/// The bytes of one of several ranks.
struct RankFigures {
  std::size_t predicted_peak_bytes = 0, measured_peak_bytes = 0;  ///< committed by its arena
  CategoryBytes peak_by_category{};    ///< of its tensors' requested bytes at their peak; with a log of the last step
  std::size_t state_bytes = 0;         ///< of the optimizer's state
  std::size_t tier_bytes = 0;          ///< that its tiers occupied
  std::size_t process_peak_bytes = 0;  ///< of the process that the rank is in, since the run's set-up; 0: not known
  std::uint64_t sent_bytes = 0, messages = 0;  ///< to other ranks, in the whole run
};

/// What run() reports. Bytes are of the arena unless they say otherwise.
struct RunReport {
  TrainEnd end = TrainEnd::complete;
  std::string end_text;            ///< of another end: the step, why, and the checkpoint that there is, in one line
  std::string log_error;           ///< why curves are missing; empty: none are
  std::int64_t steps = 0;          ///< done at the end
  std::int64_t skipped_steps = 0;  ///< of this run: by the loss scaler, or as no plan fits the batch
  double loss_first = 0, loss_last = 0;
  std::optional<Evaluation> evaluation;     ///< the last one
  double ms_per_step = 0, items_per_s = 0;  ///< over all steps but the first, where there are several

  std::size_t state_bytes = 0;                   ///< of the optimizers' state
  std::optional<optim::GradScalerState> scaler;  ///< at the end; none: the loss was not scaled
  std::size_t predicted_peak_bytes = 0;
  std::size_t measured_peak_bytes = 0;  ///< committed by the arena at most
  /// Occupied by the run's tiers: files, or the host's pinned memory.
  std::size_t predicted_tier_bytes = 0, measured_tier_bytes = 0;
  std::size_t rss_peak_bytes = 0;               ///< of the process, so far (VmHWM)
  memory::OutsideBytes outside;                 ///< on the cpu: the promised bound of bytes outside of the arena
  std::size_t process_peak_bytes = 0;           ///< resident in the process since the run's set-up; 0: not known
  std::size_t process_budget_bytes = 0;         ///< 0: there was none
  std::size_t control_group_peak_bytes = 0;     ///< of the process's control group, others and caches included; 0: none
  std::size_t arena_rss_bytes = 0;              ///< of the arena's mapping at the end; 0 where the host has none of it
  std::optional<memory::DeviceUse> device_use;  ///< at the end, of a GPU
  std::optional<kernels::LibraryUse> libraries;   ///< of a GPU: their calls and refusals in this process
  std::size_t captured_launches = 0;              ///< kernels and copies of a replay; 0: there was none
  std::optional<PlacedArena::Statistics> placed;  ///< whether steps kept their plan; none: nothing was placed
  std::vector<RankFigures> ranks;                 ///< of each of several

  /// Whether the run did not diverge, and its last losses are numbers.
  bool is_finite() const noexcept;
  /// Differences between measured and predicted bytes, in words; empty: none. The arena's peak must be the predicted
  /// one (or less, if steps were skipped), on every rank, and so must the tiers' bytes; the process must hold no more
  /// than promised: the predicted peak and the bound outside. Processes of several ranks promise nothing.
  std::string differences() const;
};

/// The keys of device_use and libraries in JSON: device_total_bytes, device_used_bytes, device_outside_bytes,
/// context_bytes, handle_bytes, cublaslt_calls, cublaslt_refusals, cudnn_calls, cudnn_refusals; none for a run on the
/// cpu.
std::vector<std::pair<std::string, std::size_t>> device_figures(const RunReport& report);

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
  /// After all steps: writes the other files of the run.
  virtual void end() {}
};

/// Trains until the steps are done, the control ends it, or the loss is not finite. The run takes its bytes from
/// `stack`. Throws what a step throws; at the end, the error of the last checkpoint, if it failed.
void run_loop(LoopedRun& run, const TrainerOptions& options, const LoopOptions& looped, const memory::Stack& stack,
              RunReport& report, const TrainControl& control, const TrainObserver& observer);

}  // namespace thimble::nn
