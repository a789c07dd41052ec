// Micro-batches weigh in by their targets: a split step has the gradients of the mean over the whole batch.

#include <cmath>
#include <limits>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/stack.h>
#include <thimble/models/datasets/dataset.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/step/captured_step.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"

using namespace thimble;

namespace {

using Ids = std::vector<std::int64_t>;

std::vector<double> host(const Tensor& t) { return to_host<double>(t); }

struct Result {
  double loss;
  std::vector<std::vector<double>> gradients;
};

// Loss and gradients of a batch in `count` micro-batches, with dropout.
Result run(models::Model& model, const models::Batch& batch, std::int64_t count) {
  RandomGenerator generator(3);
  const GeneratorScope scope(generator);
  const Tensor loss = optim::accumulate_gradients(
      count, 0, [&](std::int64_t i) { return model.loss(models::micro_batch(batch, i, count)); }, {}, nullptr, {},
      models::micro_batches(batch, count));
  Result result{item(loss), {}};
  for (const nn::NamedTensor& p : model.parameters()) {
    result.gradients.push_back(host(p.tensor.grad()));
    p.tensor.grad() = Tensor();
  }
  return result;
}

// NaN is not near anything.
bool is_near(double a, double b, double tolerance) { return std::abs(a - b) <= tolerance * std::max(1.0, std::abs(b)); }

void check_near(const Result& parts, const Result& whole) {
  CHECK(is_near(parts.loss, whole.loss, 1e-12));
  REQUIRE(parts.gradients.size() == whole.gradients.size());
  for (std::size_t p = 0; p < whole.gradients.size(); ++p) {
    REQUIRE(parts.gradients[p].size() == whole.gradients[p].size());
    std::size_t far = 0;
    for (std::size_t i = 0; i < whole.gradients[p].size(); ++i) {
      far += is_near(parts.gradients[p][i], whole.gradients[p][i], 1e-12) ? 0 : 1;
    }
    CHECK(far == 0);
  }
}

}  // namespace

TEST_CASE("micro-batches: targets that do not count weigh nothing, in GPT and BERT, for any number of parts") {
  const std::int64_t samples = 7, sequence = 6, vocabulary = 11;
  Ids ids(samples * sequence), targets(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int64_t>(i * i + 3) % vocabulary;
    targets[i] = i % 4 == 1 || i / sequence == 5 ? -100 : static_cast<std::int64_t>(i * 5 + 1) % vocabulary;
  }
  for (const char* name : {"char-gpt", "bert-base"}) {
    for (const models::Head head : {models::Head::full, models::Head::chunked}) {
      CAPTURE(name, head == models::Head::chunked);
      models::ModelOptions sizes;
      sizes.layers = 1, sizes.heads = 2, sizes.width = 8, sizes.sequence = sequence, sizes.vocabulary = vocabulary;
      sizes.dropout = 0.2, sizes.head = head;
      const std::unique_ptr<models::Model> model = models::make_model(name, sizes, {cpu, DType::f64});
      const models::Batch batch{from_host(ids, {samples, sequence}), from_host(targets, {samples, sequence}),
                                models::count_targets(targets, samples)};
      CHECK(batch.counts[5] == 0);
      const Result whole = run(*model, batch, 1);
      REQUIRE(std::isfinite(whole.loss));
      for (const std::int64_t count : {2, 3, 7}) check_near(run(*model, batch, count), whole);  // 7: one has no target
    }
  }
}

