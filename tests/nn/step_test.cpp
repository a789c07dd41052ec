// nn::training_step as a transaction, gradient accumulation, clipping. The optimizers' arithmetic is in optim_test.cpp.

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/accumulate.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/clip.h>

#include "support/catch.h"
#include "support/near.h"

using namespace thimble;

namespace {

struct Interruption : std::runtime_error {
  Interruption() : std::runtime_error("interrupted") {}
};

// A user's operator with a bug: passes its input through, and throws on request.
struct Fuse {
  static constexpr const char* name = "fuse";
  static constexpr ops::Cost cost = ops::Cost::elementwise;
  struct Saved {
    Tensor x;
  };
  enum class Burns : std::uint8_t { never, forward, backward };
  static inline Burns burns = Burns::never;

  Tensor forward(const Tensor& x, ops::Needs needs, Saved& saved) const {
    if (burns == Burns::forward) throw Interruption();
    if (needs[0]) saved = {x};
    return clone(x);
  }
  ops::Gradients backward(Saved, Tensor dy, ops::Needs) const {
    if (burns == Burns::backward) throw Interruption();
    return {dy};
  }
};

// (N, 5, 5, 2) -> convolution, batch norm, fuse, dropout, linear -> (N, 3): all state that a step may touch.
struct Net final : nn::Module {
  nn::Conv2d& conv;
  nn::BatchNorm2d* norm;
  nn::Linear& head;
  DType dtype;

  explicit Net(bool has_norm = true, DType dtype = DType::f32)
      : conv(child<nn::Conv2d>("conv", 2, 4, 3, Conv2dOptions{}, true, nn::TensorOptions{cpu, dtype})),
        norm(has_norm ? &child<nn::BatchNorm2d>("norm", 4, nn::TensorOptions{cpu, dtype}) : nullptr),
        head(child<nn::Linear>("head", 36, 3, nn::TensorOptions{cpu, dtype})),
        dtype(dtype) {}

  Tensor loss(const Tensor& x, const Tensor& target) {
    Tensor y = conv(x);  // (N, 3, 3, 4)
    y = norm ? norm->with_relu(y) : silu(y);
    y = dropout(apply(Fuse{}, y), 0.25);
    return cross_entropy(head(flatten(y, 1)), target);
  }
};

// A batch that depends only on its number: images (8, 5, 5, 2) and classes (8).
struct Data {
  Tensor x, target;
  explicit Data(int number, DType dtype = DType::f32) {
    std::vector<double> pixels(8 * 50);
    std::vector<std::int64_t> classes(8);
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = std::sin(0.7 * double(i) + number);
    for (std::size_t i = 0; i < classes.size(); ++i) classes[i] = static_cast<std::int64_t>(i * 5 + i / 3) % 3;
    x = to_dtype(from_host(pixels, {8, 5, 5, 2}), dtype);
    target = from_host(classes, {8});
  }
  Tensor loss(Net& net, std::int64_t first, std::int64_t end) const {
    return net.loss(view::slice(x, 0, first, end), view::slice(target, 0, first, end));
  }
};

using Bytes = std::vector<std::byte>;

Bytes bytes_of(const Tensor& t) {
  if (!t.defined()) return {};
  Bytes bytes(t.bytes());
  const Tensor dense = contiguous(t.detach());
  if (!bytes.empty()) std::memcpy(bytes.data(), memory::Pin(dense).data(), bytes.size());
  return bytes;
}

// All state of a training run, as bytes.
struct State {
  std::vector<Bytes> tensors;
  std::uint64_t generator_step;
  std::int64_t updates;
  bool operator==(const State&) const = default;
};

// A model in training, with its own stack and generator.
struct Run {
  memory::Stack stack;
  RandomGenerator generator{11};
  std::unique_ptr<Net> net;
  std::unique_ptr<optim::Adam> optimizer;

  explicit Run(memory::Stack made = memory::make_resource(cpu)) : stack(std::move(made)) {
    const ResourceScope on(stack.top);
    const GeneratorScope draws(generator);
    net = std::make_unique<Net>();
    optimizer = std::make_unique<optim::Adam>(net->trainable(), optim::AdamOptions{.rate = 0.01, .weight_decay = 0.1});
  }

