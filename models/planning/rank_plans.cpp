// Plans of several ranks.

#include <algorithm>
#include <map>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/bytes.h>
#include <thimble/memory/stack.h>
#include <thimble/models/planning/choices.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/training/trained_parts.h>

namespace thimble::models {
namespace rank_plans_detail {

/// What bytes depend on: the stage, the sizes of a rank's parts, and whether it writes checkpoints.
std::vector<std::int64_t> shares_of(const Setup& setup, const TrainedParts& parts) {
  const dist::DataParallel& parallel = *parts.parallel;
  const ModelOptions& options = parts.model->options();
  std::vector<std::int64_t> sizes{setup.rank == 0 ? 1 : 0, stage_of(setup).index, options.team.own(options.vocabulary)};
  for (const dist::Bucket& bucket : parallel.buckets()) {
    sizes.push_back(bucket.shard_elements(parallel.rank()));
    for (const dist::Piece& piece : bucket.pieces[static_cast<std::size_t>(parallel.rank())]) {
      sizes.insert(sizes.end(), {static_cast<std::int64_t>(piece.parameter), piece.end - piece.begin});
    }
  }
  return sizes;
}

}  // namespace rank_plans_detail

nn::Plan fit_in_budget(const ChoiceOptions& options, const Setup& setup, nn::Planner& planner) {
  if (setup.ranks == 1 || (setup.zero < 3 && setup.tp == 1)) return planner.fit(options.budget_bytes);
  const int of_stage = setup.ranks / setup.pp, begin = setup.rank / of_stage * of_stage;  // the ranks of this stage
  Setup of_rank = setup;
  of_rank.rank = begin;
  nn::Planner first(options.run_of(of_rank), options.device, options.costs, planner_options(of_rank, options.device));
  std::size_t target = options.budget_bytes, most = 0;
  // The plan on this rank; `most` is what it needs on the one that needs most.
  const auto place_on_all = [&](const nn::Plan& plan) {
    nn::Plan own;
    most = 0;
    for (of_rank.rank = begin; of_rank.rank < begin + of_stage; ++of_rank.rank) {
      nn::Plan placed = nn::place_anew(plan, options.run_of(of_rank), options.device);
      most = std::max(most, placed.peak_bytes);
      if (of_rank.rank == setup.rank) own = std::move(placed);
    }
    return own;
  };
  constexpr int tries = 4;  // blocks of shards differ by grains, arenas by granules
  try {
    for (int i = 0; i < tries; ++i) {
      nn::Plan own = place_on_all(first.fit(target));
      if (most <= options.budget_bytes) return own;
      target -= std::min(target, most - options.budget_bytes);
    }
  } catch (const nn::BudgetError& error) {  // of the first of them
    place_on_all(first.fit(error.minimum_bytes()));
  }
  throw nn::BudgetError("fit: no plan needs as little as " + memory::exact_bytes(options.budget_bytes) +
                            " on every rank; one needs " + memory::exact_bytes(most),
                        options.budget_bytes, most);
}

std::vector<RankPlan> plan_ranks(const PlanOptions& options) {
  if (options.finds_batch || options.finds_sequence || options.is_inference) {
    const char* const option = options.finds_batch      ? "`finds_batch`"
                               : options.finds_sequence ? "`finds_sequence`"
                                                        : "`is_inference`";
    throw ValueError(std::string(option) + ": not with `ranks` " + std::to_string(options.setup.ranks) +
                     "; one rank is allowed");
  }
  const Device on = dry(options.device);
  std::map<std::vector<std::int64_t>, std::vector<int>> groups;
  PlanOptions of_rank = options;
  for (int r = 0; r < options.setup.ranks; ++r) {
    const memory::Stack stack = memory::make_resource(on, nn::profile_options(on));
    const ResourceScope scope(stack.top);
    of_rank.setup.rank = r;
    const TrainedParts parts(of_rank.setup, on);
    groups[rank_plans_detail::shares_of(of_rank.setup, parts)].push_back(r);
  }
  std::vector<RankPlan> plans;
  for (auto& [shares, ranks] : groups) {
    of_rank.setup.rank = ranks.front();
    plans.push_back({std::move(ranks), make_plan(of_rank)});
  }
  const auto before = [](const RankPlan& a, const RankPlan& b) { return a.ranks.front() < b.ranks.front(); };
  std::sort(plans.begin(), plans.end(), before);
  const auto needs_less = [](const RankPlan& a, const RankPlan& b) {
    return a.report.plan.peak_bytes < b.report.plan.peak_bytes;
  };
  const auto most = std::max_element(plans.begin(), plans.end(), needs_less);
  std::rotate(plans.begin(), most, most + 1);
  return plans;
}

}  // namespace thimble::models
