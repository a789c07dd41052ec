#pragma once
// Curves of a run for TensorBoard: losses, rates, and the bytes of every step by category.

#include <memory>
#include <optional>
#include <string>

#include <thimble/memory/policies/ledger.h>
#include <thimble/nn/log/tensorboard.h>

namespace thimble::nn {

/// What is written of a step.
struct StepCurves {
  std::int64_t step = 0;
  double loss = 0, rate = 0;
  double items_per_s = 0;  ///< 0: not known, and not written
  std::optional<double> validation_loss, validation_accuracy;
};

class TrainingLog {
 public:
  /// Without a folder nothing is written. A folder that cannot be written to is an error() of the log, not of the run.
  TrainingLog(const std::string& folder, std::shared_ptr<Ledger> ledger);
  /// From here on the ledger's peak is that of the next step. A replay asks for no bytes and needs those of the step
  /// that was recorded.
  void begin_step(bool is_replay);
  void end_step(const StepCurves& curves);
  /// Why it was given up; empty: it was not.
  const std::string& error() const noexcept { return error_; }

 private:
  void write(const StepCurves& curves);

  std::shared_ptr<Ledger> ledger_;
  std::unique_ptr<tensorboard::EventWriter> writer_;
  std::string error_;
  bool is_replay_ = false;
  CategoryBytes bytes_{};  // of the last step that asked for them
};

}  // namespace thimble::nn