  State state() const {
    State state{{}, generator.step(), optimizer->step_count()};
    for (const auto& p : net->parameters()) {
      state.tensors.push_back(bytes_of(p.tensor));
      state.tensors.push_back(bytes_of(p.tensor.grad()));
    }
    for (const auto& b : net->buffers()) state.tensors.push_back(bytes_of(b.tensor));
    for (const auto& s : optimizer->state()) state.tensors.push_back(bytes_of(s.tensor));
    return state;
  }
  // One step of four micro-batches; `before(i)` runs at the start of micro-batch i, `after(i)` at its end.
  Tensor loss_of_step(int number, const std::function<void(std::int64_t)>& before = {},
                      const std::function<void(std::int64_t)>& after = {}) {
    const ResourceScope on(stack.top);
    const GeneratorScope draws(generator);
    const Data data(number);
    return nn::training_step(*optimizer,
                             [&](std::int64_t i) {
                               if (before) before(i);
                               const Tensor loss = data.loss(*net, 2 * i, 2 * i + 2);
                               if (after) after(i);
                               return loss;
                             },
                             {.clip_norm = 0.5, .micro_batches = 4, .micro_samples = 2});
  }
  template <class... Interruptions>
  double step(int number, const Interruptions&... interruptions) {
    return item(loss_of_step(number, interruptions...));
  }
};

// Refuses a single request, by its number.
class Refusing final : public memory::Resource {
 public:
  explicit Refusing(std::shared_ptr<memory::Resource> upstream) : upstream_(std::move(upstream)) {}
  std::int64_t left = std::numeric_limits<std::int64_t>::max();  // requests until the refusal

  memory::Block* allocate(const memory::Request& request) override {
    if (left-- == 0) throw OutOfMemory("refused", {});
    return upstream_->allocate(request);
  }
  void deallocate(memory::Block* block, memory::Stream stream) noexcept override {
    upstream_->deallocate(block, stream);
  }
  void relabel(memory::Block* block, memory::Category category) noexcept override {
    upstream_->relabel(block, category);
  }
  memory::Device device() const noexcept override { return upstream_->device(); }

 private:
  std::shared_ptr<memory::Resource> upstream_;
};

}  // namespace

TEST_CASE("step: one that throws leaves no trace", "[step]") {
  struct Row {
    const char* what;
    std::int64_t at;  // micro-batch
    bool is_after;    // after the model's forward
    Fuse::Burns burns;
  };
  const std::vector<Row> rows{
      {"the loss function, at once", 0, false, Fuse::Burns::never},
      {"the loss function after its forward", 0, true, Fuse::Burns::never},
      {"the loss function of the third micro-batch", 2, false, Fuse::Burns::never},
      {"the loss function of the last, after its forward", 3, true, Fuse::Burns::never},
      {"an operator's forward", 1, false, Fuse::Burns::forward},
      {"an operator's backward", 0, false, Fuse::Burns::backward},
      {"an operator's backward, later", 2, false, Fuse::Burns::backward},
  };
  Run run, twin;
  for (int s = 0; s < 2; ++s) CHECK(run.step(s) == twin.step(s));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const Row& row = rows[r];
    INFO(row.what);
    const State before = run.state();
    const std::size_t bytes = run.stack.ledger->bytes();
    const auto interrupt = [&](bool is_after) {
      return [&, is_after](std::int64_t i) {
        if (i != row.at || is_after != row.is_after) return;
        if (row.burns == Fuse::Burns::never) throw Interruption();
        Fuse::burns = row.burns;
      };
    };
    CHECK_THROWS_AS(run.step(100, interrupt(false), interrupt(true)), Interruption);
    Fuse::burns = Fuse::Burns::never;
    CHECK(run.state() == before);
    CHECK(run.stack.ledger->bytes() == bytes);
    CHECK(context().transaction == nullptr);
    CHECK(context().tape == nullptr);
    // The next step matches a run without the failure.
    const int number = static_cast<int>(r) + 2;
    CHECK(run.step(number) == twin.step(number));
    CHECK(run.state() == twin.state());
    CHECK_FALSE(run.state() == before);
  }
}

