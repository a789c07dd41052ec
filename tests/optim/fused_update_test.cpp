// The optimizer step fused into backward: equal bits, fewer gradients at a time, and the state after a failure.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/policies/fail.h>
#include <thimble/memory/policies/placed.h>
#include <thimble/memory/stack.h>
#include <thimble/models/gpt/gpt.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/nn/step/profile.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/store_tier.h"

using namespace thimble;
using nn::FusedUpdate;

namespace {

struct Form {
  const char* model;
  const char* optimizer;
  FusedUpdate fuses = FusedUpdate::unsecured;
  bool recomputes = false;
  models::Head head = models::Head::full;
};

using Bytes = std::vector<std::vector<std::byte>>;

/// A small model in training, on one batch.
class FusedRun final : public nn::TrainingRun {
 public:
  FusedRun(const Form& form, memory::Device device) : form_(form), generator_(7), scope_(generator_) {
    models::Setup setup;
    setup.model = form.model;
    setup.optimizer.name = form.optimizer;
    if (is("char-gpt")) {
      setup.sizes.layers = 2, setup.sizes.heads = 2, setup.sizes.width = 16, setup.sizes.sequence = 8;
      setup.sizes.vocabulary = 11, setup.sizes.dropout = 0.1, setup.sizes.head = form.head;
    } else {
      setup.sizes.image = 8;
      if (is("resnet18")) setup.sizes.width = 2;
    }
    model_ = models::make_model(setup.model, setup.sizes, {device});
    if (is("char-gpt")) dynamic_cast<models::Gpt&>(*model_).recompute_blocks(form.recomputes);
    optimizer_ = models::make_optimizer(setup, *model_);
    batch_ = model_->empty_batch(4, device);
    if (!device.is_dry) {
      for (const Tensor& t : {batch_.input, batch_.target}) {
        const memory::WritePin pin(t);
        for (std::int64_t i = 0; i < t.elements(); ++i) {
          const std::int64_t v = (i * i * 7 + i) % 10;
          t.dtype() == DType::i64 ? void(pin.as<std::int64_t>()[i] = v) : void(pin.as<float>()[i] = float(v) / 5 - 1);
        }
      }
    }
    options_.fuses_optimizer = form.fuses;
  }

  void step() override { one_step(); }
  Tensor one_step() {
    return nn::training_step(
        *optimizer_, [this](std::int64_t) { return loss(); }, options_);
  }
  nn::StepOptions& options() override { return options_; }
  std::int64_t parameters() const override { return model_->parameter_count(); }
  optim::Optimizer& optimizer() { return *optimizer_; }
  std::vector<Tensor> tensors() const {
    std::vector<Tensor> list;
    for (const auto& p : model_->parameters()) list.push_back(p.tensor);
    for (const auto& b : model_->buffers()) list.push_back(b.tensor);
    for (const auto& s : optimizer_->state()) list.push_back(s.tensor);
    return list;
  }
  Bytes state() const {
    Bytes all;
    for (const Tensor& t : tensors()) {
      const memory::Pin pin(t);
      const auto* const first = static_cast<const std::byte*>(pin.data());
      all.emplace_back(first, first + t.bytes());
    }
    const std::int64_t counts[] = {optimizer_->step_count(), static_cast<std::int64_t>(generator_.step())};
    const auto* const first = reinterpret_cast<const std::byte*>(counts);
    all.emplace_back(first, first + sizeof counts);
    return all;
  }
  void restore(const Bytes& state) {
    const std::vector<Tensor> list = tensors();
    for (std::size_t i = 0; i < list.size(); ++i) {
      std::memcpy(memory::WritePin(list[i]).data(), state[i].data(), state[i].size());
    }
    std::int64_t counts[2];
    std::memcpy(counts, state.back().data(), sizeof counts);
    optimizer_->set_step_count(counts[0]);
    generator_.set_step(static_cast<std::uint64_t>(counts[1]));
  }
  bool has_gradient() const {
    const auto list = model_->parameters();
    return std::any_of(list.begin(), list.end(), [](const auto& p) { return p.tensor.grad().defined(); });
  }

 private:
  bool is(const char* name) const { return std::string(form_.model) == name; }
  Tensor loss() {
    if (!form_.recomputes || is("char-gpt")) return model_->loss(batch_);
    return checkpoint([this](const Tensor& x) { return model_->loss({x, batch_.target}); }, batch_.input);
  }

  Form form_;
  RandomGenerator generator_;
  GeneratorScope scope_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  models::Batch batch_;
  nn::StepOptions options_;
};

std::size_t gradient_peak(const std::vector<memory::Trace::Event>& events) {
  std::size_t most = 0;
  for (const memory::CategoryBytes& bytes : timeline(events)) {
    most = std::max(most, static_cast<std::size_t>(bytes[static_cast<std::size_t>(memory::Category::gradient)]));
  }
  return most;
}

nn::MakeRun run_of(const Form& form) {
  return [form](memory::Device device) { return std::make_unique<FusedRun>(form, device); };
}

}  // namespace

