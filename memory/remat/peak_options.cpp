#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

#include <thimble/memory/remat/graph_timeline.h>
#include <thimble/memory/remat/peak_options.h>

namespace thimble::remat {

namespace {

constexpr int prices = 24;               // total prices, rising
constexpr int rounds = 8;                // per price; halved for large graphs
constexpr Bytes small = 500;             // tensors below 1 / small of the peak get no single changes
constexpr std::size_t work = 2'000'000;  // approximate operators simulated: a count, so that results are reproducible
constexpr std::size_t few = 24;          // graphs with at most so many operators try all changes and pairs
constexpr std::size_t gap_parts = 32;    // plans whose peaks differ by more than 1 / gap_parts get others between them
constexpr double scale = 1 << 10;        // of capacities, which are integers

/// The first and last moment that needs a tensor.
struct Use {
  std::size_t first, last;
};

/// All schedules of a tiny graph: shortest paths (Dijkstra 1959) over the sets of tensors in memory, step by step.
/// Gradients count as if none were written over another buffer.
class AllSchedules {
 public:
  explicit AllSchedules(const Graph& graph) : graph_(graph) {
    for (const GraphOperator& op : graph.operators) made_.insert(made_.end(), op.outputs.begin(), op.outputs.end());
    if (!is_tiny()) return;
    const auto set_of = [&](const std::vector<std::uint32_t>& tensors) {
      std::uint32_t set = 0;
      for (std::uint32_t b = 0; b < made_.size(); ++b) {
        if (std::find(tensors.begin(), tensors.end(), made_[b]) != tensors.end()) set |= 1u << b;
      }
      return set;
    };
    for (const GraphOperator& op : graph.operators) {
      inputs_.push_back(set_of(op.inputs)), outputs_.push_back(set_of(op.outputs));
      reads_.push_back(set_of(op.backward_reads));
    }
    bytes_.assign(std::size_t{1} << made_.size(), 0);
    for (std::size_t set = 1; set < bytes_.size(); ++set) {
      bytes_[set] = bytes_[set & (set - 1)] + graph.tensors[made_[std::countr_zero(set)]].bytes;
    }
    gradients_ = gradient_bytes(graph);
  }

  bool is_tiny() const { return made_.size() <= max_made; }

  /// The drops and early re-runs of the fastest schedule within a budget, if it takes less than `most`.
  std::optional<std::vector<Drop>> fastest(Bytes budget, Time most) {
    const std::size_t n = graph_.operators.size();
    layers_.assign(2 * n + 1, std::vector<Reached>(bytes_.size()));
    layers_[0][0].time = 0;
    for (std::size_t step = 0; step < 2 * n; ++step) run(step, budget, most);
    const auto less = [](const Reached& a, const Reached& b) { return a.time < b.time; };
    const auto end = std::min_element(layers_[2 * n].begin(), layers_[2 * n].end(), less);
    if (end->time >= most) return std::nullopt;
    std::vector<Drop> changes;
    auto set = static_cast<std::uint32_t>(end - layers_[2 * n].begin());
    for (std::size_t step = 2 * n; step > 0;) {
      const Reached& at = layers_[step][set];
      at.change.tensor == none ? void(--step) : changes.push_back(at.change);
      set = at.from;
    }
    std::reverse(changes.begin(), changes.end());
    return changes;
  }

 private:
  static constexpr std::size_t max_made = 12;
  static constexpr std::uint32_t none = ~0u;
  struct Reached {
    Time time = largest_total;
    std::uint32_t from = 0;      // the set before
    Drop change = {none, none};  // that led here; none begins a step
  };

