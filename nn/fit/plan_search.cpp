#include <thimble/nn/fit/plan_search.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include <thimble/autograd/node.h>
#include <thimble/core/error.h>
#include <thimble/memory/arena/backing.h>

namespace thimble::nn {
namespace {

constexpr std::size_t spread_count = 48;      // initial points of a search, spread over the frontier's bytes
constexpr std::size_t beyond_count = 2;       // of these, tried beyond the place where bisection ends
constexpr std::size_t refinement_count = 24;  // further points for plans(), where neighbouring plans lie far apart
constexpr std::size_t smallest_count = 12;    // points at the lower end; all are run, as any may be the smallest
constexpr std::size_t low_count = 4;          // of the spread points, also run for the smallest
constexpr std::size_t whole_count = 64;       // plans without stages
constexpr std::size_t long_chain = 128;       // stages; the frontier of a longer chain is too coarse
// Numbers of even stages for nets that are no chains, and for long chains.
constexpr std::size_t even_counts[] = {12, 32}, long_counts[] = {64};

/// At most `count` points of a frontier, by index, with both ends: the last and fastest point of each of equal steps of
/// bytes.
std::vector<std::size_t> spread(std::span<const remat::Frontier::Point> points, std::size_t count) {
  const double begin = static_cast<double>(points.front().budget_bytes);
  const double step = (static_cast<double>(points.back().budget_bytes) - begin) / static_cast<double>(count - 1);
  const auto place = [&](std::size_t i) {
    return std::ceil((static_cast<double>(points[i].budget_bytes) - begin) / step);
  };
  std::vector<std::size_t> some;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (some.size() > 1 && place(some.back()) == place(i)) some.pop_back();
    some.push_back(i);
  }
  return some;
}

/// A point of the frontier, and the load of its dry run.
struct Tried {
  std::size_t point;
  remat::Time time;
  std::size_t bytes;
};

/// The points that no other one dominates in time and bytes, by rising bytes.
std::vector<Tried> best(std::vector<Tried> all) {
  std::stable_sort(all.begin(), all.end(), [](const Tried& a, const Tried& b) {
    return a.time != b.time ? a.time < b.time : a.bytes < b.bytes;
  });
  std::vector<Tried> front;  // fastest first: a slower plan must need less
  for (const Tried& tried : all) {
    if (front.empty() || tried.bytes < front.back().bytes) front.push_back(tried);
  }
  std::reverse(front.begin(), front.end());
  return front;
}

/// The point of the frontier to run next: the middle between the two neighbours that lie farthest apart in bytes with
/// an unrun point between them. Returns the number of points if none lie farther apart than a fiftieth of the range.
std::size_t next_point(const std::vector<Tried>& front, const std::vector<bool>& was_run) {
  std::size_t widest = (front.back().bytes - front.front().bytes) / 50;
  std::size_t next = was_run.size();
  for (std::size_t i = 0; i + 1 < front.size(); ++i) {
    const std::size_t width = front[i + 1].bytes - front[i].bytes;
    if (width <= widest) continue;
    std::vector<std::size_t> between;
    for (std::size_t p = front[i].point + 1; p < front[i + 1].point; ++p) {
      if (!was_run[p]) between.push_back(p);
    }
    if (between.empty()) continue;
    widest = width;
    next = between[between.size() / 2];
  }
  return next;
}

/// Per stage, the bytes of its parameters' gradients that stay until an earlier stage's backward, because that stage
/// reads the same parameter.
std::vector<remat::Bytes> shared_gradients(const TapeGraph& graph, const std::vector<std::uint32_t>& cuts) {
  struct Readers {
    std::size_t first, last;  // stages
    std::size_t bytes;
  };
  std::map<std::uint32_t, Readers> by_storage;
  for (std::size_t stage = 0; stage + 1 < cuts.size(); ++stage) {
    for (std::uint32_t n = cuts[stage]; n < cuts[stage + 1]; ++n) {
      for (const std::uint32_t value : graph.nodes[n].inputs) {
        if (value == TapeGraph::none || !graph.values[value].is_leaf) continue;
        const Readers read{stage, stage, graph.bytes_of(value)};
        by_storage.emplace(graph.values[value].storage, read).first->second.last = stage;
      }
    }
  }
  std::vector<remat::Bytes> bytes(cuts.size() - 1);
  for (const auto& [storage, readers] : by_storage) {
    if (readers.first < readers.last) bytes[readers.last] += static_cast<remat::Bytes>(readers.bytes);
  }
  return bytes;
}

/// Bytes of blocks that live from before the second of two traced steps until after it, except gradients.
std::size_t lasting_bytes(const MemoryProfile& profile) {
  std::map<std::uint64_t, const memory::Trace::Event*> blocks;  // by their latest event
  for (std::size_t i = 0; i < profile.step_ends[1]; ++i) {
    const memory::Trace::Event& event = profile.events[i];
    if (event.action == memory::Trace::Action::free) {
      blocks.erase(event.block);
    } else if (i < profile.step_ends[0] || blocks.contains(event.block)) {
      blocks[event.block] = &event;
    }
  }
  std::size_t bytes = 0;
  for (const auto& [block, event] : blocks) bytes += event->category == memory::Category::gradient ? 0 : event->bytes;
  return bytes;
}

/// Whether a chain leaves much undecided: several stages share tensors, or one stage has a quarter of all bytes.
bool is_coarse(const remat::Chain& chain) {
  remat::Bytes all = 0, largest = 0;
  for (const remat::Stage& stage : chain.stages) {
    const remat::Bytes bytes = stage.options.front().kept_bytes + stage.output_bytes;
    all += bytes;
    largest = std::max(largest, bytes);
  }
  return !chain.shared.empty() || 4 * largest > all;
}

/// Numbers of even stages to try in addition to the chain's.
std::span<const std::size_t> other_counts(const remat::Chain& chain) {
  if (is_coarse(chain)) return even_counts;
  return chain.size() > long_chain ? std::span<const std::size_t>(long_counts) : std::span<const std::size_t>();
}

/// Sets the bytes of parameter gradients that remain after each stage's backward.
void keep_gradients(const std::vector<remat::Bytes>& bytes, StagedGraph& staged) {
  for (std::size_t i = 0; i < staged.chain.stages.size(); ++i) {
    staged.chain.stages[i].parameter_gradient_bytes = bytes[i];
  }
}

}  // namespace

