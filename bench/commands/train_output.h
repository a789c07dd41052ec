#pragma once
// What `thimble train` prints when a run is over.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <thimble/memory/policies/committed.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/precision/gradient_report.h>

namespace thimble::bench {

/// What is printed besides the run's own report.
struct TrainExtra {
  std::vector<nn::PackedResults> packed;
  std::optional<nn::GradientReport> gradients;  ///< where asked for
  /// Of the measured peak, with its live bytes by category; none with --log, which looks at every step's peak alone.
  std::optional<memory::CommittedParts> committed;
  CategoryBytes by_category{};
};

void print_train_json(const models::TrainOptions& options, const TrainExtra& extra, const models::TrainReport& report);
void print_train_table(const models::TrainOptions& options, const TrainExtra& extra, const models::TrainReport& report);

}  // namespace thimble::bench
