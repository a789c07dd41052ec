// The certificate under packing: the choice of packed tensors decides the bits, and nothing else does, as long as
// nothing is recomputed from packed tensors. A recompute from them runs the operators on the rounded values.

#include <memory>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/node.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/quant/quantize.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/fit/pack_rules.h>

#include "certificate.h"
#include "certificate_nets.h"
#include "support/catch.h"
#include "support/random_plans.h"
#include "support/spill_chain.h"

using namespace thimble;
using namespace thimble::certificate;
using Spill = TapePlan::Spill;

namespace {

using Plan = std::shared_ptr<const TapePlan>;

nn::SpillPolicy packs(DType dtype) {
  nn::SpillPolicy spilling;
  spilling.packs = true;
  spilling.packed = dtype;
  spilling.smallest = 1;
  return spilling;
}

/// All forms, and a choice by operator.
std::vector<std::pair<std::string, nn::SpillPolicy>> forms() {
  std::vector<std::pair<std::string, nn::SpillPolicy>> list;
  for (const DType dtype : {DType::bf16, DType::f8e4m3, DType::f8e5m2, DType::i8}) {
    list.emplace_back(to_string(dtype), packs(dtype));
  }
  list.emplace_back("by operator", packs(DType::f8e5m2));
  list.back().second.rules = {{"linear", DType::i8}};  // which every net has
  return list;
}

struct NamedNet {
  std::string name;
  MakeNet make;
};

std::vector<NamedNet> nets() {
  NetOptions options;
  options.is_tiny = true;
  options.samples = 4;
  NetOptions mixed = options;
  mixed.has_chunked_head = false;
  mixed.precision = &nn::precision("O1");
  return {{"convolutions", conv_net(options)},
          {"transformer", transformer(options)},
          {"convolutions, O1", conv_net(mixed)},
          {"transformer, O1", transformer(mixed)}};
}

TapeGraph graph_of(const MakeNet& make, const Technique& technique = {}) {
  return nn::record_step(dry(cpu), make_runs(make, technique));
}

bool reads(const TapeGraph& graph, std::uint32_t node, std::uint32_t storage) {
  for (const std::uint32_t v : graph.nodes[node].inputs) {
    if (v != TapeGraph::none && graph.values[v].storage == storage) return true;
  }
  return false;
}

/// Segments over random ranges of the tape, with nested ones inside; most nodes keep everything.
TapePlan random_stretches(const TapeGraph& graph, random_plans::Random& random) {
  TapePlan plan = random_plans::random_plan(graph, random);
  plan.segments.clear();
  const auto count = static_cast<std::uint32_t>(graph.nodes.size());
  for (std::uint32_t begin = 0; begin < count;) {
    const auto end = std::min(count, begin + 2 + static_cast<std::uint32_t>(random_plans::pick(random, 8)));
    if (random_plans::pick(random, 2) == 0) random_plans::add_segments(random, plan, begin, end, TapePlan::none, 0);
    begin = end;
  }
  for (Fate& fate : plan.fates) {
    if (random_plans::pick(random, 2) == 0) fate = Fate::keep;
  }
  return plan;
}

/// Adds spills of tensors that `plan` keeps and no rerun reads.
void add_spills_beside(const TapeGraph& graph, const nn::SpillPolicy& spilling, TapePlan& plan) {
  const std::vector<std::int32_t> innermost = plan.innermost();
  const auto is_outer = [&](std::uint32_t n) {
    return plan.segments[static_cast<std::size_t>(innermost[n])].parent == TapePlan::none;
  };
  const auto runs_again = [&](std::uint32_t n) {
    return innermost[n] != TapePlan::none && !(is_outer(n) && plan.fates[n] == Fate::keep);
  };
  for (const Spill& spill : nn::pack_all(graph, spilling).spills) {
    const std::uint32_t storage = graph.values[graph.nodes[spill.node].output].storage;
    bool is_beside = !runs_again(spill.node);
    for (std::uint32_t n = 0; n < graph.nodes.size() && is_beside; ++n) {
      is_beside = !(runs_again(n) && reads(graph, n, storage));
    }
    if (is_beside) plan.spills.push_back(spill);
  }
}

/// The plan's spills without its segments.
Plan without_segments(const TapePlan& plan) {
  auto kept = std::make_shared<TapePlan>(plan);
  kept->segments.clear();
  return kept;
}

Trajectory reference(const MakeNet& make, const Technique& technique) {
  const ThreadScope one(1);
  return train(make, technique).trajectory;
}

std::string text_of(const std::vector<Difference>& differences) {
  Certificate certificate;
  certificate.differences = differences;
  return certificate.text();
}

void check_equal(const Trajectory& a, const Trajectory& b) {
  const std::vector<Difference> differences = compare(a, b);
  INFO(text_of(differences));
  CHECK(differences.empty());
}

bool has_equal_loss(const Trajectory& a, const Trajectory& b) {
  return a.front().item == Item::loss && a.front() == b.front();
}

}  // namespace