TEST_CASE("micro-batches: the review's two rows, by hand") {
  // loss = cross entropy of (w, 0) with class 1, or ignored: the gradient of w is sigmoid(w) per counted row.
  Tensor w = full({1, 1}, 0.7, DType::f64);
  w.require_grad();
  const Tensor row = from_host(std::vector<double>{1, 0}, {1, 2});
  const auto gradient = [&](std::vector<Ids> parts) {
    w.grad() = Tensor();
    std::vector<optim::MicroBatch> weights;
    for (const Ids& p : parts) {
      weights.push_back(
          {static_cast<std::int64_t>(p.size()), static_cast<double>(p.size() - std::count(p.begin(), p.end(), -100))});
    }
    const Tensor loss = optim::accumulate_gradients(
        static_cast<std::int64_t>(parts.size()), 0,
        [&](std::int64_t i) {
          const Ids& target = parts[static_cast<std::size_t>(i)];
          const auto rows = static_cast<std::int64_t>(target.size());
          return cross_entropy(expand(matmul(w, row), {rows, 2}), from_host(target, {rows}));
        },
        {}, nullptr, {}, weights);
    return std::pair(item(loss), item(w.grad()));
  };
  const double p = 1 / (1 + std::exp(-0.7));
  // Classes 1, 0, 1 count: (2 p + (p - 1)) / 3.
  const auto whole = gradient({{1, 0, 1, -100, -100}});
  CHECK(whole.second == Approx((3 * p - 1) / 3).epsilon(1e-14));
  for (const std::vector<Ids>& parts : {std::vector<Ids>{{1, 0}, {1, -100, -100}}, {{1}, {0, 1, -100}, {-100}}}) {
    const auto cut = gradient(parts);
    CHECK(cut.first == Approx(whole.first).epsilon(1e-14));
    CHECK(cut.second == Approx(whole.second).epsilon(1e-14));
  }
}

TEST_CASE("micro-batches: noise and sizes that differ, in a training step") {
  const std::int64_t samples = 10;
  const Tensor x = from_host(
      [&] {
        std::vector<double> v(samples * 3);
        for (std::size_t i = 0; i < v.size(); ++i) v[i] = std::sin(1.3 * double(i));
        return v;
      }(),
      {samples, 3});
  const auto train = [&](const std::vector<optim::MicroBatch>& parts, std::int64_t count, std::int64_t each) {
    RandomGenerator generator(4);
    const GeneratorScope scope(generator);
    Tensor w = full({3}, 0.25, DType::f64);
    w.require_grad();
    optim::Sgd sgd({{"w", w}}, {.rate = 0.1});
    nn::StepOptions options;
    options.micro_batches = count, options.micro_samples = each, options.parts = parts;
    double loss = 0;
    for (int step = 0; step < 3; ++step) {
      std::int64_t first = 0;
      loss = item(nn::training_step(
          sgd,
          [&](std::int64_t i) {
            const std::int64_t n = parts.empty() ? each : parts[static_cast<std::size_t>(i)].samples;
            const Tensor noise = randn({n, 3}, DType::f64), part = view::slice(x, 0, first, first + n);
            first += n;
            return mean(square((part + noise) * w));
          },
          options));
    }
    std::vector<double> all = host(w);
    all.push_back(loss);
    return all;
  };
  const std::vector<double> whole = train({}, 1, samples);
  const auto check = [&](const std::vector<double>& parts) {
    for (std::size_t i = 0; i < whole.size(); ++i) CHECK(is_near(parts[i], whole[i], 1e-12));
  };
  check(train({}, 2, 5));
  check(train({{3, 3}, {5, 5}, {2, 2}}, 3, 0));
  // Equal parts have equal bits with and without weights.
  CHECK(train({{2, 6}, {2, 6}, {2, 6}, {2, 6}, {2, 6}}, 5, 0) == train({}, 5, 2));
}

// ((a0 + b0) + (a1 + b1)) + (a2 + b2) for uses a and b of one parameter, not (((a0 + b0) + a1) + b1) + ...
TEST_CASE("micro-batches: each adds the whole of its gradient, where a parameter is used twice") {
  RandomGenerator generator(5);
  const GeneratorScope scope(generator);
  const std::int64_t rows = 4, n = 48;
  Tensor w = randn({n, n}), v = randn({n, n});
  w.require_grad(), v.require_grad();
  const Tensor x = randn({3 * rows, n});
  const auto loss = [&](std::int64_t i) {
    return mean(square(linear(tanh(linear(linear(view::slice(x, 0, i * rows, (i + 1) * rows), w), v)), w)));
  };
  std::vector<Tensor> alone;  // gradients of w and v, in separate micro-batches
  for (std::int64_t i = 0; i < 3; ++i) {
    Tape tape;
    Tensor part;
    {
      const Recording on(tape);
      part = loss(i) * (1.0 / 3);
    }
    tape.backward(part);
    for (const Tensor* p : {&w, &v}) alone.push_back(std::exchange(p->grad(), Tensor()).detach());
  }
  optim::accumulate_gradients(3, rows, loss);
  CHECK(to_host<float>(w.grad()) == to_host<float>(add(add(alone[0], alone[2]), alone[4])));
  CHECK(to_host<float>(v.grad()) == to_host<float>(add(add(alone[1], alone[3]), alone[5])));
}

