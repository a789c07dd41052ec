// remat: plans of small graphs against the best of all schedules.

#include <algorithm>
#include <limits>
#include <new>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include <thimble/memory/process/process.h>
#include <thimble/memory/remat/peak_options.h>
#include <thimble/memory/remat/select.h>

#include "remat_graphs.h"
#include "support/catch.h"
#include "support/sanitizer.h"

using namespace thimble;
using namespace remat_test;

namespace {

/// The least recompute time within a budget, over all schedules: forward in order, backward in reverse, and any
/// operator again at any moment, any number of times. Shortest paths over sets of tensors in memory (at most 20 made
/// tensors), by definition and without a bound.
class Exact {
 public:
  explicit Exact(const Graph& graph) : graph_(graph), bit_(graph.tensors.size(), 0) {
    std::vector<std::size_t> maker(graph.tensors.size(), graph.operators.size()), first_taker = maker;
    for (std::size_t i = 0; i < graph.operators.size(); ++i) {
      for (const std::uint32_t t : graph.operators[i].outputs) {
        maker[t] = i;
        bit_[t] = 1u << bytes_.size();
        bytes_.push_back(graph.tensors[t].bytes);
      }
    }
    std::vector<std::size_t> last_taker(graph.tensors.size(), graph.operators.size());
    for (std::size_t i = 0; i < graph.operators.size(); ++i) {
      for (const std::uint32_t t : graph.operators[i].inputs) last_taker[t] = i;
    }
    // Gradients that live around an operator's backward: each lives from the backward of its last taker (or, without a
    // taker, from the start) until its maker's backward.
    for (std::size_t i = 0; i < graph.operators.size(); ++i) {
      Bytes waiting = 0, during = 0;
      for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
        const bool is_made = maker[t] < graph.operators.size(), is_taken = last_taker[t] < graph.operators.size();
        if (!is_made && !is_taken) continue;
        const std::size_t until = is_made ? maker[t] : 0;
        if (i < until) continue;
        if (is_taken ? last_taker[t] > i : true) waiting += graph.tensors[t].gradient_bytes;
        if (is_taken ? last_taker[t] >= i : true) during += graph.tensors[t].gradient_bytes;
      }
      waiting_.push_back(waiting);
      during_.push_back(during);
    }
  }

  /// nullopt where no schedule fits.
  std::optional<Time> least(Bytes budget) const {
    const std::size_t n = graph_.operators.size();
    std::vector<Time> entry(std::size_t{1} << bytes_.size(), none);
    entry[0] = 0;
    for (std::size_t step = 0; step < 2 * n; ++step) entry = pass(step, entry, budget);
    const Time least = *std::min_element(entry.begin(), entry.end());
    return least == none ? std::nullopt : std::optional(least);
  }

 private:
  static constexpr Time none = std::numeric_limits<Time>::max();

  unsigned set_of(const std::vector<std::uint32_t>& tensors) const {
    unsigned set = 0;
    for (const std::uint32_t t : tensors) set |= bit_[t];
    return set;
  }
  Bytes bytes_of(unsigned set) const {
    Bytes bytes = 0;
    for (std::size_t b = 0; b < bytes_.size(); ++b) bytes += (set >> b & 1u) != 0 ? bytes_[b] : 0;
    return bytes;
  }