  /// From all sets before a step to all sets before the next one.
  void run(std::size_t step, Bytes budget, Time most) {
    const std::size_t n = graph_.operators.size();
    const bool is_forward = step < n;
    const std::size_t i = is_forward ? step : 2 * n - 1 - step;
    const GraphOperator& op = graph_.operators[i];
    const std::uint32_t reads = is_forward ? inputs_[i] : reads_[i], makes = is_forward ? outputs_[i] : 0;
    const auto after = static_cast<std::uint32_t>(step) - 1;
    const Bytes extra = is_forward ? op.forward_peak_bytes : gradients_.during[i] + op.backward_peak_bytes;
    std::set<std::pair<Time, std::uint32_t>> queue;
    const auto offer = [&](std::uint32_t set, Time time, std::uint32_t from, std::uint32_t t, bool is_made) {
      if (time >= std::min(most, layers_[step][set].time)) return;
      layers_[step][set] = {time, from, {t, after, is_made}};
      queue.emplace(time, set);
    };
    for (std::uint32_t set = 0; set < layers_[step].size(); ++set) {
      if (layers_[step][set].time < most) queue.emplace(layers_[step][set].time, set);
    }
    while (!queue.empty()) {
      const auto [time, set] = *queue.begin();
      queue.erase(queue.begin());
      if (time > layers_[step][set].time) continue;
      Reached& next = layers_[step + 1][set | makes];
      if ((reads & ~set) == 0 && bytes_[set | makes] + extra <= budget && time < next.time) next = {time, set};
      for (std::size_t b = 0; b < made_.size(); ++b) {
        const GraphTensor& tensor = graph_.tensors[made_[b]];
        if ((set >> b & 1u) == 0 || (is_forward && (tensor.is_result || tensor.held_until >= step))) continue;
        offer(set & ~(1u << b), time, set, made_[b], false);
      }
      for (std::size_t k = 0; k < (is_forward ? step : i + 1); ++k) {
        const GraphOperator& again = graph_.operators[k];
        const std::uint32_t missing = outputs_[k] & ~set;
        if (!again.can_recompute || missing == 0 || (inputs_[k] & ~set) != 0) continue;
        const Bytes waits = is_forward ? 0 : gradients_.before[i] + op.waiting_bytes;
        if (bytes_[set] + bytes_[outputs_[k]] + again.forward_peak_bytes + waits > budget) continue;
        offer(set | missing, time + again.cost, set, made_[std::countr_zero(missing)], true);
      }
    }
  }

  const Graph& graph_;
  std::vector<std::uint32_t> made_;                      // per bit of a set
  std::vector<std::uint32_t> inputs_, outputs_, reads_;  // sets, of each operator
  std::vector<Bytes> bytes_;                             // of each set
  GradientBytes gradients_;
  std::vector<std::vector<Reached>> layers_;
};

class PeakGame {
 public:
  PeakGame(const Graph& graph, Reruns reruns)
      : graph_(graph),
        simulator_(graph),
        is_small_(graph.operators.size() <= few),
        may_drop_(reruns == Reruns::any),
        drops_(is_small_ && may_drop_),
        can_make_(recomputable(graph)),
        maker_(graph.tensors.size()),
        takers_(graph.tensors.size()),
        readers_(graph.tensors.size()) {
    for (std::uint32_t i = 0; i < graph.operators.size(); ++i) {
      const GraphOperator& op = graph.operators[i];
      for (const std::uint32_t t : op.outputs) maker_[t] = i;
      for (const std::uint32_t t : op.backward_reads) readers_[t].push_back(i);
      if (!op.can_recompute) continue;
      for (const std::uint32_t t : op.inputs) takers_[t].push_back(i);
    }
  }

