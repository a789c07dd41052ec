// fit: every plan needs exactly its predicted bytes and changes no bit.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/fit/process_budget.h>
#include <thimble/nn/fit/stages.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"

using namespace thimble;

namespace {

models::Setup fit_setup(const char* model, std::int64_t batch) {
  models::Setup setup;
  setup.model = model;
  setup.batch = batch;
  models::ModelOptions& sizes = setup.sizes;
  if (setup.model == "char-gpt") {
    setup.batch *= 8;
    sizes.layers = 4, sizes.width = 64, sizes.heads = 4, sizes.sequence = 48, sizes.dropout = 0.1;
  } else if (setup.model == "mlp") {
    sizes.image = 28, sizes.width = 64;
  } else {
    sizes.image = setup.model == "resnet50" ? 16 : 32, sizes.width = 8;
  }
  return setup;
}

// Losses, f32 parameters and f32 buffers of a run of three steps.
std::vector<std::vector<float>> train(const models::Setup& setup, const nn::Plan& plan, std::size_t capacity_bytes) {
  memory::Options options;
  options.arena.capacity_bytes = capacity_bytes;
  options.plans = plan.placement;
  const memory::Stack stack = memory::make_resource(cpu, options);
  const ResourceScope scope(stack.top);
  RandomGenerator generator(7);
  const GeneratorScope random(generator);
  const auto model = models::make_model(setup.model, setup.sizes);
  const auto optimizer = models::make_optimizer(setup, *model);
  models::Batch batch = model->empty_batch(setup.batch, cpu);
  if (!model->is_text()) fill_normal(batch.input, 0, 1);
  std::vector<std::vector<float>> state;
  nn::StepOptions step;
  plan.apply(step, cpu);
  step.clip_norm = models::clip_norm(setup, model->is_text());
  for (int i = 0; i < 3; ++i) {
    if (stack.placed) stack.placed->begin_step();
    const Tensor loss = nn::training_step(
        *optimizer, [&](std::int64_t) { return model->loss(batch); }, step);
    if (stack.placed) stack.placed->end_step();
    state.push_back(to_host<float>(loss));
  }
  for (const auto& list : {model->parameters(), model->buffers()}) {
    for (const nn::NamedTensor& named : list) {
      if (named.tensor.dtype() == DType::f32) state.push_back(to_host<float>(named.tensor));
    }
  }
  CHECK(generator.step() == 3);
  return state;
}

TapeGraph graph_of(const models::Setup& setup) { return nn::record_step(cpu, models::zero_batch_run(setup)); }

/// A layer, residual blocks of six layers and of one, the first layer again, and a loss that reads its output twice.
/// All weights are (8, 8) in f32, the first `frozen` of them frozen.
TapeGraph residual_graph(int frozen = 0) {
  const auto weight = [&frozen] {
    Tensor made = Tensor::empty({8, 8}, DType::f32, dry(cpu));
    return frozen-- > 0 ? made : made.require_grad();
  };
  Tape tape;
  tape.observe();
  const Recording on(tape);
  const Tensor shared = weight();
  Tensor x = linear(Tensor::empty({2, 8}, DType::f32, dry(cpu)), shared);  // node 0
  std::vector<Tensor> weights;                                             // leaves live as long as the recording
  for (const int layers : {6, 1}) {                                        // nodes 1 to 13, 14 to 16
    Tensor h = x;
    for (int i = 0; i < layers; ++i) h = tanh(linear(h, weights.emplace_back(weight())));
    x = add(x, h);
  }
  const Tensor y = linear(x, shared);  // node 17
  const Tensor loss = add(mean(square(y)), mean(tanh(y)));
  return TapeGraph::of(tape);
}

/// Storages made before node `cut` that nodes from `cut` on read.
std::vector<std::uint32_t> crossing(const TapeGraph& graph, std::uint32_t cut) {
  std::vector<bool> is_given(graph.storages.size()), is_made(graph.storages.size());
  for (const TapeGraph::Value& value : graph.values) {
    if (value.storage != TapeGraph::none && value.producer < 0) is_given[value.storage] = true;
  }
  for (std::uint32_t n = 0; n < cut; ++n) {
    const std::uint32_t storage = graph.values[graph.nodes[n].output].storage;
    if (storage != TapeGraph::none && !is_given[storage]) is_made[storage] = true;
  }
  std::vector<std::uint32_t> found;
  for (std::uint32_t n = cut; n < graph.nodes.size(); ++n) {
    for (const std::uint32_t value : graph.nodes[n].inputs) {
      const std::uint32_t storage = value == TapeGraph::none ? value : graph.values[value].storage;
      if (storage == TapeGraph::none || !is_made[storage]) continue;
      if (std::find(found.begin(), found.end(), storage) == found.end()) found.push_back(storage);
    }
  }
  return found;
}

nn::StagedGraph stages_of(const TapeGraph& graph, std::size_t longest_span) {
  nn::StageLimits limits;
  limits.span = longest_span;
  return nn::make_stages(graph, nn::node_times(graph, nn::hardware("cpu")), nn::cut_points(graph), limits);
}

}  // namespace