TEST_CASE("fused update: the same bits", "[fused]") {
  for (const char* model : {"mlp", "char-gpt", "resnet18"}) {
    for (const char* optimizer : {"sgd", "momentum", "adam", "adamw"}) {
      for (const bool recomputes : {false, true}) {
        for (const models::Head head : {models::Head::full, models::Head::chunked}) {
          if (head == models::Head::chunked && std::string(model) != "char-gpt") continue;
          INFO(model << ", " << optimizer << (recomputes ? ", recomputed" : ""));
          const auto train = [&](FusedUpdate fuses) {
            FusedRun run({model, optimizer, fuses, recomputes, head}, cpu);
            std::vector<double> losses;
            for (int i = 0; i < 3; ++i) losses.push_back(item(run.one_step()));
            CHECK_FALSE(run.has_gradient());
            return std::pair(losses, run.state());
          };
          const auto plain = train(FusedUpdate::off);
          CHECK(train(FusedUpdate::unsecured) == plain);
          CHECK(plain.first.front() != plain.first.back());
        }
      }
    }
  }
}

TEST_CASE("fused update: gradients are there one layer at a time", "[fused]") {
  std::size_t all = 0, largest = 0;
  {
    const FusedRun run({"mlp", "sgd"}, dry(cpu));
    std::size_t layer = 0;  // a weight and its bias, one node
    for (const Tensor& t : run.tensors()) {
      all += t.bytes();
      layer = t.rank() == 2 ? t.bytes() : layer + t.bytes();
      largest = std::max(largest, layer);
    }
  }
  for (const char* model : {"mlp", "char-gpt", "resnet18"}) {
    INFO(model);
    const auto profile = [&](FusedUpdate fuses, memory::Device device) {
      return nn::profile_training(device, run_of({model, "momentum", fuses}), 2, true);
    };
    const nn::MemoryProfile plain = profile(FusedUpdate::off, cpu), fused = profile(FusedUpdate::unsecured, cpu);
    const nn::MemoryProfile predicted = profile(FusedUpdate::secured, dry(cpu));
    CHECK(predicted.events == fused.events);
    CHECK(predicted.peak_bytes == fused.peak_bytes);
    CHECK(predicted.peak_height_bytes == fused.peak_height_bytes);
    CHECK(gradient_peak(fused.events) < gradient_peak(plain.events));
    CHECK(gradient_peak(plain.events) == static_cast<std::size_t>(plain.parameters) * 4);
    if (std::string(model) != "mlp") continue;
    CHECK(gradient_peak(plain.events) == all);
    CHECK(gradient_peak(fused.events) == largest);
  }
}

TEST_CASE("fused update: refusals", "[fused]") {
  FusedRun run({"mlp", "sgd"}, cpu);
  const Bytes before = run.state();
  const auto why = [&](const nn::StepOptions& options) -> std::string {
    run.options() = options;
    try {
      run.step();
    } catch (const PlanError& error) {
      CHECK(run.state() == before);
      return error.what();
    }
    return "";
  };
  const auto names = [](const std::string& text, const char* what) { return text.find(what) != std::string::npos; };
  CHECK(names(why({.clip_norm = 1, .fuses_optimizer = FusedUpdate::unsecured}), "clip_norm"));
  CHECK(names(why({.micro_batches = 2, .micro_samples = 4, .fuses_optimizer = FusedUpdate::unsecured}),
              "2 micro-batches"));
  CHECK(names(why({.fuses_optimizer = FusedUpdate::secured}), "without a replayed placed step"));
  const optim::Named& first = run.optimizer().parameters().front();
  first.tensor.grad() = zeros(first.tensor.shape());
  CHECK(names(why({.fuses_optimizer = FusedUpdate::unsecured}), first.name.c_str()));
  first.tensor.grad() = Tensor();
  CHECK(why({.fuses_optimizer = FusedUpdate::unsecured}).empty());
  CHECK_FALSE(run.state() == before);
  CHECK_THROWS_AS(run.optimizer().step_one(1000), ValueError);
}

TEST_CASE("fused update: bytes of a parameter that are still to be read", "[fused]") {
  // x w d(w) with a constant that shares w's bytes, which backward reads after w's gradient is complete.
  const auto train = [&](FusedUpdate fuses) {
    Tensor w = full({4}, 3), v = full({4}, 2);
    w.require_grad(), v.require_grad();
    optim::Sgd sgd({{"w", w}, {"v", v}}, {.rate = 0.5});
    nn::training_step(sgd, [&](std::int64_t) { return sum(mul(mul(v, w.detach()), w)); }, {.fuses_optimizer = fuses});
    return std::pair(to_host<float>(w), to_host<float>(v));
  };
  CHECK(train(FusedUpdate::unsecured) == train(FusedUpdate::off));
}

