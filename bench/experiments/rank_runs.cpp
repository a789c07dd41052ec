#include <thimble/bench/experiments/rank_runs.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <thimble/dist/threads.h>
#include <thimble/models/planning/planning.h>
#include <thimble/nn/fit/fit.h>

namespace thimble::bench {

models::TrainReport run_on_ranks(const models::TrainOptions& options) {
  models::TrainReport report;
  dist::run_ranks(options.setup.ranks, [&](dist::Communicator& ranks) {
    models::TrainOptions own = options;
    own.ranks = &ranks;
    own.setup.rank = ranks.rank();
    models::TrainReport of_rank = train(prepare_training(own));
    if (ranks.rank() == 0) report = std::move(of_rank);
  });
  return report;
}

std::size_t least_budget(models::TrainOptions options) {
  std::size_t least = 0;
  options.budget_bytes = 1;
  for (const std::vector<int>& alike : models::alike_ranks(options.setup, options.device)) {
    options.setup.rank = alike.front();
    try {
      prepare_training(options);
    } catch (const nn::BudgetError& error) {
      least = std::max(least, error.minimum_bytes());
    }
  }
  return least;
}

void add_ranks(report::Row& row, const models::TrainReport& result, std::int64_t steps) {
  row.predicted_bytes = row.measured_bytes = 0;
  double sent = 0;
  for (std::size_t r = 0; r < result.ranks.size(); ++r) {
    const auto predicted = static_cast<std::int64_t>(result.ranks[r].predicted_peak_bytes);
    const auto measured = static_cast<std::int64_t>(result.ranks[r].measured_peak_bytes);
    *row.predicted_bytes += predicted;
    *row.measured_bytes += measured;
    row.compared.push_back({"rank " + std::to_string(r), predicted, measured});
    sent += static_cast<double>(result.ranks[r].sent_bytes);
  }
  row.no_process = "its ranks are threads of one process";
  row.numbers = {{"sent", sent / static_cast<double>(steps)}, {"loss_last", result.loss_last}};
}

}  // namespace thimble::bench