TEST_CASE("certificate, packed: running again beside packed tensors changes no bit", "[certificate][pack]") {
  for (const NamedNet& named : nets()) {
    const std::string& net = named.name;
    const MakeNet& make = named.make;
    const TapeGraph graph = graph_of(make);
    const Trajectory plain = reference(make, {});
    random_plans::Random random(11);
    for (const auto& [form, spilling] : forms()) {
      std::size_t in_force = 0;
      for (int i = 0; i < 10; ++i) {
        TapePlan plan = random_stretches(graph, random);
        add_spills_beside(graph, spilling, plan);
        plan.validate();
        INFO(net << ", " << form << ", plan " << i << ", " << plan.spills.size() << " spills");
        const Trajectory packed = reference(make, {.plan = without_segments(plan)});
        const ThreadScope threads(i % 2 + 1);
        const Training again = train(make, {.plan = std::make_shared<TapePlan>(plan)});
        check_equal(packed, again.trajectory);
        CHECK(has_equal_loss(plain, packed));
        in_force += !compare(plain, packed).empty() && again.figures.recomputed > 0;
      }
      INFO(net << ", " << form << ": " << in_force << " in force");
      if (net == "convolutions, O1" && form == "bf16") continue;  // nearly all its results are f16
      CHECK(in_force >= 2);
    }
  }
}

TEST_CASE("certificate, packed: placement, moves, threads and fused updates change no bit", "[certificate][pack]") {
  for (const NamedNet& named : nets()) {
    const std::string& net = named.name;
    const MakeNet& make = named.make;
    const TapeGraph graph = graph_of(make);
    const TapeGraph graph_of_two = graph_of(make, {.micro_batches = 2});
    const bool scales = make(cpu)->make_scaler() != nullptr;
    std::uint64_t seed = 31;
    for (const auto& entry : forms()) {
      const std::string& form = entry.first;
      const nn::SpillPolicy& spilling = entry.second;
      INFO(net << ", " << form);
      random_plans::Random random(seed++);
      // Spills everything that can be packed, whether a rerun reads it or not, under random segments.
      const auto packed = [&](const TapeGraph& of) {
        auto plan = std::make_shared<TapePlan>(random_stretches(of, random));
        plan->spills = nn::pack_all(of, spilling).spills;
        return plan;
      };
      const Plan plan = packed(graph), plan_of_two = packed(graph_of_two);
      const auto check = [&](Technique technique) {
        INFO(technique.name);
        Technique alone;
        alone.plan = technique.plan;
        alone.micro_batches = technique.micro_batches;
        alone.clip_norm = technique.clip_norm;
        const Trajectory expected = reference(make, alone);
        for (const int threads : {1, 2}) {
          const ThreadScope scope(threads);
          const Training training = train(make, technique);
          check_equal(expected, training.trajectory);
          CHECK(training.figures.leaked_bytes == 0);
          CHECK(training.figures.placed.steps == (technique.is_placed ? certified_steps : 0));
          if (!scales) CHECK(training.figures.placed.deviations == 0);  // a skipped step allocates less
          CHECK((training.figures.moved_blocks > 0) == technique.moves_blocks);
        }
      };
      check({.name = "alone", .plan = plan});
      check({.name = "placed, clipped", .plan = plan, .clip_norm = 0.1, .is_placed = true});
      check({.name = "moved", .plan = plan, .moves_blocks = true});
      check({.name = "micro-batches, placed", .plan = plan_of_two, .micro_batches = 2, .is_placed = true});
      if (scales) continue;
      check({.name = "fused, placed", .plan = plan, .fuses = nn::FusedUpdate::secured, .is_placed = true});
      check({.name = "fused, moved", .plan = plan, .fuses = nn::FusedUpdate::unsecured, .moves_blocks = true});
    }
  }
}

