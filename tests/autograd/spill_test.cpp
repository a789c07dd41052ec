// Spills of a plan: offloaded tensors come back with the same bits, packed ones within their dtype's error, and a dry
// run allocates the same bytes.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/quant/quantize.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/sgd.h>

#include "random_program.h"
#include "support/catch.h"
#include "support/near.h"
#include "support/offload_data.h"
#include "support/spill_chain.h"
#include "support/store_tier.h"

using namespace thimble;

namespace {

using namespace random_program_test;
using spill_test::Chain;
using spill_test::chain_bytes;
using store_test::MemoryTier;
using Spill = TapePlan::Spill;

struct Outcome {
  std::vector<std::vector<float>> values;
  std::size_t kept = 0;  // bytes when backward begins
};

struct Followed {
  std::shared_ptr<const TapePlan> plan;
  std::shared_ptr<memory::Tier> tier;
};

// Two passes of a program; returns all numbers that they change, and none on a dry device.
Outcome run(std::uint64_t seed, const Followed& followed, memory::Device device = cpu) {
  Outcome outcome;
  RandomProgram program(seed, device);
  RandomGenerator generator(seed);
  const GeneratorScope random(generator);
  Tape tape;
  tape.follow(followed.plan, followed.tier);
  const auto read = [&](const Tensor& t) {
    if (!device.is_dry && t.defined()) outcome.values.push_back(to_host<float>(t));
  };
  for (int pass = 0; pass < 2; ++pass) {
    generator.start_pass();
    Tensor loss;
    {
      const Recording on(tape);
      loss = program.forward(false);
    }
    outcome.kept = tape.kept_bytes();
    read(loss);
    tape.backward(loss);
    CHECK(tape.kept_bytes() == 0);
  }
  for (const Tensor& leaf : program.leaves()) read(leaf.grad());
  for (const Tensor& t : program.statistics()) read(t);
  return outcome;
}

TapePlan random_plan_with_spills(std::uint64_t seed, std::size_t round) {
  const TapeGraph graph = observed(seed);
  Random random(seed * 100 + round);
  TapePlan plan = random_plan(graph, random);
  if (round % 2 == 1) plan.segments.clear();
  add_spills(graph, random, plan);
  return plan;
}

}  // namespace

TEST_CASE("spill: random programs with random spills have the bits of the plain run", "[spill]") {
  const std::string folder = offload_test::disk_folder();
  std::uint64_t writes = 0, reads = 0;
  std::size_t smaller = 0;
  for (const int threads : {1, 2}) {
    const int before = thread_count();
    set_thread_count(threads);
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      const Outcome plain = run(seed, {});
      for (std::size_t round = 0; round < 4; ++round) {
        INFO("seed " << seed << ", round " << round);
        std::shared_ptr<memory::Tier> tier = std::make_shared<MemoryTier>();
        if (round == 3 && seed % 4 == 0 && !folder.empty()) {
          tier = std::make_shared<memory::FileTier>(cpu, offload_test::options_at(folder));
        }
        const auto plan = std::make_shared<TapePlan>(random_plan_with_spills(seed, round));
        const Outcome spilled = run(seed, {plan, tier});
        CHECK(spilled.values == plain.values);
        CHECK(tier->statistics().live_bytes == 0);
        auto unspilled = std::make_shared<TapePlan>(*plan);
        unspilled->spills.clear();
        smaller += spilled.kept < run(seed, {unspilled, nullptr}).kept;
        writes += tier->statistics().writes;
        reads += tier->statistics().reads;
      }
    }
    set_thread_count(before);
  }
  CHECK(writes > 2000);
  CHECK(reads > 1000);
  CHECK(smaller > 200);
}

