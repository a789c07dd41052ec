// The selection of kept tensors: against every selection of small graphs, and on typical blocks.

#include <thimble/memory/remat/select.h>

#include <thimble/memory/remat/graph_timeline.h>
#include <thimble/memory/remat/peak_options.h>
#include <thimble/memory/remat/schedule.h>

#include "remat_graphs.h"
#include "support/catch.h"

namespace {

using namespace thimble::remat;
using remat_test::GraphBuilder;
using remat_test::Random;
using remat_test::random_graph;
using remat_test::resnet50_graph;
using thimble::PlanError;
using thimble::ValueError;

/// Keeps only the points that cost less than all points with fewer bytes.
void keep_pareto(std::map<Bytes, Time>& least) {
  for (auto it = least.begin(); it != least.end();) {
    const bool is_worse = it != least.begin() && std::prev(it)->second <= it->second;
    it = is_worse ? least.erase(it) : std::next(it);
  }
}

/// Least cost by kept bytes over every set of kept tensors; is_simulated also runs each selection in the simulator.
std::map<Bytes, Time> every_selection(const Graph& graph, bool is_simulated) {
  std::map<Bytes, Time> least;
  const std::size_t n = graph.tensors.size();
  for (std::uint32_t set = 0; set < (1U << n); ++set) {
    std::vector<bool> wanted(n);
    for (std::size_t t = 0; t < n; ++t) wanted[t] = ((set >> t) & 1U) != 0;
    const Selection selection = close_selection(graph, wanted);
    if (is_simulated) REQUIRE(simulate(graph, selection).cost == selection.cost);
    const auto [entry, is_new] = least.emplace(selection.kept_bytes, selection.cost);
    if (!is_new) entry->second = std::min(entry->second, selection.cost);
  }
  keep_pareto(least);
  return least;
}

/// Points of a Pareto front on its lower convex hull.
std::map<Bytes, Time> hull_of(const std::map<Bytes, Time>& front) {
  std::vector<std::pair<Bytes, Time>> hull;
  for (const auto& point : front) {
    while (hull.size() > 1) {
      const auto& [b0, t0] = hull[hull.size() - 2];
      const auto& [b1, t1] = hull.back();
      if ((t0 - t1) * (point.first - b0) > (t0 - point.second) * (b1 - b0)) break;
      hull.pop_back();
    }
    hull.push_back(point);
  }
  return {hull.begin(), hull.end()};
}

/// The buffers live in each operator's backward add up to its peak.
void check_timeline(const Graph& graph, const Selection& selection) {
  using Line = thimble::remat::GraphTimeline;
  const Line line = timeline(graph, selection);
  for (std::size_t at = 0; at < line.events.size(); ++at) {
    if (line.events[at].kind != Line::Event::Kind::backward) continue;
    Bytes there = 0;
    for (const Line::Buffer& b : line.buffers) there += b.begin <= at && at < b.end ? b.bytes : 0;
    CHECK(there == simulate(graph, selection).operator_peak_bytes[line.events[at].op]);
  }
}

constexpr Bytes rows = 1024, width = 768;

/// A transformer's feed-forward block: norm, expand, gelu, contract, dropout, add. Costs are multiply-adds or elements.
std::uint32_t add_feed_forward(GraphBuilder& builder, std::uint32_t x) {
  const auto bytes = [](Bytes columns) { return 4 * rows * columns; };
  const std::uint32_t norm = builder.add("norm", {x}, bytes(width), rows * width, {x});
  builder.save_besides("statistics", 8 * rows);
  const std::uint32_t expand = builder.add("expand", {norm}, bytes(4 * width), rows * width * 4 * width, {norm});
  const std::uint32_t gelu = builder.add("gelu", {expand}, bytes(4 * width), rows * 4 * width, {expand});
  const std::uint32_t contract = builder.add("contract", {gelu}, bytes(width), rows * width * 4 * width, {gelu});
  const std::uint32_t dropout = builder.add("dropout", {contract}, bytes(width), rows * width, {});
  builder.save_besides("mask", rows * width);
  return builder.add("add", {x, dropout}, bytes(width), rows * width, {});
}

/// `blocks` feed-forward blocks, each a segment.
Graph feed_forward(std::size_t blocks) {
  GraphBuilder builder;
  std::uint32_t x = builder.given("x", 4 * rows * width, 4 * rows * width);
  for (std::size_t i = 0; i < blocks; ++i) {
    x = add_feed_forward(builder, x);
    builder.end_segment();
  }
  return builder.build();
}

std::vector<std::string> kept_names(const Graph& graph, const Selection& selection) {
  std::vector<std::string> names;
  for (const std::uint32_t t : selection.kept) names.push_back(graph.tensors[t].name);
  return names;
}

}  // namespace

