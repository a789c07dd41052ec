// Graphs of other programs: the format by hand, plans against every selection by an independent step, offsets, and
// hostile files.

#include <thimble/nn/fit/graph_file.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/memory/remat/select.h>
#include <thimble/nn/fit/fit.h>

#include "memory/remat_graphs.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"
#include "support/refusal.h"
#include "support/skip.h"

using namespace thimble;
using Json = nlohmann::ordered_json;
using remat::Bytes;
using remat::Graph;
using remat::Selection;
using remat_test::Random;

namespace {

/// The file of a graph. Every third tensor gets a view of a view, which its users read instead.
Json json_of(const Graph& graph, bool has_views) {
  Json json{{"version", 1}, {"name", "g"}, {"alignment", 1}};
  for (const remat::GraphTensor& t : graph.tensors) {
    json["values"].push_back({{"name", t.name}, {"bytes", t.bytes}, {"gradient_bytes", t.gradient_bytes}});
    if (t.is_given) json["values"].back()["given"] = true;
    if (t.is_result) json["values"].back()["result"] = true;
    if (t.held_until > 0) json["values"].back()["held_until"] = t.held_until;
  }
  std::map<std::uint32_t, std::uint32_t> view;
  for (std::uint32_t t = 0; t < graph.tensors.size(); t += 3) {
    if (!has_views) break;
    json["values"].push_back({{"name", "view"}, {"alias", t}});
    view[t] = static_cast<std::uint32_t>(json["values"].size());
    json["values"].push_back({{"name", "its view"}, {"alias", view[t] - 1}});
  }
  const auto users = [&](std::vector<std::uint32_t> tensors) {
    for (std::uint32_t& t : tensors) t = view.contains(t) ? view[t] : t;
    return tensors;
  };
  for (const remat::GraphOperator& op : graph.operators) {
    json["nodes"].push_back({{"name", op.name},
                             {"inputs", users(op.inputs)},
                             {"outputs", op.outputs},
                             {"backward_reads", users(op.backward_reads)},
                             {"seconds", static_cast<double>(op.cost) * 1e-9},
                             {"backward_seconds", 0},
                             {"forward_bytes", op.forward_peak_bytes},
                             {"backward_bytes", op.backward_peak_bytes},
                             {"waiting_bytes", op.waiting_bytes},
                             {"recompute", op.can_recompute}});
  }
  return json;
}

nn::StepGraph read(const Json& json) { return nn::parse_graph(json.dump(), "g.json"); }

/// random_graph() with temporaries, waiting gradients, and tensors that the caller holds.
Graph random_step(Random& random) {
  Graph graph = remat_test::random_graph(random, 3 + static_cast<std::size_t>(random.below(6)), 1);
  for (std::uint32_t i = 0; i < graph.operators.size(); ++i) {
    remat::GraphOperator& op = graph.operators[i];
    op.forward_peak_bytes = random.below(4);
    op.backward_peak_bytes = random.below(9);
    op.waiting_bytes = random.below(op.backward_peak_bytes + 1);
    for (const std::uint32_t t : op.outputs) {
      if (!random.one_in(3)) continue;
      const auto left = static_cast<std::int64_t>(graph.operators.size()) - i;
      graph.tensors[t].held_until = i + static_cast<std::uint32_t>(random.below(left));
    }
  }
  return graph;
}

/// The peaks of a step and of its forward, by the rules of docs/graphs.md: lists all events, then marks for each tensor
/// and gradient the events during which it lives.
std::pair<Bytes, Bytes> peaks_by_hand(const Graph& graph, const Selection& selection) {
  enum class Kind { forward, again, backward };
  struct Event {
    Kind kind;
    std::uint32_t op, reader;
    std::set<std::uint32_t> makes = {};
  };
  const auto n = static_cast<std::uint32_t>(graph.operators.size());
  std::vector<std::uint32_t> maker(graph.tensors.size(), n);
  for (std::uint32_t i = 0; i < n; ++i) {
    for (const std::uint32_t t : graph.operators[i].outputs) maker[t] = i;
  }
  std::vector<Event> events;
  std::set<std::uint32_t> is_there;
  const auto run = [&](Kind kind, std::uint32_t op, std::uint32_t reader) {
    events.push_back({kind, op, reader});
    for (const std::uint32_t t : graph.operators[op].outputs) {
      if (is_there.insert(t).second) events.back().makes.insert(t);
    }
  };
  const auto provide = [&](const std::vector<std::uint32_t>& reads, std::uint32_t reader) {
    std::set<std::uint32_t> due;
    const std::function<void(const std::vector<std::uint32_t>&)> need = [&](const std::vector<std::uint32_t>& list) {
      for (const std::uint32_t t : list) {
        const bool is_missing = !graph.tensors[t].is_given && !is_there.contains(t);
        if (is_missing && due.insert(maker[t]).second) need(graph.operators[maker[t]].inputs);
      }
    };
    need(reads);
    for (const std::uint32_t op : due) run(Kind::again, op, reader);
  };
  const auto change_after = [&](std::uint32_t step, std::uint32_t reader) {
    for (const remat::Drop& drop : selection.drops) {
      if (drop.after != step) continue;
      if (drop.is_made) {
        if (maker[drop.tensor] <= step) provide({drop.tensor}, reader);
      } else if (step >= graph.tensors[drop.tensor].held_until) {
        is_there.erase(drop.tensor);
      }
    }
  };
  for (std::uint32_t i = 0; i < n; ++i) {
    if (i > 0) change_after(i - 1, i);
    provide(graph.operators[i].inputs, i);
    run(Kind::forward, i, i);
  }
  const std::size_t turn = events.size();
  const std::set<std::uint32_t> kept(selection.kept.begin(), selection.kept.end());
  std::erase_if(is_there, [&](std::uint32_t t) { return !kept.contains(t); });
  for (std::uint32_t i = n; i-- > 0;) {
    change_after(2 * n - 2 - i, i);
    provide(graph.operators[i].backward_reads, i);
    events.push_back({Kind::backward, i, i});
  }
  std::vector<Bytes> bytes(events.size());
  const auto there = [&](Bytes size, std::size_t from, std::size_t to) {  // including event `to`
    for (std::size_t e = from; e <= to; ++e) bytes[e] += size;
  };
  std::vector<std::size_t> backward_of(n);
  for (std::size_t e = turn; e < events.size(); ++e) {
    if (events[e].kind == Kind::backward) backward_of[events[e].op] = e;
  }
  const auto uses = [](const std::vector<std::uint32_t>& list, std::uint32_t t) {
    return std::find(list.begin(), list.end(), t) != list.end();
  };
  for (std::uint32_t t = 0; t < graph.tensors.size(); ++t) {
    const remat::GraphTensor& tensor = graph.tensors[t];
    bool is_taken = false;
    std::size_t begin = 0, end = 0;  // of a copy
    for (std::size_t e = 0; e < events.size(); ++e) {
      const remat::GraphOperator& op = graph.operators[events[e].op];
      is_taken = is_taken || uses(op.inputs, t);
      const bool is_held =
          events[e].kind == Kind::forward && tensor.held_until > 0 && events[e].op == tensor.held_until;
      if (is_held || uses(events[e].kind == Kind::backward ? op.backward_reads : op.inputs, t)) end = e;
      if (events[e].kind == Kind::backward || !uses(op.outputs, t)) continue;
      if (!events[e].makes.contains(t)) {
        bytes[e] += tensor.bytes;  // a copy that is dropped at once
        continue;
      }
      if (events[e].kind == Kind::again) there(tensor.bytes, begin, end);
      begin = end = e;
    }
    if (!tensor.is_given) there(tensor.bytes, begin, end);
    // The gradient lives from the first backward that adds to it to its maker's backward.
    std::size_t first = tensor.is_given || is_taken ? events.size() : turn;
    for (std::uint32_t i = 0; i < n; ++i) {
      if (uses(graph.operators[i].inputs, t)) first = std::min(first, backward_of[i]);
    }
    if (first < events.size()) {
      there(tensor.gradient_bytes, first, tensor.is_given ? events.size() - 1 : backward_of[maker[t]]);
    } else if (maker[t] < n) {
      there(tensor.gradient_bytes, backward_of[maker[t]], backward_of[maker[t]]);
    }
  }
  for (std::size_t e = 0; e < events.size(); ++e) {
    const remat::GraphOperator& op = graph.operators[events[e].op];
    bytes[e] += events[e].kind == Kind::backward ? op.backward_peak_bytes : op.forward_peak_bytes;
    if (events[e].kind == Kind::again && e >= turn) bytes[e] += graph.operators[events[e].reader].waiting_bytes;
  }
  return {*std::max_element(bytes.begin(), bytes.end()),
          *std::max_element(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(turn))};
}

/// y = out(relu(fc(x))); relu reads a view of h.
Json toy() {
  return Json::parse(R"({"version": 1, "name": "toy", "values": [
    {"name": "x", "bytes": 100, "given": true}, {"name": "h", "bytes": 4000, "gradient_bytes": 4000},
    {"name": "h view", "alias": 1}, {"name": "a", "bytes": 4000, "gradient_bytes": 4000},
    {"name": "y", "bytes": 500, "gradient_bytes": 500}], "nodes": [
    {"name": "fc", "inputs": [0], "outputs": [1], "backward_reads": [0], "seconds": 0.002, "backward_seconds": 0.004},
    {"name": "view", "inputs": [1], "outputs": [2], "seconds": 0},
    {"name": "relu", "inputs": [2], "outputs": [3], "backward_reads": [2], "seconds": 0.0005},
    {"name": "out", "inputs": [3], "outputs": [4], "backward_reads": [3, 3], "seconds": 0.001}]})");
}

}  // namespace

