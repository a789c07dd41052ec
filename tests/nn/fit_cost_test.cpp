// Cost models: measured factors, their files, and the plans that follow.

#include <fstream>
#include <tuple>

#include <thimble/autograd/node.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/tensor/context.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/fit/cost_file.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/fit/levers.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/model_runs.h"

namespace {

using namespace thimble;

models::Setup small_gpt(std::int64_t batch) {
  models::Setup setup;
  setup.model = "char-gpt", setup.sizes.layers = 2, setup.sizes.heads = 2, setup.sizes.width = 32;
  setup.sizes.sequence = 32, setup.batch = batch;
  return setup;
}

TapeGraph graph_of(const models::Setup& setup) {
  return nn::Planner(models::zero_batch_run(setup), cpu, nn::hardware("cpu")).graph();
}

}  // namespace

TEST_CASE("fit cost: factors scale the roofline node by node", "[fit]") {
  const TapeGraph graph = graph_of(small_gpt(4));
  nn::CostModel costs(nn::hardware("cpu"));
  const std::vector<nn::NodeTimes> roofline = nn::node_times(graph, costs);
  CHECK(nn::step_seconds(roofline) > 0);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    costs.operators.push_back(nn::operator_text(graph, n));
    costs.factors.push_back({1.0 + static_cast<double>(n), 2, 0.5});
  }
  const std::vector<nn::NodeTimes> times = nn::node_times(graph, costs);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    CHECK(times[n].forward == roofline[n].forward * (1.0 + static_cast<double>(n)));
    CHECK(times[n].recompute == roofline[n].recompute * 2);
    CHECK(times[n].backward == roofline[n].backward * 0.5);
  }
  costs.operators[3] = "another";
  CHECK_THROWS_AS(nn::node_times(graph, costs), ValueError);
  costs.operators[3] = nn::operator_text(graph, 3);
  models::Setup narrow = small_gpt(4);
  narrow.precision.dtype = DType::bf16;
  CHECK_THROWS_WITH(nn::node_times(graph_of(narrow), costs),
                    Catch::Contains(" bf16, ") && Catch::Contains(" f32 was measured; expected `times` of the same"));
  costs.operators.pop_back();
  costs.factors.pop_back();
  CHECK_THROWS_AS(nn::node_times(graph, costs), ValueError);
}

TEST_CASE("fit cost: a result that is made of what is saved takes one pass over operands and result", "[fit]") {
  const TapeGraph graph = graph_of(small_gpt(4));
  const nn::Hardware& machine = nn::hardware("cpu");
  const std::vector<nn::NodeTimes> times = nn::node_times(graph, machine);
  int shorter = 0;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const TapeGraph::Node& node = graph.nodes[n];
    if (!node.type->has_output_from_saved) {
      if (node.type->cost != ops::Cost::view) CHECK(times[n].recompute == times[n].forward);
      continue;
    }
    std::size_t bytes = graph.bytes_of(node.output);
    for (const std::uint32_t value : node.inputs) bytes += value == TapeGraph::none ? 0 : graph.bytes_of(value);
    CHECK(times[n].recompute == Approx(static_cast<double>(bytes) / machine.bytes_per_s + machine.call_s));
    shorter += times[n].forward > times[n].recompute ? 1 : 0;  // forward adds statistics or arithmetic
  }
  CHECK(shorter > 0);
}

