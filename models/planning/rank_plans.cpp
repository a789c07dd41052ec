// Plans of several ranks.

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/dist/parts/team.h>
#include <thimble/memory/bytes.h>
#include <thimble/memory/stack.h>
#include <thimble/models/planning/planned_run.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/techniques/trained_parts.h>
#include <thimble/models/training/choices.h>

namespace thimble::models {
namespace rank_plans_detail {

/// What bytes depend on, of data rank `rank` of a stage: the sizes of its shares, and whether it writes checkpoints.
std::vector<std::int64_t> shares_of(int rank, bool is_writer, const dist::DataParallel& parallel) {
  std::vector<std::int64_t> sizes{is_writer ? 1 : 0};
  for (const dist::Bucket& bucket : parallel.buckets()) {
    sizes.push_back(bucket.shard_elements(rank));
    for (const dist::Piece& piece : bucket.pieces[static_cast<std::size_t>(rank)]) {
      sizes.insert(sizes.end(), {static_cast<std::int64_t>(piece.parameter), piece.end - piece.begin});
    }
  }
  return sizes;
}

}  // namespace rank_plans_detail

std::vector<std::vector<int>> alike_ranks(Setup setup, memory::Device device) {
  if (setup.ranks == 1) return {{0}};
  const memory::Device on = dry(device);
  const int teams = data_ranks(setup), of_stage = setup.ranks / setup.pp;
  std::vector<std::vector<int>> groups;
  for (int begin = 0; begin < setup.ranks; begin += of_stage) {
    std::vector<int> members(
        static_cast<std::size_t>(team_size(setup)));  // of a team, whose ranks are not in a group yet
    std::iota(members.begin(), members.end(), 0);
    while (!members.empty()) {  // those with as many tokens of the vocabulary at once
      const memory::Stack stack = memory::make_resource(on, nn::profile_options(on));
      const ResourceScope scope(stack.top);
      setup.rank = begin + members.front();
      const TrainedParts parts(setup, on);
      const auto tokens = [&, all = parts.model->options().vocabulary](int member) {
        return dist::part_begin(all, setup.tp, member + 1) - dist::part_begin(all, setup.tp, member);
      };
      const auto alike = std::stable_partition(members.begin(), members.end(),
                                               [&, own = tokens(members.front())](int m) { return tokens(m) != own; });
      std::map<std::vector<std::int64_t>, std::vector<int>> of_shares;
      for (int d = 0; d < teams; ++d) {
        for (auto m = alike; m != members.end(); ++m) {
          const int r = begin + d * team_size(setup) + *m;
          of_shares[rank_plans_detail::shares_of(d, r == 0, *parts.parallel)].push_back(r);
        }
      }
      for (auto& [shares, ranks] : of_shares) groups.push_back(std::move(ranks));
      members.erase(alike, members.end());
    }
  }
  std::sort(groups.begin(), groups.end());
  return groups;
}

std::vector<RankPlan> plan_ranks(const PlanOptions& options) {
  if (options.finds_batch || options.finds_sequence || options.is_inference) {
    const char* const option = options.finds_batch      ? "`finds_batch`"
                               : options.finds_sequence ? "`finds_sequence`"
                                                        : "`is_inference`";
    throw ValueError(std::string(option) + ": not with `ranks` " + std::to_string(options.setup.ranks) +
                     "; expected one rank");
  }
  std::vector<RankPlan> plans;
  PlanOptions of_rank = options;
  const PlannedRuns runs(of_rank.setup, options.device, options.data);
  for (std::vector<int>& ranks : alike_ranks(of_rank.setup, options.device)) plans.push_back({std::move(ranks), {}});
  if (options.budget_bytes == 0 && hardware_for(options.costs, options.device).memory_bytes == 0) {
    for (RankPlan& plan : plans) {  // nothing is searched for: a dry run tells
      of_rank.setup.rank = plan.ranks.front();
      const nn::MemoryProfile profile = nn::profile_training(dry(options.device), runs.of(of_rank.setup));
      plan.report.plan.peak_bytes = profile.peak_bytes;
      plan.report.plan.peak_by_category = profile.peak_by_category;
      plan.report.committed =
          memory::committed_parts(profile.peak_live_bytes, profile.peak_height_bytes, profile.peak_bytes);
      plan.report.keep_everything_bytes = profile.peak_bytes;
    }
  } else {
    for (RankPlan& plan : plans) {
      of_rank.setup.rank = plan.ranks.front();
      plan.report = make_plan(of_rank);
    }
  }
  const auto needs_less = [](const RankPlan& a, const RankPlan& b) {
    return a.report.plan.peak_bytes < b.report.plan.peak_bytes;
  };
  const auto most = std::max_element(plans.begin(), plans.end(), needs_less);
  if (!most->report.planner) {
    of_rank.setup.rank = most->ranks.front();
    most->report = make_plan(of_rank);
  }
  std::rotate(plans.begin(), most, most + 1);
  return plans;
}

}  // namespace thimble::models