TEST_CASE("certificate, packed: how a segment runs again from packed tensors changes no bit", "[certificate][pack]") {
  // Both plans drop all results of a range and read the same packed tensors before it. Inside, one reruns everything at
  // once, the other in nested segments that keep some results.
  for (const NamedNet& named : nets()) {
    const std::string& net = named.name;
    const MakeNet& make = named.make;
    const TapeGraph graph = graph_of(make);
    const auto count = static_cast<std::uint32_t>(graph.nodes.size());
    random_plans::Random random(51);
    for (const auto& [form, spilling] : forms()) {
      INFO(net << ", " << form);
      TapePlan flat;
      for (const TapeGraph::Node& node : graph.nodes) flat.types.push_back(node.type);
      flat.fates.assign(count, Fate::drop);
      flat.spills = nn::pack_all(graph, spilling).spills;
      TapePlan nested = flat;
      constexpr std::uint32_t stretch = 7;
      for (std::uint32_t begin = 1; begin + stretch < count; begin += stretch + 2) {
        flat.segments.push_back({begin, begin + stretch, TapePlan::none});
        nested.segments.push_back(flat.segments.back());
        const auto parent = static_cast<std::int32_t>(nested.segments.size() - 1);
        const std::size_t before = nested.segments.size();
        random_plans::add_segments(random, nested, begin, begin + stretch, parent, 1);
        const std::vector<std::int32_t> innermost = nested.innermost();
        for (std::uint32_t n = begin; n < begin + stretch; ++n) {
          if (innermost[n] >= static_cast<std::int32_t>(before)) {
            nested.fates[n] = static_cast<Fate>(random_plans::pick(random, 4));
          }
        }
      }
      const Trajectory whole = reference(make, {.plan = std::make_shared<TapePlan>(flat)});
      const Training inner = train(make, {.plan = std::make_shared<TapePlan>(nested)});
      check_equal(whole, inner.trajectory);
      CHECK(inner.figures.recomputed > 0);
    }
  }
}

TEST_CASE("certificate, packed: gradients of what is recomputed from packed tensors", "[certificate][pack]") {
  // Nodes: linear 0, tanh 1, linear 2, tanh 3, linear 4, tanh 5, square 6, mean 7. The result of node 1 is packed;
  // nodes 2 to 4 are dropped, and 2 and 3 are recomputed from it for the backward of all three.
  const spill_test::Chain chain;
  const auto record = [](const auto& loss_of, const std::shared_ptr<const TapePlan>& plan = nullptr) {
    Tape tape;
    if (plan) tape.follow(plan);
    Tensor loss;
    {
      const Recording on(tape);
      loss = loss_of();
    }
    tape.backward(loss);
  };
  const auto take = [&] {
    const auto list = chain.gradients();
    for (const Tensor& w : chain.w) w.grad() = Tensor();
    return list;
  };
  for (const DType dtype : {DType::bf16, DType::f8e4m3, DType::f8e5m2, DType::i8}) {
    INFO(to_string(dtype));
    const auto planned = [&](bool runs_again) {
      auto plan = std::make_shared<TapePlan>(chain.plan());
      plan->spills.push_back({1, Spill::result, Spill::Form::pack, dtype, 4, 4, 4});
      if (runs_again) {
        plan->segments.push_back({2, 5});
        for (const std::size_t n : {2, 3, 4}) plan->fates[n] = Fate::drop;
      }
      record([&] { return chain.loss(); }, plan);
      return take();
    };
    const auto kept = planned(false), again = planned(true);

    // By hand: forward is exact, and so is the gradient that arrives at node 4; from there down the program is one that
    // begins with the rounded result of node 1.
    const Tensor first = tanh(linear(chain.x, chain.w[0])).detach();
    const Tensor rounded = unpack(pack(first, dtype), DType::f32).require_grad();
    const Tensor sums = linear(tanh(linear(first, chain.w[1])), chain.w[2]).detach().require_grad();  // node 4's result
    record([&] { return mean(square(tanh(sums))); });
    record([&] { return sum(mul(linear(tanh(linear(rounded, chain.w[1])), chain.w[2]), sums.grad().detach())); });
    const auto values = to_host<float>(rounded);
    auto arriving = to_host<float>(rounded.grad());  // at node 1, whose backward reads its own result
    for (std::size_t i = 0; i < values.size(); ++i) arriving[i] *= 1 - values[i] * values[i];
    const Tensor at_node_0 = from_host(arriving, chain.x.shape());
    record([&] { return sum(mul(linear(chain.x, chain.w[0]), at_node_0)); });
    const auto by_hand = take();
    for (std::size_t i = 0; i < chain.w.size(); ++i) {
      INFO("w" << i);
      const bool is_by_hand = again[i] == by_hand[i];
      CHECK(is_by_hand);
    }
    // Where node 3 keeps its result, backward of nodes 4 and 3 reads exact values.
    const bool is_other = kept[1] != again[1] && kept[2] != again[2];
    CHECK(is_other);
  }
}

