// Deliberately broken plans and operators: each is refused, deviates from its plan, or changes bits that the
// certificate names.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/arena/lock.h>
#include <thimble/nn/trainer/trainer_run.h>

#include "own_program.h"
#include "support/catch.h"
#include "support/model_runs.h"

using namespace thimble;
using namespace own_program;

namespace {

/// A program as runs, for a planner to plan and a certificate to compare.
struct Runs {
  explicit Runs(Program own) : program(std::move(own)) {}
  nn::MakeRun make() const {
    return [this](memory::Device device) {
      return std::make_unique<nn::TrainerRun>(program, options, device, nn::RunRequest{});
    };
  }
  nn::trainer_detail::TypedProgram<Net, Batch> program;
  nn::TrainerOptions options = {.seed = 11};
};

Sizes mutant_sizes() {
  Sizes sizes;
  sizes.width = 48, sizes.depth = 4;
  sizes.samples = [](std::int64_t) { return std::int64_t{600}; };
  return sizes;
}

/// The smallest plan, which recomputes most.
nn::Plan smallest_plan(const Runs& runs) {
  nn::Planner planner(runs.make(), cpu, nn::hardware("cpu"));
  nn::Plan plan = planner.smallest();
  REQUIRE(plan.tape);
  REQUIRE_FALSE(plan.tape->segments.empty());
  if (plan.placement.empty()) {
    const nn::MakeRun follow = [&](memory::Device device) {
      auto run = runs.make()(device);
      plan.apply(run->options(), device);
      return run;
    };
    plan.placement = nn::plan_steps(cpu, follow);
  }
  return plan;
}

/// How certifying a broken plan ended.
enum class Ending { refused, left, bits_differ, same };
struct Outcome {
  Ending ending;
  std::string text;
};

Outcome outcome_of(const Runs& runs, const nn::Plan& plan, std::int64_t steps = 2) {
  try {
    const nn::Certificate certificate = nn::certify(runs.make(), cpu, plan, {.steps = steps});
    if (!certificate.holds()) return {Ending::bits_differ, certificate.text()};
    const bool is_left = certificate.planned.placed.deviations + certificate.planned.placed.dynamic_steps > 0;
    return {is_left ? Ending::left : Ending::same, certificate.text()};
  } catch (const PlanError& error) {
    return {Ending::refused, error.what()};
  } catch (const ValueError& error) {
    return {Ending::refused, error.what()};
  }
}

nn::Plan with_tape(nn::Plan plan, const std::function<void(TapePlan&)>& change) {
  auto tape = std::make_shared<TapePlan>(*plan.tape);
  change(*tape);
  plan.tape = std::move(tape);
  return plan;
}

nn::Plan with_step(nn::Plan plan, const std::function<void(memory::StepPlacement&)>& change) {
  for (memory::StepPlacement& step : plan.placement) change(step);
  return plan;
}

/// Silently corrupts a live tensor, as if its block had been reused too early or overlapped another: at a chosen
/// allocation it changes the oldest live activation.
class Corrupting final : public memory::Decorator {
 public:
  explicit Corrupting(std::shared_ptr<memory::Resource> upstream) : memory::Decorator(std::move(upstream)) {}
  /// Strikes at the k-th allocation from now; 0 never strikes.
  void arm(std::uint64_t k) { k_ = k, count_ = 0; }
  std::uint64_t count() const { return count_; }
  bool has_struck() const { return has_struck_; }

 private:
  memory::Block* do_allocate(const memory::Request& request) override {
    memory::Block* const block = upstream_allocate(request);
    live_.push_back(block);
    if (++count_ == k_) strike();
    return block;
  }
  void do_deallocate(memory::Block* block, memory::Stream stream) noexcept override {
    live_.erase(std::find(live_.begin(), live_.end(), block));
    upstream_deallocate(block, stream);
  }
  void do_relabel(memory::Block* block, memory::Category category) noexcept override {
    upstream_relabel(block, category);
  }
  void strike() {
    for (memory::Block* const block : live_) {
      if (block->category != memory::Category::activation) continue;
      auto* const first = reinterpret_cast<float*>(block->address);
      first[block->bytes / sizeof(float) / 2] += 1;
      has_struck_ = true;
      return;
    }
  }

