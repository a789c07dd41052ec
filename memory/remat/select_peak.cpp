#include <algorithm>
#include <deque>
#include <optional>

#include <thimble/memory/remat/kept_space.h>
#include <thimble/memory/remat/select.h>

namespace thimble::remat {

namespace select_peak_detail {

/// Tries choices against a budget of the simulated peak, and remembers the cheapest that fits.
class Search {
 public:
  Search(const Graph& graph, Bytes budget) : graph_(graph), budget_(budget), space_(graph) {
    for (std::size_t c = 0; c < space_.size(); ++c) space_.refine_all(c, 64);
    edges_ = space_.edges();
  }

  KeptPlan run() {
    follow_hull();
    descend();
    if (!best_) {
      throw InfeasibleBudget("remat select_for_peak: no selection was found within " + std::to_string(budget_) +
                                 " bytes, the smallest peak found is " + std::to_string(smallest_),
                             budget_, smallest_);
    }
    take_back();
    return *best_;
  }

 private:
  using Position = std::vector<std::size_t>;  // vertex of each component
  using Choice = std::vector<const KeptSpace::Vertex*>;
  static constexpr std::size_t take_back_tries = 32;

  GraphCost attempt(const Position& position) {
    Choice choice;
    for (std::size_t c = 0; c < space_.size(); ++c) choice.push_back(&space_.vertices(c)[position[c]]);
    return attempt(choice);
  }

  /// Simulates; keeps it when it fits and is cheaper than all before.
  GraphCost attempt(const Choice& choice) {
    KeptPlan plan;
    plan.selection = space_.selection(choice);
    plan.cost = simulate(graph_, plan.selection);
    smallest_ = std::min(smallest_, plan.cost.peak_bytes);
    const GraphCost cost = plan.cost;
    if (cost.peak_bytes <= budget_ && (!best_ || cost.cost < best_->cost.cost)) {
      best_ = std::move(plan);
      best_choice_ = choice;
    }
    return cost;
  }

  /// Halves the way along the hull of the whole to the first vertex that fits. Peaks mostly fall along it; where one
  /// does not, a vertex that fits is still found, though not the first.
  void follow_hull() {
    const auto fits = [&](std::size_t passed) {
      Position position(space_.size(), 0);
      for (std::size_t i = 0; i < passed; ++i) position[edges_[i].component] = edges_[i].position + 1;
      return attempt(position).peak_bytes <= budget_;
    };
    if (fits(0)) return;
    std::size_t begin = 0;
    std::size_t end = edges_.size();
    if (!fits(end)) return;
    while (end - begin > 1) {
      const std::size_t middle = begin + (end - begin) / 2;
      (fits(middle) ? end : begin) = middle;
    }
  }

  /// Gives up the cheapest bytes that are held while the worst segment runs, until the peak fits.
  void descend() {
    Position position(space_.size(), 0);
    while (true) {
      const GraphCost cost = attempt(position);
      if (cost.peak_bytes <= budget_) return;
      const auto worst = std::max_element(cost.segment_peak_bytes.begin(), cost.segment_peak_bytes.end());
      const bool is_forward = cost.forward_peak_bytes == cost.peak_bytes;
      const auto segment = is_forward ? static_cast<std::uint32_t>(cost.segment_peak_bytes.size())
                                      : static_cast<std::uint32_t>(worst - cost.segment_peak_bytes.begin());
      // What the worst segment makes again is alive at once, so giving up more of its own comes last.
      if (!give_up(position, segment, cost.peak_bytes - budget_) &&
          !give_up(position, segment + 1, cost.peak_bytes - budget_)) {
        return;
      }
    }
  }

  /// Moves along the cheapest edges of components that end before `segment` until `bytes` are given up.
  bool give_up(Position& position, std::uint32_t segment, Bytes bytes) {
    bool has_moved = false;
    for (const KeptSpace::Edge& edge : edges_) {
      if (bytes <= 0) break;
      if (edge.position != position[edge.component] || space_.segment(edge.component) >= segment) continue;
      position[edge.component] = edge.position + 1;
      bytes -= edge.bytes;
      has_moved = true;
    }
    return has_moved;
  }

  /// Stops running operators again where the peak allows it, the dearest first.
  void take_back() {
    struct Step {
      std::size_t component;
      std::uint32_t op;
      Time cost;
    };
    std::vector<Step> steps;
    for (std::size_t c = 0; c < best_choice_.size(); ++c) {
      for (const std::uint32_t i : best_choice_[c]->rerun) {
        if (graph_.operators[i].cost > 0) steps.push_back({c, i, graph_.operators[i].cost});
      }
    }
    std::stable_sort(steps.begin(), steps.end(), [](const Step& x, const Step& y) { return x.cost > y.cost; });
    if (steps.size() > take_back_tries) steps.resize(take_back_tries);
    std::deque<KeptSpace::Vertex> changed;  // the choice points into it
    for (const Step& step : steps) {
      changed.push_back(space_.without(step.component, *best_choice_[step.component], step.op));
      Choice choice = best_choice_;
      choice[step.component] = &changed.back();
      attempt(choice);
    }
  }

  const Graph& graph_;
  Bytes budget_;
  KeptSpace space_;
  std::vector<KeptSpace::Edge> edges_;
  std::optional<KeptPlan> best_;
  Choice best_choice_;
  Bytes smallest_ = largest_total;
};

}  // namespace select_peak_detail

KeptPlan select_for_peak(const Graph& graph, Bytes peak_bytes) {
  return select_peak_detail::Search(graph, peak_bytes).run();
}

}  // namespace thimble::remat
