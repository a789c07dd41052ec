#pragma once
// Finds the fastest plan within a budget.
//
// The step is recorded once on a dry device and cut into a chain (nn/fit/stages.h), and the chain is solved for all
// budgets at once (memory/remat/frontier.h). A net that is no chain is also cut in other ways: each cutting has a
// frontier, and the best plan wins. A point of a frontier is run dry, its allocations are placed
// (memory/placement/placement.h), and it is run dry again in that placement: the arena's committed bytes are the plan's
// peak, with nothing estimated. Points run at first use, and are placed only if the dry run does not settle whether
// they keep the budget. Bisection finds the plan, first among points spread over the whole frontier, then between two
// neighbours of these. Plans without stages (nn::whole_plans) are few: each that would be faster than the frontier's
// plan is run, fastest first. A larger budget never gives a slower plan: all budgets bisect the same intervals at the
// same points, and a point that fits a smaller budget fits a larger one, which continues among faster plans where the
// two searches diverge.

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <thimble/memory/remat/frontier.h>
#include <thimble/memory/remat/select.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/fit/stages.h>

namespace thimble::nn {

/// Implements the functions of Planner (nn/fit/fit.h) with the same names.
class PlanSearch {
 public:
  PlanSearch(MakeRun make, memory::Device device, const CostModel& costs, PlannerOptions options);

  /// The fastest plan within a budget, or null.
  const Plan* find(std::size_t budget_bytes);
  std::vector<Plan> plans();
  const Plan& smallest();
  std::size_t least_load();
  const Plan& keep_everything();
  double kept_step_s() const noexcept { return kept_step_s_; }
  std::int64_t parameters() const noexcept { return parameters_; }
  const TapeGraph& graph() const noexcept { return graph_; }

 private:
  static constexpr std::size_t none = ~std::size_t{0};
  struct Candidate {
    Plan plan;  // until it is placed, its peak is a dynamic arena's
    bool is_placed = false;
    double least_step_s = 0;  // bound for its peak, once placed
  };
  /// Plans for one cutting of the graph, or for the graph without stages. Along a frontier bytes rise and times fall;
  /// without a frontier times rise.
  struct Course {
    StagedGraph staged = {};
    std::unique_ptr<const remat::Frontier> frontier = nullptr;  // null for the plans in whole_
    std::map<std::size_t, Candidate> candidates = {};           // by point
    std::vector<std::size_t> list = {};                         // points spread over the frontier, rising
    std::vector<std::size_t> low = {};                          // rising; one of these points needs least
    std::size_t smallest = none;                                // of low, once known
  };
  void add_course(StagedGraph staged, const std::vector<std::uint32_t>& cuts, bool fuses);
  MakeRun run_with(const Plan& plan) const;
  Plan plan_of(std::shared_ptr<const TapePlan> tape) const;
  Candidate run_dry(std::shared_ptr<const TapePlan> tape) const;
  Candidate& run(Course& course, std::size_t point);
  const Plan& place(Candidate& candidate);
  std::size_t committed(std::size_t bytes) const noexcept;
  bool is_within(Course& course, std::size_t point, std::size_t budget_bytes);
  std::size_t find_point(Course& course, std::size_t budget_bytes, bool by_load);
  std::size_t smallest_point(Course& course);
  bool names_segments() const;
  std::size_t size(const Course& course) const {
    return course.frontier ? course.frontier->points().size() : whole_.size();
  }
  remat::Time time_of(const Course& course, std::size_t point) const;
  remat::Time least_time() const { return courses_.front().frontier->points().back().time; }  // keeping everything
  double step_seconds(remat::Time time) const;
  double least_seconds(std::size_t peak_bytes);

  MakeRun make_;
  memory::Device device_;
  PlannerOptions options_;
  std::unique_ptr<PlanSearch> simpler_;  // with fewer options, if any
  TapeGraph graph_;
  std::shared_ptr<const PlanKey> key_;
  std::vector<Course> courses_;  // the last one has no stages
  std::unique_ptr<remat::TimeBound> bound_;
  std::size_t lasting_bytes_ = 0;  // of blocks that live through a whole step
  std::vector<WholePlan> whole_;   // by rising time
  std::int64_t passes_ = 1;        // forward and backward passes per step
  double accumulating_s_ = 0;      // to add their gradients
  bool has_segments_ = false;      // of the program itself, which plans replace
  double kept_step_s_ = 0;         // of the plan that keeps everything
  std::size_t granule_ = 1;        // of the arena
  std::int64_t parameters_ = 0;
};

}  // namespace thimble::nn
