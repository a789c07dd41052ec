// A trainer's steps when something fails or changes: a step that throws and is retried, a batch that does not fit, a
// loss that is NaN, parameters frozen and thawed; compared with runs without such events.

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/nn/files/tensor_io.h>
#include <thimble/nn/step/step.h>

#include "nn/own_program.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/model_runs.h"
#include "support/refusal.h"
#include "support/tensor_bytes.h"

using namespace thimble;
using files_test::TemporaryFolder;

namespace {

/// (N, 16) -> (N, 16), with batch norm, dropout, and a counter that the loss itself writes.
struct Counted final : nn::Module {
  explicit Counted(memory::Device device)
      : in(child<nn::Linear>("in", 16, 32, nn::TensorOptions{device})),
        norm(child<nn::BatchNorm2d>("norm", 32, nn::TensorOptions{device})),
        out(child<nn::Linear>("out", 32, 16, nn::TensorOptions{device})),
        losses(add_buffer("losses", zeros({}, DType::f32, device))),
        noise(add_buffer("noise", zeros({3}, DType::f32, device))),
        means(add_parameter("means", nn::init::constant({16}, 0, DType::f32, device))) {
    means.set_requires_grad(false);
  }
  Tensor operator()(const Tensor& x) {
    const Tensor h = in(x);  // (N, 32)
    const Tensor normal = reshape(norm(reshape(h, {h.size(0), 1, 1, 32})), h.shape());
    return out(dropout(gelu(normal), 0.25));
  }
  /// Writes tensors in place in every possible way.
  void count(const Tensor& x) {
    copy_into(losses, losses.detach() + 1.0);
    fill_normal(noise, 0, 1);
    fill(view::slice(noise.detach(), 0, 0, 1), 7);
    copy_into(means.detach(), mean(x.detach(), 0));
    if (x.device().is_dry) return;
    const memory::WritePin pin(noise);
    pin.as<float>()[1] += 1;
  }
  nn::Linear& in;
  nn::BatchNorm2d& norm;
  nn::Linear& out;
  nn::Buffer losses, noise;
  nn::Parameter means;  // written by the loss, in no optimizer
};

struct Judged {
  explicit Judged(memory::Device device) : net(device), judge(16, 1, nn::TensorOptions{device}) {}
  std::vector<nn::Module*> modules() { return {&net, &judge}; }
  Counted net;
  nn::Linear judge;
};

/// Throws in the n-th counted call; 0 never throws.
struct Failure {
  int at = 0, calls = 0;
  void pass(const Tensor& t) {
    if (!t.device().is_dry && at > 0 && ++calls == at) throw std::runtime_error("a worker died");
  }
};

struct FailingSgd final : optim::Optimizer {
  FailingSgd(std::vector<optim::Named> parameters, Failure& failure) : Optimizer(parameters, 0.1), failure_(failure) {
    make_state([](std::size_t) {});
  }
  const char* name() const noexcept override { return "failing"; }
  void update(std::span<const std::size_t> indices) override {
    failure_.pass(this->parameters()[indices.front()].tensor);
    for (const std::size_t i : indices) {
      const Tensor p = this->parameters()[i].tensor.detach();
      copy_into(p, p - this->parameters()[i].tensor.grad().detach() * rate());
    }
  }