TEST_CASE("fit: plans need what they say and change no bit", "[fit]") {
  std::size_t gained_bytes = 0;  // through placement
  for (const char* model : {"mlp", "resnet18", "resnet50", "char-gpt"}) {
    const models::Setup setup = fit_setup(model, 6);
    nn::Planner planner(models::zero_batch_run(setup), cpu, nn::hardware("cpu"));
    const auto plain = train(setup, nn::Plan(), 0);
    const std::vector<nn::Plan> plans = planner.plans();
    if (setup.model == "char-gpt") CHECK(plans.size() > 3);
    CHECK(planner.keep_everything().time_overhead == 0);
    for (std::size_t i = 0; i < plans.size(); i += 1 + plans.size() / 3) {
      const nn::Plan& plan = plans[i];
      INFO(model << ": " << plan.description);
      const nn::MakeRun make = [&](memory::Device device) {
        auto run = models::zero_batch_run(setup)(device);
        plan.apply(run->options(), device);
        return run;
      };
      CHECK(nn::profile_training(cpu, make, 3, false, plan.placement).peak_bytes == plan.peak_bytes);
      CHECK(nn::profile_training(dry(cpu), make, 2, false, plan.placement).steps == 2);  // steady after two
      CHECK(train(setup, plan, 0) == plain);
      CHECK(plan.least_step_s >= planner.kept_step_s());
      CHECK(plan.time_gap() >= 0);
      // Blocks are placed ahead only if that commits no more than an arena that places them as they come.
      const nn::MemoryProfile unplaced = nn::profile_training(dry(cpu), make, 2, true);
      const std::vector<memory::StepPlacement> placement = nn::plan_steps(unplaced, nn::placement_options(cpu, 1));
      const std::size_t placed_bytes = nn::profile_training(dry(cpu), make, 2, false, placement).peak_bytes;
      CHECK(plan.peak_bytes == std::min(unplaced.peak_bytes, placed_bytes));
      CHECK(plan.placement.empty() == (placed_bytes > unplaced.peak_bytes));
      gained_bytes += unplaced.peak_bytes - plan.peak_bytes;
    }
  }
  CHECK(gained_bytes > 0);
}

TEST_CASE("fit: the smallest plan is the fastest of its bytes", "[fit]") {
  for (const char* const model : {"resnet18", "resnet50"}) {
    models::Setup setup;
    setup.model = model, setup.batch = 16, setup.sizes.image = 32, setup.sizes.width = 8;
    nn::Planner planner(models::zero_batch_run(setup), cpu, nn::hardware("cpu"));
    const nn::Plan& least = planner.smallest();
    INFO(model << ": " << least.peak_bytes << " at " << least.time_overhead);
    const nn::Plan& in_it = planner.fit(least.peak_bytes);
    CHECK(in_it.peak_bytes == least.peak_bytes);
    CHECK(in_it.step_s == least.step_s);
    CHECK_THROWS_AS(planner.fit(least.peak_bytes - 1), nn::BudgetError);
  }
}