TEST_CASE("remat select: gradients that are written over what goes", "[remat]") {
  // x -> [0] -> y -> [1] -> z; 10 bytes each, gradients too. Operator 1 reads y, which is kept.
  Graph graph;
  graph.tensors = {{"x", 10, 10, true}, {"y", 10, 10, false}, {"z", 10, 10, false}};
  graph.operators.resize(2);
  graph.operators[0].inputs = {0};
  graph.operators[0].outputs = {1};
  graph.operators[1].inputs = {0, 1};
  graph.operators[1].outputs = {2};
  graph.operators[1].backward_reads = {1};
  const Selection kept = close_selection(graph, {true, true, true});
  CHECK(simulate(graph, kept).peak_bytes == 40);  // y, and the gradients of z, y and x
  graph.operators[1].is_backward_in_place = true;
  // The gradients of x and y take the places of z's gradient and y. The forward's peak is equal: y and z.
  CHECK(simulate(graph, kept).peak_bytes == 20);
  graph.tensors[0].gradient_bytes = 8;  // differs in size, so it lies next to y, whose gradient reuses z's
  CHECK(simulate(graph, kept).peak_bytes == 28);
  graph.operators[0].backward_reads = {1};  // y is read again
  CHECK(simulate(graph, kept).peak_bytes == 28);
}

TEST_CASE("remat select: a read tensor that goes before the gradient is made", "[remat]") {
  // x -> [0] -> y -> [1] -> z; 10 bytes each. Operator 1 is a product that reads y for its weight's gradient.
  Graph graph;
  graph.tensors = {{"x", 10, 10, true}, {"y", 10, 10, false}, {"z", 10, 10, false}};
  graph.operators.resize(2);
  graph.operators[0] = {.name = "", .inputs = {0}, .outputs = {1}, .backward_reads = {}};
  graph.operators[1] = {.name = "", .inputs = {1}, .outputs = {2}, .backward_reads = {1}};
  const Selection kept = close_selection(graph, {true, true, true});
  CHECK(simulate(graph, kept).peak_bytes == 30);  // y, and the gradients of z and y
  graph.operators[1].frees_reads_first = true;
  CHECK(simulate(graph, kept).peak_bytes == 20);  // y or its gradient, and z's, which is not overwritten
  graph.operators[0].backward_reads = {1};        // y is read again
  CHECK(simulate(graph, kept).peak_bytes == 30);
}

TEST_CASE("remat select: windows on a gradient keep it whole", "[remat]") {
  // x -> a, a -> b, (a, b) -> c of 4 and 6 bytes -> d of 1; nothing is read.
  Graph graph;
  graph.tensors = {{"x", 4, 0, true}, {"a", 4, 4, false}, {"b", 6, 6, false}, {"c", 10, 10, false}, {"d", 1, 1, false}};
  graph.operators.resize(4);
  graph.operators[0] = {.name = "", .inputs = {0}, .outputs = {1}, .backward_reads = {}};
  graph.operators[1] = {.name = "", .inputs = {1}, .outputs = {2}, .backward_reads = {}};
  graph.operators[2] = {.name = "concat", .inputs = {1, 2}, .outputs = {3}, .backward_reads = {}};
  graph.operators[3] = {.name = "", .inputs = {3}, .outputs = {4}, .backward_reads = {}};
  const Selection nothing = close_selection(graph, std::vector<bool>(5));
  // Peaks by operator, in the order of operators: gradients as separate tensors.
  CHECK(simulate(graph, nothing).operator_peak_bytes == std::vector<Bytes>{4, 10, 20, 11});
  graph.operators[2].windows = {1, 2};
  CHECK(simulate(graph, nothing).operator_peak_bytes == std::vector<Bytes>{10, 10, 10, 11});
  graph.operators[2].windows = {2};  // a's is copied out, and c's memory becomes b's
  CHECK(simulate(graph, nothing).operator_peak_bytes == std::vector<Bytes>{4, 14, 14, 11});
  check_timeline(graph, nothing);
}

