// Writes into a tensor that a tape has seen: an error that names both sides, or the right gradient, never one at a
// value that forward did not use. Recorded plainly, in a segment, in nested segments, and by a plan.

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/graph.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"

using namespace thimble;

namespace {

using Block = std::function<Tensor()>;
/// Runs a block, in segments or not.
using Around = std::function<Tensor(const Block&)>;
/// Returns the loss; with `writes` it writes in place.
using Program = std::function<Tensor(const Around&, bool writes)>;

Tensor leaf(Tensor t) {
  t.require_grad();
  return t;
}

struct Way {
  const char* name;
  Around around;
  bool is_planned = false;
};

std::vector<Way> ways() {
  const Around plain = [](const Block& block) { return block(); };
  const Around segment = [](const Block& block) { return checkpoint(block); };
  const Around nested = [](const Block& block) { return checkpoint([&] { return checkpoint(block); }); };
  return {{"plain", plain}, {"in a segment", segment}, {"in nested segments", nested}, {"planned", plain, true}};
}

/// Everything in one segment, all but the first node in a nested one, nothing kept.
std::shared_ptr<const TapePlan> drop_everything(const Program& program) {
  Tape tape;
  tape.observe();
  const Recording on(tape);
  program([](const Block& block) { return block(); }, false);
  const TapeGraph graph = TapeGraph::of(tape);
  auto plan = std::make_shared<TapePlan>();
  for (const TapeGraph::Node& node : graph.nodes) {
    plan->types.push_back(node.type);
    plan->fates.push_back(Fate::drop);
  }
  const auto count = static_cast<std::uint32_t>(graph.nodes.size());
  plan->segments = {{0, count, TapePlan::none}, {1, count, 0}};
  return plan;
}

/// The gradient of w, or the error message of the recording (`at_use`) or of backward.
struct Outcome {
  std::vector<double> gradient;
  std::string at_use, in_backward;
};

Outcome run(const Way& way, const Program& program, const Tensor& w, bool writes) {
  Outcome outcome;
  Tape tape;
  if (way.is_planned) tape.follow(drop_everything(program));
  w.grad() = Tensor();
  Tensor loss;
  try {
    const Recording on(tape);
    loss = program(way.around, writes);
  } catch (const AutogradError& error) {
    outcome.at_use = error.what();
    return outcome;
  }
  try {
    tape.backward(loss);
    outcome.gradient = to_host<double>(w.grad());
  } catch (const AutogradError& error) {
    outcome.in_backward = error.what();
  }
  return outcome;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Ways of writing 10 into a tensor or a part of it.
std::vector<std::pair<const char*, std::function<void(const Tensor&)>>> writers() {
  return {{"fill", [](const Tensor& t) { fill(t, 10); }},
          {"copy_into", [](const Tensor& t) { copy_into(t, full({}, 10)); }},
          {"a view", [](const Tensor& t) { fill(view::reshape(t.detach(), {-1}), 10); }},
          {"a part", [](const Tensor& t) { fill(view::slice(t.detach(), 0, 0, 1), 10); }},
          {"a detached alias", [](const Tensor& t) { fill(t.detach(), 10); }},
          {"a pin", [](const Tensor& t) { *memory::WritePin(t).as<float>() = 10; }}};
}

}  // namespace

TEST_CASE("in place: a result that is written before its next use is refused there", "[in_place]") {
  const Tensor x = full({4}, 3), w = leaf(full({4}, 2));
  for (const auto& [writer, write] : writers()) {
    const Program program = [&x, &w, &write = write](const Around& around, bool writes) {
      Tensor in;
      {
        const PathScope path("first");
        in = x * w;
      }
      const Tensor h = around([&] {
        const PathScope path("maker");
        return in * w;
      });
      if (writes) write(h);
      const PathScope path("reader");
      return sum(h * h);
    };
    for (const Way& way : ways()) {
      INFO(writer << ", " << way.name);
      // h = x w^2, so the loss is sum x^2 w^4 and its gradient 4 x^2 w^3.
      CHECK(run(way, program, w, false).gradient == std::vector<double>(4, 4 * 9 * 8));
      const Outcome outcome = run(way, program, w, true);
      INFO(outcome.at_use);
      CHECK(contains(outcome.at_use, "mul in reader: operand 0, f32 (4) on cpu, made by mul in maker, was written"));
    }
  }
}

TEST_CASE("in place: so is one that is written inside of the segment, and a loss", "[in_place]") {
  const Tensor x = full({4}, 3), w = leaf(full({4}, 2));
  const Program inside = [&](const Around& around, bool writes) {
    return sum(around([&] {
      const Tensor h = x * w;
      if (writes) fill(h, 10);
      return square(h);
    }));
  };
  const Program loss_written = [&](const Around& around, bool writes) {
    const Tensor loss = sum(around([&] { return square(x * w); }));
    if (writes) fill(loss, 1);
    return loss;
  };
  for (const Way& way : ways()) {
    INFO(way.name);
    CHECK(run(way, inside, w, false).gradient == std::vector<double>(4, 36));
    CHECK(contains(run(way, inside, w, true).at_use, "square: operand 0, f32 (4) on cpu, made by mul, was written"));
    CHECK(
        contains(run(way, loss_written, w, true).in_backward,
                 "made by sum, was written in place since; its gradient would be wrong: write before the first use, or "
                 "make a new tensor"));
  }
}

TEST_CASE("in place: a leaf may be written before its first use and not between two", "[in_place]") {
  const Tensor w = leaf(full({4}, 2)), v = leaf(full({4}, 5));
  optim::Sgd sgd({{"w", w}}, {.rate = 0.5});
  const std::vector<std::pair<const char*, std::function<void()>>> writes_of_w{{"fill", [&] { fill(w, 3); }},
                                                                               {"an update", [&] {
                                                                                  w.grad() = full({4}, 1);
                                                                                  sgd.step();
                                                                                }}};
  for (const auto& [writer, write] : writes_of_w) {
    const Program between = [&w, &v, &write = write](const Around& around, bool writes) {
      const Tensor h = around([&] { return w * v; });
      if (writes) write();
      const PathScope path("again");
      return sum(h * w);
    };
    for (const Way& way : ways()) {
      INFO(writer << ", " << way.name);
      CHECK(contains(run(way, between, w, true).at_use,
                     "mul in again: operand 1, f32 (4) on cpu, a leaf that this tape has seen, was written"));
    }
  }
  const Program before = [&](const Around& around, bool) {
    fill(w, 3);
    return sum(around([&] { return w * w; }));
  };
  for (const Way& way : ways()) CHECK(run(way, before, w, true).gradient == std::vector<double>(4, 6));
}

TEST_CASE("in place: after its last use a leaf or a result that backward reads is refused in backward", "[in_place]") {
  const Tensor x = full({4}, 3), w = leaf(full({4}, 2));
  const Program leaf_written = [&](const Around& around, bool writes) {
    const Tensor loss = sum(around([&] { return square(square(w)); }));
    if (writes) fill(w, 7);
    return loss;
  };
  for (const Way& way : ways()) {
    INFO(way.name);
    CHECK(run(way, leaf_written, w, false).gradient == std::vector<double>(4, 4 * 8));
    const Outcome outcome = run(way, leaf_written, w, true);
    CHECK(contains(outcome.in_backward, "was overwritten"));
    fill(w, 2);
  }
}

TEST_CASE("in place: a constant that is written between its uses is two constants", "[in_place]") {
  const Tensor x = full({4}, 3), w = leaf(full({4}, 2));
  // Made inside, so that a segment can make it again: 6 before the write, 10 after it.
  const Program made = [&](const Around& around, bool writes) {
    return sum(around([&] {
      const Tensor c = x * 2.0;
      const Tensor first = c * w;
      if (writes) fill(c, 10);
      return first + c * w;
    }));
  };
  // From outside: its old value is lost.
  Tensor given;
  const Program outside = [&](const Around& around, bool writes) {
    given = full({4}, 6);
    return sum(around([&] {
      const Tensor first = given * w;
      if (writes) fill(given, 10);
      return first + given * w;
    }));
  };
  // No use keeps it, so its old value matters only when a segment runs again.
  const Program unread = [&](const Around& around, bool writes) {
    const Tensor c = full({4}, 6);
    const Tensor y = around([&] { return w + c; });
    if (writes) fill(c, 10);
    return sum(square(w) + (y + c));
  };
  for (const Way& way : ways()) {
    INFO(way.name);
    CHECK(run(way, made, w, false).gradient == std::vector<double>(4, 12));
    const Outcome of_made = run(way, made, w, true);
    if (std::string(way.name) == "plain") {  // mul keeps c itself
      CHECK(contains(of_made.in_backward, "mul: f32 (4) on cpu, kept for backward, was overwritten"));
    } else {
      CHECK(of_made.gradient == std::vector<double>(4, 16));
    }
    CHECK(run(way, outside, w, false).gradient == std::vector<double>(4, 12));
    CHECK(contains(run(way, outside, w, true).in_backward, "kept for backward, was overwritten"));
    const Outcome of_unread = run(way, unread, w, true);
    CHECK(run(way, unread, w, false).gradient == std::vector<double>(4, 4 + 1));
    if (std::string(way.name) == "plain") {
      CHECK(of_unread.gradient == std::vector<double>(4, 4 + 1));
    } else {
      CHECK(contains(of_unread.in_backward, "add: f32 (4) on cpu, kept for backward, was overwritten"));
    }
  }
}

TEST_CASE("in place: what a WritePin may write at any time is trusted only when it is gone", "[in_place][pin]") {
  static_assert(std::is_same_v<decltype(std::declval<const memory::Pin&>().data()), const void*>);
  static_assert(std::is_same_v<decltype(std::declval<const memory::Pin&>().as<float>()), const float*>);
  static_assert(std::is_same_v<decltype(std::declval<const memory::WritePin&>().as<float>()), float*>);
  const Tensor w = leaf(full({4}, 2));
  Tape tape;
  const auto record = [&] {
    const Recording on(tape);
    return sum(square(w));
  };
  const auto version = [&] { return w.storage()->version(); };
  const std::uint32_t before = version();
  {
    const memory::Pin reading(w);
    CHECK(*reading.as<float>() == 2);
  }
  CHECK(version() == before);
  {
    const memory::WritePin pin(w);
    float* const values = pin.as<float>();
    const Tensor loss = record();
    values[0] = 9;
    CHECK_THROWS_AS(tape.backward(loss), AutogradError);
    const Recording on(tape);
    const Tensor once = square(w);
    CHECK_THROWS_AS(square(w), AutogradError);
  }
  tape.clear();
  CHECK(version() != before);
  tape.backward(record());
  CHECK(to_host<double>(w.grad()) == std::vector<double>{18, 4, 4, 4});
}

namespace {

/// A random program over tensors of one shape. Now and then it fills one of them through one of its aliases. With
/// `is_functional` a new tensor replaces the filled one in all its aliases: the meaning of a write.
class Writing {
 public:
  explicit Writing(std::uint64_t seed) : seed_(seed), w_(leaf(full({6}, 0.75))) {}