  std::vector<memory::Block*> live_;
  std::uint64_t k_ = 0, count_ = 0;
  bool has_struck_ = false;
};

/// Counts its runs in a buffer, recomputes included, like a batch norm that updates its statistics twice.
struct CountsRuns {
  static constexpr const char* name = "counts_runs";
  static constexpr ops::Cost cost = ops::Cost::elementwise;
  using Saved = SavesNothing;
  Tensor count;  // ()
  Tensor forward(const Tensor& x, ops::Needs, Saved&) const {
    Tensor y = clone(x);
    launch(count.device(), [&](const Addresses& at) { *at.as<float>(count) += 1; });
    return y;
  }
  ops::Gradients backward(Saved, Tensor dy, ops::Needs) const { return {std::move(dy)}; }
};

/// Draws its site when it runs, so that a recompute takes the next site, as if the generator had not been restarted.
/// Returns only noise.
struct DrawsLate {
  static constexpr const char* name = "draws_late";
  static constexpr ops::Cost cost = ops::Cost::elementwise;
  using Saved = SavesNothing;
  Tensor forward(const Tensor& x, ops::Needs, Saved&) const {
    const Tensor y = Tensor::empty_like(x);
    fill_uniform(y, 0.5, 1.5);
    return y;
  }
  ops::Gradients backward(Saved, Tensor dy, ops::Needs) const { return {std::move(dy)}; }
};

/// Reads a tensor outside its operands. Nothing holds that tensor, so a recompute may read other values.
struct ReadsAside {
  static constexpr const char* name = "reads_aside";
  static constexpr ops::Cost cost = ops::Cost::elementwise;
  using Saved = SavesNothing;
  Tensor aside;  // ()
  Tensor forward(const Tensor& x, ops::Needs, Saved&) const {
    Tensor y = clone(x);
    launch(y.device(), [&](const Addresses& at) {
      for (std::int64_t i = 0; i < y.elements(); ++i) at.as<float>(y)[i] += *at.as<float>(aside);
    });
    return y;
  }
  ops::Gradients backward(Saved, Tensor dy, ops::Needs) const { return {std::move(dy)}; }
};

/// The net with an operator in front of it; a scale before that operator makes the input need a gradient.
class Mutant : public Net {
 public:
  Mutant(const Sizes& sizes, memory::Device device) : Net(sizes.width, sizes.depth, device) {
    scale = add_parameter("scale", full({sizes.width}, 1.0, DType::f32, device));
    count = add_buffer("count", zeros({}, DType::f32, device));
  }
  nn::Parameter scale;
  nn::Buffer count;
};

Program mutant_program(const std::function<Tensor(Mutant&, const Tensor&)>& between,
                       const std::function<void(Mutant&)>& after_forward = nullptr) {
  const Sizes sizes = mutant_sizes();
  Program own = program(sizes);
  own.evaluate = nullptr;
  own.model = [sizes](memory::Device device) { return std::make_unique<Mutant>(sizes, device); };
  own.loss = [between, after_forward](Net& net, const Batch& batch) {
    auto& mutant = dynamic_cast<Mutant&>(net);
    const Tensor loss = mse_loss(net(square(between(mutant, mul(batch.x, mutant.scale)))), batch.y);
    if (after_forward) after_forward(mutant);
    return loss;
  };
  return own;
}

/// The whole recording as one segment that keeps nothing.
nn::Plan all_again(const Runs& runs) {
  nn::Plan plan;
  auto tape = std::make_shared<TapePlan>();
  const TapeGraph graph = nn::record_step(cpu, runs.make());
  for (const TapeGraph::Node& node : graph.nodes) tape->types.push_back(node.type);
  tape->sizes = graph.sizes();
  tape->fates.assign(graph.nodes.size(), thimble::Fate::drop);
  tape->segments.push_back({0, static_cast<std::uint32_t>(graph.nodes.size() - 1), TapePlan::none});
  plan.tape = std::move(tape);
  return plan;
}

/// Certifies under a plan that recomputes everything; keeping everything must do no harm.
nn::Certificate certify_mutant(const Program& own) {
  const Runs runs(own);
  const nn::Certificate kept = nn::certify(runs.make(), cpu, nn::Plan(), {.steps = 2});
  INFO(kept.text());
  CHECK(kept.holds());
  return nn::certify(runs.make(), cpu, all_again(runs), {.steps = 2});
}

bool names(const nn::Certificate& certificate, std::int64_t step, nn::Compared kind, const std::string& name = "") {
  return std::any_of(certificate.differences.begin(), certificate.differences.end(), [&](const nn::Difference& d) {
    return d.step == step && d.kind == kind && (name.empty() || d.name == name);
  });
}

}  // namespace

TEST_CASE("planner mutants: a plan that is right is certified", "[certify]") {
  const testing::Threads alone;
  Program own = program(mutant_sizes());
  own.evaluate = nullptr;
  const Runs runs(own);
  const Outcome good = outcome_of(runs, smallest_plan(runs));
  INFO(good.text);
  CHECK(good.ending == Ending::same);
}