 private:
  Failure& failure_;
};

enum class Place { batch, loss, later_micro_batch, backward, update, second_part, after_update };

nn::TrainedProgram<Judged, Tensor> judged(Place place, Failure& failure) {
  nn::TrainedProgram<Judged, Tensor> own;
  own.model = [](memory::Device device) { return std::make_unique<Judged>(device); };
  own.batch = [&failure, place](std::int64_t, memory::Device device) {
    const Tensor x = randn({22, 16}, DType::f32, device);
    if (place == Place::batch) failure.pass(x);
    return x;
  };
  own.micro_batch = [](const Tensor& x, std::int64_t i, std::int64_t n) {
    return slice(x, 0, x.size(0) * i / n, x.size(0) * (i + 1) / n);
  };
  const auto first = [&failure, place](Judged& nets, const Tensor& x) {
    nets.net.count(x);
    Tensor y = nets.net(x);
    if (place == Place::loss || place == Place::later_micro_batch) failure.pass(x);
    return mse_loss(y, x) + mean(square(nets.judge(y)));
  };
  own.parts = {{"net",
                [&failure, place](Judged& nets) -> std::unique_ptr<optim::Optimizer> {
                  if (place == Place::update) return std::make_unique<FailingSgd>(nets.net.trainable(), failure);
                  return std::make_unique<optim::Adam>(nets.net.trainable(), optim::AdamOptions{});
                },
                first}};
  if (place == Place::after_update) own.after_update = [&failure](Judged& nets) { failure.pass(nets.judge.weight); };
  if (place != Place::second_part) return own;
  own.parts.push_back(
      {"judge", [](Judged& nets) { return std::make_unique<optim::Sgd>(nets.judge.trainable(), optim::SgdOptions{}); },
       [&failure](Judged& nets, const Tensor& x) {
         nets.net.count(x);
         const Tensor loss = mean(square(nets.judge(nets.net(x).detach()) + -1.0));
         failure.pass(x);
         return loss;
       }});
  return own;
}

std::vector<testing::Bytes> bytes_of_all(nn::Trainer<Judged, Tensor>& trainer, std::size_t parts) {
  std::vector<testing::Bytes> all;
  for (nn::Module* const module : trainer.model().modules()) {
    for (const auto& list : {module->parameters(), module->buffers()}) {
      for (const nn::NamedTensor& t : list) all.push_back(testing::bytes_of(t.tensor));
    }
  }
  for (std::size_t part = 0; part < parts; ++part) {
    for (const optim::Named& s : trainer.optimizer(part).state()) all.push_back(testing::bytes_of(s.tensor));
  }
  return all;
}

}  // namespace

TEST_CASE("trainer: a step that is tried again is the step that did not fail", "[trainer]") {
  const testing::Threads alone;
  struct Row {
    const char* name;
    Place place;
    int at;  // which call of the second step fails
    std::int64_t micro_batches;
  };
  const Row rows[] = {{"in the batch", Place::batch, 2, 1},
                      {"in the loss", Place::loss, 2, 1},
                      {"in a later micro-batch", Place::later_micro_batch, 5, 3},
                      {"in the update", Place::update, 2, 1},
                      {"in a second part", Place::second_part, 2, 1},
                      {"after the update", Place::after_update, 2, 1}};
  for (const Row& row : rows) {
    for (const int mode : {0, 1, 2}) {  // no budget, a budget, a strict budget
      INFO(row.name << ", mode " << mode);
      Failure failure;
      nn::TrainerOptions options{.seed = 4};
      options.budget_bytes = std::size_t(mode > 0 ? 8 : 0) << 20;
      options.is_strict = mode == 2;
      options.step.micro_batches = row.micro_batches;
      options.rate = [](std::int64_t step) { return 0.01 / static_cast<double>(step + 1); };
      const std::size_t parts = row.place == Place::second_part ? 2 : 1;
      nn::Trainer<Judged, Tensor> whole(judged(row.place, failure), options);
      for (int step = 0; step < 3; ++step) whole.step();
      const std::vector<testing::Bytes> expected = bytes_of_all(whole, parts);
      nn::Trainer<Judged, Tensor> trainer(judged(row.place, failure), options);
      trainer.step();
      const std::vector<testing::Bytes> before = bytes_of_all(trainer, parts);
      const double rate = trainer.optimizer().rate();
      failure = {row.at - (row.place == Place::later_micro_batch ? 3 : 1), 0};
      CHECK_THROWS_AS(trainer.step(), std::runtime_error);
      if (row.place < Place::second_part) {
        CHECK((bytes_of_all(trainer, parts) == before));
        CHECK(trainer.optimizer().rate() == rate);
      } else if (row.place == Place::second_part) {  // the first part has made its step and its count
        CHECK(item(trainer.model().net.losses) == 3);
      }
      failure = {1, 0};
      CHECK_THROWS_AS(trainer.step(), std::runtime_error);
      failure = {};
      CHECK(trainer.step().step == 2);
      trainer.step();
      CHECK((bytes_of_all(trainer, parts) == expected));
      CHECK(trainer.peak_bytes() <= trainer.plan().peak_bytes);
    }
  }
}