TEST_CASE("spill: a dry run allocates what a real one does", "[spill]") {
  const std::string folder = offload_test::disk_folder();
  std::size_t events = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f8e4m3}) {
      INFO("seed " << seed << ", " << to_string(dtype));
      auto plan = std::make_shared<TapePlan>(random_plan_with_spills(seed, seed % 2));
      if (dtype != DType::f32) pack_spills(*plan, dtype);
      const auto traced = [&](memory::Device device) {
        memory::Options options;
        options.trace = true;
        const memory::Stack stack = memory::make_resource(device, options);
        const ResourceScope scope(stack.top);
        std::shared_ptr<memory::Tier> tier = std::make_shared<MemoryTier>(device);
        if (seed % 4 == 0 && !folder.empty()) {
          tier =
              std::make_shared<memory::FileTier>(device, offload_test::options_at(device.is_dry ? "/nowhere" : folder));
        }
        run(seed, {plan, tier}, device);
        return stack.trace->events();
      };
      const auto real = traced(cpu);
      CHECK(real == traced(dry(cpu)));
      events += real.size();
    }
  }
  CHECK(events > 10000);
}

TEST_CASE("spill: what is kept, and when", "[spill]") {
  const Chain chain;
  const auto tier = std::make_shared<MemoryTier>();
  const auto kept_with = [&](const std::vector<Spill>& spills) {
    auto plan = std::make_shared<TapePlan>(chain.plan());
    plan->spills = spills;
    Tape tape;
    tape.follow(plan, tier);
    Tensor loss;
    {
      const Recording on(tape);
      loss = chain.loss();
    }
    std::size_t listed = 0;
    for (std::size_t n = 1; n < 6; n += 2) {
      for (const KeptTensor& kept : tape.kept(n)) {
        CHECK(kept.shape == Shape{64, 32});
        CHECK((kept.bytes == 0 || kept.bytes / (64 * 32) == size_of(kept.dtype)));
        CHECK(kept.category == (kept.bytes == 0 ? memory::Category::temporary : memory::Category::activation));
        listed += kept.bytes;
      }
    }
    const std::size_t bytes = tape.kept_bytes();
    CHECK(listed == bytes);
    CHECK(tape.kept_bytes(memory::Category::optimizer) == 0);  // packed bytes are activations
    tape.backward(loss);
    return bytes;
  };
  // Each tanh saves its result, and so does the linear or square after it.
  const auto spilled = [](std::uint32_t node, Spill::Form form, DType dtype = DType::bf16) {
    return Spill{node, Spill::result, form, dtype, node + 1, node + 1, node + 1};  // only the next node reads it
  };
  using enum Spill::Form;
  CHECK(kept_with({}) == 3 * chain_bytes);
  CHECK(kept_with({spilled(1, offload)}) == 2 * chain_bytes);
  CHECK(kept_with({spilled(1, offload), spilled(3, offload), spilled(5, offload)}) == 0);
  CHECK(kept_with({spilled(1, pack)}) == 2 * chain_bytes + chain_bytes / 2);
  CHECK(kept_with({spilled(1, pack), spilled(3, pack, DType::f8e4m3)}) ==
        chain_bytes + chain_bytes / 2 + packed_bytes(64 * 32, DType::f8e4m3));
  CHECK(kept_with({spilled(0, offload)}) == 3 * chain_bytes);  // no node keeps it
  CHECK(kept_with({spilled(1, pack, DType::f16)}) == 5 * chain_bytes / 2);
  CHECK(tier->statistics().live_bytes == 0);
}

TEST_CASE("spill: packed bytes that a dead branch kept are gone once backward is past it", "[spill]") {
  const auto stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  const Tensor x = zeros({1024}).require_grad();
  const auto record = [&](Tape& tape) {
    const Recording on(tape);
    const Tensor h = x * 2.0;
    exp(tanh(h));  // the loss does not depend on it
    return sum(square(h));
  };
  Tape observed;
  observed.observe();
  const Tensor like = record(observed);
  auto plan = std::make_shared<TapePlan>();
  for (const TapeGraph::Node& node : TapeGraph::of(observed).nodes) plan->types.push_back(node.type);
  plan->fates.assign(plan->types.size(), Fate::keep);
  plan->spills = {{1, Spill::result, Spill::Form::pack, DType::bf16, 2, 2, 2}};  // tanh's result
  Tape tape;
  tape.follow(plan);
  const Tensor loss = record(tape);
  observed.clear();
  std::size_t left = ~std::size_t{0};
  const auto look = [&](const std::shared_ptr<tape::Leaf>&) {
    left = stack.ledger->bytes(memory::Category::activation);
  };
  const LeafHook hook = look;
  CHECK(stack.ledger->bytes(memory::Category::activation) > 1024 * size_of(DType::bf16));
  tape.backward(loss, {}, &hook);
  CHECK(left == 0);
}

