// Packing everything possible: gradients stay near the exact ones, bytes match the dry run, and recomputing nodes that
// read nothing packed changes no bit.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <thimble/autograd/node.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/quant/quantize.h>
#include <thimble/memory/stack.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/fit/pack_rules.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/precision/gradient_report.h>
#include <thimble/nn/step/step.h>

#include "support/catch.h"
#include "support/spill_chain.h"

using namespace thimble;
using spill_test::Chain;
using Spill = TapePlan::Spill;

namespace {

models::Setup small_gpt() {
  models::Setup setup;
  setup.model = "char-gpt", setup.batch = 4, setup.sizes.layers = 2, setup.sizes.heads = 2;
  setup.sizes.width = 32, setup.sizes.sequence = 32;
  return setup;
}

nn::MakeRun with_plan(const nn::MakeRun& make, const nn::Plan& plan) {
  return [&](memory::Device device) {
    std::unique_ptr<nn::TrainingRun> run = make(device);
    plan.apply(run->options(), device);
    return run;
  };
}

nn::SpillPolicy spilling(DType dtype) {
  nn::SpillPolicy s;
  s.packs = true;
  s.packed = dtype;
  return s;
}

std::vector<optim::Named> parameters_of(const Chain& chain) {
  std::vector<optim::Named> list;
  for (const Tensor& w : chain.w) list.push_back({"w" + std::to_string(list.size()), w});
  return list;
}

}  // namespace

TEST_CASE("lossy: what is packed needs the bytes that a dry run says", "[lossy]") {
  const nn::MakeRun make = models::zero_batch_run(small_gpt());
  const std::size_t plain = nn::profile_training(dry(cpu), make).peak_live_bytes;
  std::size_t before = plain;
  for (const DType dtype : {DType::bf16, DType::i8}) {
    const nn::Plan plan = nn::packed_plan(make, cpu, spilling(dtype));
    CHECK(plan.packed_bytes > 0);
    for (const Spill& spill : plan.tape->spills) CHECK(spill.dtype == dtype);
    const auto predicted = nn::profile_training(dry(cpu), with_plan(make, plan));
    const auto measured = nn::profile_training(cpu, with_plan(make, plan));
    CHECK(predicted.peak_bytes == plan.peak_bytes);
    CHECK(measured.peak_bytes == plan.peak_bytes);
    CHECK(measured.peak_live_bytes == predicted.peak_live_bytes);
    CHECK(predicted.peak_live_bytes < before);
    before = predicted.peak_live_bytes;
  }
}

TEST_CASE("lossy: rules choose by operator", "[lossy]") {
  nn::SpillPolicy s = spilling(DType::bf16);
  s.rules = {{"linear", DType::i8}, {"layer_norm", DType::f8e4m3}};
  s.packs_rest = false;
  s.smallest = 1;
  const auto dtype_by_rule = [](const TapePlan& plan, const Spill& spill) -> std::optional<DType> {
    const std::string_view name = plan.types[spill.node]->name;
    if (name == "linear") return DType::i8;
    if (name == "layer_norm") return DType::f8e4m3;
    return std::nullopt;
  };
  const auto plan = nn::packed_plan(models::zero_batch_run(small_gpt()), cpu, s).tape;
  std::size_t kinds[2] = {};
  for (const Spill& spill : plan->spills) {
    const std::optional<DType> dtype = dtype_by_rule(*plan, spill);
    REQUIRE(dtype.has_value());
    CHECK(spill.dtype == dtype);
    ++kinds[dtype == DType::i8 ? 0 : 1];
  }
  CHECK(kinds[0] > 0);
  CHECK(kinds[1] > 0);
  // The rule holds in plans for a budget, too.
  nn::PlannerOptions options;
  options.spilling = s;
  nn::Planner planner(models::zero_batch_run(small_gpt()), cpu, nn::hardware("cpu"), options);
  for (const nn::Plan& p : planner.plans()) {
    if (!p.tape) continue;
    for (const Spill& spill : p.tape->spills) CHECK(spill.dtype == dtype_by_rule(*p.tape, spill));
  }
}

TEST_CASE("lossy: the smallest tensor worth packing is packed", "[lossy]") {
  const TapeGraph graph = nn::record_step(cpu, models::zero_batch_run(small_gpt()));
  nn::SpillPolicy all = spilling(DType::bf16);
  std::size_t largest = all.smallest = 0;
  for (const nn::Spillable& use : nn::spillables(graph)) {
    if (all.packed_as(graph, use)) largest = std::max(largest, use.bytes);
  }
  CHECK_FALSE(nn::packable_operators(graph, DType::bf16, largest).empty());
  CHECK(nn::packable_operators(graph, DType::bf16, largest + 1).empty());
}