TEST_CASE("fit: plans of a long chain are next to the least possible", "[fit]") {
  models::Setup setup = fit_setup("char-gpt", 1);
  setup.sizes.layers = 72;  // two stages per layer
  nn::Planner planner(models::zero_batch_run(setup), cpu, nn::hardware("cpu"));
  const std::size_t least = planner.smallest().peak_bytes, most = planner.keep_everything().peak_bytes;
  double before = 1e9;
  for (const std::size_t tenths : {2, 4, 6, 8}) {
    const nn::Plan& plan = planner.fit(least + (most - least) * tenths / 10);
    INFO(tenths << " tenths of the freeable bytes: " << plan.time_overhead << ", gap " << plan.time_gap());
    CHECK(plan.time_gap() < 0.01);
    CHECK(plan.time_overhead <= before);
    before = plan.time_overhead;
  }
}

TEST_CASE("fit: more budget never costs time, and what is asked for is kept", "[fit]") {
  const models::Setup setup = fit_setup("char-gpt", 16);
  nn::Planner planner(models::zero_batch_run(setup), cpu, nn::hardware("cpu"));
  const std::vector<nn::Plan> known = planner.plans();
  const std::size_t least = planner.smallest().peak_bytes, most = known.back().peak_bytes;
  CHECK(least < most);
  double before = 1e9, floor_s = 1e9;
  for (std::size_t i = 0; i <= 40; ++i) {
    const std::size_t budget = least + (most + (most - least) / 4 - least) * i / 40;
    const nn::Plan& plan = planner.fit(budget);
    CHECK(plan.peak_bytes <= budget);
    CHECK(plan.lower_bound_bytes <= plan.peak_bytes);
    CHECK(plan.time_overhead <= before);
    before = plan.time_overhead;
    // Within the budget, which may exceed this plan's peak, no known plan beats the bound.
    CHECK(plan.least_step_s <= std::min(floor_s, plan.step_s));
    floor_s = plan.least_step_s;
    for (const nn::Plan& other : known) CHECK((other.peak_bytes > budget || other.step_s >= floor_s));
  }
  CHECK(before == 0);
  for (const nn::Plan& one : known) {
    if (one.peak_bytes > least && one.peak_bytes < most) {
      CHECK(planner.fit(one.peak_bytes).least_step_s == one.least_step_s);
      CHECK(planner.fit(one.peak_bytes + 4096).least_step_s < one.least_step_s);
    }
  }
  for (const nn::Plan& again : planner.plans()) {  // now bounded by its own peak
    const auto is_it = [&](const nn::Plan& one) { return one.peak_bytes == again.peak_bytes; };
    const auto first = std::find_if(known.begin(), known.end(), is_it);
    if (first != known.end()) CHECK(again.least_step_s == first->least_step_s);
  }
  CHECK(train(setup, planner.fit(least), least) == train(setup, nn::Plan(), 0));
  try {
    planner.fit(least - 1);
    FAIL("a plan below the minimum");
  } catch (const nn::BudgetError& error) {
    CHECK(error.budget_bytes() == least - 1);
    CHECK(error.minimum_bytes() == least);
    CHECK(planner.fit(error.minimum_bytes()).peak_bytes == least);
  }
}

TEST_CASE("fit: a chain is cut where a single tensor crosses", "[fit]") {
  for (const char* model : {"mlp", "resnet18", "resnet50", "googlenet", "char-gpt"}) {
    const TapeGraph graph = graph_of(fit_setup(model, 2));
    const std::vector<std::uint32_t> cuts = nn::cut_points(graph);
    INFO(model);
    // In a GPT, before each half of a block but the first half, whose input is the sum of embeddings.
    if (model == std::string("char-gpt")) CHECK(cuts.size() == 2 + 7);
    if (model != std::string("mlp")) CHECK(cuts.size() > 3);
    CHECK(std::is_sorted(cuts.begin(), cuts.end()));
    REQUIRE(cuts.front() == 0);
    REQUIRE(cuts.back() == graph.nodes.size());
    for (std::size_t i = 1; i + 1 < cuts.size(); ++i) {
      INFO("cut before node " << cuts[i]);
      const std::uint32_t last = graph.values[graph.nodes[cuts[i] - 1].output].storage;
      CHECK(crossing(graph, cuts[i]) == std::vector<std::uint32_t>{last});
    }
  }
}