TEST_CASE("spill: reads follow the order of need, not of the list", "[spill]") {
  class Order final : public memory::Tier {  // records the order of reads, by number of the write
   public:
    memory::Device device() const noexcept override { return cpu; }
    memory::Ticket write(const void* from, std::size_t bytes, memory::Stream stream) override {
      return tier.write(from, bytes, stream);
    }
    void read(memory::Ticket ticket, void* to, memory::Stream stream) override {
      reads += std::to_string(ticket), tier.read(ticket, to, stream);
    }
    void wait(memory::Ticket ticket) override { tier.wait(ticket); }
    void drop(memory::Ticket ticket) noexcept override { tier.drop(ticket); }
    memory::TierStatistics statistics() const override { return tier.statistics(); }
    MemoryTier tier;
    std::string reads;
  };
  const Chain chain;
  // The results of nodes 1, 3 and 5; each starts to come back before the backward of node `back`.
  const struct {
    std::uint32_t back[3];
    const char* reads;
  } rows[] = {{{2, 4, 6}, "321"}, {{6, 4, 6}, "132"}, {{6, 6, 6}, "123"}, {{4, 6, 6}, "231"}};
  for (const auto& row : rows) {
    for (const bool is_reversed : {false, true}) {
      auto plan = std::make_shared<TapePlan>(chain.plan());
      for (std::uint32_t i = 0; i < 3; ++i) {
        const std::uint32_t node = 2 * i + 1;
        plan->spills.push_back(
            {node, Spill::result, Spill::Form::offload, DType::bf16, node + 1, node + 1, row.back[i]});
      }
      if (is_reversed) std::reverse(plan->spills.begin(), plan->spills.end());
      const auto tier = std::make_shared<Order>();
      Tape tape;
      tape.follow(plan, tier);
      Tensor loss;
      {
        const Recording on(tape);
        loss = chain.loss();
      }
      tape.backward(loss);
      CHECK(tier->reads == row.reads);
    }
  }
}

TEST_CASE("spill: bytes that something else holds stay where they are", "[spill]") {
  const auto tier = std::make_shared<MemoryTier>();
  const Tensor w = full({8, 8}, 0.25).require_grad();
  const Tensor x = full({8, 8}, 0.5);
  w.storage()->set_category(memory::Category::parameter);
  x.storage()->set_category(memory::Category::input);
  // Nodes: linear, tanh, [reshape, reshape,] linear, mean; the tanh is spilled.
  struct Case {
    const char* what;
    bool has_view, holds, holds_view;
    std::size_t kept;  // bytes of activations
  };
  constexpr std::size_t bytes = 8 * 8 * sizeof(float);
  for (const Spill::Form form : {Spill::Form::offload, Spill::Form::pack}) {
    const std::size_t spilled = form == Spill::Form::offload ? 0 : bytes / 2;
    for (const Case& c : {Case{"nothing", false, false, false, spilled}, Case{"the program", false, true, false, bytes},
                          Case{"a view on the tape", true, false, false, spilled},
                          Case{"a view of the program", true, false, true, bytes}}) {
      INFO(c.what);
      std::vector<Tensor> held;
      const auto forward = [&] {
        held.clear();
        Tensor t = tanh(linear(x, w));
        if (c.holds) held.push_back(t);
        if (c.has_view) t = reshape(t, {4, 16});
        if (c.holds_view) held.push_back(t);
        if (c.has_view) t = reshape(t, {8, 8});
        t = linear(t, w);
        return mean(t);
      };
      auto plan = std::make_shared<TapePlan>();
      {
        Tape tape;
        tape.observe();
        const Recording on(tape);
        forward();
        const TapeGraph graph = TapeGraph::of(tape);
        for (const TapeGraph::Node& node : graph.nodes) plan->types.push_back(node.type);
        const std::uint32_t until = graph.values[graph.nodes[1].output].program_until;
        CHECK((until == TapeGraph::none) == (c.holds || c.holds_view));
      }
      const auto last = static_cast<std::uint32_t>(plan->types.size() - 1);
      plan->fates.assign(plan->types.size(), Fate::keep);
      plan->spills.push_back({1, Spill::result, form, DType::bf16, last - 1, last - 1, last});
      Tape tape;
      tape.follow(plan, tier);
      Tensor loss;
      {
        const Recording on(tape);
        loss = forward();
      }
      CHECK(tape.kept_bytes() == c.kept);
      tape.backward(loss);
      for (const Tensor& t : held) CHECK(to_host<float>(t)[0] == to_host<float>(tanh(linear(x, w)))[0]);
    }
  }
}

