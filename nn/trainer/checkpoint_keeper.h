#pragma once
// The checkpoints that a run keeps: `x` is the newest, and with keep = N up to N - 1 older ones are beside it as
// `x.step-K`, K the steps that they have done.
//
// - `x` always exists: the older file gets its second name before the new one takes the first.
// - The next step computes the loss of a state. Until it is known to be finite the older file stays (with keep = 1
//   under a temporary name); if it is not, the older file becomes `x` again.
// - The oldest files are removed, not those with the least K: a run that starts again at the same path keeps its own.

#include <cstdint>
#include <string>

#include <thimble/core/threads/parallel.h>
#include <thimble/nn/files/checkpoint_info.h>
#include <thimble/nn/layers/module.h>
#include <thimble/optim/optimizer.h>

namespace thimble::nn {

// Before the first step. `what` begins the message: the flag or the option that names the file.

/// Creates and removes a temporary file where a checkpoint is to be. Throws ValueError when that cannot be done.
void try_to_write(const char* what, const std::string& path);

/// Throws ValueError when a file system has fewer than `needed_bytes` free; `free_bytes` < 0: unknown.
void require_space(const char* what, const std::string& path, std::uint64_t needed_bytes, std::int64_t free_bytes);
/// Bytes that a process of this user may still write beside `path`; -1: unknown.
std::int64_t free_bytes_at(const std::string& path);

/// Bytes of a file with the module's parameters and buffers, at most; of a checkpoint with the optimizer's state, too.
/// Tensors may be dry or away; sharded parameters count whole, the state only this rank's shards.
std::uint64_t weights_file_bytes(const Module& module);
std::uint64_t checkpoint_bytes(const Module& module, const optim::Optimizer& optimizer);

/// Steps that a checkpoint has done: updates, and those that were skipped.
std::int64_t steps_done(const CheckpointInfo& info);
/// Metadata of a checkpoint: steps that skipped a batch (nn/trainer/trainer.h).
inline constexpr const char* skipped_batches_key = "trainer.skipped_batches";

/// Older checkpoints are named `<path>.step-K`.
inline constexpr std::string_view older_infix = ".step-";

struct KeepOptions {
  std::string path;                ///< empty: there are no checkpoints
  std::int64_t keep = 1;           ///< files that stay
  std::string resumed = {};        ///< the checkpoint that the run resumes from; empty: none
  std::int64_t resumed_steps = 0;  ///< that it has done
  bool overwrites = false;         ///< a file at `path` that is no checkpoint may be replaced
};

/// try_to_write and require_space for a run of `steps` steps that saves after every `save_every` (0: only at the end):
/// a checkpoint of `checkpoint_bytes` beside the kept ones; ValueError if a file of another kind is there.
void check_keeping(const char* what, const KeepOptions& options, std::int64_t steps, std::int64_t save_every,
                   std::uint64_t checkpoint_bytes);

class CheckpointKeeper {
 public:
  explicit CheckpointKeeper(KeepOptions options);
  ~CheckpointKeeper() { confirm(); }
  CheckpointKeeper(const CheckpointKeeper&) = delete;
  CheckpointKeeper& operator=(const CheckpointKeeper&) = delete;

  bool is_on() const noexcept { return !options_.path.empty(); }
  /// Has `write(path)` write the checkpoint after `step` steps. Throws what it throws; the files are then as before.
  void save(std::int64_t step, FunctionRef<void(const std::string& path)> write);
  /// The state that was written has a loss: the oldest file goes.
  void confirm() noexcept;
  /// Its loss is not finite: the file before it is the checkpoint again, if there is one.
  void take_back() noexcept;
  /// Steps that the last checkpoint of this run has done; before the first, those of the resumed one, or 0.
  std::int64_t saved_step() const noexcept { return step_; }
  /// "'x' holds step 30", "there is no checkpoint".
  std::string text() const;

 private:
  void keep_before(std::int64_t step);
  void forget_before() noexcept;

  KeepOptions options_;
  std::string path_;  // of the last good checkpoint; empty: none
  std::int64_t step_;
  // While a checkpoint is not confirmed: their former values, and the second name of the file that it replaced.
  bool is_open_ = false;
  std::string path_before_, before_;
  std::int64_t step_before_ = 0;
  int lock_ = -1;  // on that file, so its temporary name does not count as stale
};

}  // namespace thimble::nn
