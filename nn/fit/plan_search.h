#pragma once
// How a planner finds the fastest plan within a budget.
//
// The step is recorded once on a dry device, cut into a chain (nn/fit/stages.h), and the chain is solved for all
// budgets at once (memory/remat/frontier.h). A net that is no chain is cut in other ways, too: each has a frontier, and
// the best plan wins. A point of that frontier is run dry, its allocations are placed (memory/placement/placement.h),
// and it is run dry again in that placement: the arena's committed bytes are then the plan's peak, with nothing
// estimated. Points are run at first use, and placed if their dry run does not settle whether they keep a budget.
// Bisection finds a budget's plan, first among points spread over the whole frontier, then between two neighbours of
// these. Plans without stages (nn::whole_plans) are few: each that would be faster than the frontier's plan is run,
// the fastest first. More budget never gives a slower plan: all budgets bisect the same intervals at
// the same points, and a fit in the smaller one fits the larger, so where two diverge, the larger continues among
// faster plans.

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

/// The state of a Planner (nn/fit/fit.h), with the functions that its functions of the same names call.
class PlanSearch {
 public:
  PlanSearch(MakeRun make, memory::Device device, const CostModel& costs, PlannerOptions options);

  /// The fastest plan within a budget; null: there is none.
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
    Plan plan;  // its peak is that of a dynamic arena until it is placed
    bool is_placed = false;
    double least_step_s = 0;  // bound for its peak, once it is placed
  };
  /// Plans of one cutting of the graph, or of the graph without stages. Along a frontier bytes rise and times fall;
  /// without one times rise.
  struct Course {
    StagedGraph staged = {};
    std::unique_ptr<const remat::Frontier> frontier = nullptr;  // null: whole_
    std::map<std::size_t, Candidate> candidates = {};           // by point
    std::vector<std::size_t> list = {};                         // points spread over the frontier, rising
    std::vector<std::size_t> low = {};                          // points of which one needs least, rising
    std::size_t smallest = none;                                // of them; none: not known yet
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
  std::unique_ptr<PlanSearch> simpler_;  // with fewer options; null: this one has none
  TapeGraph graph_;
  std::shared_ptr<const PlanKey> key_;
  std::vector<Course> courses_;  // the last one without stages
  std::unique_ptr<remat::TimeBound> bound_;
  std::size_t lasting_bytes_ = 0;  // of blocks that live during a whole step
  std::vector<WholePlan> whole_;   // by rising time
  std::int64_t passes_ = 1;        // forward and backward of the recording, per step
  double accumulating_s_ = 0;      // of adding their gradients up
  bool has_segments_ = false;      // of the program itself, which plans replace
  double kept_step_s_ = 0;         // keeping everything
  std::size_t granule_ = 1;        // of the arena
  std::int64_t parameters_ = 0;
};

}  // namespace thimble::nn
