#pragma once
// Chains for the tests of the schedule solvers: random chains, and all persistent schedules of short chains, enumerated
// through the simulator.

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include <thimble/memory/remat/chain.h>
#include <thimble/memory/remat/schedule.h>

namespace remat_test {

using thimble::remat::Bytes;
using thimble::remat::Chain;
using thimble::remat::Operation;
using thimble::remat::Option;
using thimble::remat::Simulator;
using thimble::remat::Stage;
using thimble::remat::Time;

/// Random integers that do not depend on the standard library.
class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(engine_()) % n; }
  bool one_in(std::int64_t n) { return below(n) == 0; }

 private:
  std::mt19937 engine_;
};

struct Ranges {
  std::int64_t bytes = 20;
  std::int64_t time = 10;
  bool has_flags = true;          ///< options that give up their input or read their output
  std::int64_t span = 1;          ///< the longest span; the first option of each stage spans one
  bool has_first_visits = false;  ///< options only for the first visit; the first option of each stage fits any visit
};

inline Option random_option(Random& random, const Ranges& ranges) {
  Option option;
  option.kept_bytes = random.below(3 * ranges.bytes);
  option.keeps_input = !(ranges.has_flags && random.one_in(4));
  option.keeps_output = ranges.has_flags && random.one_in(4);
  option.forward_time = 1 + random.below(ranges.time);
  option.recompute_time = random.one_in(2) ? random.below(ranges.time) : 0;
  option.backward_time = random.below(2 * ranges.time);
  option.forward_peak_bytes = random.one_in(2) ? random.below(ranges.bytes) : 0;
  option.recompute_peak_bytes = random.one_in(2) ? random.below(2 * ranges.bytes) : 0;
  option.backward_peak_bytes = random.one_in(2) ? random.below(2 * ranges.bytes) : 0;
  return option;
}

inline Chain random_chain(Random& random, std::size_t n, std::size_t options, const Ranges& ranges = {}) {
  Chain chain;
  chain.input_bytes = random.below(ranges.bytes);
  chain.input_gradient_bytes = random.one_in(2) ? chain.input_bytes : 0;
  for (std::size_t i = 0; i < n; ++i) {
    Stage stage;
    stage.output_bytes = random.below(ranges.bytes);
    stage.output_gradient_bytes = random.one_in(2) ? stage.output_bytes : random.below(ranges.bytes);
    stage.parameter_gradient_bytes = random.one_in(3) ? random.below(ranges.bytes) : 0;
    stage.forward_time = random.below(ranges.time);
    stage.forward_peak_bytes = random.one_in(2) ? random.below(ranges.bytes) : 0;
    for (std::size_t o = 0; o < options; ++o) {
      stage.options.push_back(random_option(random, ranges));
      stage.options.back().is_first_visit_only = ranges.has_first_visits && o > 0 && random.one_in(2);
      const auto longest = std::min(ranges.span, static_cast<std::int64_t>(n - i));
      if (o > 0 && longest > 1) stage.options.back().span = static_cast<std::uint32_t>(1 + random.below(longest));
    }
    chain.stages.push_back(stage);
  }
  return chain;
}

/// Every persistent schedule of a chain: least time by peak, and the number of schedules.
class Enumeration {
 public:
  explicit Enumeration(const Chain& chain) : chain_(chain) {
    backward(Simulator(chain));
    for (auto it = least_time_.begin(); it != least_time_.end();) {  // Pareto front: times must fall as peaks rise
      const bool is_worse = it != least_time_.begin() && std::prev(it)->second <= it->second;
      it = is_worse ? least_time_.erase(it) : std::next(it);
    }
  }
  const std::map<Bytes, Time>& least_time() const { return least_time_; }
  std::size_t count() const { return count_; }

 private:
  using Kind = Operation::Kind;
  static Operation make(Kind kind, std::size_t stage, std::size_t option = 0) {
    return {kind, static_cast<std::uint32_t>(stage), static_cast<std::uint32_t>(option)};
  }

  /// Runs every backward that can run, then tries all ways to reach the next.
  void backward(Simulator at) {
    while (!at.is_complete() && at.is_recorded(at.next_backward() - 1)) {
      at.apply(make(Kind::backward, at.recorded_from(at.next_backward() - 1)));
    }
    if (at.is_complete()) {
      ++count_;
      const auto [entry, is_new] = least_time_.emplace(at.cost().peak_bytes, at.cost().time);
      if (!is_new) entry->second = std::min(entry->second, at.cost().time);
      return;
    }
    std::size_t from = at.next_backward() - 1;
    while (!at.holds_activation(from)) --from;
    forward(at, from, true);
  }

  /// All ways from stage i, whose input is held, to the stage whose backward is next. is_kept: the input must stay.
  void forward(const Simulator& at, std::size_t i, bool is_kept) {
    const std::size_t target = at.next_backward() - 1;
    for (std::size_t o = 0; o < chain_.stages[i].options.size(); ++o) {
      const std::size_t end = chain_.end_of(i, o);
      if (end > target + 1) continue;
      if (chain_.stages[i].options[o].is_first_visit_only && at.next_backward() != chain_.size()) continue;
      Simulator next = at;
      next.apply(make(Kind::record, i, o));
      if (end <= target) {
        forward(next, end, true);
        continue;
      }
      if (!chain_.stages[i].options[o].keeps_output) next.apply(make(Kind::drop, end));
      backward(next);
    }
    if (i == target) return;
    Simulator kept = at;
    kept.apply(make(Kind::checkpoint, i));
    forward(kept, i + 1, false);
    if (is_kept) return;
    Simulator passed = at;
    passed.apply(make(Kind::pass, i));
    forward(passed, i + 1, false);
  }

  const Chain& chain_;
  std::map<Bytes, Time> least_time_;
  std::size_t count_ = 0;
};

}  // namespace remat_test
