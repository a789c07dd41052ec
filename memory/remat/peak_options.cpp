#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <thimble/memory/remat/peak_options.h>

namespace thimble::remat {

namespace peak_options_detail {

constexpr int prices = 24;               // of the whole, rising
constexpr int rounds = 8;                // of each price
constexpr Bytes small = 500;             // tensors of a smaller part of the peak are not turned by themselves
constexpr std::size_t work = 2'000'000;  // operators simulated, about: a count, so that results are the same everywhere
constexpr std::size_t few = 24;          // operators up to which all changes are tried, and pairs of them
constexpr double scale = 1 << 10;        // of capacities, which are whole numbers

/// The first and the last moment that needs a tensor.
struct Use {
  std::size_t first, last;
};

class PeakGame {
 public:
  explicit PeakGame(const Graph& graph)
      : graph_(graph), can_make_(recomputable(graph)), takers_(graph.tensors.size()), readers_(graph.tensors.size()) {
    for (std::uint32_t i = 0; i < graph.operators.size(); ++i) {
      const GraphOperator& op = graph.operators[i];
      for (const std::uint32_t t : op.backward_reads) readers_[t].push_back(i);
      if (!op.can_recompute) continue;
      for (const std::uint32_t t : op.inputs) takers_[t].push_back(i);
    }
  }

  /// By falling peak and rising cost.
  std::vector<KeptPlan> play() {
    KeptPlan last = plan(std::vector<bool>(graph_.tensors.size(), true));
    Time total = 1;
    for (const GraphOperator& op : graph_.operators) total += op.cost;
    // At the first price nothing runs again, at the last one everything that saves a byte does.
    const double first =
        static_cast<double>(total) / static_cast<double>(std::max<Bytes>(last.cost.peak_bytes, 1)) / 512;
    std::vector<double> weights(graph_.operators.size() + 1);
    weights[0] = 1;
    for (int p = 0; p < prices; ++p) {
      const double price = first * std::pow(2.0, 0.75 * p);
      KeptPlan best = last;
      for (int round = 0; round < rounds; ++round) {
        last = plan(cheapest(last.selection, weights, price));
        if (value(last, price) < value(best, price)) best = last;
        const GraphCost& cost = last.cost;
        const auto most = std::max_element(cost.operator_peak_bytes.begin(), cost.operator_peak_bytes.end());
        const std::size_t moment =
            cost.forward_peak_bytes >= *most ? 0 : static_cast<std::size_t>(cost.operator_peak_bytes.end() - most) - 1;
        for (double& weight : weights) weight *= 1 - 1.0 / (round + 3);
        weights[moment] += 1.0 / (round + 3);
      }
      improve(best, price);
    }
    change_best();
    std::vector<KeptPlan> plans;
    for (auto entry = best_.rbegin(); entry != best_.rend(); ++entry) plans.push_back(std::move(entry->second.plan));
    return plans;
  }

 private:
  /// Cost, and the price of the peak; a smooth one, so that each of several moments with the largest need counts.
  double value(const KeptPlan& plan, double price) const {
    const GraphCost& cost = plan.cost;
    const double peak = static_cast<double>(std::max<Bytes>(cost.peak_bytes, 1));
    const auto power = [&](Bytes bytes) {
      double x = static_cast<double>(bytes) / peak;
      for (int i = 0; i < 4; ++i) x *= x;
      return x;
    };
    double sum = power(cost.forward_peak_bytes);
    for (const Bytes bytes : cost.operator_peak_bytes) sum += power(bytes);
    return static_cast<double>(cost.cost) + price * peak * std::pow(sum, 1.0 / 16);
  }

  /// Keeps single tensors that were dropped, or drops kept ones, as long as that is better. Begins where this ended at
  /// the price before, if that is better than `best`.
  void improve(KeptPlan best, double price) {
    if (!improved_.cost.operator_peak_bytes.empty() && value(improved_, price) < value(best, price)) best = improved_;
    double least = value(best, price);
    for (bool has_changed = true; has_changed && simulated_ < work;) {
      has_changed = false;
      for (std::size_t c = 0; c < change_count(); ++c) {
        if (!can_change(best, c)) continue;
        KeptPlan other = changed(best, c);
        const double own = value(other, price);
        if (own >= least) continue;
        best = std::move(other);
        least = own;
        has_changed = true;
      }
    }
    improved_ = std::move(best);
  }