PlanSearch::PlanSearch(MakeRun make, memory::Device device, const CostModel& costs, PlannerOptions options)
    : make_(std::move(make)), device_(dry(device)), options_(std::move(options)) {
  const SpillPolicy& spilling = options_.spilling;
  if (spilling.offloads && !options_.make_tier) throw PlanError("planner: tensors are to be offloaded, without a tier");
  if (spilling.offloads || spilling.packs) {
    PlannerOptions fewer = options_;
    (spilling.packs ? fewer.spilling.packs : fewer.spilling.offloads) = false;
    simpler_ = std::make_unique<PlanSearch>(make_, device, costs, std::move(fewer));
  }
  bool fuses = false;
  graph_ = record_step(device_, make_, [&](TrainingRun& run, const TapeGraph& graph) {
    parameters_ = run.parameters();
    passes_ = run.options().micro_batches;
    fuses = run.options().fuses_optimizer != FusedUpdate::off;
    key_ = std::make_shared<PlanKey>(plan_key(device_, graph, run));
  });
  const auto is_view = [](const TapeGraph::Node& node) { return node.type->cost == ops::Cost::view; };
  if (std::all_of(graph_.nodes.begin(), graph_.nodes.end(), is_view)) {
    throw PlanError(
        "planner: expected a loss that operators compute, got a view of a parameter, of which a plan has "
        "nothing to drop; leave the budget out");
  }
  if (spilling.packs) check_rules(graph_, spilling);
  const std::vector<NodeTimes> times = node_times(graph_, costs);
  const std::vector<std::uint32_t> cuts = cut_points(graph_);
  const SpillVariants variants(graph_, times, costs.hardware, spilling);
  StagedGraph staged = make_stages(graph_, times, cuts, {}, simpler_ ? &variants : nullptr);
  double gradient_bytes = 0;
  for (const remat::Stage& stage : staged.chain.stages) {
    gradient_bytes += static_cast<double>(stage.parameter_gradient_bytes);
  }
  // Reads two gradients and writes one.
  accumulating_s_ = static_cast<double>(passes_ - 1) * 3 * gradient_bytes / costs.hardware.bytes_per_s;
  add_course(std::move(staged), cuts, fuses);
  if (!simpler_) {
    for (const std::size_t count : other_counts(courses_.front().staged.chain)) {
      const std::vector<std::uint32_t> even = even_cuts(graph_, count);
      add_course(make_stages(graph_, times, even), even, fuses);
    }
  }
  if (!simpler_) whole_ = whole_plans(graph_, times, whole_count);
  if (!simpler_) {
    bound_ = std::make_unique<remat::TimeBound>(time_bound(graph_, times));
    lasting_bytes_ = lasting_bytes(profile_training(device_, run_with(plan_of(nullptr)), 2, true));
  }
  courses_.emplace_back();
  granule_ = memory::make_dry_backing(device_)->granule();
  has_segments_ = simpler_ ? simpler_->has_segments_ : names_segments();
  kept_step_s_ = simpler_ ? simpler_->kept_step_s() : step_seconds(least_time());
}