TEST_CASE("graph file: what is written is read", "[plan]") {
  const nn::StepGraph step = read(toy());
  CHECK(step.name == "toy");
  CHECK(step.alignment == 64);
  CHECK(step.value_count == 5);
  CHECK(step.forward_s == 0.0035);
  CHECK(step.backward_s == 0.004);
  REQUIRE(step.graph.tensors.size() == 6);  // the view's node has a tensor, too
  REQUIRE(step.graph.operators.size() == 4);
  CHECK(step.graph.operators[0].cost == 2'000'000);
  CHECK(step.graph.operators[1].outputs == std::vector<std::uint32_t>{5});
  CHECK(step.graph.tensors[5].bytes == 0);
  CHECK(step.graph.operators[2].inputs == std::vector<std::uint32_t>{1});
  CHECK(step.graph.operators[2].backward_reads == std::vector<std::uint32_t>{1});
  CHECK(step.graph.operators[3].backward_reads == std::vector<std::uint32_t>{3});
  Random random(31);
  for (int round = 0; round < 50; ++round) {
    const Graph graph = random_step(random);
    const nn::StepGraph plain = read(json_of(graph, false)), viewed = read(json_of(graph, true));
    for (std::size_t i = 0; i < graph.operators.size(); ++i) {
      const remat::GraphOperator &a = graph.operators[i], &b = plain.graph.operators[i], &c = viewed.graph.operators[i];
      CHECK((a.outputs == b.outputs && b.outputs == c.outputs && a.cost == b.cost && b.inputs == c.inputs));
      CHECK((a.can_recompute == b.can_recompute && a.waiting_bytes == b.waiting_bytes));
      CHECK((b.forward_peak_bytes == a.forward_peak_bytes && b.backward_peak_bytes == a.backward_peak_bytes));
      CHECK(b.backward_reads == c.backward_reads);
    }
  }
}