  /// Makes single changes to all that none betters, then pairs of them, as long as that finds more.
  void change_best() {
    const int most = is_small() ? 2 : 1;
    while (simulated_ < 2 * work) {
      int made = most;
      for (const auto& [peak, entry] : best_) made = std::min(made, entry.changes);
      if (made == most) return;
      std::vector<KeptPlan> all;
      for (auto& [peak, entry] : best_) {
        if (entry.changes > made) continue;
        ++entry.changes;
        all.push_back(entry.plan);
      }
      for (const KeptPlan& one : all) change(one, 0, made + 1);
    }
  }

  /// Makes `count` changes to a plan, from the change `first` on.
  void change(const KeptPlan& one, std::size_t first, int count) {
    for (std::size_t c = first; c < change_count() && simulated_ < 2 * work; ++c) {
      if (!can_change(one, c)) continue;
      const KeptPlan other = changed(one, c);
      if (count > 1) change(other, c + 1, count - 1);
    }
  }

  bool is_small() const { return graph_.operators.size() <= peak_options_detail::few; }

  /// Of a tensor: kept or not. Of an operator: it runs again, with its inputs kept.
  std::size_t change_count() const { return graph_.tensors.size() + (is_small() ? graph_.operators.size() : 0); }

  bool can_change(const KeptPlan& plan, std::size_t c) const {
    const std::size_t tensors = graph_.tensors.size();
    if (c >= tensors) return graph_.operators[c - tensors].can_recompute;
    return can_make_[c] && (is_small() || graph_.tensors[c].bytes * small >= plan.cost.peak_bytes);
  }

  KeptPlan changed(const KeptPlan& one, std::size_t c) {
    std::vector<bool> wanted(graph_.tensors.size());
    for (const std::uint32_t kept : one.selection.kept) wanted[kept] = true;
    if (c < wanted.size()) {
      wanted[c] = !wanted[c];
    } else {
      const GraphOperator& op = graph_.operators[c - wanted.size()];
      for (const std::uint32_t t : op.inputs) wanted[t] = true;
      for (const std::uint32_t t : op.outputs) wanted[t] = false;
    }
    return plan(wanted);
  }

  KeptPlan plan(const std::vector<bool>& wanted) {
    simulated_ += graph_.operators.size();
    KeptPlan plan;
    plan.selection = close_selection(graph_, wanted);
    plan.cost = simulate_valid(graph_, plan.selection);
    offer(plan);
    return plan;
  }

  /// Notes a plan unless one is as good.
  void offer(const KeptPlan& plan) {
    const Bytes peak = plan.cost.peak_bytes;
    const auto after = best_.upper_bound(peak);
    if (after != best_.begin() && std::prev(after)->second.plan.cost.cost <= plan.cost.cost) return;
    auto worse = best_.lower_bound(peak);
    while (worse != best_.end() && worse->second.plan.cost.cost >= plan.cost.cost) worse = best_.erase(worse);
    best_.emplace(peak, Entry{plan, 0});
  }

  std::size_t moment_of(std::uint32_t op) const { return graph_.operators.size() - 1 - op; }

  /// When each tensor is needed, with the re-runs of a selection; of one that nothing needs, when it would be.
  std::vector<Use> uses(const Selection& selection) const {
    std::vector<bool> is_recomputed(graph_.operators.size());
    for (const std::uint32_t i : selection.recomputed) is_recomputed[i] = true;
    constexpr std::size_t never = ~std::size_t{0};
    std::vector<std::size_t> rerun(graph_.operators.size(), never);  // moment
    std::vector<Use> uses(graph_.tensors.size(), Use{never, 0});
    const auto settle = [&](std::uint32_t t) {
      Use& use = uses[t];
      const auto add = [&](std::size_t moment) {
        use.first = std::min(use.first, moment);
        use.last = std::max(use.last, moment);
      };
      for (const std::uint32_t i : readers_[t]) add(moment_of(i));
      for (const std::uint32_t i : takers_[t]) {
        if (is_recomputed[i] && rerun[i] != never) add(rerun[i]);
      }
      if (use.first != never) return;
      for (const std::uint32_t i : takers_[t]) {
        if (rerun[i] != never) add(rerun[i]);
      }
    };
    // All takers of a tensor come after its maker.
    for (std::uint32_t i = static_cast<std::uint32_t>(graph_.operators.size()); i-- > 0;) {
      for (const std::uint32_t t : graph_.operators[i].outputs) {
        settle(t);
        rerun[i] = std::min(rerun[i], uses[t].first);
      }
    }
    return uses;
  }