const Plan& PlanSearch::keep_everything() {
  if (simpler_) return simpler_->keep_everything();
  Course& first = courses_.front();
  return place(run(first, size(first) - 1));
}

/// Adds a cutting of the graph, and selects the points to examine.
void PlanSearch::add_course(StagedGraph staged, const std::vector<std::uint32_t>& cuts, bool fuses) {
  // With micro-batches all gradients exist from the first pass on, so no stage adds bytes.
  if (passes_ > 1) keep_gradients(std::vector<remat::Bytes>(staged.stages.size()), staged);
  if (fuses) keep_gradients(shared_gradients(graph_, cuts), staged);
  Course& course = courses_.emplace_back();
  course.staged = std::move(staged);
  course.frontier = std::make_unique<remat::Frontier>(course.staged.chain);
  const std::span<const remat::Frontier::Point> points = course.frontier->points();
  course.list = spread(points, spread_count);
  for (std::size_t p = 0; p < std::min(points.size(), smallest_count); ++p) course.low.push_back(p);
  for (std::size_t i = 0; i < std::min(course.list.size(), low_count); ++i) {
    if (course.list[i] > course.low.back()) course.low.push_back(course.list[i]);
  }
}

/// Nanoseconds of one pass. Stages round their times, so all courses count from the first one's.
remat::Time PlanSearch::time_of(const Course& course, std::size_t point) const {
  if (!course.frontier) return least_time() + whole_[point].cost;
  const std::span<const remat::Frontier::Point> points = course.frontier->points();
  return least_time() + points[point].time - points.back().time;
}

/// Seconds of the whole step, by the cost model.
double PlanSearch::step_seconds(remat::Time time) const {
  return static_cast<double>(passes_) * static_cast<double>(time) * 1e-9 + accumulating_s_;
}

/// Whether the program names segments (autograd/checkpoint.h). A recording does not show them, but a step that keeps
/// everything allocates less often.
bool PlanSearch::names_segments() const {
  const StagedGraph& staged = courses_.front().staged;
  auto tape = std::make_shared<TapePlan>();
  tape->types = staged.types;
  tape->ends = staged.ends;
  tape->fates.assign(staged.types.size(), Fate::keep);
  const auto events = [&](std::shared_ptr<const TapePlan> plan) {
    return profile_training(device_, run_with(plan_of(std::move(plan))), 1, true).events.size();
  };
  return events(nullptr) != events(std::move(tape));
}