TEST_CASE("fit cost: the bytes of forward and backward, and a product for each operand's gradient", "[fit]") {
  models::Setup resnet;
  resnet.model = "resnet18", resnet.batch = 2, resnet.sizes.width = 8, resnet.sizes.image = 32;
  nn::Hardware machine = nn::hardware("cpu");
  machine.call_s = 0;
  nn::Hardware no_traffic = machine, no_arithmetic = machine;
  no_traffic.bytes_per_s = 1e300, no_arithmetic.f32_per_s = 1e300;
  int with_two = 0, with_statistics = 0, with_extras = 0, with_saved_result = 0;
  for (const models::Setup& setup : {resnet, small_gpt(4)}) {
    const TapeGraph graph = graph_of(setup);
    const std::vector<nn::NodeTimes> products = nn::node_times(graph, no_traffic);
    const std::vector<nn::NodeTimes> traffic = nn::node_times(graph, no_arithmetic);
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      const TapeGraph::Node& node = graph.nodes[n];
      if (node.type->cost == ops::Cost::view || !node.needs.any()) continue;
      if (node.multiply_adds > 0) {
        const int count = (node.needs[0] ? 1 : 0) + (node.needs[1] ? 1 : 0);
        CHECK(products[n].backward == Approx(count * products[n].forward));
        with_two += count == 2 ? 1 : 0;
      }
      const auto bytes_of = [&](std::uint32_t v) {
        return v == TapeGraph::none ? 0.0 : static_cast<double>(graph.bytes_of(v));
      };
      double in = 0, saved = 0, extras = 0;  // extras: results besides the output, such as masks
      for (const std::uint32_t value : node.inputs) in += bytes_of(value);
      for (const std::uint32_t value : node.saved) {
        saved += bytes_of(value);
        if (value == node.output) {
          ++with_saved_result;
        } else if (std::find(node.inputs.begin(), node.inputs.end(), value) == node.inputs.end()) {
          extras += bytes_of(value);
        }
      }
      const bool has_statistics = node.type->cost == ops::Cost::reduction && node.type->has_output_from_saved;
      const double both = bytes_of(node.output) + (has_statistics ? 2 : 1) * in;
      CHECK(traffic[n].backward == Approx((saved + both) / machine.bytes_per_s));
      CHECK(traffic[n].forward == Approx((extras + both) / machine.bytes_per_s));
      with_statistics += has_statistics ? 1 : 0;
      with_extras += extras > 0 ? 1 : 0;
    }
  }
  CHECK((with_two > 0 && with_statistics > 0 && with_extras > 0 && with_saved_result > 0));
}

TEST_CASE("fit cost: built-in rates are named so, with the threads of this process", "[fit]") {
  const testing::Threads one(1);
  const std::string source = nn::CostModel(nn::hardware("cpu")).source;
  CHECK(files_test::contains(source, "built-in rates of 2 threads of an AVX-512 server core"));
  CHECK(files_test::contains(source, "this process has 1 thread of " + std::string(to_string(kernels::isa()))));
  CHECK(nn::CostModel(nn::hardware("a100-40gb")).source == "a100-40gb: built-in rates of NVIDIA A100, 40 GiB");
}

TEST_CASE("fit cost: what is measured is written, read, and gives the same plans for a larger batch", "[fit]") {
  const files_test::TemporaryFolder folder;
  const std::string path = folder / "times.json";
  const models::Setup setup = small_gpt(16);
  const nn::CostModel measured = models::plan_costs(setup, {"cpu", true, path}, 0);
  CHECK(measured.factors.size() == graph_of(setup).nodes.size());
  for (const nn::NodeFactors& f : measured.factors) CHECK((f.forward > 0 && f.recompute > 0 && f.backward > 0));
  const nn::CostModel stored = models::plan_costs(setup, {"cpu", false, path}, 0);
  CHECK(stored.operators == measured.operators);
  CHECK(stored.source == measured.source);
  nn::Planner a(models::zero_batch_run(setup), cpu, measured), b(models::zero_batch_run(setup), cpu, stored);
  const std::vector<nn::Plan> plans = a.plans(), same = b.plans();
  REQUIRE(plans.size() == same.size());
  for (std::size_t i = 0; i < plans.size(); ++i) {
    CHECK(plans[i].peak_bytes == same[i].peak_bytes);
    CHECK(plans[i].step_s == same[i].step_s);
    CHECK((plans[i].tape == nullptr) == (same[i].tape == nullptr));
  }
}

TEST_CASE("fit cost: the batch to measure is the largest that the setup and the budget allow", "[fit]") {
  const std::size_t of_32 = nn::profile_training(dry(cpu), models::zero_batch_run(small_gpt(32))).peak_bytes;
  const std::tuple<std::int64_t, std::int64_t, std::size_t, const char*> rows[] = {
      {12, 1, 0, "of 8,"}, {12, 3, 0, "of 12,"}, {10, 2, 0, "of 8,"}, {64, 1, of_32 - 1, "of 16,"}};
  for (const auto& [batch, micro_batches, budget, measured] : rows) {
    models::Setup setup = small_gpt(batch);
    setup.micro_batches = micro_batches;
    const std::string source = models::plan_costs(setup, {"cpu", true, ""}, budget).source;
    CHECK_THAT(source, Catch::Contains(std::string(" with a batch ") + measured));
  }
}

