#pragma once
// Runs a named training on threads, one per rank of its setup.

#include <algorithm>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/dist/threads.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/rank_steps.h"

namespace thimble::testing {

/// Returns the report of rank 0.
inline models::TrainReport train(const models::RunOptions& options) {
  if (options.setup.layout.ranks == 1) return models::Engine(options).run();
  models::TrainReport report;
  dist::run_ranks(options.setup.layout.ranks, [&](dist::Communicator& ranks) {
    models::RunOptions own = options;
    own.ranks = &ranks;
    own.setup.layout.rank = ranks.rank();
    models::TrainReport of_rank = models::Engine(own).run();
    if (own.setup.layout.rank == 0) report = std::move(of_rank);
  });
  return report;
}

/// The largest of the ranks' minimum budgets, for all of them; at most the largest peak without a budget.
inline std::size_t least_budget(models::RunOptions options) {
  std::size_t least = 0, most = 0;
  for (const auto& alike : models::alike_ranks(options.setup, options.device)) {
    options.setup.layout.rank = alike.front(), options.budget_bytes = 0;
    most = std::max(most, models::Engine(options).plan().peak_bytes);
    options.budget_bytes = 1;
    try {
      models::Engine(options).plan();
      FAIL("nothing trains in a byte");
    } catch (const nn::BudgetError& error) {
      least = std::max(least, error.minimum_bytes());
    }
  }
  CHECK((least > 0 && least <= most));
  return least;
}

/// Three steps of the setup, in the least budget or without one: the losses equal one rank's, and each rank commits the
/// predicted bytes.
inline models::TrainReport check_predicted(const models::Setup& setup, bool has_budget) {
  models::RunOptions options;
  options.setup = setup;
  options.data = "synthetic";
  options.steps = 3;
  options.eval_batches = 1;
  models::RunOptions one = options;
  one.setup = alone(setup);
  const models::TrainReport expected = models::Engine(one).run();
  if (has_budget) options.budget_bytes = least_budget(options);
  models::TrainReport report = train(options);
  CHECK(report.loss_last == expected.loss_last);
  CHECK(report.loss_first != report.loss_last);
  CHECK(report.differences() == "");
  REQUIRE(report.evaluation);
  CHECK(report.evaluation->loss == expected.evaluation->loss);
  CHECK(report.evaluation->accuracy == expected.evaluation->accuracy);
  REQUIRE(report.ranks.size() == static_cast<std::size_t>(setup.layout.ranks));
  for (const nn::RankFigures& rank : report.ranks) {
    CHECK(rank.predicted_peak_bytes == rank.measured_peak_bytes);
    if (has_budget) CHECK(rank.measured_peak_bytes <= options.budget_bytes);
    CHECK((rank.messages > 0 && rank.sent_bytes > rank.messages));
  }
  return report;
}

/// The ValueError that refuses the training; empty if it is accepted.
inline std::string refusal_of(const models::RunOptions& options) {
  try {
    models::Engine(options).plan();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "";
}

}  // namespace thimble::testing