TEST_CASE("spill: what was overwritten is an error", "[spill]") {
  const auto tier = std::make_shared<MemoryTier>();
  const Chain chain;
  for (const std::uint32_t gone_after : {2u, 5u}) {
    auto plan = std::make_shared<TapePlan>(chain.plan());
    plan->spills.push_back({1, Spill::result, Spill::Form::offload, DType::f32, 1, gone_after, 3});
    Tape tape;
    tape.follow(plan, tier);
    Tensor loss;
    {
      const Recording on(tape);
      Tensor t = tanh(linear(chain.x, chain.w[0]));
      Tensor u = tanh(linear(t, chain.w[1]));
      fill(t, 0);  // during the write, or after it
      t = Tensor();
      loss = mean(square(tanh(linear(u, chain.w[2]))));
    }
    CHECK_THROWS_AS(tape.backward(loss), AutogradError);
    CHECK(tape.node_count() == 0);
  }
}

TEST_CASE("spill: a failing tier leaves a step without a trace, and the next one succeeds", "[spill]") {
  const auto stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  std::uint64_t failures = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const auto plan = std::make_shared<TapePlan>(random_plan_with_spills(seed, 1));
    const auto trained = [&](const std::shared_ptr<memory::Tier>& tier, const std::shared_ptr<memory::Tier>& next) {
      RandomProgram program(seed);
      RandomGenerator generator(seed);
      const GeneratorScope random(generator);
      std::vector<optim::Named> parameters;
      for (const Tensor& leaf : program.leaves()) parameters.push_back({"p", leaf});
      optim::Sgd sgd(parameters, {.rate = 0.1, .momentum = 0.9});
      nn::StepOptions options;
      options.recording = {plan, tier};
      const auto step = [&] {
        nn::training_step(
            sgd, [&](std::int64_t) { return program.forward(false); }, options);
      };
      std::vector<std::vector<float>> state;
      const auto note = [&] {
        state.clear();
        for (const optim::Named& named : parameters) state.push_back(to_host<float>(named.tensor));
        for (const optim::Named& named : sgd.state()) state.push_back(to_host<float>(named.tensor));
        for (const Tensor& t : program.statistics()) state.push_back(to_host<float>(t));
      };
      if (next) {
        note();
        const auto before = state;
        const std::size_t bytes = stack.ledger->bytes();
        CHECK_THROWS_AS(step(), FileError);
        note();
        CHECK(state == before);
        CHECK(stack.ledger->bytes() == bytes);
        CHECK(tier->statistics().live_bytes == 0);
        options.recording.tier = next;
        ++failures;
      }
      step();
      note();
      return state;
    };
    const auto whole = std::make_shared<MemoryTier>();
    const auto plain = trained(whole, nullptr);
    for (std::uint64_t k = 1; k <= whole->calls(); ++k) {
      INFO("seed " << seed << ", call " << k);
      CHECK(trained(std::make_shared<MemoryTier>(cpu, k), std::make_shared<MemoryTier>()) == plain);
    }
  }
  CHECK(failures > 100);
}