/// Lower bound of the time of all plans within these bytes, by the cost model. With spilling, it is the time of keeping
/// everything.
double PlanSearch::least_seconds(std::size_t peak_bytes) {
  if (simpler_) return simpler_->kept_step_s();
  const auto bytes = static_cast<remat::Bytes>(peak_bytes) - static_cast<remat::Bytes>(lasting_bytes_);
  return step_seconds(least_time()) + static_cast<double>(passes_) * static_cast<double>(bound_->at(bytes)) * 1e-9;
}

/// Runs the plan of a point dry.
PlanSearch::Candidate& PlanSearch::run(Course& course, std::size_t point) {
  const auto found = course.candidates.find(point);
  if (found != course.candidates.end()) return found->second;
  std::shared_ptr<TapePlan> tape;
  std::string description;
  if (course.frontier) {
    const std::span<const remat::Frontier::Point> points = course.frontier->points();
    const remat::ScheduleTree of_chain = course.frontier->plan(points[point].budget_bytes);
    description = remat::to_string(of_chain);
    if (simpler_ || has_segments_ || point + 1 < points.size())
      tape = std::make_shared<TapePlan>(make_tape_plan(course.staged, of_chain));
  } else {
    description = "[all." + std::to_string(point + 1) + "]";
    tape = std::make_shared<TapePlan>(make_tape_plan(courses_.front().staged, whole_[point]));
  }
  Candidate candidate = run_dry(std::move(tape));
  candidate.plan.description = std::move(description);
  candidate.plan.step_s = step_seconds(time_of(course, point));
  candidate.plan.time_overhead = candidate.plan.step_s / kept_step_s_ - 1;
  return course.candidates.emplace(point, std::move(candidate)).first->second;
}

MakeRun PlanSearch::run_with(const Plan& plan) const {
  return [&](memory::Device device) {
    std::unique_ptr<TrainingRun> run = make_(device);
    plan.apply(run->options(), device);
    return run;
  };
}

Plan PlanSearch::plan_of(std::shared_ptr<const TapePlan> tape) const {
  Plan plan;
  plan.key = key_;
  plan.tape = std::move(tape);
  if (!plan.tape) return plan;
  if (plan.tape->offloads()) plan.make_tier = options_.make_tier;
  count_spills(plan, graph_);
  return plan;
}

PlanSearch::Candidate PlanSearch::run_dry(std::shared_ptr<const TapePlan> tape) const {
  Candidate candidate;
  candidate.plan = plan_of(std::move(tape));
  // Runs two traced steps, as for a placement, but keeps no events: the events of all candidates would take more memory
  // than the rest of the search. The few candidates that are placed run once more.
  const MemoryProfile profile = profile_training(device_, run_with(candidate.plan), 2, true);
  candidate.plan.peak_bytes = profile.peak_bytes;
  candidate.plan.lower_bound_bytes = profile.lower_bound_bytes;
  candidate.plan.peak_by_category = profile.peak_by_category;
  candidate.plan.tier_bytes = profile.tier_bytes;
  return candidate;
}

const Plan& PlanSearch::place(Candidate& candidate) {
  if (candidate.is_placed) {
    candidate.plan.least_step_s = candidate.least_step_s;
    return candidate.plan;
  }
  std::vector<memory::StepPlacement> placement =
      plan_steps(device_, run_with(candidate.plan), placement_options(device_, passes_));
  const MemoryProfile placed = profile_training(device_, run_with(candidate.plan), 2, false, placement);
  if (placed.peak_bytes <= candidate.plan.peak_bytes) {
    candidate.plan.peak_bytes = placed.peak_bytes;
    candidate.plan.peak_by_category = placed.peak_by_category;
    candidate.plan.placement = std::move(placement);
  }
  candidate.plan.least_step_s = candidate.least_step_s = least_seconds(candidate.plan.peak_bytes);
  candidate.is_placed = true;
  return candidate.plan;
}

/// The least that an arena commits to hold these bytes.
std::size_t PlanSearch::committed(std::size_t bytes) const noexcept {
  return (bytes + granule_ - 1) / granule_ * granule_;
}