TEST_CASE("remat select: block options are the hull of all selections", "[remat]") {
  Random random(11);
  std::size_t vertices = 0;
  for (int round = 0; round < 300; ++round) {
    Graph graph = random_graph(random, 3 + static_cast<std::size_t>(random.below(5)), 1);
    if (graph.tensors.size() > 11) continue;
    INFO("round " << round);
    const std::map<Bytes, Time> front = every_selection(graph, round < 20);
    std::map<Bytes, Time> found;
    for (const KeptPlan& plan : block_options(graph, 1000)) {
      found.emplace(plan.selection.kept_bytes, plan.selection.cost);
      REQUIRE(plan.cost.cost == plan.selection.cost);
    }
    const std::map<Bytes, Time> hull = hull_of(front);
    REQUIRE(std::includes(found.begin(), found.end(), hull.begin(), hull.end()));
    REQUIRE(std::includes(front.begin(), front.end(), found.begin(), found.end()));
    vertices += found.size();
    REQUIRE(block_options(graph, 3).size() == std::min<std::size_t>(3, found.size()));
  }
  CHECK(vertices > 600);
}

TEST_CASE("remat select: peak options are close to the best of all selections", "[remat]") {
  Random random(15);
  std::size_t graphs = 0, options = 0, optimal = 0, limited = 0;
  double found_cost = 0, least_cost = 0, bounds = 0;
  while (graphs < 250) {
    const Graph graph = random_graph(random, 4 + static_cast<std::size_t>(random.below(6)), 1);
    const std::size_t n = graph.tensors.size();
    if (n > 11) continue;
    ++graphs;
    INFO("graph " << graphs);
    std::map<Bytes, Time> least;  // by peak
    for (std::uint32_t set = 0; set < (1U << n); ++set) {
      std::vector<bool> wanted(n);
      for (std::size_t t = 0; t < n; ++t) wanted[t] = ((set >> t) & 1U) != 0;
      const Selection selection = close_selection(graph, wanted);
      const auto [entry, is_new] = least.emplace(simulate(graph, selection).peak_bytes, selection.cost);
      if (!is_new) entry->second = std::min(entry->second, selection.cost);
    }
    keep_pareto(least);
    TimeBound bound(graph);
    for (const auto& [peak, cost] : least) {
      REQUIRE(bound.at(peak) <= cost);
      REQUIRE(bound.at(peak) <= bound.at(peak - 1));
      bounds += static_cast<double>(bound.at(peak));
    }
    Bytes before = 0;
    const std::vector<KeptPlan> found = peak_options(graph, 100, Reruns::once);
    if (found.size() > 4 && ++limited <= 3) {  // as few as asked for: each time the one nearest to its neighbours' line
      std::vector<KeptPlan> few = found;
      while (few.size() > 3) {
        const auto below_line = [&](std::size_t i) {
          const auto at = [&](std::size_t k) {
            return std::pair(static_cast<double>(few[k].cost.peak_bytes), static_cast<double>(few[k].cost.cost));
          };
          const auto [x, y] = at(i - 1);
          const auto [to_x, to_y] = at(i + 1);
          return y + (to_y - y) * (at(i).first - x) / (to_x - x) - at(i).second;
        };
        std::size_t flattest = 1;
        for (std::size_t i = 2; i + 1 < few.size(); ++i) flattest = below_line(i) < below_line(flattest) ? i : flattest;
        few.erase(few.begin() + static_cast<std::ptrdiff_t>(flattest));
      }
      const std::vector<KeptPlan> three = peak_options(graph, 3, Reruns::once);
      REQUIRE(three.size() == 3);
      for (std::size_t i = 0; i < 3; ++i) REQUIRE(three[i].cost == few[i].cost);
    }
    REQUIRE(found.front().selection.cost == 0);
    for (const KeptPlan& plan : found) {
      REQUIRE((before == 0 || plan.cost.peak_bytes < before));
      before = plan.cost.peak_bytes;
      REQUIRE(plan.cost == simulate(graph, plan.selection));
    }
    for (const auto& [peak, cost] : least) {
      const auto plan = std::find_if(found.begin(), found.end(),
                                     [&, most = peak](const KeptPlan& p) { return p.cost.peak_bytes <= most; });
      ++options;
      if (plan == found.end()) continue;
      REQUIRE(plan->selection.cost >= cost);
      optimal += plan->selection.cost == cost ? 1 : 0;
      found_cost += static_cast<double>(plan->selection.cost);
      least_cost += static_cast<double>(cost);
    }
  }
  INFO(optimal << " of " << options << " optimal; cost " << found_cost << ", least " << least_cost);
  CHECK(limited > 3);
  CHECK(optimal * 100 > options * 99);
  CHECK(found_cost <= 1.01 * least_cost);
  INFO("bounds " << bounds);
  CHECK(bounds > 0);  // small, since in small graphs a single backward needs most of the peak
}

