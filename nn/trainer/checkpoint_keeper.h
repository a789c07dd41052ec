#pragma once
// The checkpoints of a run: `x` is the newest; with keep = N up to N - 1 older ones lie next to it as `x.step-K`, where
// K is their number of steps.
//
// - `x` always exists: the older file gets its second name before the new one takes the first.
// - The next step computes the loss of a saved state. Until it is known to be finite the older file stays (with
//   keep = 1 under a temporary name). If it is not finite, the older file becomes `x` again.
// - Files are removed by age, not by K: a run that starts again at the same path keeps its new checkpoints.

#include <cstdint>
#include <string>

#include <thimble/core/threads/parallel.h>
#include <thimble/nn/files/checkpoint_info.h>
#include <thimble/nn/layers/module.h>
#include <thimble/optim/optimizer.h>

namespace thimble::nn {

// Checks before the first step. `what` begins the message: the flag or option that names the file.

/// Creates and removes a temporary file next to `path`. Throws ValueError if that fails.
void try_to_write(const char* what, const std::string& path);

/// Throws ValueError if the file system has fewer than `needed_bytes` free; `free_bytes` < 0 means unknown.
void require_space(const char* what, const std::string& path, std::uint64_t needed_bytes, std::int64_t free_bytes);
/// Bytes that this user can still write in the folder of `path`; -1 if unknown.
std::int64_t free_bytes_at(const std::string& path);

/// Upper bound of the bytes of a file with the module's parameters and buffers, or of a checkpoint, which adds the
/// optimizer's state. Tensors may be dry or offloaded. Sharded parameters count whole, state only this rank's shards.
std::uint64_t weights_file_bytes(const Module& module);
std::uint64_t checkpoint_bytes(const Module& module, const optim::Optimizer& optimizer);

/// Steps of a checkpoint: updates since the first step, and skipped batches.
std::int64_t steps_done(const CheckpointInfo& info);
/// Metadata of a checkpoint: number of skipped batches (nn/trainer/trainer.h), and the first optimizer's updates before
/// the first step, if any.
inline constexpr const char *skipped_batches_key = "trainer.skipped_batches",
                            *updates_before_key = "trainer.updates_before";
/// The count under such a key; 0 if the file has none. Throws ValueError.
std::int64_t count_in(const CheckpointInfo& info, const char* key);

/// Older checkpoints are named `<path>.step-K`.
inline constexpr std::string_view older_infix = ".step-";

struct KeepOptions {
  std::string path;                ///< empty writes no checkpoints
  std::int64_t keep = 1;           ///< files to keep
  std::string resumed = {};        ///< the checkpoint that the run resumes from, if any
  std::int64_t resumed_steps = 0;  ///< steps of `resumed`
  bool overwrites = false;         ///< may replace a file at `path` that is no checkpoint
};

/// Applies try_to_write and require_space to a run of `steps` steps that saves `checkpoint_bytes` after every
/// `save_every` steps (0 saves only at the end), in addition to older files. Throws ValueError if the path holds a file
/// of another kind.
void check_keeping(const char* what, const KeepOptions& options, std::int64_t steps, std::int64_t save_every,
                   std::uint64_t checkpoint_bytes);

class CheckpointKeeper {
 public:
  explicit CheckpointKeeper(KeepOptions options);
  ~CheckpointKeeper() { confirm(); }
  CheckpointKeeper(const CheckpointKeeper&) = delete;
  CheckpointKeeper& operator=(const CheckpointKeeper&) = delete;

  bool is_on() const noexcept { return !options_.path.empty(); }
  /// Calls `write(path)` to write the checkpoint after `step` steps. If it throws, the files stay as they were.
  void save(std::int64_t step, FunctionRef<void(const std::string& path)> write);
  /// The loss of the saved state is finite: removes the oldest file.
  void confirm() noexcept;
  /// The loss of the saved state is not finite: the file before it, if any, becomes the checkpoint again.
  void take_back() noexcept;
  /// Steps of this run's last checkpoint; before the first save, of the resumed one, or 0.
  std::int64_t saved_step() const noexcept { return step_; }
  /// "'x' holds step 30", "there is no checkpoint".
  std::string text() const;

 private:
  void keep_before(std::int64_t step);
  void forget_before() noexcept;

  KeepOptions options_;
  std::string path_;  // of the last good checkpoint, if any
  std::int64_t step_;
  // While a checkpoint is unconfirmed: the former values, and the second name of the file that it replaced.
  bool is_open_ = false;
  std::string path_before_, before_;
  std::int64_t step_before_ = 0;
  int lock_ = -1;  // on the older file, so that its temporary name does not count as stale
};

}  // namespace thimble::nn