TEST_CASE("graph file: a plan by hand", "[plan]") {
  const nn::StepGraph step = read(toy());
  const nn::GraphPlan all = nn::plan_graph(step, 0);
  CHECK(all.selection.kept == std::vector<std::uint32_t>{1, 3});
  CHECK(all.peak_bytes == 12'500);  // at the first backward: h, a, the gradients of a and y
  CHECK(all.keep_everything_bytes == 12'500);
  CHECK(all.step_s == 0.0075);
  CHECK(all.time_gap() == 0);
  // Only h can be dropped, and it takes most of the time; a is made from it.
  const nn::GraphPlan less = nn::plan_graph(step, 12'400);
  CHECK(less.selection.kept == std::vector<std::uint32_t>{3});
  CHECK(less.selection.recomputed == std::vector<std::uint32_t>{0});
  CHECK(less.peak_bytes == 12'000);  // at the backward of relu: h, the gradients of a and h
  CHECK(less.height_bytes <= 12'400);
  CHECK(less.recompute_s == 0.002);
  const std::string text = nn::to_text(step, less);
  CHECK(files_test::contains(text, "node 0 (fc) before the backward of 2 (relu)"));
  CHECK(files_test::contains(text, "time: 9.500 ms, of that 2.000 ms recomputing, 26.7 % over keeping everything"));
  const Json json = Json::parse(nn::to_json(step, less));
  CHECK(json["kept"] == Json::parse("[3]"));
  CHECK(json["recomputed"] == Json::parse("[[0, 2]]"));
  CHECK(json["events"].size() == 9);
  CHECK(json["events"][5] == Json::parse(R"(["recompute", 0])"));
  CHECK(json["peak_bytes"] == 12'000);
  Json named = toy();
  named["name"] = "n\xC3\xB6";
  CHECK(files_test::contains(nn::to_json(read(named), all), R"("name":"n\u00f6")"));  // only ASCII
  try {
    nn::plan_graph(step, 11'999);
    FAIL("no plan has so few bytes");
  } catch (const nn::BudgetError& error) {
    CHECK(error.budget_bytes() == 11'999);
    CHECK(nn::plan_graph(step, error.minimum_bytes()).height_bytes == error.minimum_bytes());
  }
}

TEST_CASE("graph file: a value is made again before a forward", "[plan]") {
  const nn::StepGraph step = read(Json::parse(R"({"version": 1, "alignment": 1, "values": [
    {"bytes": 1, "given": true}, {"bytes": 4000}, {"bytes": 100}, {"bytes": 200}, {"bytes": 300}], "nodes": [
    {"name": "a", "inputs": [0], "outputs": [1], "seconds": 0.001},
    {"name": "b", "inputs": [1], "outputs": [2], "seconds": 0.001, "backward_reads": [1]},
    {"name": "c", "inputs": [2], "outputs": [3], "seconds": 0.001, "forward_bytes": 4000},
    {"name": "d", "inputs": [1, 3], "outputs": [4], "seconds": 0.001}]})"));
  CHECK(nn::plan_graph(step, 0).peak_bytes == 8'300);
  const nn::GraphPlan less = nn::plan_graph(step, 5'000);
  CHECK(less.peak_bytes == 4'500);  // at the forward of d: values 1, 3 and 4
  CHECK(less.selection.kept == std::vector<std::uint32_t>{1});
  CHECK(less.selection.drops == std::vector<remat::Drop>{{1, 1}});
  CHECK(less.recompute_s == 0.001);
  CHECK(files_test::contains(nn::to_text(step, less),
                             "recomputed, in order: 1 nodes\n  node 0 (a) before the forward of 3 (d)"));
  CHECK(Json::parse(nn::to_json(step, less))["events"][3] == Json::parse(R"(["recompute", 0])"));
}

TEST_CASE("graph file: plans against every selection", "[plan][slow]") {
  Random random(32);
  std::size_t graphs = 0, budgets = 0, optimal = 0, better = 0, dropped = 0;
  double bounds = 0;
  while (graphs < 120) {
    const Graph graph = random_step(random);
    const std::size_t n = graph.tensors.size();
    if (n > 10) continue;
    ++graphs;
    INFO("graph " << graphs);
    std::map<Bytes, remat::Time> least;  // by peak
    for (std::uint32_t set = 0; set < (1U << n); ++set) {
      std::vector<bool> wanted(n);
      for (std::size_t t = 0; t < n; ++t) wanted[t] = ((set >> t) & 1U) != 0;
      const Selection selection = remat::close_selection(graph, wanted);
      const auto [peak, forward_peak] = peaks_by_hand(graph, selection);
      REQUIRE(remat::simulate(graph, selection).peak_bytes == peak);
      REQUIRE(remat::simulate(graph, selection).forward_peak_bytes == forward_peak);
      const auto [entry, is_new] = least.emplace(peak, selection.cost);
      if (!is_new) entry->second = std::min(entry->second, selection.cost);
      std::vector<remat::Drop> drops;  // drops some tensors between two uses, makes others early
      for (std::uint32_t t = 0; t < n; ++t) {
        const auto step =
            static_cast<std::uint32_t>(random.below(2 * static_cast<std::int64_t>(graph.operators.size())));
        if (random.one_in(2)) drops.push_back({t, step, random.one_in(3)});
      }
      const Selection dropping = remat::close_selection(graph, wanted, drops);
      const remat::GraphCost cost = remat::simulate(graph, dropping);
      REQUIRE(std::pair(cost.peak_bytes, cost.forward_peak_bytes) == peaks_by_hand(graph, dropping));
      REQUIRE(cost.cost == dropping.cost);
      REQUIRE(remat::close_selection(graph, wanted, dropping.drops) == dropping);
      const remat::GraphTimeline line = remat::timeline(graph, dropping);
      std::size_t turn = line.events.size() - 1;  // the last forward
      while (line.events[turn].kind != remat::GraphTimeline::Event::Kind::forward) --turn;
      for (const std::uint32_t t : dropping.kept) {
        REQUIRE(std::any_of(line.buffers.begin(), line.buffers.end(), [&](const remat::GraphTimeline::Buffer& b) {
          return b.kind == remat::GraphTimeline::Buffer::Kind::tensor && b.index == t && b.begin <= turn &&
                 b.end > turn + 1;
        }));
      }
      dropped += dropping.drops.size();
    }
    const nn::StepGraph step = read(json_of(graph, graphs % 2 == 0));
    remat::TimeBound bound(graph, remat::bytes_around_backwards(graph)), looser(graph);
    remat::Time best = remat::largest_total;
    for (const auto& [peak, cost] : least) {
      best = std::min(best, cost);
      REQUIRE(bound.at(peak) <= best);
      REQUIRE(bound.at(peak) >= looser.at(peak));
      bounds += static_cast<double>(bound.at(peak) - looser.at(peak));
      ++budgets;
      try {
        const nn::GraphPlan plan = nn::plan_graph(step, static_cast<std::size_t>(peak));
        const Selection& found = plan.selection;
        REQUIRE(static_cast<Bytes>(plan.peak_bytes) == peaks_by_hand(graph, found).first);
        REQUIRE(plan.least_step_s <= plan.step_s);
        optimal += found.cost <= best ? 1 : 0;
        better += found.cost < best ? 1 : 0;  // recomputes some tensor twice, or during forward
        // Offsets: live buffers never overlap, stay within the height, and add up to the peak at most.
        std::size_t highest = 0, load = 0;
        const auto& buffers = plan.timeline.buffers;
        REQUIRE(plan.offsets.size() == buffers.size());
        for (std::size_t e = 0; e < plan.timeline.events.size(); ++e) {
          std::vector<bool> is_taken(plan.height_bytes);
          std::size_t sum = 0;
          for (std::size_t b = 0; b < buffers.size(); ++b) {
            if (e < buffers[b].begin || e >= buffers[b].end) continue;
            const std::size_t end = plan.offsets[b] + static_cast<std::size_t>(buffers[b].bytes);
            REQUIRE(end <= plan.height_bytes);
            sum += static_cast<std::size_t>(buffers[b].bytes);
            highest = std::max(highest, end);
            for (std::size_t at = plan.offsets[b]; at < end; ++at) {
              REQUIRE_FALSE(is_taken[at]);
              is_taken[at] = true;
            }
          }
          load = std::max(load, sum);
        }
        REQUIRE(load == plan.peak_bytes);
        REQUIRE(highest == plan.height_bytes);
        REQUIRE(plan.height_bytes <= static_cast<std::size_t>(peak));
      } catch (const nn::BudgetError&) {  // the search missed the smallest selection, or its buffers leave holes
      }
    }
  }
  INFO(optimal << " of " << budgets << " budgets have the best plan, " << better << " a better one; " << dropped
               << " drops; the bound is higher by " << bounds);
  CHECK(optimal * 100 > budgets * 99);
  CHECK(better > 0);
  CHECK(dropped > 1000);
  CHECK(bounds > 0);
}

TEST_CASE("graph file: of equal branches some run again in a budget between", "[plan]") {
  Json json{{"version", 1}, {"values", Json::array({Json{{"bytes", 8}, {"given", true}}})}};
  for (int i = 1; i <= 300; ++i) {  // two nodes each
    json["values"].push_back({{"bytes", 1000}});
    json["nodes"].push_back({{"inputs", Json::array({i % 2 == 1 ? 0 : i - 1})},
                             {"outputs", Json::array({i})},
                             {"backward_reads", Json::array({i})},
                             {"seconds", 1}});
  }
  const std::vector<nn::GraphPlan::Point> points = nn::plan_graph(read(json), 0).points;
  for (std::size_t i = 1; i < points.size(); ++i) CHECK(points[i - 1].peak_bytes - points[i].peak_bytes < 30'000);
}

TEST_CASE("graph file: files that hold no graph", "[plan][fuzz]") {
  const auto message = [](const std::string& text) {
    return refusal_test::refusal<FileError>([&] { nn::parse_graph(text, "g.json"); });
  };
  const std::string good = toy().dump();
  CHECK(message(good).empty());
  CHECK(files_test::contains(message("{\"name\": \"a\", " + good.substr(1)), "key 'name' is there twice"));
  CHECK(files_test::contains(message(good + std::string(1, char{}) + "more"), "it has a NUL byte"));
  CHECK_THROWS_AS(nn::read_graph("/nowhere/g.json"), FileError);
  for (const std::string& text : {std::string(), std::string("{}"), std::string("[1]"), good.substr(0, 300)}) {
    CHECK_FALSE(message(text).empty());
  }
  struct Row {
    std::function<void(Json&)> change;
    const char* says;
  };
  const Row rows[] = {
      {[](Json& j) { j["version"] = 2; }, "version: expected 1, got 2"},
      {[](Json& j) { j.erase("version"); }, "it has no 'version'"},
      {[](Json& j) { j["author"] = "me"; },
       "it has 'author', which is none of its keys: version, values, nodes, name, alignment"},
      {[](Json& j) { j["alignment"] = 48; }, "alignment: expected a power of two, got 48"},
      {[](Json& j) { j["alignment"] = 0; }, "alignment"},
      {[](Json& j) { j["values"] = Json::array(); }, "values: expected 1 to"},
      {[](Json& j) { j["nodes"] = 3; }, "nodes: expected a list, got 3"},
      {[](Json& j) { j["values"][1]["bytes"] = -1; }, "value 1, bytes"},
      {[](Json& j) { j["values"][1]["bytes"] = 1.5; }, "value 1, bytes"},
      {[](Json& j) { j["values"][1]["bytes"] = 18446744073709551615ull; }, "value 1, bytes"},
      {[](Json& j) { j["values"][1]["bytes"] = true; }, "value 1, bytes"},
      {[](Json& j) { j["values"][1]["size"] = 1; }, "value 1 has 'size'"},
      {[](Json& j) { j["values"][1].erase("bytes"); }, "value 1 has no 'bytes'"},
      {[](Json& j) { j["values"][1]["held_until"] = 4; }, "value 1, held_until"},
      {[](Json& j) { j["values"][3]["held_until"] = 1; }, "value 3, held_until: expected node 2, which makes it, or"},
      {[](Json& j) { j["values"][1]["given"] = 1; }, "value 1, given: expected true or false"},
      {[](Json& j) { j["values"][2]["alias"] = 2; }, "value 2, alias"},
      {[](Json& j) { j["values"][2]["alias"] = 9; }, "value 2, alias"},
      {[](Json& j) { j["values"][2]["bytes"] = 1; },
       "value 2, an alias, has 'bytes', which is none of its keys: alias, name"},
      {[](Json& j) { j["nodes"][0]["inputs"] = {3}; }, "node 0, inputs is value 3 before it is made"},
      {[](Json& j) { j["nodes"][0]["inputs"] = {5}; }, "node 0, inputs"},
      {[](Json& j) { j["nodes"][0]["outputs"] = {2}; }, "node 0, outputs is value 2 before it is made"},
      {[](Json& j) { j["nodes"][0]["outputs"] = {0}; }, "node 0 makes value 0, which is there already"},
      {[](Json& j) { j["nodes"][3]["outputs"] = {3}; }, "node 3 makes value 3, which is there already"},
      {[](Json& j) {
         j["nodes"][3]["outputs"] = {4, 2};
       },
       "value 2, an alias of value 1, which is not among its inputs"},
      {[](Json& j) { j["nodes"][3]["outputs"] = Json::array(); }, "value 4: expected a node that makes it, or given"},
      {[](Json& j) { j["nodes"][0]["backward_reads"] = {4}; }, "node 0, backward_reads is value 4 before"},
      {[](Json& j) { j["nodes"][0]["seconds"] = -1; }, "node 0, seconds"},
      {[](Json& j) { j["nodes"][0]["seconds"] = 1e300; }, "node 0, seconds"},
      {[](Json& j) { j["nodes"][0]["seconds"] = nullptr; }, "node 0, seconds"},
      {[](Json& j) { j["nodes"][0].erase("seconds"); }, "node 0 has no 'seconds'"},
      {[](Json& j) { j["nodes"][0]["backward_seconds"] = "1"; }, "node 0, backward_seconds"},
      {[](Json& j) { j["nodes"][0]["waiting_bytes"] = 1; }, "node 0, waiting_bytes"},
      {[](Json& j) { j["nodes"][0]["flops"] = 1; }, "node 0 has 'flops'"},
      {[](Json& j) {
         for (Json& value : j["values"]) {
           if (!value.contains("alias")) value["bytes"] = std::int64_t{1} << 57;
         }
       },
       "all together may be at most"},
  };
  for (const Row& row : rows) {
    Json json = toy();
    row.change(json);
    INFO(row.says << "\n" << message(json.dump()));
    CHECK(files_test::contains(message(json.dump()), row.says));
  }
  // Files with changed bytes are read or refused, and every graph that is read has a plan.
  std::mt19937 random(33);
  std::size_t read_ones = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (std::size_t changes = 1 + random() % 3; changes-- > 0;) {
      const std::size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 8);
      } else if (random() % 2 == 0) {
        text[at] = "0123456789-e.{}[],:\"\xff"[random() % 21];
      } else {
        text.insert(at, good.substr(random() % good.size(), random() % 12));
      }
    }
    INFO(text);
    try {
      nn::plan_graph(nn::parse_graph(text, "g.json"), 0);
      ++read_ones;
    } catch (const FileError&) {
    }
  }
  CHECK(read_ones > 50);
}