TEST_CASE("remat select: smallest peaks of small graphs", "[remat]") {
  const auto check = [](const Graph& graph, Bytes peak, Time cost) {
    const KeptPlan smallest = peak_options(graph, 100, Reruns::once).back();
    CHECK(smallest.cost.peak_bytes == peak);
    CHECK(smallest.selection.cost == cost);
  };
  {  // dropping a mask of a 600th of the peak helps
    GraphBuilder builder;
    const std::uint32_t x = builder.given("x", 41919, 41919);
    const std::uint32_t a = builder.add("a", {x}, 161097, 15696, {x});
    const std::uint32_t b = builder.add("b", {a}, 62438, 129051, {a});
    const std::uint32_t c = builder.add("c", {b}, 62438, 15712, {});
    builder.save_besides("mask", 2014);
    const std::uint32_t d = builder.add("d", {c}, 251677, 219, {});
    const std::uint32_t e = builder.add("e", {d}, 98756, 30000, {}, true);
    const std::uint32_t f = builder.add("f", {e, d}, 350433, 3057, {});
    builder.add("g", {f}, 251686, 79440, {f});
    Graph graph = builder.build();
    graph.operators[4].can_recompute = false;
    graph.operators[6].backward_peak_bytes = 54325, graph.operators[6].waiting_bytes = 43108;
    check(graph, 1105633, 160459);
  }
  {  // no single change lowers the peak
    GraphBuilder builder;
    const std::uint32_t x = builder.given("x", 107, 107);
    const std::uint32_t a = builder.add("a", {x}, 58, 28339, {x});
    builder.save_besides("mask", 14);
    const std::uint32_t b = builder.add("b", {a}, 58, 600000, {a});
    const std::uint32_t c = builder.add("c", {b}, 58, 4179, {b});
    const std::uint32_t d = builder.add("d", {c}, 58, 300000, {c});
    const std::uint32_t e = builder.add("e", {d}, 58, 3504, {d});
    builder.add("f", {e}, 58, 9678, {e});
    Graph graph = builder.build();
    graph.tensors[2].held_until = 3;
    graph.operators[4].backward_peak_bytes = 64;
    graph.operators[5].forward_peak_bytes = 35, graph.operators[5].backward_peak_bytes = 29;
    graph.operators[5].waiting_bytes = 10;
    check(graph, 296, 928339);
  }
}

TEST_CASE("remat select: the hull's cost is exact at its vertices, and a bound between them", "[remat]") {
  Random random(12);
  std::size_t budgets = 0;
  for (int round = 0; round < 150; ++round) {
    const Graph graph = random_graph(random, 3 + static_cast<std::size_t>(random.below(5)),
                                     1 + static_cast<std::size_t>(random.below(3)));
    if (graph.tensors.size() > 11) continue;
    INFO("round " << round << ", segments " << graph.segment_count());
    const std::map<Bytes, Time> front = every_selection(graph, false), hull = hull_of(front);
    for (const auto& [bytes, cost] : front) {
      KeptSpace space(graph);
      const Time found = hull_cost(space, bytes);
      if (hull.contains(bytes)) REQUIRE(found == cost);
      REQUIRE(found <= cost);
      if (const auto next = hull.upper_bound(bytes); next != hull.end()) REQUIRE(found > next->second);
      ++budgets;
    }
    KeptSpace space(graph);
    REQUIRE(hull_cost(space, front.begin()->first - 1) == front.begin()->second);  // no recompute costs more
  }
  CHECK(budgets > 300);
}

