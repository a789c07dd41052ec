#pragma once
// A named training on as many threads as its setup has ranks.

#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/dist/threads.h>
#include <thimble/models/training/training.h>

namespace thimble::testing {

/// The report of rank 0.
inline models::TrainReport train(const models::TrainOptions& options) {
  if (options.setup.ranks == 1) return models::train(models::prepare_training(options));
  models::TrainReport report;
  dist::run_ranks(options.setup.ranks, [&](dist::Communicator& ranks) {
    models::TrainOptions own = options;
    own.ranks = &ranks;
    own.setup.rank = ranks.rank();
    models::TrainReport of_rank = models::train(models::prepare_training(own));
    if (own.setup.rank == 0) report = std::move(of_rank);
  });
  return report;
}

/// The ValueError that training is refused with; empty: it is not.
inline std::string refusal_of(const models::TrainOptions& options) {
  try {
    models::prepare_training(options);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "";
}

}  // namespace thimble::testing