TEST_CASE("micro-batches: what is refused") {
  Tensor w = full({1}, 1);
  w.require_grad();
  const auto loss = [&](std::int64_t) { return sum(w * w); };
  const auto step = [&](std::int64_t count, std::vector<optim::MicroBatch> parts) {
    optim::accumulate_gradients(count, 0, loss, {}, nullptr, {}, parts);
  };
  CHECK_THROWS_AS(step(2, {}), ValueError);
  CHECK_THROWS_AS(step(2, {{1, 1}}), ValueError);
  CHECK_THROWS_AS(step(2, {{1, 1}, {0, 1}}), ValueError);
  CHECK_THROWS_AS(step(2, {{1, 1}, {1, -1}}), ValueError);
  CHECK_THROWS_AS(step(2, {{1, 1}, {1, std::numeric_limits<double>::quiet_NaN()}}), ValueError);
  CHECK_THROWS_AS(step(2, {{1, 1}, {1, std::numeric_limits<double>::infinity()}}), ValueError);
  CHECK_THROWS_AS(step(2, {{1, 0}, {1, 0}}), ValueError);
  CHECK(!w.grad().defined());
  const models::Batch batch{zeros({3, 2}, DType::i64), zeros({3, 2}, DType::i64)};
  CHECK_THROWS_AS(models::micro_batches(batch, 4), ValueError);
  CHECK_THROWS_AS(models::micro_batches(batch, 0), ValueError);
  CHECK_THROWS_AS(models::count_targets(Ids{1, 2, 3}, 2), ShapeError);
  CHECK(models::micro_batches(batch, 2) == std::vector<optim::MicroBatch>{{1, 1}, {2, 2}});
}

TEST_CASE("micro-batches: weights change no byte of a step, and a dry run needs none") {
  const auto events = [](memory::Device device, bool has_weights) {
    memory::Options options;
    options.trace = true;
    const memory::Stack stack = memory::make_resource(device, options);
    const ResourceScope scope(stack.top);
    Tensor w = full({8}, 1, DType::f32, device);
    w.require_grad();
    const Tensor x = full({6, 8}, 2, DType::f32, device);
    std::vector<optim::MicroBatch> parts{{3, 3}, {3, 3}};
    if (has_weights) parts = {{3, 5}, {3, 0}};
    optim::accumulate_gradients(
        2, 0, [&](std::int64_t i) { return mean(square(slice(x, 0, 3 * i, 3 * i + 3) * w)); }, {}, nullptr, {}, parts);
    return stack.trace->events();
  };
  CHECK(events(cpu, true) == events(cpu, false));
  CHECK(events(dry(cpu), false) == events(cpu, true));
}

TEST_CASE("micro-batches: the program's batches count their targets, and a step in parts is the whole one's") {
  models::RunOptions options;
  options.setup.model = "bert-base";
  options.setup.precision.dtype = DType::f64;
  options.setup.sizes.layers = 1, options.setup.sizes.heads = 2, options.setup.sizes.width = 8;
  options.setup.sizes.sequence = 10, options.setup.sizes.dropout = 0.1;
  options.setup.batch = 4;
  options.data = "synthetic";
  options.steps = 3;
  options.eval_batches = 1;
  const auto train = [&](std::int64_t parts) {
    options.setup.micro_batches = parts;
    std::vector<double> losses;
    models::Engine(options).run([&](const nn::Progress& p) { losses.push_back(p.loss); });
    return losses;
  };
  const std::vector<double> whole = train(1), parts = train(2);
  REQUIRE(whole.size() == 3);
  for (std::size_t i = 0; i < 3; ++i)
    CHECK(is_near(parts[i], whole[i], 1e-9));  // Adam's first steps divide small by small
}
