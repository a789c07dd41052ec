// Training under policies of narrow parameters with narrow and factored state: bytes against theory and the dry run,
// updates in backward, steps that are skipped.

#include <memory>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/theory.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/precision/precision.h>
#include <thimble/optim/adafactor.h>

#include "support/catch.h"
#include "support/model_runs.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

const char* const policies[] = {"O2", "bf16", "bf16-stochastic", "bf16-kahan", "fp8"};
const char* const optimizers[] = {"adam8", "adamw8", "momentum8", "adafactor", "adamw", "momentum"};

/// A GPT with matrices above and below the limit of narrow state. With adamw and momentum the state is bf16.
models::Setup setup_of(const char* policy, const std::string& optimizer) {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.sizes.layers = 1, setup.sizes.heads = 2, setup.sizes.width = 32, setup.sizes.sequence = 12;
  setup.sizes.vocabulary = 40;
  setup.batch = 4;
  setup.optimizer = optimizer;
  if (optimizer == "adamw" || optimizer == "momentum") setup.state = DType::bf16;
  models::set_precision(setup, policy);
  return setup;
}

/// Bytes of the optimizer's state by theory.
std::int64_t theory_of(const models::Setup& setup) {
  const models::Theory theory = models::make_theory(setup.model, setup.sizes, nn::precision(setup.precision));
  if (setup.optimizer == "adafactor") return theory.factored_state().optimizer;
  const std::int64_t moments = setup.optimizer.starts_with("adam") ? 2 : 1;
  const optim::MomentFormat format{.dtype = models::optimizer_state(setup, true)};
  return theory.state(moments, format).optimizer;
}

/// A model in training.
struct Net {
  explicit Net(const models::Setup& setup)
      : generator(5),
        random(generator),
        model(models::make_model(setup.model, setup.sizes, models::tensor_options(setup, cpu))),
        optimizer(models::make_optimizer(setup, *model)),
        batch(make_batch(*model, setup.batch)),
        options(models::step_options(setup, true, cpu)) {}

  void step(double kick = 1) {
    nn::training_step(
        *optimizer,
        [&](std::int64_t i) { return mul(model->loss(models::micro_batch(batch, i, options.micro_batches)), kick); },
        options);
  }
  std::vector<std::vector<double>> all() const {
    std::vector<std::vector<double>> list;
    for (const auto& p : model->parameters()) list.push_back(to_host<double>(p.tensor));
    for (const auto& s : optimizer->state()) list.push_back(to_host<double>(s.tensor));
    list.push_back({static_cast<double>(optimizer->step_count())});
    return list;
  }

  RandomGenerator generator;
  GeneratorScope random;
  std::unique_ptr<models::Model> model;
  std::unique_ptr<optim::Optimizer> optimizer;
  models::Batch batch;
  nn::StepOptions options;
};

}  // namespace

TEST_CASE("narrow state under a policy: theory == predicted == measured", "[precision][optim8][theory]") {
  const Threads alone;
  for (const char* const policy : policies) {
    for (const char* const optimizer : optimizers) {
      INFO(policy << ", " << optimizer);
      models::Setup setup = setup_of(policy, optimizer);
      {
        const memory::Stack stack = memory::make_resource(cpu);
        const ResourceScope scope(stack.top);
        const Net net(setup);
        CHECK(static_cast<std::int64_t>(net.optimizer->state_bytes()) == theory_of(setup));
        CHECK(stack.ledger->bytes(Category::optimizer) == net.optimizer->state_bytes());
      }
      for (const int micro_batches : {1, 2}) {
        setup.micro_batches = micro_batches;
        const nn::MakeRun make = models::zero_batch_run(setup);
        const nn::MemoryProfile predicted = nn::profile_training(dry(cpu), make, 2, true);
        const nn::MemoryProfile measured = nn::profile_training(cpu, make, 2, true);
        CHECK(predicted.peak_bytes == measured.peak_bytes);
        CHECK(predicted.peak_live_bytes == measured.peak_live_bytes);
        CHECK(predicted.peak_by_category == measured.peak_by_category);
      }
    }
  }
}

TEST_CASE("narrow state under a policy: updates in backward have the bits of updates after it", "[precision][optim8]") {
  const Threads alone;
  for (const char* const policy : {"bf16", "bf16-stochastic", "bf16-kahan"}) {
    for (const char* const optimizer : optimizers) {
      INFO(policy << ", " << optimizer);
      models::Setup setup = setup_of(policy, optimizer);
      setup.clip_norm = 0;
      Net after(setup);
      for (int i = 0; i < 3; ++i) after.step();
      setup.fuses_optimizer = true;
      Net fused(setup);
      const auto before = fused.all();
      for (int i = 0; i < 3; ++i) fused.step();
      CHECK(fused.all() == after.all());
      CHECK(fused.all() != before);
    }
  }
}

TEST_CASE("narrow state under a policy: a skipped step changes nothing", "[precision][optim8][scaler]") {
  const Threads alone;
  for (const char* const optimizer : optimizers) {
    INFO(optimizer);
    const models::Setup setup = setup_of("O2", optimizer);
    Net net(setup);
    const std::unique_ptr<optim::GradScaler> scaler = models::make_scaler(setup);
    net.options.scaler = scaler.get();
    net.step();
    const auto before = net.all();
    net.step(1e30);
    CHECK(scaler->state().skipped_steps == 1);
    CHECK(net.all() == before);
    net.step();
    CHECK(net.all() != before);
  }
}

TEST_CASE("theory: Adafactor's state against the optimizer", "[theory][optim8]") {
  const std::vector<Shape> shapes{{5, 7}, {9}, {3, 4, 6}, {1, 8}, {8, 1}, {}};
  std::vector<optim::Named> list;
  models::Theory theory;
  for (const Shape& shape : shapes) {
    theory.weight(shape);
    Tensor t = Tensor::empty(shape, DType::f32, dry(cpu));
    list.push_back({"p" + std::to_string(list.size()), t.require_grad()});
  }
  const auto bytes = static_cast<std::int64_t>(optim::Adafactor(list, {}).state_bytes());
  CHECK(theory.factored_state().optimizer == bytes);
  CHECK(bytes == 4 * (5 + 7 + 9 + 12 + 6 + 8 + 8 + 1));
}