TEST_CASE("planner mutants: a wrong cut or fate is refused, or seen", "[certify]") {
  const testing::Threads alone;
  Program own = program(mutant_sizes());
  own.evaluate = nullptr;
  const Runs runs(own);
  const nn::Plan good = smallest_plan(runs);
  const auto nodes = static_cast<std::uint32_t>(good.tape->fates.size());
  std::size_t found = 0, tried = 0;
  const auto try_it = [&](const std::string& what, const std::function<void(TapePlan&)>& change) {
    const Outcome outcome = outcome_of(runs, with_tape(good, change), 1);
    INFO(what << ": " << outcome.text);
    ++tried;
    // The tape finds the sources of a recompute itself, so wrong fates may change bytes but never bits.
    CHECK(outcome.ending != Ending::bits_differ);
    found += outcome.ending != Ending::same;
  };
  const auto refused = [&](const std::string& what, const std::function<void(TapePlan&)>& change) {
    const Outcome outcome = outcome_of(runs, with_tape(good, change), 1);
    INFO(what << ": " << outcome.text);
    CHECK(outcome.ending == Ending::refused);
  };
  const std::vector<std::int32_t> innermost = good.tape->innermost();
  for (std::uint32_t n = 0; n < nodes; n += 3) {
    if (innermost[n] == TapePlan::none) continue;
    try_it("fate of node " + std::to_string(n), [&](TapePlan& tape) {
      tape.fates[n] = tape.fates[n] == thimble::Fate::drop ? thimble::Fate::keep : thimble::Fate::drop;
    });
  }
  for (std::size_t s = 0; s < good.tape->segments.size(); ++s) {
    try_it("end of segment " + std::to_string(s), [&](TapePlan& tape) { --tape.segments[s].end; });
    try_it("begin of segment " + std::to_string(s), [&](TapePlan& tape) { ++tape.segments[s].first; });
  }
  // A change may have no effect (a view, the last node of a segment) and then goes unnoticed.
  CHECK(tried > 10);
  CHECK(found * 2 >= tried);
  refused("a segment that crosses another one", [&](TapePlan& tape) {
    tape.segments = {{0, nodes / 2, TapePlan::none}, {nodes / 2 - 1, nodes, TapePlan::none}};
  });
  refused("a segment beyond the end", [&](TapePlan& tape) { tape.segments.back().end = nodes + 1; });
  refused("a segment inside of one that comes after it", [](TapePlan& tape) { tape.segments.front().parent = 1; });
  refused("a fate that is missing", [](TapePlan& tape) { tape.fates.pop_back(); });
  refused("another operator", [](TapePlan& tape) { tape.types[1] = tape.types[0]; });
  refused("another size of a result", [](TapePlan& tape) { tape.sizes[2].result[0] += 1; });
  refused("other operands", [](TapePlan& tape) { tape.sizes[2].operands ^= 1; });
}

