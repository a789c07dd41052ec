#pragma once
// A training run without the program: its report and losses.

#include <functional>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/models/training/training.h>

#include "support/catch.h"

namespace trained_test {

struct Run {
  thimble::models::TrainReport report;
  std::vector<double> losses;
};

/// Trains; `after_step` gets the progress of every step.
inline Run run(const thimble::models::RunOptions& options,
               const std::function<void(const thimble::nn::Progress&)>& after_step = nullptr) {
  Run result;
  thimble::models::Engine engine(options);
  result.report = engine.run([&](const thimble::nn::Progress& progress) {
    result.losses.push_back(progress.loss);
    if (after_step) after_step(progress);
  });
  return result;
}

/// Trains and compares measured bytes with predicted ones.
inline Run train_as_predicted(const thimble::models::RunOptions& options) {
  Run run = trained_test::run(options);
  CHECK(run.report.differences() == "");
  CHECK(run.report.measured_peak_bytes == run.report.predicted_peak_bytes);
  CHECK(run.report.measured_tier_bytes == run.report.predicted_tier_bytes);
  return run;
}

/// The message of the error from preparing these options; empty if they are accepted.
inline std::string refusal(const thimble::models::RunOptions& options) {
  try {
    thimble::models::Engine(options).plan();
  } catch (const thimble::Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace trained_test