  /// The least time for each set of tensors after a forward (step < n) or a backward.
  std::vector<Time> pass(std::size_t step, std::vector<Time> entry, Bytes budget) const {
    const std::size_t n = graph_.operators.size();
    const bool is_forward = step < n;
    const std::size_t op = is_forward ? step : 2 * n - 1 - step;
    const GraphOperator& run = graph_.operators[op];
    const Bytes waiting = is_forward ? 0 : waiting_[op];
    std::vector<Time> exit(entry.size(), none);
    using Entry = std::pair<Time, unsigned>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    for (unsigned set = 0; set < entry.size(); ++set) {
      if (entry[set] != none) queue.emplace(entry[set], set);
    }
    const auto offer = [&](unsigned set, Time time) {
      if (time < entry[set]) queue.emplace(entry[set] = time, set);
    };
    while (!queue.empty()) {
      const auto [time, set] = queue.top();
      queue.pop();
      if (time > entry[set]) continue;
      const unsigned reads = set_of(is_forward ? run.inputs : run.backward_reads);
      const unsigned after = is_forward ? set | set_of(run.outputs) : set;
      if ((reads & ~set) == 0 && bytes_of(after) + (is_forward ? 0 : during_[op]) <= budget) {
        exit[after] = std::min(exit[after], time);
      }
      for (std::size_t b = 0; b < bytes_.size(); ++b) {
        if ((set >> b & 1u) != 0) offer(set & ~(1u << b), time);
      }
      for (std::size_t i = 0; i < (is_forward ? op : op + 1); ++i) {
        const GraphOperator& again = graph_.operators[i];
        const unsigned with = set | set_of(again.outputs);
        if (!again.can_recompute || with == set || (set_of(again.inputs) & ~set) != 0) continue;
        if (bytes_of(with) + waiting <= budget) offer(with, time + again.cost);
      }
    }
    return exit;
  }

  const Graph& graph_;
  std::vector<unsigned> bit_;            // per tensor; 0 for given tensors
  std::vector<Bytes> bytes_;             // per bit
  std::vector<Bytes> waiting_, during_;  // gradients before and during each operator's backward
};

}  // namespace

TEST_CASE("remat exact: plans of tiny graphs are the best of all schedules", "[remat]") {
  int cells = 0, best = 0, within_1 = 0;
  constexpr int rounds = testing::has_sanitizer ? 20 : 200;
  for (const std::uint32_t seed : {5U, 6U}) {
    Random random(seed);
    for (int round = 0; round < rounds; ++round) {
      INFO("seed " << seed << ", round " << round);
      Graph graph = random_graph(random, 8, 1);
      for (GraphOperator& op : graph.operators) ++op.cost;
      const Exact exact(graph);
      const std::vector<remat::KeptPlan> plans = remat::peak_options(graph, 1000, remat::Reruns::any);
      Time step = 0;  // backward takes twice as long
      for (const GraphOperator& op : graph.operators) step += 3 * op.cost;
      remat::TimeBound bound(graph);
      const Bytes most = plans.front().cost.peak_bytes, least = plans.back().cost.peak_bytes;
      const bool is_tiny = graph.tensors.size() <= 1 + 12;  // the first one is given
      if (is_tiny) CHECK_FALSE(exact.least(least - 1).has_value());
      for (int k = 0; k < 4; ++k) {
        const Bytes budget = least + (most - least) * k / 4;
        const auto fits = [&](const remat::KeptPlan& plan) { return plan.cost.peak_bytes <= budget; };
        const Time own = std::find_if(plans.begin(), plans.end(), fits)->selection.cost;  // the fastest that fits
        const std::optional<Time> optimum = exact.least(budget);
        REQUIRE(optimum.has_value());
        CHECK(own >= *optimum);
        CHECK(bound.at(budget) <= *optimum);
        if (is_tiny) CHECK(own == *optimum);
        ++cells;
        best += own == *optimum;
        within_1 += static_cast<double>(own - *optimum) <= 0.01 * static_cast<double>(step + *optimum);
      }
    }
  }
  INFO(best << " best, " << within_1 << " within 1 % of " << cells);
  CHECK(within_1 == cells);
  CHECK(best >= cells * 99 / 100);
}