TEST_CASE("planner mutants: a wrong placement is refused, or seen", "[certify]") {
  const testing::Threads alone;
  Program own = program(mutant_sizes());
  own.evaluate = nullptr;
  const Runs runs(own);
  const nn::Plan good = smallest_plan(runs);
  const auto fate = [&](const std::function<void(memory::StepPlacement&)>& change) {
    return outcome_of(runs, with_step(good, change), 1).ending;
  };
  const auto neighbour = [](const memory::StepPlacement& step) {  // a block that lives at the same time as block 0
    for (std::size_t b = 1; b < step.buffers.size(); ++b) {
      if (step.buffers[b].lower < step.buffers[0].upper) return b;
    }
    return std::size_t{0};
  };
  REQUIRE(neighbour(good.placement[0]) > 0);
  CHECK(fate([&](memory::StepPlacement& s) { s.placement.offsets[neighbour(s)] = s.placement.offsets[0]; }) ==
        Ending::refused);
  CHECK(fate([](memory::StepPlacement& s) { s.placement.height -= 64; }) == Ending::refused);
  CHECK(fate([](memory::StepPlacement& s) { --s.buffers[0].upper; }) == Ending::refused);
  CHECK(fate([](memory::StepPlacement& s) { s.buffers[0].bytes /= 2; }) == Ending::refused);
  CHECK(fate([](memory::StepPlacement& s) { s.placement.offsets[0] += 1; }) == Ending::refused);
  // Consistent plans of another program: a block is freed earlier, is smaller, or is missing.
  const auto placed_anew = [](memory::StepPlacement& s) { s.placement = memory::place(s.buffers); };
  CHECK(fate([&](memory::StepPlacement& s) {
          for (std::size_t at = 1; at < s.events.size(); ++at) {
            if (s.events[at].bytes > 0 || s.events[at - 1].bytes == 0) continue;
            if (s.events[at - 1].block == memory::StepPlacement::not_placed ||
                s.events[at - 1].block == s.events[at].block)
              continue;
            std::swap(s.events[at], s.events[at - 1]);  // the free comes first
            s.buffers[s.events[at - 1].block].upper = at - 1;
            s.buffers[s.events[at].block].lower = at;
            return placed_anew(s);
          }
        }) == Ending::left);
  CHECK(fate([&](memory::StepPlacement& s) {
          const auto largest = std::max_element(s.buffers.begin(), s.buffers.end(),
                                                [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
          s.events[largest->lower].bytes = largest->bytes = 64;
          placed_anew(s);
        }) == Ending::left);
}

TEST_CASE("planner mutants: a lost hold and blocks that overlap change bits, and are named", "[certify]") {
  const testing::Threads alone;
  Program own = program(mutant_sizes());
  own.evaluate = nullptr;
  const Runs runs(own);
  const nn::Plan plan = smallest_plan(runs);
  const auto trajectory = [&](std::uint64_t strike_at, std::uint64_t* requests, bool has_drawn = false) {
    const memory::Stack stack = memory::make_resource(cpu);
    const auto corrupting = std::make_shared<Corrupting>(stack.top);
    const ResourceScope scope(corrupting);
    const auto run = runs.make()(cpu);
    plan.apply(run->options(), cpu);
    nn::Witness witness(*run);
    nn::Trajectory noted;
    corrupting->arm(strike_at);
    RandomGenerator& generator = *run->view().generator;
    if (has_drawn) generator.start_pass(), generator.next_site(join_path(0, "elsewhere")), generator.end_pass();
    if (has_drawn) generator.set_step(0);  // paths without calls count 0
    run->step();
    if (requests != nullptr) *requests = corrupting->count();
    CHECK(corrupting->has_struck() == (strike_at > 0));
    witness.note_step(noted);
    return noted;
  };
  std::uint64_t requests = 0;
  const nn::Trajectory clean = trajectory(0, &requests);
  CHECK(nn::compare(clean, trajectory(0, nullptr)).empty());
  CHECK(nn::compare(clean, trajectory(0, nullptr, true)).empty());
  // In the middle of the step, the oldest activation is the source of a closed segment.
  for (const std::uint64_t part : {3, 4, 5}) {
    const std::vector<nn::Difference> differences = nn::compare(clean, trajectory(requests * part / 10, nullptr));
    INFO("struck at " << part << " tenths");
    REQUIRE_FALSE(differences.empty());
    const bool has_gradient = std::any_of(differences.begin(), differences.end(),
                                          [](const nn::Difference& d) { return d.kind == nn::Compared::gradient; });
    CHECK(has_gradient);
  }
}

TEST_CASE("planner mutants: statistics doubled", "[certify]") {
  const testing::Threads alone;
  const nn::Certificate found =
      certify_mutant(mutant_program([](Mutant& net, const Tensor& x) { return apply(CountsRuns{net.count}, x); }));
  CHECK(found.differences == std::vector<nn::Difference>{{0, nn::Compared::statistics, "count", false},
                                                         {1, nn::Compared::statistics, "count", false}});
}

TEST_CASE("planner mutants: a restart of the generator lost", "[certify]") {
  const testing::Threads alone;
  const nn::Certificate found =
      certify_mutant(mutant_program([](Mutant&, const Tensor& x) { return apply(DrawsLate{}, x); }));
  CHECK(names(found, 0, nn::Compared::generator, "calls"));
  CHECK(names(found, 0, nn::Compared::gradient, "scale"));
  CHECK_FALSE(names(found, 0, nn::Compared::loss));
  CHECK(names(found, 1, nn::Compared::loss));
}

TEST_CASE("planner mutants: run again from another source, or a stale one", "[certify]") {
  const testing::Threads alone;
  // `count` is read outside the operands, and has changed when backward recomputes.
  const auto next = [](float by) {
    return
        [by](Mutant& net) { launch(net.count.device(), [&](const Addresses& at) { *at.as<float>(net.count) += by; }); };
  };
  const nn::Certificate found = certify_mutant(
      mutant_program([](Mutant& net, const Tensor& x) { return apply(ReadsAside{net.count}, x); }, next(1)));
  CHECK(names(found, 0, nn::Compared::gradient, "scale"));
  CHECK_FALSE(names(found, 0, nn::Compared::loss));
  CHECK_FALSE(names(found, 0, nn::Compared::statistics));
  // The recompute reads a newer version of the weight that no version counter noticed.
  const nn::Certificate stale = certify_mutant(mutant_program(
      [](Mutant&, const Tensor& x) { return x; },
      [](Mutant& net) { launch(net.scale.device(), [&](const Addresses& at) { at.as<float>(net.scale)[0] += 1; }); }));
  CHECK(names(stale, 0, nn::Compared::gradient));
  CHECK_FALSE(names(stale, 0, nn::Compared::loss));
  CHECK_FALSE(names(stale, 0, nn::Compared::parameter, "count"));
}