TEST_CASE("fit: even cuts are the best of all, in random graphs", "[fit]") {
  const OpType* const type = residual_graph().nodes.front().type;
  std::mt19937 random(11);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (int round = 0; round < 400; ++round) {
    // Node n makes value n and storage n from earlier results.
    const std::uint32_t count = 1 + below(9);
    TapeGraph graph;
    for (std::uint32_t n = 0; n < count; ++n) {
      graph.storages.emplace_back().bytes = below(40);
      TapeGraph::Value& value = graph.values.emplace_back();
      value.storage = n;
      value.producer = static_cast<std::int32_t>(n);
      TapeGraph::Node node;
      node.type = type;
      node.output = n;
      for (std::uint32_t reads = below(3); n > 0 && reads > 0; --reads) node.inputs.push_back(below(n));
      graph.nodes.push_back(node);
    }
    if (count > 3 && below(3) == 0) graph.ends = {count / 2, count};
    const auto bytes_until = [&](std::uint32_t end) {
      double bytes = 0;
      for (std::uint32_t n = 0; n < end; ++n) bytes += static_cast<double>(graph.storages[n].bytes);
      return bytes;
    };
    const std::size_t stages = 1 + below(6);
    const double share = std::max(1.0, bytes_until(count)) / static_cast<double>(stages);
    const auto cost = [&](const std::vector<std::uint32_t>& cuts) {
      double sum = 0;
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const double part = (bytes_until(cuts[i + 1]) - bytes_until(cuts[i])) / share;
        sum += 1 + part * part;
        if (i == 0) continue;
        for (const std::uint32_t storage : crossing(graph, cuts[i])) {
          sum += 3 * static_cast<double>(graph.storages[storage].bytes) / share;
        }
      }
      return sum;
    };
    double best = std::numeric_limits<double>::infinity();
    for (std::uint32_t set = 0; set < 1u << (count - 1); ++set) {
      std::vector<std::uint32_t> cuts{0};
      bool may = true;
      for (std::uint32_t n = 1; n < count; ++n) {
        const bool is_end = !graph.ends.empty() && n == graph.ends.front(), is_cut = (set >> (n - 1) & 1u) != 0;
        const std::vector<std::uint32_t> across = crossing(graph, n);
        const bool crosses = std::find(across.begin(), across.end(), n - 1) != across.end();
        may = may && (is_cut ? crosses || is_end : !is_end);
        if (is_cut) cuts.push_back(n);
      }
      cuts.push_back(count);
      if (may) best = std::min(best, cost(cuts));
    }
    const std::vector<std::uint32_t> cuts = nn::even_cuts(graph, stages);
    INFO("round " << round << ", " << count << " nodes, " << stages << " stages");
    REQUIRE(cuts.front() == 0);
    REQUIRE(cuts.back() == count);
    CHECK(cost(cuts) == Approx(best));
    for (const std::uint32_t end : graph.ends) CHECK(std::count(cuts.begin(), cuts.end(), end) == 1);
  }
}

TEST_CASE("fit: a residual net cut by hand: a branch is one piece, a loss none of its own", "[fit]") {
  const TapeGraph graph = residual_graph();
  REQUIRE(graph.nodes.size() == 23);
  CHECK(nn::cut_points(graph) == std::vector<std::uint32_t>{0, 1, 14, 23});
}

TEST_CASE("fit: a shared parameter's gradient is made in the last stage that reads it", "[fit]") {
  const TapeGraph graph = residual_graph();
  const nn::StagedGraph staged = stages_of(graph, 1);
  std::vector<remat::Bytes> gradients;
  for (const remat::Stage& stage : staged.chain.stages) gradients.push_back(stage.parameter_gradient_bytes);
  constexpr remat::Bytes weight_bytes = 8 * 8 * 4;
  CHECK(gradients == std::vector<remat::Bytes>{0, 6 * weight_bytes, 2 * weight_bytes});
}

TEST_CASE("fit: an output has a gradient where a trained parameter lies before it", "[fit]") {
  constexpr remat::Bytes output = 2 * 8 * 4, loss = 4;
  const std::pair<int, std::vector<remat::Bytes>> rows[] = {
      {0, {output, output, loss}}, {1, {0, output, loss}}, {7, {0, 0, loss}}};
  for (const auto& [frozen, expected] : rows) {
    const nn::StagedGraph staged = stages_of(residual_graph(frozen), 1);
    std::vector<remat::Bytes> gradients, outputs;
    for (const remat::Stage& stage : staged.chain.stages) {
      gradients.push_back(stage.output_gradient_bytes), outputs.push_back(stage.output_bytes);
    }
    INFO(frozen << " frozen");
    CHECK(gradients == expected);
    CHECK(outputs == std::vector<remat::Bytes>{output, output, loss});
  }
}