TEST_CASE("spill: plans that contradict themselves", "[spill]") {
  const Chain chain;
  const TapePlan plain = chain.plan();
  const auto message = [&](std::vector<Spill> spills) -> std::string {
    auto plan = std::make_shared<TapePlan>(plain);
    plan->spills = std::move(spills);
    try {
      plan->validate();
    } catch (const PlanError& error) {
      Tape tape;
      CHECK_THROWS_AS(tape.follow(plan, std::make_shared<MemoryTier>()), PlanError);
      return error.what();
    }
    return {};
  };
  using enum Spill::Form;
  const Spill good{1, Spill::result, offload, DType::bf16, 2, 3, 2};
  CHECK(message({good}).empty());
  const auto with = [&](auto&& change) {
    Spill spill = good;
    change(spill);
    return message({spill});
  };
  CHECK(with([](Spill& s) { s.node = 8; }).find("there are 8") != std::string::npos);
  CHECK(with([](Spill& s) { s.which = 8; }).find("tanh saves ") != std::string::npos);
  CHECK(with([](Spill& s) { s.which = -2; }).find("saves") != std::string::npos);
  CHECK(with([](Spill& s) { s.away_after = 0; }).find("goes after node 0") != std::string::npos);
  CHECK(with([](Spill& s) { s.gone_after = 1; }).find("gone after 1") != std::string::npos);
  CHECK(with([](Spill& s) { s.gone_after = 8; }).find("gone after 8") != std::string::npos);
  CHECK(with([](Spill& s) { s.back_before = 0; }).find("comes back before node 0") != std::string::npos);
  CHECK(with([](Spill& s) { s.form = pack; }).find("different nodes") != std::string::npos);
  CHECK(with([](Spill& s) { s.form = pack, s.which = 0; }).find("only results") != std::string::npos);
  CHECK(with([](Spill& s) { s.form = pack, s.dtype = DType::i32; }).find("i32") != std::string::npos);
  CHECK(with([](Spill& s) { s.form = pack, s.dtype = DType::f32; }).find("f32") != std::string::npos);
  CHECK(message({good, good}).find("two spills of node 1") != std::string::npos);
  auto plan = std::make_shared<TapePlan>(plain);
  plan->spills.push_back(good);
  Tape tape;
  CHECK_THROWS_AS(tape.follow(plan), PlanError);  // no tier
}

// ---- Packed tensors: the round trip, and the gradients that they give.

namespace {

using spill_test::Chain;
using Spill = TapePlan::Spill;

// Relative to the largest expected value.
double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  const double size = thimble_test::largest_of(b);
  return thimble_test::largest_difference(a, b) / (size > 0 ? size : 1);
}

}  // namespace

TEST_CASE("spill: packed tensors give gradients within the dtype's error", "[spill]") {
  struct Row {
    DType dtype;
    double bound;  // of a gradient's error, relative to its largest value
  };
  const Chain chain;
  const auto gradients = [&](const std::shared_ptr<const TapePlan>& plan) {
    Tape tape;
    tape.follow(plan);
    Tensor loss;
    {
      const Recording on(tape);
      loss = chain.loss();
    }
    tape.backward(loss);
    const auto list = chain.gradients();
    for (const Tensor& w : chain.w) w.grad() = Tensor();
    return std::pair(item(loss), list);
  };
  const auto [loss, plain] = gradients(nullptr);
  // Every gradient is a product of at most four saved tensors, each with its dtype's relative error.
  for (const Row& row : {Row{DType::bf16, 4 * 0x1p-8}, Row{DType::f16, 4 * 0x1p-11}, Row{DType::f8e4m3, 4 * 0x1p-4},
                         Row{DType::f8e5m2, 4 * 0x1p-3}, Row{DType::i8, 4.0 / 254}}) {
    INFO(to_string(row.dtype));
    auto plan = std::make_shared<TapePlan>(chain.plan());
    for (const std::uint32_t node : {1u, 3u, 5u}) {
      plan->spills.push_back({node, Spill::result, Spill::Form::pack, row.dtype, node + 1, node + 1, node + 1});
    }
    const auto [packed_loss, packed] = gradients(plan);
    CHECK(packed_loss == loss);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      const double difference = largest_difference(packed[i], plain[i]);
      CHECK(difference < row.bound);
      CHECK(difference > row.bound * 1e-3);
    }
  }
}

