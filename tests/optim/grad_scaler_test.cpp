// Loss scaling: the scale over the steps, skipped steps as transactions, clipping, and the state in checkpoints.

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/clip.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/files.h"

using namespace thimble;
using optim::GradScaler;

namespace {

/// A linear layer after a batch norm, with dropout: every kind of state. `kick` multiplies the loss.
class Net final : public nn::Module {
 public:
  explicit Net(memory::Device device = cpu, DType dtype = DType::f32)
      : norm_(child<nn::BatchNorm2d>("norm", 4, nn::TensorOptions{device, dtype})),
        dropout_(child<nn::Dropout>("dropout", 0.25)),
        linear_(child<nn::Linear>("linear", 4, 3, nn::TensorOptions{device, dtype})),
        input_(Tensor::empty({6, 4}, dtype, device, memory::Category::input)) {
    std::vector<float> values(24);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i * i));
    copy_into(input_, from_host(values, {6, 4}, device));
  }
  Tensor loss(double kick = 1) {
    const Tensor y = linear_(dropout_(norm_(input_)));
    return mul(mse_loss(y, zeros(y.shape(), y.dtype(), y.device())), kick);
  }

 private:
  nn::BatchNorm2d& norm_;
  nn::Dropout& dropout_;
  nn::Linear& linear_;
  Tensor input_;
};

std::unique_ptr<Net> make_net(memory::Device device = cpu, DType dtype = DType::f32) {
  RandomGenerator generator(4);
  const GeneratorScope scope(generator);
  return std::make_unique<Net>(device, dtype);
}

Tensor step_of(optim::Optimizer& optimizer, Net& net, const nn::StepOptions& options, double kick = 1) {
  const auto loss = [&](std::int64_t) { return net.loss(kick); };
  return nn::training_step(optimizer, loss, options);
}

std::vector<std::vector<double>> all_of(const Net& net, const optim::Optimizer& optimizer) {
  std::vector<std::vector<double>> all;
  for (const auto& p : net.parameters()) all.push_back(to_host<double>(p.tensor));
  for (const auto& b : net.buffers()) all.push_back(to_host<double>(b.tensor));
  for (const auto& s : optimizer.state()) all.push_back(to_host<double>(s.tensor));
  all.push_back({static_cast<double>(optimizer.step_count())});
  return all;
}

}  // namespace

TEST_CASE("grad_scaler: the scale's course", "[scaler][precision]") {
  GradScaler scaler;
  CHECK(scaler.scale() == 65536);
  const GradScaler::Verdict good{false, 1}, bad{true, 1};
  for (int i = 0; i < 1999; ++i) scaler.record(good);
  CHECK(scaler.state() == GradScaler::State{65536, 1999, 0});
  scaler.record(good);
  CHECK(scaler.state() == GradScaler::State{131072, 0, 0});
  for (int i = 0; i < 5; ++i) scaler.record(good);
  scaler.record(bad);
  CHECK(scaler.state() == GradScaler::State{65536, 0, 1});
  for (int i = 0; i < 20 * 2000; ++i) scaler.record(good);
  CHECK(scaler.scale() == 0x1p24);  // and no higher
  for (int i = 0; i < 40; ++i) scaler.record(bad);
  CHECK(scaler.state() == GradScaler::State{1, 0, 41});
  GradScaler fixed({.scale = 8, .is_dynamic = false});
  fixed.record(bad);
  CHECK(fixed.state() == GradScaler::State{8, 0, 0});
}

TEST_CASE("grad_scaler: options and states that make no sense", "[scaler][precision]") {
  using Options = GradScaler::Options;
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const Options& options :
       {Options{.scale = 0}, Options{.scale = nan}, Options{.scale = 0x1p25}, Options{.scale = 0.5},
        Options{.growth = 0.5}, Options{.growth = infinity}, Options{.interval = 0}, Options{.backoff = 0},
        Options{.backoff = 1.5}, Options{.most = infinity}, Options{.least = 0}, Options{.least = nan}}) {
    CHECK_THROWS_AS(GradScaler(options), ValueError);
  }
  CHECK_NOTHROW(GradScaler({.scale = 2, .growth = 1, .interval = 1, .backoff = 1, .most = 2, .least = 2}));
  GradScaler scaler;
  for (const GradScaler::State& state : {GradScaler::State{0x1p25, 0, 0}, GradScaler::State{0.5, 0, 0},
                                         GradScaler::State{2, -1, 0}, GradScaler::State{2, 0, -1}}) {
    CHECK_THROWS_AS(scaler.set_state(state), ValueError);
  }
  CHECK(scaler.state() == GradScaler().state());
  CHECK_THROWS_AS(scaler.judge({}, -1), ValueError);
  const Tensor square_sum =
      full({1}, 1e-12, DType::f64);  // of scaled gradients: a norm of 1e-6 / 0.5 without the scale
  CHECK(GradScaler({.scale = 0.5, .least = 0.5}).judge_sums(square_sum, 1e-7).gradient_factor == Approx(2 * 0.1 / 3));
  const auto net = make_net();
  optim::Sgd sgd(net->trainable(), {});
  for (const double factor : {-1.0, nan, infinity}) CHECK_THROWS_AS(sgd.set_gradient_factor(factor), ValueError);
}