TEST_CASE("remat exact: the plans of a small U-Net and the bound on either side of the best schedules", "[remat]") {
  GraphBuilder net;
  std::uint32_t x = net.given("x", 8, 0);
  const auto add_layer = [&](Bytes bytes) {
    x = net.add("conv", {x}, bytes, 100, {x});
    x = net.add("norm", {x}, bytes, bytes / 8 + 1, {x});
  };
  const auto add_up = [&](std::uint32_t skip, Bytes bytes) {
    x = net.add("up", {x}, bytes, 25, {x});
    x = net.add("cat", {skip, x}, 2 * bytes, bytes / 4 + 1, {});
    add_layer(bytes);
  };
  add_layer(64);
  const std::uint32_t top = x;
  x = net.add("pool", {x}, 16, 9, {x});
  add_layer(32);
  const std::uint32_t middle = x;
  x = net.add("pool", {x}, 8, 5, {x});
  add_layer(16);
  add_up(middle, 32);
  add_up(top, 64);
  net.add("out", {x}, 4, 5, {x});
  const Graph graph = net.build();
  const std::vector<remat::KeptPlan> plans = remat::peak_options(graph, 1000, remat::Reruns::any);
  remat::TimeBound bound(graph, remat::bytes_around_backwards(graph)), looser(graph);
  struct Row {
    Bytes budget;
    Time bound, best, most;  // the best is Exact's, which takes minutes for 17 tensors
  };
  for (const Row& row : {Row{336, 370, 504, 583}, {381, 230, 268, 268}, {427, 128, 161, 161}, {472, 64, 70, 70}}) {
    INFO(row.budget << " bytes");
    const auto fits = [&](const remat::KeptPlan& plan) { return plan.cost.peak_bytes <= row.budget; };
    const Time own = std::find_if(plans.begin(), plans.end(), fits)->selection.cost;
    CHECK((own >= row.best && own <= row.most));
    CHECK((bound.at(row.budget) >= row.bound && bound.at(row.budget) <= row.best));
    CHECK(looser.at(row.budget) < row.bound);
  }
  CHECK(plans.back().cost.peak_bytes <= 336);
}

TEST_CASE("remat exact: the skips of a large net are made again", "[remat]") {
  GraphBuilder net;
  std::uint32_t x = net.given("x", 1000, 0);
  const auto add_layers = [&](Bytes bytes) {
    for (int layer = 0; layer < 30; ++layer) {
      x = net.add("conv", {x}, bytes, 36 * bytes, {x});
      x = net.add("relu", {x}, bytes, bytes / 4, {}, true);
    }
  };
  std::vector<std::uint32_t> skips;
  constexpr Bytes most = 1 << 22, least = 1 << 16;
  for (Bytes bytes = most; bytes > least; bytes /= 2) {
    add_layers(bytes);
    skips.push_back(x);
    x = net.add("pool", {x}, bytes / 4, bytes / 4, {x});
  }
  add_layers(least);
  for (Bytes bytes = 2 * least; bytes <= most; bytes *= 2) {
    x = net.add("up", {x}, bytes, bytes, {x});
    x = net.add("cat", {x, skips.back()}, 2 * bytes, bytes, {});
    skips.pop_back();
    add_layers(bytes);
  }
  const std::vector<remat::KeptPlan> plans = remat::peak_options(net.build(), 1000, remat::Reruns::any);
  INFO(plans.front().cost.peak_bytes << " to " << plans.back().cost.peak_bytes);
  CHECK(plans.back().cost.peak_bytes * 3 < plans.front().cost.peak_bytes);
}

// ---- Planning in bounded memory.

TEST_CASE("heap room: what the smallest limit leaves beside half of the code", "[heap_bound]") {
  constexpr std::size_t MiB = std::size_t{1} << 20;
  const std::vector<memory::HostLimit> limits = {{"large", 5000 * MiB}, {"small", 4000 * MiB}};
  const std::size_t room = memory::heap_room(limits);
  CHECK(room < 4000 * MiB);
  CHECK(room >= 4000 * MiB - process::file_mapped_bytes() - 2 * MiB);
  CHECK(memory::heap_room({{"tiny", 1}}) == 0);
  CHECK(memory::heap_room({}) == ~std::size_t{0});
}

#if !defined(THIMBLE_TEST_HAS_SANITIZER)
TEST_CASE("heap bound: more is refused while it lasts, not before and not after", "[heap_bound]") {
  constexpr std::size_t MiB = std::size_t{1} << 20;
  const auto grow = [] {
    try {
      return std::vector<char>(64 * MiB).size() == 64 * MiB;
    } catch (const std::bad_alloc&) {
      return false;
    }
  };
  CHECK(grow());
  {
    const memory::HeapBound bound(process::data_bytes() + 8 * MiB);
    CHECK_FALSE(grow());
    const memory::HeapBound inner(bound.bytes() + 512 * MiB);  // cannot lift the outer bound
    CHECK(inner.bytes() == bound.bytes());
    CHECK_FALSE(grow());
    CHECK(std::vector<char>(2 * MiB).size() == 2 * MiB);
  }
  CHECK(grow());
}
#endif