TEST_CASE("trainer: of a step that fails behind an update nothing is saved", "[trainer]") {
  for (const Place place : {Place::second_part, Place::after_update}) {
    INFO(static_cast<int>(place));
    const files_test::TemporaryFolder folder;
    Failure failure;
    nn::TrainerOptions options{.seed = 4, .steps = 4};
    options.save = folder / "x";
    nn::Trainer<Judged, Tensor> trainer(judged(place, failure), options);
    failure = {3, 0};
    std::string said;
    CHECK_THROWS_AS(trainer.run(nullptr, {.say = [&](const std::string& text) { said += text; }}), std::runtime_error);
    CHECK(said.starts_with("training has failed in the middle of a step; "));
    CHECK_FALSE(std::filesystem::exists(options.save));
    trainer.run();
    CHECK(std::filesystem::exists(options.save));
  }
}

TEST_CASE("step: state that a loss has written is put back when backward throws, and when the step is skipped",
          "[step]") {
  RandomGenerator generator(1);
  const GeneratorScope scope(generator);
  Counted net(cpu);
  optim::Sgd optimizer(net.trainable(), {});
  const Tensor x = randn({6, 16});
  const auto losses = [&] { return item(net.losses); };
  nn::training_step(optimizer, [&](std::int64_t) { return net.count(x), mse_loss(net(x), x); });
  CHECK(losses() == 1);
  const auto fails = [&](std::int64_t) {
    net.count(x);
    net.count(x);
    Tensor y = net(x);
    const Tensor loss = mean(square(y));
    fill(y.detach(), 0);  // which backward reads
    return loss;
  };
  CHECK_THROWS_AS(nn::training_step(optimizer, fails), AutogradError);
  CHECK(losses() == 1);
  optim::GradScaler scaler({.scale = 4});
  const auto overflows = [&](std::int64_t) {
    net.count(x);
    return mse_loss(net(x), x) * std::numeric_limits<double>::infinity();
  };
  nn::training_step(optimizer, overflows, {.scaler = &scaler});
  CHECK(scaler.state().skipped_steps == 1);
  CHECK(losses() == 1);
  nn::training_step(optimizer, [&](std::int64_t) { return net.count(x), net.count(x), mse_loss(net(x), x); });
  CHECK(losses() == 3);
}

TEST_CASE("step: a loss that is none is a typed error", "[step][trainer]") {
  RandomGenerator generator(1);
  const GeneratorScope scope(generator);
  Counted net(cpu);
  optim::Sgd optimizer(net.trainable(), {});
  const Tensor x = randn({6, 16});
  const auto step = [&](const std::function<Tensor()>& loss, std::int64_t micro_batches) {
    nn::training_step(optimizer, [&](std::int64_t) { return loss(); },
                      {.micro_batches = micro_batches, .micro_samples = 6});
  };
  for (const std::int64_t n : {1, 2}) {
    CHECK_THROWS_AS(step([&] { return Tensor(); }, n), ValueError);
    CHECK_THROWS_AS(step([&] { return net(x); }, n), ShapeError);
    CHECK_THROWS_AS(step([&] { return argmax(net(x), 1); }, n), ShapeError);
    CHECK_THROWS_AS(step([&] { return sum(argmax(net(x), 1)); }, n), DTypeError);
    CHECK_THROWS_AS(step([&] { return mean(square(net(x))).detach(); }, n), AutogradError);
    CHECK_THROWS_AS(step([&] { return full({}, 2.5); }, n), AutogradError);
  }
  CHECK_NOTHROW(step([&] { return reshape(mean(square(net(x))), {1, 1}); }, 1));
  Failure none;
  auto own = judged(Place::loss, none);
  own.parts[0].loss = [](Judged&, const Tensor&) { return Tensor(); };
  CHECK_THROWS_AS((nn::Trainer<Judged, Tensor>(own, {})), ValueError);
  own.parts[0].loss = [](Judged& nets, const Tensor&) {
    return reshape(slice(reshape(nets.net.in.weight, {nets.net.in.weight.elements()}), 0, 0, 1), {});
  };
  CHECK_NOTHROW((nn::Trainer<Judged, Tensor>(own, {})));
  CHECK_THROWS_WITH((nn::Trainer<Judged, Tensor>(own, {.budget_bytes = 1 << 24})),
                    Catch::Contains("expected a loss that operators compute, got a view of a parameter"));
  own.parts[0].loss = [](Judged& nets, const Tensor& x) { return mean(nets.net(x)) * std::nan(""); };
  nn::Trainer<Judged, Tensor> trainer(own, {});
  CHECK_THROWS_AS(trainer.step(), nn::NotFiniteError);
}