TEST_CASE("fused update: out of memory anywhere", "[fused][failure]") {
  for (const Form& form : {Form{"mlp", "momentum"}, Form{"char-gpt", "adamw", FusedUpdate::unsecured, true},
                           Form{"resnet18", "momentum"}}) {
    INFO(form.model);
    SECTION(std::string("unsecured: a typed error, or no trace, ") + form.model) {
      const memory::Stack stack = memory::make_resource(cpu);
      const auto fail = std::make_shared<memory::FailAt>(stack.top, 0);
      const ResourceScope scope(fail);
      FusedRun run(form, cpu);
      const Bytes before = run.state();
      const std::size_t bytes = stack.ledger->bytes();
      fail->arm(0);
      run.step();
      const std::uint64_t requests = fail->request_count();
      const Bytes after = run.state();
      std::size_t clean = 0, partial = 0;
      for (std::uint64_t k = 1; k <= requests; ++k) {
        run.restore(before);
        fail->arm(k);
        try {
          run.step();
        } catch (const OutOfMemory&) {
          clean += run.state() == before;
        } catch (const nn::PartialUpdateError& error) {
          CHECK_THROWS_AS(std::rethrow_if_nested(error), OutOfMemory);
          partial += run.state() != before && error.updated() > 0 && error.updated() < error.parameters();
        }
        const bool is_tidy = stack.ledger->bytes() == bytes && !run.has_gradient() && context().transaction == nullptr;
        if (!is_tidy) FAIL("request " << k << " left something behind");
      }
      CHECK(clean + partial == requests);
      CHECK(clean > 0);
      CHECK(partial > 0);
      run.restore(before);
      run.step();
      CHECK(run.state() == after);
    }
    SECTION(std::string("placed: no trace, ") + form.model) {
      Form secured = form;
      secured.fuses = FusedUpdate::secured;
      const memory::Stack stack = memory::make_resource(cpu);
      const auto fail = std::make_shared<memory::FailAt>(stack.top, 0);
      const auto placed = std::make_shared<memory::PlacedArena>(fail, nn::plan_steps(cpu, run_of(secured)));
      const ResourceScope scope(placed);
      FusedRun run(secured, cpu);
      const Bytes before = run.state();
      const auto step = [&](std::size_t plan) {
        placed->begin_step(plan);
        struct End {
          memory::PlacedArena& placed;
          ~End() { placed.end_step(); }
        } end{*placed};
        run.step();
      };
      fail->arm(0);
      step(1);
      const std::uint64_t requests = fail->request_count();
      const Bytes after = run.state();
      CHECK(requests > 0);
      CHECK(requests < 10);  // the region, and blocks that outlive the step
      std::size_t clean = 0;
      for (std::uint64_t k = 1; k <= requests; ++k) {
        run.restore(before);
        placed->release_region();
        fail->arm(k);
        try {
          step(1);
        } catch (const OutOfMemory&) {
          clean += run.state() == before;
        }
      }
      CHECK(clean == requests);
      run.restore(before);
      step(1);
      CHECK(run.state() == after);
      CHECK(placed->statistics().dynamic_steps == 0);
      // A step that deviates from its plan before the first update makes its updates at the end, with equal bits.
      run.restore(before);
      placed->begin_step(1);
      { const Tensor foreign = Tensor::empty({12345}); }
      CHECK_FALSE(placed->is_replaying());
      CHECK_THROWS_AS(run.step(), PlanError);
      placed->end_step();
      CHECK(run.state() == before);
    }
  }
}

TEST_CASE("fused update: where the first update fails there was none", "[fused]") {
  for (const std::uint64_t call : {5, 6}) {  // the reads of the state, which the first four calls have written
    const Tensor p = full({8}, 1).require_grad();
    const auto tier = std::make_shared<store_test::MemoryTier>(cpu, call);
    optim::Adam optimizer({{"p", p}}, {.rate = 0.5, .tier = tier});
    CHECK(tier->calls() == 4);
    nn::StepOptions options;
    options.fuses_optimizer = FusedUpdate::unsecured;
    const auto step = [&] {
      nn::training_step(
          optimizer, [&](std::int64_t) { return sum(p); }, options);
    };
    CHECK_THROWS_AS(step(), FileError);
    CHECK(optimizer.step_count() == 0);
    CHECK(to_host<float>(p)[0] == 1);
    step();
    CHECK(optimizer.step_count() == 1);
    CHECK(to_host<float>(p)[0] == Approx(0.5));
  }
}