TEST_CASE("spill: pack and unpack", "[spill]") {
  RandomGenerator generator(5);
  const GeneratorScope random(generator);
  for (const DType from : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (const DType to : {DType::bf16, DType::f16, DType::f8e4m3, DType::f8e5m2, DType::i8}) {
      if (!can_pack(from, to)) continue;
      INFO(to_string(from) << " to " << to_string(to));
      const bool is_scaled = size_of(to) == 1;
      const double relative = to == DType::bf16     ? 0x1p-8
                              : to == DType::f16    ? 0x1p-11
                              : to == DType::f8e4m3 ? 0x1p-4
                              : to == DType::f8e5m2 ? 0x1p-3
                                                    : 0;
      for (const double size : {1e-3, 1.0, 300.0}) {
        const Tensor t = to_dtype(mul(randn({3, 1501}), size), from);
        const Tensor packed = pack(t, to), back = unpack(packed, from);
        CHECK(packed.dtype() == to);
        CHECK(packed.shape() == t.shape());
        CHECK((packed.scale() != nullptr) == is_scaled);
        CHECK(back.dtype() == from);
        const auto before = to_host<double>(t), after = to_host<double>(back);
        CHECK(packed.bytes() + (is_scaled ? packed.scale()->bytes() : 0) == packed_bytes(t.elements(), to));
        if (is_scaled) CHECK(packed.scale()->elements() == (t.elements() + 63) / 64);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < before.size(); ++i) {
          double amax = 0;  // of the 64 values that share a scale
          for (std::size_t k = i / 64 * 64; k < std::min(before.size(), i / 64 * 64 + 64); ++k) {
            amax = std::max(amax, std::fabs(before[k]));
          }
          // Below the dtype's smallest normal value the error stays as at that value; i8 has one error throughout.
          const double floor = to == DType::i8       ? amax / 253 + std::fabs(before[i]) * 0x1p-8  // bf16 rounds again
                               : to == DType::f8e4m3 ? amax * 0x1p-18
                               : to == DType::f8e5m2 ? amax * 0x1p-32
                                                     : 0x1p-25;
          wrong += std::fabs(after[i] - before[i]) > 1.01 * relative * std::fabs(before[i]) + floor;
        }
        CHECK(wrong == 0);
      }
    }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DType to : {DType::f8e4m3, DType::f8e5m2, DType::i8}) {
    std::vector<float> special(130, 2.0f);
    special[70] = -infinity;
    const auto back = to_host<float>(unpack(pack(from_host(special, {130}), to), DType::f32));
    for (std::size_t i = 0; i < 130; ++i) CHECK((i / 64 == 1 ? std::isnan(back[i]) : back[i] == 2));
  }
  CHECK(packed_bytes(6400, DType::i8) * 10000 == 6400 * 10625);
  CHECK(to_host<float>(unpack(pack(full({3}, 0), DType::f8e5m2), DType::f32)) == std::vector<float>(3, 0.0f));
  CHECK_THROWS_AS(pack(full({3}, 0), DType::f32), DTypeError);
  CHECK_THROWS_AS(pack(full({3}, 0), DType::u8), DTypeError);
  CHECK_THROWS_AS(pack(full({3}, 0, DType::f8e4m3), DType::i8), DTypeError);
  CHECK_THROWS_AS(pack(full({3}, 0, DType::i32), DType::bf16), DTypeError);
}