/// Whether a point's plan keeps a budget. Placement never raises its peak.
bool PlanSearch::is_within(Course& course, std::size_t point, std::size_t budget_bytes) {
  Candidate& candidate = run(course, point);
  if (candidate.plan.peak_bytes <= budget_bytes) return true;
  return committed(candidate.plan.lower_bound_bytes) <= budget_bytes && place(candidate).peak_bytes <= budget_bytes;
}

/// The point of a frontier for a budget that cannot keep everything; `none` if no point fits. All candidate points keep
/// the budget, and a larger budget never chooses an earlier point. With `by_load` it compares loads, without placing
/// anything; the chosen point is then, for the same reason, the same or a later one.
std::size_t PlanSearch::find_point(Course& course, std::size_t budget_bytes, bool by_load) {
  const auto fits = [&](std::size_t point) {
    return by_load ? committed(run(course, point).plan.lower_bound_bytes) <= budget_bytes
                   : is_within(course, point, budget_bytes);
  };
  const std::vector<std::size_t>& list = course.list;
  // Points of the list before `begin` count as fitting; the one at `fits_not` does not fit.
  std::size_t begin = 0, fits_not = list.size() - 1;
  while (begin < fits_not) {
    const std::size_t middle = begin + (fits_not - begin) / 2;
    if (fits(list[middle])) {
      begin = middle + 1;
    } else {
      fits_not = middle;
    }
  }
  for (std::size_t i = std::min(begin + beyond_count, list.size() - 1); i > begin; --i) {
    if (fits(list[i])) begin = i + 1;
  }
  std::size_t found = begin > 0 ? list[begin - 1] : none;
  if (found == none || found < course.low.back()) {
    const std::size_t least = by_load ? course.low.back() : smallest_point(course);
    if (!by_load && !fits(least)) return none;
    found = found == none ? least : std::max(found, least);
  }
  if (found == list.back()) return found;
  for (std::size_t above = *std::upper_bound(list.begin(), list.end(), found); above - found > 1;) {
    const std::size_t middle = found + (above - found) / 2;
    (fits(middle) ? found : above) = middle;
  }
  return found;
}

const Plan* PlanSearch::find(std::size_t budget_bytes) {
  const Plan* const simpler = simpler_ ? simpler_->find(budget_bytes) : nullptr;
  Candidate* best = nullptr;
  remat::Time time = 0;
  const auto offer = [&](Course& course, std::size_t point) {
    if (best != nullptr && time_of(course, point) >= time) return;
    best = &run(course, point);
    time = time_of(course, point);
  };
  Course& first = courses_.front();
  if (is_within(first, size(first) - 1, budget_bytes)) {
    offer(first, size(first) - 1);
  } else {
    for (Course& course : courses_) {
      for (std::size_t point = 0; !course.frontier && point < size(course); ++point) {
        if (best != nullptr && time_of(course, point) >= time) break;
        if (is_within(course, point, budget_bytes)) offer(course, point);
      }
      if (!course.frontier) continue;
      if (best != nullptr && time_of(course, find_point(course, budget_bytes, true)) >= time) continue;
      const std::size_t point = find_point(course, budget_bytes, false);
      if (point != none) offer(course, point);
    }
  }
  if (best == nullptr) return simpler;
  if (simpler != nullptr && simpler->time_overhead <= best->plan.time_overhead) return simpler;
  place(*best);
  best->plan.least_step_s = least_seconds(budget_bytes);
  return &best->plan;
}

/// The low point of a frontier that needs least.
std::size_t PlanSearch::smallest_point(Course& course) {
  if (course.smallest != none) return course.smallest;
  std::vector<std::pair<std::size_t, std::size_t>> by_load;  // least committed bytes, point
  for (const std::size_t point : course.low) {
    by_load.emplace_back(committed(run(course, point).plan.lower_bound_bytes), point);
  }
  std::sort(by_load.begin(), by_load.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;  // the faster of two
  });
  std::size_t least = none;
  for (const auto& [bytes, point] : by_load) {
    if (bytes >= least) break;
    const std::size_t peak = place(run(course, point)).peak_bytes;
    if (peak < least) least = peak, course.smallest = point;
  }
  return course.smallest;
}