TEST_CASE("lossy: gradients against exact ones", "[lossy]") {
  const Chain chain;
  const std::vector<optim::Named> parameters = parameters_of(chain);
  const auto loss_of = [&](std::int64_t) { return chain.loss(); };
  parameters[1].tensor.grad() = full({32, 32}, 7);
  const auto report_of = [&](const std::shared_ptr<const TapePlan>& plan) {
    return nn::compare_gradients(parameters, loss_of, {}, {.plan = plan});
  };
  const nn::GradientReport same = report_of(nullptr);
  CHECK(same.exact_loss == same.lossy_loss);
  REQUIRE(same.parameters.size() == 3);
  for (const nn::GradientError& e : same.parameters) {
    CHECK(e.norm > 0);
    CHECK(e.relative_error == 0);
    CHECK(e.cosine == Approx(1).epsilon(1e-12));
  }
  // Gradients whose norm is at most this share of the whole norm are left out.
  nn::GradientReport by_hand;
  by_hand.all.norm = 10;
  by_hand.parameters.resize(3);
  by_hand.parameters[0].norm = 8, by_hand.parameters[0].cosine = 0.9;
  by_hand.parameters[1].norm = 2, by_hand.parameters[1].cosine = 0.5;
  by_hand.parameters[2].norm = 0, by_hand.parameters[2].cosine = 0;
  for (const auto& [share, least] : {std::pair{0.0, 0.5}, {0.19, 0.5}, {0.2, 0.9}, {0.7, 0.9}, {0.8, 1.0}}) {
    CHECK(by_hand.smallest_cosine(share) == least);
  }
  double earlier = 0;
  for (const DType dtype : {DType::f16, DType::bf16, DType::i8, DType::f8e4m3, DType::f8e5m2}) {
    INFO(to_string(dtype));
    TapeGraph graph;
    {
      const Chain absent(dry(cpu));
      Tape tape;
      tape.observe();
      const Recording on(tape);
      absent.loss();
      graph = TapeGraph::of(tape);
    }
    auto plan = std::make_shared<TapePlan>(nn::pack_all(graph, spilling(dtype)));
    CHECK(plan->spills.size() >= 3);
    plan->validate();
    const nn::GradientReport report = report_of(plan);
    CHECK(report.lossy_loss == report.exact_loss);
    CHECK(report.all.relative_error > earlier);  // fewer digits, more error
    CHECK(report.all.relative_error < (dtype == DType::f8e5m2 ? 0.15 : 0.06));
    CHECK(report.smallest_cosine() > 0.99);
    CHECK(report.smallest_cosine() < 1);
    earlier = report.all.relative_error;
  }
  // The parameters' own gradients are unchanged.
  CHECK(to_host<float>(parameters[1].tensor.grad()) == std::vector<float>(32 * 32, 7.0f));
  CHECK(!parameters[0].tensor.grad().defined());
}

TEST_CASE("lossy: running again what reads nothing packed changes no bit", "[lossy]") {
  // Nodes: linear 0, tanh 1, linear 2, tanh 3, linear 4, tanh 5, square 6, mean 7.
  const Chain chain;
  for (const DType dtype : {DType::bf16, DType::f8e4m3, DType::i8}) {
    const auto gradients = [&](bool runs_again, bool packs) {
      auto plan = std::make_shared<TapePlan>(chain.plan());
      if (packs) plan->spills.push_back({5, Spill::result, Spill::Form::pack, dtype, 6, 6, 6});
      if (runs_again) {
        plan->segments.push_back({0, 4});
        for (const std::size_t n : {0, 1, 2, 3}) plan->fates[n] = Fate::drop;
      }
      Tape tape;
      tape.follow(plan);
      Tensor loss;
      {
        const Recording on(tape);
        loss = chain.loss();
      }
      const std::size_t kept = tape.kept_bytes();
      tape.backward(loss);
      const auto list = chain.gradients();
      for (const Tensor& w : chain.w) w.grad() = Tensor();
      return std::pair(list, kept);
    };
    const auto [packed, packed_bytes_kept] = gradients(false, true);
    const auto [again, again_bytes_kept] = gradients(true, true);
    CHECK(packed == again);
    CHECK(again_bytes_kept < packed_bytes_kept);
    const auto [plain, plain_bytes_kept] = gradients(false, false);
    CHECK(packed != plain);
    CHECK(plain_bytes_kept - packed_bytes_kept == spill_test::chain_bytes - packed_bytes(64 * 32, dtype));
  }
}

TEST_CASE("lossy: the statistics of a batch norm are those of before a comparison", "[lossy]") {
  nn::TensorOptions on;
  struct Net final : nn::Module {
    explicit Net(const nn::TensorOptions& p)
        : in(child<nn::Linear>("in", 8, 16, p)), norm(child<nn::BatchNorm2d>("norm", 16, p)) {}
    nn::Linear& in;
    nn::BatchNorm2d& norm;
  } net(on);
  const Tensor x = full({4, 8}, 0.5);
  std::vector<std::vector<float>> before;
  for (const auto& b : net.buffers()) before.push_back(to_host<float>(b.tensor));
  const auto report = nn::compare_gradients(
      net.trainable(), [&](std::int64_t) { return mean(square(net.norm.with_relu(net.in(x)))); }, {}, {});
  CHECK(report.exact_loss == report.lossy_loss);
  const auto norm_of = [&](std::optional<double> loss_scale) {
    const auto loss = [&](std::int64_t) { return mean(square(net.in(x))); };
    return nn::compare_gradients(net.in.trainable(), loss, {}, {}, 1, 0, loss_scale).all.norm;
  };
  CHECK(norm_of({}) > 0);
  CHECK(norm_of(8) == norm_of({}));  // the scale is divided out
  int calls = 0;                     // the exact gradient is 0, the lossy one is not
  const auto from_zero = [&](std::int64_t) { return sum(net.in.weight * (calls++ == 0 ? 0.0 : 2.0)); };
  const nn::GradientError away = nn::compare_gradients(net.in.trainable(), from_zero, {}, {}).all;
  CHECK(std::isinf(away.relative_error));
  CHECK(away.cosine == 0);
  std::size_t i = 0;
  for (const auto& b : net.buffers()) CHECK(to_host<float>(b.tensor) == before[i++]);
}