TEST_CASE("step: out of memory at any request leaves no trace", "[step]") {
  memory::Stack stack = memory::make_resource(cpu);
  const auto refusing = std::make_shared<Refusing>(stack.top);
  stack.top = refusing;
  Run run(stack), twin;
  run.step(0), twin.step(0);
  const State before = run.state();
  const std::size_t bytes = stack.ledger->bytes();
  int refusals = 0;
  for (bool is_done = false; !is_done; ++refusals) {
    refusing->left = refusals;
    try {
      run.loss_of_step(1);  // reading the loss allocates, after the step
      is_done = true;
    } catch (const OutOfMemory&) {
      refusing->left = std::numeric_limits<std::int64_t>::max();
      if (!(run.state() == before) || stack.ledger->bytes() != bytes) FAIL("request " << refusals << " left a trace");
    }
  }
  refusing->left = std::numeric_limits<std::int64_t>::max();
  CHECK(refusals > 100);  // every allocation of four forwards and backwards, the clipping and the statistics
  twin.step(1);
  CHECK(run.state() == twin.state());
}

TEST_CASE("step: gradients of before take part, and are back after a failure", "[step]") {
  Run run, twin;
  const auto accumulate = [](Run& r) {
    const ResourceScope on(r.stack.top);
    const GeneratorScope draws(r.generator);
    const Data data(7);
    optim::accumulate_gradients(1, 0, [&](std::int64_t) { return data.loss(*r.net, 0, 8); });
  };
  accumulate(run), accumulate(twin);
  Tensor other = full({8, 3}, 0.5);  // a leaf outside any optimizer
  other.require_grad();
  other.grad() = full({8, 3}, 2);
  const State before = run.state();
  const auto held = run.net->head.weight.grad();  // a user's handle
  const Bytes held_bytes = bytes_of(held);
  Data data(1);
  const auto failing = [&](std::int64_t i) -> Tensor {
    if (i == 1) throw Interruption();
    return data.loss(*run.net, 0, 8) + sum(mul(other, other));
  };
  const auto step = [&] {
    const GeneratorScope draws(run.generator);
    nn::training_step(*run.optimizer, failing, {.micro_batches = 2, .micro_samples = 8});
  };
  CHECK_THROWS_AS(step(), Interruption);
  CHECK(run.state() == before);
  CHECK(bytes_of(held) == held_bytes);
  CHECK(run.net->head.weight.grad().storage() == held.storage());
  CHECK(to_host<float>(other.grad()) == std::vector<float>(24, 2));
  CHECK(run.step(0) == twin.step(0));
  CHECK(run.state() == twin.state());
  CHECK_FALSE(run.net->head.weight.grad().defined());
  // The gradients matter: a run without them goes elsewhere.
  Run without;
  without.step(0);
  CHECK_FALSE(without.state() == run.state());
}

TEST_CASE("step: micro-batches add up to the whole batch", "[step]") {
  struct Row {
    DType dtype;
    double tolerance;  // sums of 8 samples in another order: a few roundings of the largest term
  };
  for (const Row& row : {Row{DType::f32, 8 * 0x1p-23}, Row{DType::f64, 8 * 0x1p-52}}) {
    INFO(to_string(row.dtype));
    RandomGenerator generator(3);
    const GeneratorScope draws(generator);
    Net net(false, row.dtype);
    const Data data(0, row.dtype);
    const auto gradients = [&](std::int64_t count) {
      const std::int64_t samples = 8 / count;
      const Tensor loss = optim::accumulate_gradients(
          count, samples, [&](std::int64_t i) { return data.loss(net, i * samples, (i + 1) * samples); });
      std::vector<double> all{item(loss)};
      for (const auto& p : net.parameters()) {
        for (const double g : to_host<double>(p.tensor.grad())) all.push_back(g);
        p.tensor.grad() = Tensor();
      }
      return all;
    };
    const std::vector<double> whole = gradients(1);
    double largest = 0;
    for (const double g : whole) largest = std::max(largest, std::abs(g));
    for (const std::int64_t count : {2, 4, 8}) {
      const std::vector<double> parts = gradients(count);
      REQUIRE(parts.size() == whole.size());
      double worst = 0;
      for (std::size_t i = 0; i < whole.size(); ++i) worst = thimble_test::worse(worst, std::abs(parts[i] - whole[i]));
      INFO(count << " micro-batches: largest difference " << worst << ", largest gradient " << largest);
      CHECK(worst <= row.tolerance * largest);
    }
    CHECK(gradients(1) == whole);
  }
}