  /// By falling peak and rising cost.
  std::vector<KeptPlan> play() {
    KeptPlan last = plan({std::vector<bool>(graph_.tensors.size(), true), {}});
    Time total = 1;
    for (const GraphOperator& op : graph_.operators) total += op.cost;
    // At the first price nothing runs again, at the last price everything that saves a byte.
    const double first =
        static_cast<double>(total) / static_cast<double>(std::max<Bytes>(last.cost.peak_bytes, 1)) / 512;
    const auto price_at = [&](int p) { return first * std::pow(2.0, 0.75 * p); };
    std::vector<double> weights(graph_.operators.size() + 1);
    weights[0] = 1;
    const int turns = 4 * prices * rounds * graph_.operators.size() > work ? rounds / 2 : rounds;
    for (int p = 0; p < prices; ++p) {
      const double price = price_at(p);
      KeptPlan best = last;
      for (int round = 0; round < turns; ++round) {
        last = plan({cheapest(last.selection, weights, price), {}});
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
    limit_ = 2 * work;
    change_best();
    if (drops_) try_all_schedules();
    if (may_drop_ && !is_small_) {
      drops_ = true;
      for (int p = 0; p < prices; ++p) {
        limit_ = (2 * prices + static_cast<std::size_t>(p) + 1) * work / prices;
        improve(cheapest_of_best(price_at(p)), price_at(p));
      }
      fill_gaps();
      limit_ = 4 * work;
      for (auto& [peak, entry] : best_) entry.changes = 0;
      change_best();
    }
    std::vector<KeptPlan> plans;
    for (auto entry = best_.rbegin(); entry != best_.rend(); ++entry) plans.push_back(std::move(entry->second.plan));
    return plans;
  }

 private:
  /// The 16-norm of a step's moments: a smooth peak to which several equally large moments all contribute.
  static double smooth_peak(const GraphCost& cost) {
    const double peak = static_cast<double>(std::max<Bytes>(cost.peak_bytes, 1));
    const auto power = [&](Bytes bytes) {
      double x = static_cast<double>(bytes) / peak;
      for (int i = 0; i < 4; ++i) x *= x;
      return x;
    };
    double sum = power(cost.forward_peak_bytes);
    for (const Bytes bytes : cost.operator_peak_bytes) sum += power(bytes);
    return peak * std::pow(sum, 1.0 / 16);
  }

  /// Cost plus the price of the peak.
  static double value(const KeptPlan& plan, double price) {
    return static_cast<double>(plan.cost.cost) + price * smooth_peak(plan.cost);
  }

  const KeptPlan& cheapest_of_best(double price) const {
    const auto less = [&](const auto& a, const auto& b) {
      return value(a.second.plan, price) < value(b.second.plan, price);
    };
    return std::min_element(best_.begin(), best_.end(), less)->second.plan;
  }

  /// Makes single changes as long as they improve. Starts from its result at the last price if that beats `best`.
  void improve(KeptPlan best, double price) {
    if (!improved_.cost.operator_peak_bytes.empty() && value(improved_, price) < value(best, price)) best = improved_;
    double least = value(best, price);
    for (bool has_changed = true; has_changed && simulated_ < limit_;) {
      has_changed = false;
      for (const Change& one : promising(best, price)) {
        if (simulated_ >= limit_) break;
        KeptPlan other = plan(changed_wish(best, one), least, price);
        const double own = value(other, price);
        if (own >= least) continue;
        best = std::move(other);
        least = own;
        has_changed = true;
      }
    }
    improved_ = std::move(best);
  }

  /// Toggles keeping a tensor or a drop, or runs an operator again with its inputs kept.
  struct Change {
    enum class Kind : std::uint8_t { keep, rerun, drop } kind;
    Drop of;                  // for keep and rerun, only the index of the tensor or operator
    std::uint32_t until = 0;  // of a new drop: the step of the next use
  };

  /// Changes that may lower a plan's value. With drops in large graphs, the most promising come first: the gain is
  /// estimated from the time of one re-run and the price of the bytes that come or go. The slope of the smooth peak
  /// gives this price, an upper bound on the gain of fewer bytes.
  std::vector<Change> promising(const KeptPlan& plan, double price) {
    std::vector<Change> all = changes(plan);
    if (!drops_ || is_small_) return all;
    const GraphCost& cost = plan.cost;
    const double peak = smooth_peak(cost);
    const auto slope = [&](Bytes bytes) { return price * std::pow(static_cast<double>(bytes) / peak, 15); };
    const double forward = slope(cost.forward_peak_bytes);
    std::vector<double> before{0};  // prefix sums of the moments' slopes
    for (std::size_t i = cost.operator_peak_bytes.size(); i-- > 0;) {
      before.push_back(before.back() + slope(cost.operator_peak_bytes[i]));
    }
    const std::vector<Use> when = uses(plan.selection);
    const Wish wish = wish_of(plan);
    std::vector<std::pair<double, Change>> list;
    for (const Change& one : all) {
      const std::uint32_t t = one.of.tensor;
      const auto bytes = static_cast<double>(graph_.tensors[t].bytes);
      double gain = static_cast<double>(graph_.operators[maker_[t]].cost);  // of running it less often
      if (one.kind == Change::Kind::drop && one.until > 0) {
        const std::size_t turn = graph_.operators.size();
        gain = bytes * (one.until < turn ? forward : before[one.until - turn] - before[one.of.after + 1 - turn]) - gain;
        if (gain <= 0) continue;
      } else if (one.kind == Change::Kind::keep && when[t].first < before.size()) {
        const double kept = bytes * before[when[t].first];
        gain = wish.wanted[t] ? kept + bytes * forward - gain : gain - kept;
      }
      list.emplace_back(gain, one);
    }
    std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    all.clear();
    for (const auto& [gain, one] : list) all.push_back(one);
    return all;
  }

  /// Makes single changes to all best plans, then pairs of changes, as long as that finds better plans.
  void change_best() {
    const int most = is_small_ ? 2 : 1;
    while (simulated_ < limit_) {
      int made = most;
      for (const auto& [peak, entry] : best_) made = std::min(made, entry.changes);
      if (made == most) return;
      std::vector<KeptPlan> all;
      for (auto& [peak, entry] : best_) {
        if (entry.changes > made) continue;
        ++entry.changes;
        all.push_back(entry.plan);
      }
      for (const KeptPlan& one : all) change(one, made + 1);
    }
  }

  /// Adds the best of all schedules of a tiny graph, from the largest peak to the smallest possible.
  void try_all_schedules() {
    AllSchedules all(graph_);
    if (!all.is_tiny()) return;
    for (Bytes budget = best_.rbegin()->first; budget > 0;) {
      const auto after = best_.upper_bound(budget);
      const bool has_own = after != best_.begin();  // within the budget
      const Time own = has_own ? std::prev(after)->second.plan.cost.cost : largest_total;
      Bytes peak = 0;
      if (const std::optional<std::vector<Drop>> changes = all.fastest(budget, own)) {
        peak = plan({std::vector<bool>(graph_.tensors.size(), true), *changes}).cost.peak_bytes;
      } else if (has_own) {
        peak = std::prev(after)->first;
      } else {
        return;
      }
      if (peak > budget) return;  // windows keep gradients for longer
      budget = peak - 1;
    }
  }

  /// Makes plans between two that are far apart, because a price changes equal branches all at once: takes the first
  /// tensors from one plan and the last from the other.
  void fill_gaps() {
    std::vector<std::pair<Wish, Wish>> gaps;
    for (auto low = best_.begin(), high = low; ++high != best_.end(); low = high) {
      if ((high->first - low->first) * static_cast<Bytes>(gap_parts) < best_.rbegin()->first) continue;
      gaps.emplace_back(wish_of(high->second.plan), wish_of(low->second.plan));
    }
    const std::size_t stride = 1 + gaps.size() * 2 * gap_parts * graph_.operators.size() / work;
    for (const auto& [high, low] : gaps) {
      for (std::size_t part = 1; part < 2 * gap_parts; part += stride) {
        Wish between = high;
        const std::size_t end = part % gap_parts * between.wanted.size() / gap_parts;
        for (std::size_t t = 0; t < between.wanted.size(); ++t) {
          if ((t < end) == (part < gap_parts)) between.wanted[t] = low.wanted[t];
        }
        offer(std::move(between));
      }
    }
  }

  std::vector<Change> changes(const KeptPlan& plan) {
    std::vector<Change> list;
    for (std::uint32_t t = 0; t < graph_.tensors.size(); ++t) {
      const bool is_large = is_small_ || graph_.tensors[t].bytes * small >= plan.cost.peak_bytes;
      if (can_make_[t] && is_large) list.push_back({Change::Kind::keep, {t, 0}});
    }
    for (std::uint32_t i = 0; is_small_ && i < graph_.operators.size(); ++i) {
      if (graph_.operators[i].can_recompute) list.push_back({Change::Kind::rerun, {i, 0}});
    }
    if (!drops_) return list;
    for (const Drop& drop : plan.selection.drops) list.push_back({Change::Kind::drop, drop});
    for (const auto& [drop, until] : simulator_.gaps(plan.selection)) {
      if (can_make_[drop.tensor]) list.push_back({Change::Kind::drop, drop, until});
    }
    return list;
  }

  /// Makes `count` changes to a plan.
  void change(const KeptPlan& one, int count) {
    for (const Change& each : changes(one)) {
      if (simulated_ >= limit_) return;
      if (count > 1) {
        change(changed(one, each), count - 1);
      } else {
        offer(changed_wish(one, each));
      }
    }
  }

  /// The tensors to keep and the drops that define a plan.
  struct Wish {
    std::vector<bool> wanted;  // of each tensor
    std::vector<Drop> drops;
  };

  KeptPlan changed(const KeptPlan& one, const Change& change) { return plan(changed_wish(one, change)); }

  Wish wish_of(const KeptPlan& one) const {
    Wish wish{std::vector<bool>(graph_.tensors.size()), one.selection.drops};
    for (const std::uint32_t kept : one.selection.kept) wish.wanted[kept] = true;
    return wish;
  }

  Wish changed_wish(const KeptPlan& one, const Change& change) const {
    Wish wish = wish_of(one);
    auto& [wanted, drops] = wish;
    switch (change.kind) {
      case Change::Kind::keep:
        wanted[change.of.tensor] = !wanted[change.of.tensor];
        break;
      case Change::Kind::rerun: {
        const GraphOperator& op = graph_.operators[change.of.tensor];
        for (const std::uint32_t t : op.inputs) wanted[t] = true;
        for (const std::uint32_t t : op.outputs) wanted[t] = false;
        break;
      }
      case Change::Kind::drop: {
        const auto same = std::find(drops.begin(), drops.end(), change.of);
        same == drops.end() ? drops.push_back(change.of) : void(drops.erase(same));
      }
    }
    return wish;
  }

  KeptPlan plan(Wish wish) {
    simulated_ += graph_.operators.size();
    KeptPlan plan;
    plan.selection = simulator_.close(wish.wanted, std::move(wish.drops));
    plan.cost = simulator_.run_closed();
    offer(plan);
    return plan;
  }

  /// plan(wish), but stops simulating once the value reaches `most` and another plan is better.
  KeptPlan plan(Wish wish, double most, double price) {
    simulated_ += graph_.operators.size();
    KeptPlan plan;
    plan.selection = simulator_.close(wish.wanted, std::move(wish.drops));
    const double left = std::max(0.0, most - static_cast<double>(plan.selection.cost)) / price;
    const double largest = static_cast<double>(largest_total);
    plan.cost = simulator_.run_closed(
        std::max(peak_to_better(plan.selection.cost), static_cast<Bytes>(std::min(left, largest)) + 1));
    offer(plan);  // a plan whose simulation stopped early is no improvement
    return plan;
  }

  /// Faster than plan(wish): skips a wish offered before and stops simulating a plan that another dominates. Both still
  /// count as simulated.
  void offer(Wish wish) {
    simulated_ += graph_.operators.size();
    if (is_small_ && !offered_.insert(digest(wish)).second) return;
    KeptPlan plan;
    plan.selection = simulator_.close(wish.wanted, std::move(wish.drops));
    const Bytes bound = peak_to_better(plan.selection.cost);
    if (plan.selection.kept_bytes >= bound) return;
    plan.cost = simulator_.run_closed(bound);
    if (plan.cost.peak_bytes < bound) offer(plan);
  }

  /// The lowest peak at a cost of at most `cost`.
  Bytes peak_to_better(Time cost) const {
    const auto better =
        std::find_if(front_.begin(), front_.end(), [&](const auto& entry) { return entry.first <= cost; });
    return better != front_.end() ? better->second : std::numeric_limits<Bytes>::max();
  }

  static std::uint64_t digest(const Wish& wish) {
    std::uint64_t sum = std::hash<std::vector<bool>>()(wish.wanted);
    for (const Drop& drop : wish.drops) {
      sum = (sum ^ (std::uint64_t{drop.tensor} << 32 | drop.after << 1 | drop.is_made)) * 0x9e3779b97f4a7c15;
      sum ^= sum >> 29;
    }
    return sum;
  }

  /// Stores a plan unless another is as good.
  void offer(const KeptPlan& plan) {
    const Bytes peak = plan.cost.peak_bytes;
    const auto after = best_.upper_bound(peak);
    if (after != best_.begin() && std::prev(after)->second.plan.cost.cost <= plan.cost.cost) return;
    auto worse = best_.lower_bound(peak);
    while (worse != best_.end() && worse->second.plan.cost.cost >= plan.cost.cost) worse = best_.erase(worse);
    best_.emplace(peak, Entry{plan, 0});
    front_.clear();
    for (const auto& [bytes, entry] : best_) front_.emplace_back(entry.plan.cost.cost, bytes);
  }

  std::size_t moment_of(std::uint32_t op) const { return graph_.operators.size() - 1 - op; }

  /// The use of each tensor with the re-runs of a selection. If nothing needs a tensor, the use it would have.
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

  /// Flags of the tensors to keep when a byte costs `price` times each moment's weight.
  std::vector<bool> cheapest(const Selection& last, const std::vector<double>& weights, double price) const {
    std::vector<double> sums(1);  // prefix sums of the weights
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
        // The tensor's node is on the source side if a re-run or a backward needs it.
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
  GraphSimulator simulator_;
  const bool is_small_, may_drop_;
  bool drops_;  // changes include drops
  std::size_t limit_ = work;
  std::vector<bool> can_make_;
  std::vector<std::uint32_t> maker_;                 // of each tensor
  std::vector<std::vector<std::uint32_t>> takers_;   // operators that can run again
  std::vector<std::vector<std::uint32_t>> readers_;  // operators whose backward reads it
  std::size_t simulated_ = 0;
  KeptPlan improved_;  // result of improve() at the last price
  struct Entry {
    KeptPlan plan;
    int changes;  // most changes at a time tried on the plan
  };
  std::map<Bytes, Entry> best_;                // by peak: fewer bytes cost more
  std::vector<std::pair<Time, Bytes>> front_;  // costs and peaks of best_
  std::unordered_set<std::uint64_t> offered_;  // digests
};

}  // namespace

std::vector<KeptPlan> peak_options(const Graph& graph, std::size_t limit, Reruns reruns) {
  validate(graph);
  if (graph.segment_count() != 1) {
    throw ValueError("remat peak_options: expected a graph of one segment, got " +
                     std::to_string(graph.segment_count()));
  }
  std::vector<KeptPlan> best = PeakGame(graph, reruns).play();
  while (best.size() > limit) {
    // The plan that lies least below the line between its neighbours.
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