  Tensor loss(const Around& around, bool is_functional) {
    random_.seed(seed_);
    pool_.clear(), aliases_.clear();
    add(w_ + 0.0, 0);  // a copy: a write to the leaf would last
    add(full({6}, 0.5), 1);
    const std::size_t parts = 2 + pick(3);
    for (std::size_t part = 0; part < parts; ++part) {
      around([&] {
        const std::size_t steps = 1 + pick(5);
        for (std::size_t i = 0; i < steps; ++i) step(is_functional);
        return pool_.back();
      });
    }
    return sum(pool_.back() + pool_[pick(pool_.size())] * w_);
  }
  const Tensor& w() const noexcept { return w_; }
  bool has_written() const noexcept { return has_written_; }

 private:
  std::size_t pick(std::size_t count) { return static_cast<std::size_t>(random_() % count); }
  void add(Tensor t, std::size_t alias) {
    pool_.push_back(std::move(t));
    aliases_.push_back(alias);
  }

  void step(bool is_functional) {
    const std::size_t a = pick(pool_.size()), b = pick(pool_.size()), kind = pick(8);
    const Tensor x = pool_[a], y = pool_[b];
    const std::size_t next = ++names_;
    switch (kind) {
      case 0:
      case 1:
        return add(x * y, next);
      case 2:
        return add(tanh(x) + w_, next);
      case 3:
        return add(sigmoid(y) * 1.5, next);
      case 4:
        return add(x + y, next);
      case 5:
        return add(reshape(reshape(x, {2, 3}), {6}), aliases_[a]);
      case 6:
        return add(square(x) * 0.25, next);
      default:
        write(a, 0.1 * static_cast<double>(1 + pick(9)), is_functional);
    }
  }