TEST_CASE("step: a micro-batch draws the dropout masks of the whole batch", "[step]") {
  Tensor w = full({1}, 1);
  w.require_grad();
  const auto masks = [&](std::int64_t count) {
    RandomGenerator generator(5);
    const GeneratorScope draws(generator);
    optim::Adam optimizer({{"w", w}}, {.rate = 0});
    const std::int64_t samples = 12 / count;
    std::vector<float> first, second;  // of two layers
    for (int step = 0; step < 2; ++step) {
      const auto loss_of = [&](std::int64_t) {
        const Tensor a = dropout(mul(full({samples, 37}, 1), w), 0.5), b = dropout(mul(full({samples, 5}, 1), w), 0.1);
        for (const float v : to_host<float>(a)) first.push_back(v);
        for (const float v : to_host<float>(b)) second.push_back(v);
        return mean(a) + mean(b);
      };
      nn::training_step(optimizer, loss_of, {.micro_batches = count, .micro_samples = samples});
    }
    first.insert(first.end(), second.begin(), second.end());
    return first;
  };
  const std::vector<float> whole = masks(1);
  CHECK(whole.size() == 2 * 12 * 42);
  for (const std::int64_t count : {2, 3, 4, 6, 12}) CHECK(masks(count) == whole);
  // The second step draws other masks.
  CHECK(!std::equal(whole.begin(), whole.begin() + 12 * 37, whole.begin() + 12 * 37));
}

TEST_CASE("step: clipping by the global norm", "[step]") {
  const std::vector<Shape> shapes{{3, 700}, {1}, {0}, {5, 5}};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    INFO(to_string(dtype));
    std::vector<optim::Named> list;
    std::vector<std::vector<double>> values;
    double square_sum = 0;
    for (std::size_t k = 0; k < shapes.size(); ++k) {
      Tensor p = zeros(shapes[k], dtype);
      p.require_grad();
      std::vector<double> g(static_cast<std::size_t>(p.elements()));
      for (std::size_t i = 0; i < g.size(); ++i) g[i] = std::sin(1.3 * double(i) + double(k));
      const Tensor gradient = to_dtype(from_host(g, shapes[k]), dtype);
      p.grad() = gradient;
      values.push_back(to_host<double>(gradient));
      for (const double v : values.back()) square_sum += v * v;
      list.push_back({"p" + std::to_string(k), p});
    }
    Tensor without = full({4}, 3, dtype);
    list.push_back({"without", without.require_grad()});
    const double norm = std::sqrt(square_sum);
    // Within the bound, no bit changes.
    for (const double bound : {norm * 1.001, 1e30, std::numeric_limits<double>::infinity()}) {
      const double found = optim::norm_of(optim::clip_grad_norm(list, bound));
      CHECK(std::abs(found - norm) <= 1e-13 * norm);  // of 2,100 squares in f64, in another order
      for (std::size_t k = 0; k < values.size(); ++k) CHECK(to_host<double>(list[k].tensor.grad()) == values[k]);
    }
    const double bound = norm / 7;
    CHECK(std::abs(optim::norm_of(optim::clip_grad_norm(list, bound)) - norm) <= 1e-13 * norm);
    // Roundings of the factor, the product and the store.
    const double unit = dtype == DType::f64 ? 0x1p-52 : dtype == DType::f32 ? 0x1p-23 : 0x1p-8;
    const double allowed = 1.5 * unit + 1e-13;  // plus the norm's own error
    for (std::size_t k = 0; k < values.size(); ++k) {
      const std::vector<double> scaled = to_host<double>(list[k].tensor.grad());
      for (std::size_t i = 0; i < scaled.size(); ++i) {
        const double expected = values[k][i] * (bound / (norm + 1e-6));
        if (!(std::abs(scaled[i] - expected) <= allowed * std::abs(expected))) {
          FAIL("gradient " << k << ", element " << i << ": " << scaled[i] << ", expected " << expected);
        }
      }
    }
    CHECK_FALSE(without.grad().defined());
  }
}