TEST_CASE("certificate, packed, mutants: other tensors packed, and runs again from them", "[certificate][pack]") {
  for (const NamedNet& named : nets()) {
    const std::string& net = named.name;
    const MakeNet& make = named.make;
    INFO(net);
    const TapeGraph graph = graph_of(make);
    TapePlan plan;
    for (const TapeGraph::Node& node : graph.nodes) plan.types.push_back(node.type);
    plan.fates.assign(plan.types.size(), Fate::keep);
    plan.spills = nn::pack_all(graph, packs(DType::i8)).spills;
    const Trajectory packed = reference(make, {.plan = std::make_shared<TapePlan>(plan)});
    CHECK(compare(packed, train(make, {.plan = std::make_shared<TapePlan>(plan)}).trajectory).empty());
    // Gradients differ, but nothing of the first forward; a loss scale may skip the first step.
    const auto is_found = [&](const TapePlan& other) {
      Certificate certificate;
      certificate.differences = compare(packed, train(make, {.plan = std::make_shared<TapePlan>(other)}).trajectory);
      CHECK_FALSE(certificate.names(Item::loss, 0));
      CHECK_FALSE(certificate.names(Item::statistics, 0));
      CHECK_FALSE(certificate.names(Item::generator));
      return certificate.names(Item::gradient);
    };
    // A backward may read only a tensor's sign, as ReLU's does.
    std::size_t fewer = 0, others = 0;
    for (std::size_t i = 0; i < plan.spills.size(); ++i) {
      TapePlan mutant = plan;
      mutant.spills[i].dtype = DType::f8e4m3;
      others += is_found(mutant);
      mutant.spills.erase(mutant.spills.begin() + static_cast<std::ptrdiff_t>(i));
      fewer += is_found(mutant);
    }
    INFO(plan.spills.size() << " spills, " << fewer << " left out, " << others << " in another form");
    CHECK(2 * fewer > plan.spills.size());
    CHECK(2 * others > plan.spills.size());
    TapePlan from_packed = plan;  // recomputes a range from packed tensors before it
    const auto middle = static_cast<std::uint32_t>(plan.types.size() / 2);
    from_packed.segments.push_back({middle, middle + 8, TapePlan::none});
    for (std::uint32_t n = middle; n < middle + 8; ++n) from_packed.fates[n] = Fate::drop;
    CHECK(is_found(from_packed));
  }
}

TEST_CASE("certificate, packed: plans of a planner", "[certificate][pack]") {
  std::size_t with_spills = 0, with_both = 0;
  // Peaks are counted in whole granules, which may hide a saving, hence nets of several sizes.
  std::vector<MakeNet> nets;
  for (const int samples : {50, 60, 70, 80, 90}) {
    nets.push_back(conv_net({.samples = samples}));
    nets.push_back(transformer({.samples = samples}));
  }
  for (const MakeNet& make : nets) {
    nn::PlannerOptions options;
    options.spilling = packs(DType::i8);
    nn::Planner planner(make_runs(make, {}), cpu, nn::hardware("cpu"), options);
    for (const nn::Plan& plan : planner.plans()) {
      if (!plan.tape || plan.tape->spills.empty()) continue;
      INFO(plan.peak_bytes << " bytes: " << plan.description);
      const Trajectory packed = reference(make, {.plan = plan.tape});
      const Training placed =
          train(make, {.plan = plan.tape, .is_placed = !plan.placement.empty(), .placement = plan.placement});
      check_equal(packed, placed.trajectory);
      ++with_spills;
      with_both += placed.figures.recomputed > 0;
      if (with_both > 2) return;
    }
  }
  CHECK(with_spills > 0);
  CHECK(with_both > 0);
}