TEST_CASE("fit cost: a file has each factor under its name", "[fit]") {
  const files_test::TemporaryFolder folder;
  const std::string path = folder / "times.json";
  nn::CostModel costs(nn::hardware("cpu"));
  costs.operators = {"add", "mul"};
  costs.factors = {{2, 3, 4}, {5, 6, 7}};
  nn::write_cost_model(path, costs);
  const nn::CostModel read = nn::read_cost_model(path);
  CHECK(read.operators == costs.operators);
  REQUIRE(read.factors.size() == 2);
  for (std::size_t n = 0; n < 2; ++n) {
    CHECK(read.factors[n].forward == costs.factors[n].forward);
    CHECK(read.factors[n].recompute == costs.factors[n].recompute);
    CHECK(read.factors[n].backward == costs.factors[n].backward);
  }
  models::CostOptions of_file;
  of_file.times = path;
  CHECK(models::plan_costs(small_gpt(4), of_file, 0, cpu).operators == costs.operators);
  CHECK_THROWS_WITH(models::plan_costs(small_gpt(4), of_file, 0, dry(cuda(0))),
                    Catch::StartsWith("`times`: expected times of h100-80gb, got"));
}

TEST_CASE("fit cost: transfers that no plan has are in both prices of a technique", "[fit]") {
  nn::Planner planner(models::zero_batch_run(small_gpt(4)), cpu, nn::hardware("cpu"));
  const nn::Plan& whole = planner.keep_everything();
  nn::LeverSearch search;
  search.budget_bytes = whole.peak_bytes;
  nn::Lever lever;
  lever.transfer_s = whole.step_s;
  const nn::LeverPrice price = nn::price_of(search, lever, planner, whole.step_s);
  REQUIRE(price.time_overhead_in_budget);
  CHECK(*price.time_overhead_in_budget == Approx(1));  // the transfer takes as long as the step
  CHECK(price.time_overhead == Approx(planner.smallest().step_s / whole.step_s));
}

TEST_CASE("fit cost: bad files, machines and budgets", "[fit]") {
  const files_test::TemporaryFolder folder;
  const std::string path = folder / "times.json";
  const models::Setup setup = small_gpt(2);
  CHECK_THROWS_AS(models::plan_costs(setup, {"cpu", false, path}, 0), FileError);
  const std::string node = R"({"operator":"add","forward":1,"remake":1,"backward":1})";
  const std::string head = R"({"format":"thimble cost model 1","hardware":"cpu","source":"s","nodes":[)";
  const std::string bad[] = {
      "",
      "{}",
      "[1]",
      head + "]}",
      head + R"({"operator":"add","forward":0,"remake":1,"backward":1}]})",
      head + R"({"operator":"add","forward":1,"remake":1}]})",
      head + R"({"operator":"add","forward":1e300,"remake":1,"backward":1}]})",
      head + R"({"operator":"add","forward":1,"forward":2,"remake":1,"backward":1}]})",
      R"({"format":"thimble cost model 1","hardware":"cpu","source":"s","nodes":{"0":)" + node + "}}",
      R"({"format":"thimble cost model 1","hardware":"abacus","source":"s","nodes":[)" + node + "]}",
      R"({"format":"another","hardware":"cpu","source":"s","nodes":[)" + node + "]}"};
  for (const std::string& text : bad) {
    INFO(text);
    std::ofstream(path) << text;
    CHECK_THROWS_AS(models::plan_costs(setup, {"cpu", false, path}, 0), FileError);
  }
  std::ofstream(path) << head + node + "]}";
  CHECK(models::plan_costs(setup, {"cpu", false, path}, 0).operators == std::vector<std::string>{"add"});
  CHECK_THROWS_AS(models::plan_costs(setup, {"a100-40gb", true, ""}, 0), ValueError);
  CHECK_THROWS_AS(models::plan_costs(setup, {"cpu", true, ""}, 1 << 20), nn::BudgetError);
  CHECK_THROWS_AS(models::plan_costs(setup, {"cpu", true, folder / "no/such"}, 0), FileError);
  CHECK_THROWS_AS(nn::measure_costs(models::zero_batch_run(setup), dry(cpu), nn::hardware("cpu")), ValueError);
}