  void write(std::size_t which, double value, bool is_functional) {
    has_written_ = true;
    if (!is_functional) return fill(pool_[which], value);
    const Tensor filled = full({6}, value);
    const std::size_t alias = aliases_[which];
    for (std::size_t i = 0; i < pool_.size(); ++i) {
      if (aliases_[i] == alias) pool_[i] = filled;
    }
  }

  std::uint64_t seed_;
  std::mt19937_64 random_;
  Tensor w_;
  std::vector<Tensor> pool_;
  std::vector<std::size_t> aliases_;  // per tensor; equal numbers share bytes
  std::size_t names_ = 1;
  bool has_written_ = false;
};

}  // namespace

TEST_CASE("in place: random programs with writes give the gradient of those that make new tensors, or an error",
          "[in_place]") {
  int equal = 0, at_use = 0, in_backward = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    Writing program(seed);
    const auto loss = [&](bool is_functional) {
      return [&, is_functional](const Around& around, bool) { return program.loss(around, is_functional); };
    };
    const Outcome expected = run(ways()[0], loss(true), program.w(), true);
    REQUIRE_FALSE(expected.gradient.empty());
    if (!program.has_written()) continue;
    for (const Way& way : ways()) {
      INFO("seed " << seed << ", " << way.name);
      // A plan needs every operator, and an error would cut the list short: it follows the functional program.
      const Program planned = [&](const Around& around, bool writes) { return program.loss(around, !writes); };
      const Outcome outcome = run(way, way.is_planned ? planned : Program(loss(false)), program.w(), true);
      at_use += !outcome.at_use.empty();
      in_backward += !outcome.in_backward.empty();
      if (!outcome.at_use.empty() || !outcome.in_backward.empty()) continue;
      ++equal;
      CHECK(outcome.gradient == expected.gradient);
    }
  }
  INFO(equal << " equal, " << at_use << " refused at a use, " << in_backward << " in backward");
  CHECK(equal > 100);
  CHECK(at_use > 100);
  CHECK(in_backward > 50);
}
