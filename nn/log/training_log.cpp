#include <thimble/nn/log/training_log.h>

#include <cmath>
#include <utility>

#include <thimble/core/error.h>

namespace thimble::nn {

TrainingLog::TrainingLog(const std::string& folder, std::shared_ptr<Ledger> ledger) : ledger_(std::move(ledger)) {
  if (folder.empty()) return;
  try {
    writer_ = std::make_unique<tensorboard::EventWriter>(folder);
  } catch (const FileError& error) {
    error_ = error.what();
  }
}

void TrainingLog::begin_step(bool is_replay) {
  is_replay_ = is_replay;
  if (writer_ && !is_replay) ledger_->reset_peak();
}

void TrainingLog::end_step(const StepCurves& curves) {
  if (!writer_) return;
  try {
    write(curves);
  } catch (const FileError& error) {
    error_ = error.what();
    writer_.reset();
  }
}

void TrainingLog::write(const StepCurves& curves) {
  const auto put = [&](const std::string& tag, double value) { writer_->scalar(tag, value, curves.step); };
  if (!std::isnan(curves.loss)) put("loss", curves.loss);  // a batch that was skipped has none
  if (curves.items_per_s > 0) put("rate", curves.items_per_s);
  put("learning_rate", curves.rate);
  if (!is_replay_) bytes_ = ledger_->peak_by_category();
  for (std::size_t i = 0; i < category_count; ++i) {
    put("bytes/" + std::string(to_string(static_cast<Category>(i))), static_cast<double>(bytes_[i]));
  }
  if (curves.validation_loss) put("validation_loss", *curves.validation_loss);
  if (curves.validation_accuracy) put("validation_accuracy", *curves.validation_accuracy);
  writer_->flush();
}

}  // namespace thimble::nn