TEST_CASE("remat select: matmul outputs stay, cheap operators run again", "[remat]") {
  const Graph block = feed_forward(1);
  const std::vector<KeptPlan> options = block_options(block);
  CHECK(options.size() >= 3);
  CHECK(options.front().selection.cost == 0);
  std::vector<std::vector<std::string>> kept;
  for (const KeptPlan& option : options) kept.push_back(kept_names(block, option.selection));
  // The matmul output that backward reads is kept; the norm, its statistics and the activation are recomputed.
  const std::vector<std::string> cheap{"expand", "mask"};
  CHECK(std::find(kept.begin(), kept.end(), cheap) != kept.end());
  CHECK(kept.back().size() <= 1);
  for (std::size_t i = 1; i < options.size(); ++i) {
    CHECK(options[i].selection.kept_bytes < options[i - 1].selection.kept_bytes);
    CHECK(options[i].selection.cost > options[i - 1].selection.cost);
  }
  CHECK_THROWS_AS(block_options(block, 1), ValueError);
  CHECK_THROWS_AS(block_options(resnet50_graph()), ValueError);
}

TEST_CASE("remat select: a selection becomes an option of a chain", "[remat]") {
  // y = relu(x W), and relu reads its output: the block keeps only its input and output, which the chain holds.
  GraphBuilder builder;
  const std::uint32_t x = builder.given("x", 100, 100);
  const std::uint32_t h = builder.add("matmul", {x}, 60, 1000, {x});
  builder.add("relu", {h}, 60, 7, {}, true);
  Graph block = builder.build();
  block.tensors.back().gradient_bytes = 44;
  const std::vector<KeptPlan> plans = block_options(block);
  REQUIRE(plans.size() == 2);
  const Option all = chain_option(block, plans[0].selection, "all");
  CHECK(all.keeps_output);
  CHECK(all.kept_bytes == 0);
  CHECK(all.forward_time == 1007);
  CHECK(all.recompute_time == 0);
  CHECK(all.forward_peak_bytes == 60);  // h while relu runs
  CHECK(all.backward_peak_bytes == 0);  // dy, y; then dh, dx: never more than y, dy, dx
  const Option none = chain_option(block, plans[1].selection, "none");
  CHECK_FALSE(none.keeps_output);
  CHECK(none.kept_bytes == 0);
  CHECK(none.recompute_time == 1007);
  CHECK(none.recompute_peak_bytes == 120);
}

TEST_CASE("remat select: a chain of blocks needs what the graph of all blocks needs", "[remat]") {
  // Makes the same choices as options of stages in the chain's simulator, and tensor by tensor in the graph's. The
  // graph's input is free; the chain rounds up where the peaks of gradients and temporaries do not coincide.
  constexpr std::size_t blocks = 4;
  const Graph block = feed_forward(1);
  const Graph all = feed_forward(blocks);
  const Bytes input = block.tensors[0].bytes;
  const std::vector<KeptPlan> plans = block_options(block);
  REQUIRE(plans.size() >= 3);
  for (std::size_t o = 0; o < plans.size(); ++o) {
    Stage stage;
    stage.output_bytes = input;
    stage.output_gradient_bytes = input;
    stage.options = {chain_option(block, plans[o].selection, "option")};
    const Chain chain{input, input, std::vector<Stage>(blocks, stage)};
    const ScheduleCost by_chain = simulate(chain, keep_all(blocks));

    std::vector<bool> wanted(all.tensors.size());
    const std::size_t made = block.tensors.size() - 1;  // by each block
    for (std::size_t i = 0; i < blocks; ++i) {
      for (const std::uint32_t t : plans[o].selection.kept) wanted[i * made + t] = true;
    }
    const Selection selection = close_selection(all, wanted);
    const GraphCost by_graph = simulate(all, selection);
    INFO("option " << o);
    CHECK(by_chain.extra_time == selection.cost);
    CHECK(by_chain.peak_bytes >= by_graph.peak_bytes + input);
    CHECK(by_chain.peak_bytes <= by_graph.peak_bytes + 2 * input);
  }
}