TEST_CASE("trainer: the loss of a second part that is no number ends the run, too", "[trainer]") {
  Failure none;
  auto own = judged(Place::second_part, none);
  const auto loss = own.parts[1].loss;
  int real_steps = 0;
  own.parts[1].loss = [&](Judged& nets, const Tensor& x) {
    const bool is_bad = !x.device().is_dry && ++real_steps == 3;
    return loss(nets, x) * (is_bad ? std::nan("") : 1.0);
  };
  nn::Trainer<Judged, Tensor> trainer(own, {.steps = 5});
  const nn::RunReport report = trainer.run();
  CHECK(report.end == nn::TrainEnd::diverged);
  CHECK(report.steps == 3);
}

namespace {

/// Batches of 40,000 samples in steps 1 and 4, of 500 in the others.
own_program::Program uneven() {
  own_program::Sizes sizes;
  sizes.samples = [](std::int64_t step) { return std::int64_t{step % 3 == 1 ? 40'000 : 500}; };
  auto own = own_program::program(sizes);
  own.evaluate = nullptr;
  return own;
}

}  // namespace

TEST_CASE("trainer: a batch that no plan fits is passed over, and the others go on", "[trainer]") {
  using Own = nn::Trainer<own_program::Net, own_program::Batch>;
  const testing::Threads alone;
  const TemporaryFolder folder;
  nn::TrainerOptions options{.budget_bytes = std::size_t{16} << 20, .seed = 3, .steps = 7};
  // The reference: a trainer without a budget that is told to skip steps 1 and 4.
  nn::TrainerOptions free = options;
  free.budget_bytes = 0;
  Own expected(uneven(), free);
  std::vector<double> losses;
  for (std::int64_t step = 0; step < 7; ++step) {
    step % 3 == 1 ? expected.skip() : losses.push_back(expected.step().loss);
  }
  CHECK(expected.skipped_batches() == 2);
  Own by_hand(uneven(), options);
  std::vector<double> own_losses;
  for (std::int64_t step = 0; step < 7; ++step) {
    try {
      own_losses.push_back(by_hand.step().loss);
    } catch (const nn::BudgetError& error) {
      CHECK(step % 3 == 1);
      CHECK(error.minimum_bytes() > options.budget_bytes);
      by_hand.skip();
    }
  }
  CHECK(own_losses == losses);
  CHECK(by_hand.peak_bytes() <= options.budget_bytes);
  CHECK(by_hand.placed().deviations == 0);
  // In two calls of run(): the checkpoint records the skipped steps.
  options.skips_unfitting = true;
  std::vector<double> in_run;
  std::vector<std::int64_t> skipped;
  const auto note = [&](const nn::Progress& p) {
    p.is_skipped ? skipped.push_back(p.step) : in_run.push_back(p.loss);
    REQUIRE(p.losses.size() == 1);
    CHECK((std::isnan(p.losses[0]) == p.is_skipped && std::isnan(p.loss) == p.is_skipped));
  };
  options.save = folder / "x", options.steps = 2;
  Own begin(uneven(), options);
  CHECK(begin.run(note).is_finite());
  options.resume = options.save, options.steps = 7;
  Own rest(uneven(), options);
  const nn::RunReport report = rest.run(note);
  CHECK(report.end == nn::TrainEnd::complete);
  CHECK(report.steps == 7);
  CHECK(in_run == losses);
  CHECK(skipped == std::vector<std::int64_t>{2, 5});
  CHECK(rest.skipped_batches() == 2);
}

TEST_CASE("trainer: after a step that is skipped the next one draws as if it had been made", "[trainer]") {
  const testing::Threads alone;
  // The first number of each step's batch.
  const auto drawn = [](bool is_tried) {
    Failure failure;
    nn::TrainedProgram<Judged, Tensor> own = judged(Place::second_part, failure);
    std::vector<float> list;
    own.batch = [&list, make = own.batch](std::int64_t step, memory::Device device) {
      const Tensor x = make(step, device);
      if (!device.is_dry) list.push_back(to_host<float>(x)[0]);
      return x;
    };
    nn::Trainer<Judged, Tensor> trainer(own, {.seed = 4});
    trainer.step();
    failure = {is_tried ? 1 : 0, 0};
    if (is_tried) CHECK_THROWS_AS(trainer.step(), std::runtime_error);  // after its first part
    failure = {};
    trainer.skip();
    trainer.step();
    trainer.step();
    if (is_tried) list.erase(list.begin() + 1);
    return list;
  };
  CHECK(drawn(true) == drawn(false));
}

TEST_CASE("trainer: parameters are frozen and thawed in the middle of a budget", "[trainer]") {
  const testing::Threads alone;
  own_program::Program own = own_program::program();
  const auto train = [&](nn::TrainerOptions options) {
    options.seed = 3;
    nn::Trainer<own_program::Net, own_program::Batch> trainer(own, options);
    std::vector<double> losses;
    for (std::int64_t step = 0; step < 6; ++step) {
      if (step == 2) trainer.model().freeze("block*"), trainer.model().unfreeze("block5");
      if (step == 4) trainer.model().unfreeze();
      losses.push_back(trainer.step().loss);
    }
    CHECK(trainer.plan().shapes.size() == 2);
    CHECK(trainer.peak_bytes() == trainer.plan().peak_bytes);
    CHECK(trainer.placed().deviations == 0);
    return losses;
  };
  nn::TrainerOptions options;
  const std::vector<double> losses = train(options);
  options.budget_bytes = nn::Trainer<own_program::Net, own_program::Batch>(own, options).plan().peak_bytes * 3 / 4;
  options.is_strict = true;
  CHECK(train(options) == losses);
  // A parameter outside the optimizer cannot be trained.
  own.model = [](memory::Device device) {
    auto net = std::make_unique<own_program::Net>(96, 6, device);
    net->freeze("block0");
    return net;
  };
  nn::Trainer<own_program::Net, own_program::Batch> trainer(own, options);
  trainer.step();
  trainer.model().unfreeze("block0");
  CHECK(refusal_test::refusal<ValueError>([&] {
          trainer.step();
        }).find("'block0.up.weight' was unfrozen, and no optimizer has it") != std::string::npos);
  trainer.model().freeze("block0");
  CHECK_NOTHROW(trainer.step());
}

TEST_CASE("trainer: a parameter has one optimizer", "[trainer]") {
  Failure none;
  auto own = judged(Place::second_part, none);
  own.parts[1].optimizer = [](Judged& nets) {
    std::vector<optim::Named> all = nets.judge.trainable();
    all.push_back(nets.net.trainable()[2]);
    return std::make_unique<optim::Sgd>(all, optim::SgdOptions{});
  };
  const std::string text = refusal_test::refusal<ValueError>([&] { nn::Trainer<Judged, Tensor>(own, {}); });
  CHECK(text.find("is a parameter of part 'net' and of part 'judge'") != std::string::npos);
}