  /// Which tensors to keep when bytes cost `price` times the weights.
  std::vector<bool> cheapest(const Selection& last, const std::vector<double>& weights, double price) const {
    std::vector<double> sums(1);  // of the weights before each moment
    for (const double weight : weights) sums.push_back(sums.back() + weight);
    const std::vector<Use> when = uses(last);
    const auto capacity = [&](double value) { return static_cast<Wide>(std::round(value * scale)); };
    const auto held = [&](std::uint32_t t, std::size_t first) {
      return first > when[t].last
                 ? 0.0
                 : static_cast<double>(graph_.tensors[t].bytes) * price * (sums[when[t].last + 1] - sums[first]);
    };
    const std::size_t operators = graph_.operators.size();
    MinCut network(operators + graph_.tensors.size());
    constexpr Wide unbounded = Wide{1} << 124;
    for (std::uint32_t i = 0; i < operators; ++i) {
      const GraphOperator& op = graph_.operators[i];
      double value = static_cast<double>(op.cost);
      for (const std::uint32_t t : op.outputs) value += can_make_[t] ? held(t, when[t].first) : 0.0;
      if (op.can_recompute) network.add(i, network.sink(), capacity(value) + 1);
      for (const std::uint32_t t : op.outputs) {
        if (graph_.tensors[t].is_given) continue;
        // On the source side where some re-run or some backward needs the tensor.
        for (const std::uint32_t taker : takers_[t]) network.add(taker, operators + t, unbounded);
        if (!readers_[t].empty()) network.add(network.source(), operators + t, unbounded);
        network.add(operators + t, can_make_[t] ? std::size_t{i} : network.sink(), capacity(held(t, 0)));
      }
    }
    const std::vector<bool> side = network.source_side();
    std::vector<bool> wanted(graph_.tensors.size(), true);
    for (std::uint32_t i = 0; i < operators; ++i) {
      if (!side[i]) continue;
      for (const std::uint32_t t : graph_.operators[i].outputs) wanted[t] = false;
    }
    return wanted;
  }

  const Graph& graph_;
  std::vector<bool> can_make_;
  std::vector<std::vector<std::uint32_t>> takers_;   // operators that can run again
  std::vector<std::vector<std::uint32_t>> readers_;  // operators whose backward reads it
  std::size_t simulated_ = 0;
  KeptPlan improved_;  // at the last price
  struct Entry {
    KeptPlan plan;
    int changes;  // how many at a time were made to it
  };
  std::map<Bytes, Entry> best_;  // by peak; with fewer bytes at a higher cost
};

}  // namespace peak_options_detail

std::vector<KeptPlan> peak_options(const Graph& graph, std::size_t limit) {
  validate(graph);
  if (graph.segment_count() != 1) {
    throw ValueError("remat peak_options: expected a graph of one segment, got " +
                     std::to_string(graph.segment_count()));
  }
  std::vector<KeptPlan> best = peak_options_detail::PeakGame(graph).play();
  while (best.size() > limit) {
    // The one that lies least below the line between its neighbours.
    std::size_t flattest = 1;
    double least = 0;
    for (std::size_t i = 1; i + 1 < best.size(); ++i) {
      const auto peak = [&](std::size_t k) { return static_cast<double>(best[k].cost.peak_bytes); };
      const auto cost = [&](std::size_t k) { return static_cast<double>(best[k].cost.cost); };
      const double part = (peak(i - 1) - peak(i)) / (peak(i - 1) - peak(i + 1));
      const double height = cost(i - 1) + (cost(i + 1) - cost(i - 1)) * part - cost(i);
      if (i == 1 || height < least) least = height, flattest = i;
    }
    best.erase(best.begin() + static_cast<std::ptrdiff_t>(flattest));
  }
  return best;
}

}  // namespace thimble::remat