TEST_CASE("remat select: the simulator counts what is alive", "[remat]") {
  // Three operators of 10 bytes each, whose backward reads its input; two segments, the second with one operator.
  GraphBuilder builder;
  const std::uint32_t x = builder.given("x", 1000, 0);
  const std::uint32_t a = builder.add("a", {x}, 10, 1, {x});
  const std::uint32_t b = builder.add("b", {a}, 10, 2, {a});
  builder.end_segment();
  builder.add("c", {b}, 10, 4, {b});
  builder.end_segment();
  const Graph graph = builder.build();

  const GraphCost all = simulate(graph, close_selection(graph, std::vector<bool>(4, true)));
  GraphBuilder trained;  // the gradient of its input remains at the end
  trained.add("", {trained.given("x", 1000, 40)}, 10, 1, {});
  check_timeline(trained.build(), close_selection(trained.build(), std::vector<bool>(2, true)));
  check_timeline(graph, close_selection(graph, std::vector<bool>(4, true)));
  check_timeline(graph, close_selection(graph, std::vector<bool>(4, false)));
  CHECK(all.cost == 0);
  CHECK(all.forward_peak_bytes == 30);
  CHECK(all.segment_peak_bytes == std::vector<Bytes>{30, 40});  // a, db, da; a, b, dc, db
  CHECK(all.recompute_peak_bytes == std::vector<Bytes>{0, 0});
  const Selection none = close_selection(graph, std::vector<bool>(4, false));
  CHECK(none.kept == std::vector<std::uint32_t>{b});  // it crosses the boundary
  CHECK(none.recomputed == std::vector<std::uint32_t>{0});
  const GraphCost cost = simulate(graph, none);
  CHECK(cost.cost == 1);
  CHECK(cost.segment_peak_bytes == std::vector<Bytes>{30, 30});
  CHECK(cost.recompute_peak_bytes == std::vector<Bytes>{20, 0});  // db, a

  Selection broken = none;
  broken.recomputed.clear();
  CHECK_THROWS_AS(simulate(graph, broken), PlanError);
}

TEST_CASE("remat select: bad graphs are refused", "[remat]") {
  const Graph good = feed_forward(1);
  const auto broken = [&](auto&& change) {
    Graph graph = good;
    change(graph);
    return graph;
  };
  const Graph graphs[] = {
      Graph{},
      broken([](Graph& g) { g.tensors[1].bytes = -1; }),
      broken([](Graph& g) { g.tensors[1].gradient_bytes = largest_total; }),
      broken([](Graph& g) { g.tensors[1].held_until = 6; }),
      broken([](Graph& g) { g.operators[0].cost = -5; }),
      broken([](Graph& g) { g.operators[0].waiting_bytes = -1; }),
      broken([](Graph& g) { g.operators[0].forward_peak_bytes = -1; }),
      broken([](Graph& g) { g.operators[0].backward_peak_bytes = -1; }),
      broken([](Graph& g) { g.operators[0].inputs = {99}; }),
      broken([](Graph& g) { g.operators[0].inputs = {3}; }),
      broken([](Graph& g) { g.operators[2].outputs = g.operators[0].outputs; }),
      broken([](Graph& g) { g.operators[2].outputs.clear(); }),
      broken([](Graph& g) { g.operators[0].backward_reads = {6}; }),
      broken([](Graph& g) { g.segment_ends = {2}; }),
      broken([](Graph& g) {
        g.segment_ends = {4, 2, 6};
      }),
      broken([](Graph& g) {
        g.segment_ends = {4, 4, 6};
      }),
      broken([](Graph& g) {
        g.segment_ends = {0, 6};
      }),
      broken([](Graph& g) {
        g.segment_ends = {6, 7};
      }),
  };
  CHECK_NOTHROW(validate(good));
  for (std::size_t i = 0; i < std::size(graphs); ++i) {
    INFO("graph " << i);
    CHECK_THROWS_AS(validate(graphs[i]), ValueError);
  }
  CHECK_THROWS_AS(close_selection(good, std::vector<bool>(2)), ValueError);
}