TEST_CASE("grad_scaler: a scale that is a power of two changes no bit in f32", "[scaler][precision]") {
  const auto train = [](GradScaler* scaler, double clip_norm, nn::FusedUpdate fuses) {
    RandomGenerator generator(9);
    const GeneratorScope scope(generator);
    const auto net = make_net();
    optim::Adam adam(net->trainable(), {.rate = 1e-2});
    adam.set_gradient_factor(0.5);
    nn::StepOptions options;
    options.clip_norm = clip_norm;
    options.scaler = scaler;
    options.fuses_optimizer = fuses;
    std::vector<double> losses;
    for (int i = 0; i < 5; ++i) {
      losses.push_back(item(step_of(adam, *net, options)));
      CHECK(adam.gradient_factor() == 0.5);
    }
    auto all = all_of(*net, adam);
    all.push_back(losses);
    return all;
  };
  GradScaler dynamic, fixed({.scale = 1024, .is_dynamic = false});
  constexpr auto off = nn::FusedUpdate::off;
  const auto plain = train(nullptr, 0, off);
  CHECK(train(&dynamic, 0, off) == plain);
  CHECK(dynamic.state() == GradScaler::State{65536, 5, 0});
  CHECK(train(&fixed, 0, off) == plain);
  CHECK(train(&fixed, 0, nn::FusedUpdate::unsecured) == plain);
  // The clip's factor is applied together with the scale, not to the stored gradient: one rounding less.
  const auto clipped = train(nullptr, 0.01, off), scaled = train(&dynamic, 0.01, off);
  CHECK(clipped != plain);
  for (std::size_t i = 0; i < clipped.size(); ++i) {
    for (std::size_t k = 0; k < clipped[i].size(); ++k) CHECK(std::abs(clipped[i][k] - scaled[i][k]) < 1e-5);
  }
}

TEST_CASE("grad_scaler: every optimizer divides by the scale as it reads", "[scaler][precision]") {
  using Make = std::function<std::unique_ptr<optim::Optimizer>(const Net&)>;
  const optim::MomentFormat narrow{.dtype = DType::u8, .smallest = 1};
  const std::vector<Make> makes{
      [](const Net& net) { return std::make_unique<optim::Sgd>(net.trainable(), optim::SgdOptions{.momentum = 0.9}); },
      [&](const Net& net) {
        return std::make_unique<optim::Sgd>(net.trainable(), optim::SgdOptions{.momentum = 0.9, .moments = narrow});
      },
      [&](const Net& net) {
        return std::make_unique<optim::Adam>(net.trainable(), optim::AdamOptions{.moments = narrow});
      },
      [](const Net& net) { return std::make_unique<optim::Adafactor>(net.trainable(), optim::AdafactorOptions{}); }};
  for (const Make& make : makes) {
    const auto train = [&](GradScaler* scaler) {
      RandomGenerator generator(9);
      const GeneratorScope scope(generator);
      const auto net = make_net();
      const auto optimizer = make(*net);
      INFO(optimizer->name());
      nn::StepOptions options;
      options.scaler = scaler;
      const auto before = all_of(*net, *optimizer);
      for (int i = 0; i < 3; ++i) step_of(*optimizer, *net, options);
      CHECK(all_of(*net, *optimizer) != before);
      return all_of(*net, *optimizer);
    };
    GradScaler scaler;
    CHECK(train(&scaler) == train(nullptr));
  }
}

TEST_CASE("grad_scaler: a step whose gradients are not finite is skipped", "[scaler][precision]") {
  for (const double kick : {1e35, -1e38, std::nan("")}) {
    RandomGenerator generator(9);
    const GeneratorScope scope(generator);
    const auto net = make_net();
    optim::Adam adam(net->trainable(), {.rate = 1e-2});
    GradScaler scaler;
    nn::StepOptions options;
    options.scaler = &scaler;
    step_of(adam, *net, options);
    const auto before = all_of(*net, adam);
    const std::uint64_t step = generator.step();
    step_of(adam, *net, options, kick);
    CHECK(all_of(*net, adam) == before);
    CHECK(generator.step() == step + 1);
    CHECK(scaler.state() == GradScaler::State{32768, 0, 1});
    for (const auto& p : net->parameters()) CHECK_FALSE(p.tensor.grad().defined());
    step_of(adam, *net, options);
    CHECK(all_of(*net, adam) != before);
    CHECK(scaler.state() == GradScaler::State{32768, 1, 1});
  }
}