/// The least committed bytes of the points that smallest() examines.
std::size_t PlanSearch::least_load() {
  std::size_t least = simpler_ ? simpler_->least_load() : none;
  const auto look = [&](Course& course, std::size_t point) {
    least = std::min(least, committed(run(course, point).plan.lower_bound_bytes));
  };
  for (Course& course : courses_) {
    for (const std::size_t point : course.low) look(course, point);
    for (std::size_t point = 0; !course.frontier && point < size(course); ++point) look(course, point);
  }
  return least;
}

const Plan& PlanSearch::smallest() {
  const Plan* own = nullptr;
  const auto offer = [&](Candidate& candidate) {
    const auto is_better = [&](std::size_t bytes) {
      return own == nullptr || bytes < own->peak_bytes ||
             (bytes == own->peak_bytes && candidate.plan.step_s < own->step_s);
    };
    if (!is_better(committed(candidate.plan.lower_bound_bytes))) return;
    const Plan& plan = place(candidate);
    if (is_better(plan.peak_bytes)) own = &plan;
  };
  for (Course& course : courses_) {
    const auto may_need_less = [&](std::size_t point) {
      return own == nullptr || committed(run(course, point).plan.lower_bound_bytes) < own->peak_bytes;
    };
    if (std::any_of(course.low.begin(), course.low.end(), may_need_less)) offer(run(course, smallest_point(course)));
    for (std::size_t point = 0; !course.frontier && point < size(course); ++point) offer(run(course, point));
  }
  if (simpler_ != nullptr) {
    const Plan& simpler = simpler_->smallest();
    if (own->peak_bytes >= simpler.peak_bytes) own = &simpler;
  }
  // Another plan may need no more, and be faster.
  const Plan* const found = find(own->peak_bytes);
  return found != nullptr && found->step_s < own->step_s ? *found : *own;
}

std::vector<Plan> PlanSearch::plans() {
  struct Run {
    remat::Time time;
    Candidate* candidate;
  };
  std::vector<Run> runs;
  for (Course& course : courses_) {
    std::vector<Tried> tried;
    std::vector<bool> was_run(size(course));
    const auto add = [&](std::size_t point) {
      Candidate& candidate = run(course, point);
      was_run[point] = true;
      runs.push_back({time_of(course, point), &candidate});
      tried.push_back({point, runs.back().time, candidate.plan.lower_bound_bytes});
    };
    for (std::size_t point = 0; !course.frontier && point < size(course); ++point) add(point);
    if (!course.frontier) continue;
    for (const std::size_t point : course.list) {
      if (&course == &courses_.front() || point + 1 < size(course)) add(point);
    }
    add(smallest_point(course));
    for (std::size_t i = 0; i < refinement_count; ++i) {
      const std::size_t point = next_point(best(tried), was_run);
      if (point == size(course)) break;
      add(point);
    }
  }
  // Fastest first; a plan that cannot need less than a faster one is not placed.
  std::stable_sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.time < b.time; });
  std::vector<Plan> all = simpler_ ? simpler_->plans() : std::vector<Plan>();
  std::size_t least = none;
  for (const Run& one : runs) {
    if (committed(one.candidate->plan.lower_bound_bytes) >= least) continue;
    const Plan& plan = place(*one.candidate);
    if (plan.peak_bytes < least) all.push_back(plan);
    least = std::min(least, plan.peak_bytes);
  }
  std::stable_sort(all.begin(), all.end(), [](const Plan& a, const Plan& b) { return a.step_s < b.step_s; });
  std::vector<Plan> front;
  for (Plan& plan : all) {
    if (front.empty() || plan.peak_bytes < front.back().peak_bytes) front.push_back(std::move(plan));
  }
  std::reverse(front.begin(), front.end());
  return front;
}

}  // namespace thimble::nn
