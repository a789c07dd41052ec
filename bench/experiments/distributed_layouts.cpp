// A model over ranks in every layout: shares of the batch, parts, stages, stages of ZeRO, with and without a budget.

#include <map>
#include <string>
#include <vector>

#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/experiments/rank_runs.h>
#include <thimble/bench/experiments/runs.h>

namespace thimble::bench {
namespace distributed_layouts_detail {

constexpr std::int64_t all_micro_batches = 8;  // over all ranks that share the batch

/// How the work is cut, which is an attribute of the arithmetic.
struct Cut {
  int tp = 1, pp = 1, cp = 1, chunks = 1;
  bool cuts_sequence = false;

  std::string text() const {
    std::string words = cp > 1 ? "sequence in " + std::to_string(cp) : "parts " + std::to_string(tp);
    if (cuts_sequence) words += " and sequence";
    words += ", stages " + std::to_string(pp);
    if (chunks > 1) words += " in " + std::to_string(chunks) + " chunks";
    return words;
  }
};

std::vector<Cut> cuts(bool is_quick) {
  if (is_quick) return {{2, 2, 1, 1, true}, {4, 1}, {1, 4}, {1, 1, 2}, {1, 2, 1, 2}};
  std::vector<Cut> list;
  for (const int pp : {1, 2, 4}) {
    for (const int tp : {1, 2, 4}) {
      list.push_back({tp, pp});
      if (tp > 1) list.push_back({tp, pp, 1, 1, true});
    }
    if (pp == 4) continue;
    for (const int cp : {2, 4}) list.push_back({1, pp, cp});
  }
  for (const int tp : {1, 2}) list.push_back({tp, 2, 1, 2});
  return list;
}

models::TrainOptions training(const ExperimentOptions& all, const Cut& cut) {
  models::TrainOptions options = generated_training(all, "char-gpt", 4, 4);
  models::ModelOptions& sizes = options.setup.sizes;
  sizes.layers = 4, sizes.width = 48, sizes.heads = 4, sizes.sequence = 32, sizes.dropout = 0.1;
  options.setup.batch = 2 * all_micro_batches;
  options.setup.micro_batches = all_micro_batches;
  options.setup.tp = cut.tp, options.setup.pp = cut.pp, options.setup.cp = cut.cp;
  options.setup.sequence_parallel = cut.cuts_sequence;
  options.setup.chunks = cut.chunks;
  if (cut.chunks > 1) options.setup.pipeline = "interleaved";
  options.setup.bucket_bytes = 64 << 10;
  options.eval_batches = 1;
  return options;
}

}  // namespace distributed_layouts_detail

report::Experiment distributed_layouts_experiment(const ExperimentOptions& options) {
  using namespace distributed_layouts_detail;
  report::Experiment experiment;
  experiment.name = "distributed-layouts";
  experiment.title = "One model in every layout over ranks";
  experiment.question =
      "Has every rank of every layout the bytes that were told, and the whole the losses of one rank?";
  experiment.theory =
      "In how many parts and stages work is cut is an attribute of the arithmetic: one rank that has all of them adds "
      "up as many ranks do. Who shares the batch, and what ZeRO shares out, changes no bit. What a rank needs is said "
      "by a dry run of that rank alone. Figures are sums over the ranks; each rank's own are compared as well.";
  experiment.columns = {{"sent", "sent per step", report::Unit::bytes},
                        {"loss_last", "last loss", report::Unit::plain, 6}};
  std::size_t same = 0;
  for (const Cut& cut : cuts(options.is_quick)) {
    options.progress("distributed-layouts: " + cut.text());
    const models::TrainOptions one = training(options, cut);
    const models::TrainReport expected = train(prepare_training(one));
    for (const int shares : {1, 2}) {
      const int ranks = shares * cut.tp * cut.pp * cut.cp;
      if (ranks == 1) continue;
      for (int zero = 0; zero <= (shares == 1 ? 0 : 3); zero += options.is_quick ? 3 : 1) {
        for (const bool has_budget : {false, true}) {
          if (has_budget && options.is_quick && shares > 1) continue;
          models::TrainOptions several = one;
          several.setup.ranks = ranks;
          several.setup.zero = zero;
          several.setup.micro_batches = all_micro_batches / shares;
          if (has_budget) several.budget_bytes = least_budget(several);
          const models::TrainReport result = run_on_ranks(several);
          same += result.loss_last == expected.loss_last && result.evaluation->loss == expected.evaluation->loss;
          report::Row row;
          row.config = {{"cut", cut.text()},
                        {"shares", std::int64_t{shares}},
                        {"ZeRO", std::int64_t{zero}},
                        {"plan", std::string(has_budget ? "least budget" : "none")}};
          add_ranks(row, result, several.steps);
          experiment.rows.push_back(row);
        }
      }
    }
  }
  experiment.verdict = "The last loss and the validation loss are those of one rank in " + std::to_string(same) +
                       " of " + std::to_string(experiment.rows.size()) + " rows; " + equal_rows(experiment, "rows") +
                       ".";
  return experiment;
}

}  // namespace thimble::bench