TEST_CASE("grad_scaler: a step that throws leaves it as it was", "[scaler][precision]") {
  const auto net = make_net();
  optim::Sgd sgd(net->trainable(), {});
  GradScaler scaler;
  nn::StepOptions options;
  options.scaler = &scaler;
  const auto before = all_of(*net, sgd);
  const auto failing = [&](std::int64_t) -> Tensor {
    net->loss();
    throw ValueError("no");
  };
  CHECK_THROWS_AS(nn::training_step(sgd, failing, options), ValueError);
  CHECK(all_of(*net, sgd) == before);
  CHECK(scaler.state() == GradScaler().state());
  CHECK(sgd.gradient_factor() == 1);
  // A loss narrower than f32 cannot carry the scale.
  CHECK_THROWS_AS(nn::training_step(
                      sgd, [&](std::int64_t) { return cast(net->loss(), DType::f16); }, options),
                  DTypeError);
  options.fuses_optimizer = nn::FusedUpdate::unsecured;
  CHECK_THROWS_AS(step_of(sgd, *net, options), PlanError);
  CHECK(scaler.state() == GradScaler().state());
}

TEST_CASE("grad_scaler: an optimizer that would forget the factor is refused", "[scaler][precision]") {
  struct Plain final : optim::Optimizer {
    using Optimizer::Optimizer;
    const char* name() const noexcept override { return "plain"; }
    void update(std::span<const std::size_t> indices) override {
      for (const std::size_t i : indices) copy_into(parameters()[i].tensor, parameters()[i].tensor.grad());
    }
  };
  const auto net = make_net();
  Plain plain(net->trainable(), 0.1);
  plain.set_gradient_factor(1);
  CHECK_THROWS_AS(plain.set_gradient_factor(0.5), ValueError);
  GradScaler scaler;
  nn::StepOptions options;
  options.scaler = &scaler;
  const auto step = [&] { step_of(plain, *net, options); };
  CHECK_THROWS_AS(step(), ValueError);
  options.scaler = nullptr;
  step();
}

TEST_CASE("grad_scaler: dry runs plan a step that is not skipped", "[scaler][precision]") {
  const auto run = [](memory::Device device, double kick) {
    memory::Stack stack = memory::make_resource(device, {.trace = true});
    const ResourceScope on(stack.top);
    RandomGenerator generator(9);
    const GeneratorScope scope(generator);
    const auto net = make_net(device, DType::f16);
    optim::Adam adam(net->trainable(), {.narrow = optim::NarrowUpdate::master});
    GradScaler scaler({.scale = 1});
    nn::StepOptions options;
    options.scaler = &scaler;
    options.clip_norm = 1;
    for (int i = 0; i < 2; ++i) step_of(adam, *net, options, kick);
    CHECK(scaler.state().skipped_steps == (kick > 1 && !device.is_dry ? 2 : 0));
    return stack;
  };
  const memory::Stack real = run(cpu, 1), dried = run(dry(cpu), 1), skipped = run(cpu, 1e30);
  CHECK(*real.trace == *dried.trace);
  CHECK(real.ledger->max_allocated() == dried.ledger->max_allocated());
  CHECK(skipped.arena->statistics().peak_committed_bytes <= dried.arena->statistics().peak_committed_bytes);
}

TEST_CASE("grad_scaler: checkpoints hold its state, and refuse what differs", "[scaler][precision]") {
  const files_test::TemporaryFolder folder;
  const auto net = make_net();
  optim::Sgd sgd(net->trainable(), {});
  RandomGenerator generator(1);
  GradScaler scaler({.scale = 3.25}), other;
  scaler.set_state({3.25, 17, 4});
  nn::save_checkpoint(folder / "scaled", *net, sgd, generator, {{"k", "v"}}, &scaler);
  nn::save_checkpoint(folder / "plain", *net, sgd, generator);
  CHECK(nn::load_checkpoint(folder / "scaled", *net, sgd, generator, &other).at("k") == "v");
  CHECK(other.state() == scaler.state());
  CHECK_THROWS_AS(nn::load_checkpoint(folder / "scaled", *net, sgd, generator), ValueError);
  CHECK_THROWS_AS(nn::load_checkpoint(folder / "plain", *net, sgd, generator, &other), ValueError);
  GradScaler narrow({.scale = 2, .most = 3});
  CHECK_THROWS_AS(nn::load_checkpoint(folder / "scaled", *net, sgd, generator, &narrow), ValueError);
  CHECK(narrow.scale() == 2);
}