TEST_CASE("fit: options that span stages", "[fit]") {
  const TapeGraph graph = graph_of(fit_setup("resnet18", 4));
  const std::vector<std::uint32_t> cuts = nn::cut_points(graph);
  const nn::StagedGraph staged = stages_of(graph, 3);
  remat::validate(staged.chain);
  REQUIRE(staged.chain.size() == cuts.size() - 1);
  std::size_t longest = 0;
  for (std::size_t i = 0; i < staged.chain.size(); ++i) {
    const remat::Stage& stage = staged.chain.stages[i];
    REQUIRE(staged.stages[i].fates.size() == stage.options.size());
    for (std::size_t o = 0; o < stage.options.size(); ++o) {
      const std::size_t end = staged.chain.end_of(i, o);
      INFO("stage " << i << ", option " << o);
      CHECK(staged.stages[i].fates[o].size() == cuts[end] - cuts[i]);
      // Tensors that cross stages within a span are not kept.
      for (std::size_t k = i + 1; k < end; ++k) {
        CHECK_FALSE(keeps_output(staged.stages[i].fates[o][cuts[k] - 1 - cuts[i]]));
      }
      longest = std::max<std::size_t>(longest, stage.options[o].span);
    }
  }
  CHECK(longest == 3);
}

TEST_CASE("fit: hardware by name", "[fit]") {
  for (const auto& [name, bytes] : std::vector<std::pair<const char*, std::size_t>>{{"rtx-3090-24gb", 24ull << 30},
                                                                                    {"rtx-4090-24gb", 24ull << 30},
                                                                                    {"a100-40gb", 40ull << 30},
                                                                                    {"a6000-48gb", 48ull << 30},
                                                                                    {"h100-80gb", 80ull << 30},
                                                                                    {"h200-141gb", 141'000'000'000}}) {
    CHECK(nn::hardware(name).memory_bytes == bytes);
  }
  for (const nn::Hardware& h : nn::hardware_list()) {
    CHECK(h.bytes_per_s > 0);
    CHECK(h.multiply_adds_per_s(DType::f32) > 0);
    CHECK(h.multiply_adds_per_s(DType::bf16) >= h.multiply_adds_per_s(DType::f32));
  }
  const nn::Hardware& h100 = nn::hardware("h100-80gb");
  CHECK(h100.multiply_adds_per_s(DType::f32) == h100.f32_per_s);
  CHECK(h100.multiply_adds_per_s(DType::f16) == h100.narrow_per_s);
  {
    const Tf32Scope allowed(true);
    CHECK(h100.multiply_adds_per_s(DType::f32) == h100.tf32_per_s);
    CHECK(h100.multiply_adds_per_s(DType::f64) == h100.f32_per_s);
    CHECK(nn::hardware("cpu").multiply_adds_per_s(DType::f32) == nn::hardware("cpu").f32_per_s);
  }
  CHECK_THROWS_AS(nn::hardware("abacus"), ValueError);
}

TEST_CASE("fit: a process budget is planned again when planning takes more heap", "[fit]") {
  std::vector<std::size_t> planned;
  int asked = 0;
  const memory::OutsideBytes outside = nn::fit_process(
      100, 80,
      [&] {
        memory::OutsideBytes bytes;
        bytes.heap = asked++ == 0 ? 10 : 30;
        return bytes;
      },
      [&](std::size_t bytes) {
        planned.push_back(bytes);
        return bytes;
      });
  CHECK(planned == std::vector<std::size_t>{80, 70});  // the arena's budget, then the remainder of the process's
  CHECK(outside.heap == 30);
  try {
    nn::fit_process(
        100, 0, [&] { return outside; },
        [](std::size_t bytes) -> std::size_t { throw nn::BudgetError("no plan", bytes, 90); });
    FAIL("a plan that is none");
  } catch (const nn::BudgetError& error) {
    CHECK(error.budget_bytes() == 100);
    CHECK(error.minimum_bytes() == 90 + 30);  // a minimum for the process
  }
}
