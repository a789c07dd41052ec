// The host does not wait for the GPU in a training step: it is done when everything is launched. On a GPU if there is
// one, otherwise on tests/emulated, which counts every call that would wait.

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>
#include <thimble/memory/summary.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/step/captured_step.h>

#include "support/catch.h"
#include "support/operator_table.h"
#include "support/tensor_bytes.h"
#include "support/trained.h"

using namespace thimble;
using thimble::testing::has_cuda;

namespace no_wait_test {

std::uint64_t waits() { return kernels::device_runtime(cuda()).synchronization_count(); }

models::Setup text_setup(const char* optimizer) {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.optimizer.name = optimizer;
  setup.sizes.layers = 2, setup.sizes.heads = 2, setup.sizes.width = 16, setup.sizes.sequence = 8;
  setup.sizes.vocabulary = 40, setup.sizes.dropout = 0.1;
  setup.optimizer.clip_norm = 1;
  setup.batch = 4;
  return setup;
}

models::Setup image_setup(const char* optimizer) {
  models::Setup setup;
  setup.model = "resnet18";
  setup.optimizer.name = optimizer;
  setup.sizes.image = 8, setup.sizes.width = 4, setup.sizes.classes = 5;
  setup.batch = 2;
  return setup;
}

}  // namespace no_wait_test

using namespace no_wait_test;

TEST_CASE("cuda: a training step does not wait for the device", "[cuda]") {
  if (!has_cuda()) return;
  struct Case {
    const char* name;
    models::Setup setup;
  };
  std::vector<Case> cases = {{"clipped, with dropout", text_setup("adamw")},
                             {"8-bit state", text_setup("adamw8")},
                             {"factored state", text_setup("adafactor")},
                             {"batch norm", image_setup("momentum")},
                             {"micro-batches", text_setup("sgd")},
                             {"updates in backward", text_setup("adamw")},
                             {"bf16, rounded stochastically", text_setup("adamw")}};
  cases[4].setup.micro_batches = 2;
  cases[5].setup.fuses_optimizer = true, cases[5].setup.optimizer.clip_norm = 0;
  models::set_precision(cases[6].setup, "bf16-stochastic");
  for (const Case& c : cases) {
    INFO(c.setup.model << ", " << c.setup.optimizer.name << ": " << c.name);
    const memory::Stack stack =
        memory::make_resource(cuda(), {.plans = nn::plan_steps(cuda(), models::zero_batch_run(c.setup))});
    const ResourceScope scope(stack.top);
    RandomGenerator generator(1);
    const GeneratorScope random(generator);
    const std::unique_ptr<models::Model> model =
        models::make_model(c.setup.model, c.setup.sizes, models::tensor_options(c.setup, cuda()));
    const std::unique_ptr<optim::Optimizer> optimizer = models::make_optimizer(c.setup, *model);
    const models::Batch batch = model->empty_batch(c.setup.batch, cuda());
    fill(batch.input, 1), fill(batch.target, 2);
    const nn::StepOptions options = models::step_options(c.setup, model->is_text(), cuda());
    const auto loss_of = [&](std::int64_t i) {
      return model->loss(models::micro_batch(batch, i, options.micro_batches));
    };
    const testing::Bytes input = testing::bytes_of(batch.input);  // waits, so that the staging is free
    const std::uint64_t before = waits();
    for (int step = 0; step < 2; ++step) {
      testing::put_bytes(batch.input, input.data());  // each upload fits into half of the staging
      const memory::PlacedArena::Step placed(*stack.placed);
      nn::training_step(*optimizer, loss_of, options);
    }
    CHECK(waits() == before);
    nn::CapturedStep recorded(*stack.placed, *optimizer, loss_of, options);
    for (int step = 0; step < 3; ++step) recorded.run();  // the third one is captured
    REQUIRE(recorded.is_captured());
    // A replay uploads its step's numbers, so the host may be two replays ahead of the device, and no more.
    kernels::device_runtime(cuda()).synchronize(cuda());
    const std::uint64_t ready = waits();
    recorded.run();
    const Tensor loss = recorded.run();
    CHECK(waits() == ready);
    item(loss);
    CHECK(waits() == ready + 1);  // reading a value waits, and is counted
  }
}

TEST_CASE("cuda: uploads wait where their staging is full, and nowhere else", "[cuda]") {
  if (!has_cuda()) return;
  // The staging has two halves of 4 MiB (cuda/runtime/runtime.cpp): a third part waits until the first is on the
  // device. A GPU may be done with it by then; the emulated device never is before a wait.
  constexpr std::size_t half = std::size_t{4} << 20;
  const kernels::DeviceRuntime& runtime = kernels::device_runtime(cuda());
  const Tensor there = Tensor::empty({5 * static_cast<std::int64_t>(half)}, DType::u8, cuda());
  testing::Bytes here(there.bytes());
  for (std::size_t i = 0; i < here.size(); ++i) here[i] = static_cast<std::byte>(i * 7 + i / 1000);
  struct Case {
    std::vector<std::size_t> uploads;
    std::uint64_t allowed;
  };
  const Case cases[] = {{{1000}, 0},           {{1000, half}, 0},    {{2 * half}, 0},  // the staging is 8 MiB
                        {{2 * half + 1}, 1},   {{5 * half}, 3},      {{1000, 1000, 1000}, 1},
                        {{half + 1, half}, 1}, {{1000, 3 * half}, 2}};
  for (const Case& c : cases) {
    runtime.synchronize(cuda());
    const std::uint64_t before = waits();
    launch(cuda(), [&](const Addresses& at) {
      for (const std::size_t bytes : c.uploads) runtime.upload(at(there), here.data(), bytes);
    });
    INFO(c.uploads.size() << " uploads, the first of " << c.uploads.front() << " bytes");
    CHECK(waits() - before <= c.allowed);
    if (testing::is_emulated()) CHECK(waits() - before == c.allowed);
  }
  testing::put_bytes(there, here.data());
  CHECK((testing::bytes_of(there) == here));
}

TEST_CASE("cuda: what the device says of its memory stands beside the arena's books", "[cuda]") {
  if (!has_cuda()) return;
  const memory::DeviceUse before = memory::device_use(cuda(), 0);
  const memory::Stack stack = memory::make_resource(cuda());
  constexpr std::size_t mib = std::size_t{1} << 20;
  const ResourceScope scope(stack.top);
  const Tensor t = Tensor::empty({12 << 20}, DType::u8, cuda());
  const std::size_t committed = stack.arena->statistics().committed_bytes;
  CHECK(committed == 12 * mib);
  const memory::DeviceUse now = memory::device_use(cuda(), committed);
  CHECK(now.total_bytes == before.total_bytes);
  CHECK(now.used_bytes >= before.used_bytes + committed);
  CHECK(now.used_bytes <= now.total_bytes);
  CHECK(now.outside_bytes == now.used_bytes - committed);
  CHECK(now.context_bytes > 0);
  CHECK(now.context_bytes == before.context_bytes);
  CHECK(now.handle_bytes + now.context_bytes <= now.outside_bytes);
  CHECK(std::abs(memory::unbooked_bytes(before, now, committed)) <=
        static_cast<std::int64_t>(32 * mib));  // page tables
  CHECK(memory::unbooked_bytes({.used_bytes = 10 * mib, .handle_bytes = mib},
                               {.used_bytes = 100 * mib, .handle_bytes = 31 * mib}, 55 * mib) == 5 * mib);
  CHECK(memory::unbooked_bytes({.used_bytes = 100 * mib}, {.used_bytes = 90 * mib}, 0) ==
        -10 * static_cast<std::int64_t>(mib));
  CHECK(memory::device_use(cuda(), now.total_bytes).outside_bytes == 0);  // other processes have freed memory since
  CHECK(memory::summary(cuda()).find("\n  device: used ") != std::string::npos);
  CHECK(memory::summary(cuda()).find("\n  handles of libraries: ") != std::string::npos);
  CHECK(memory::summary(cpu).find("device:") == std::string::npos);
  CHECK(memory::to_string(memory::DeviceUse{8192 * mib, 1024 * mib, 256 * mib, 320 * mib}) ==
        "used 1.00 GiB of 8.00 GiB, outside of arenas 320.00 MiB, before the first page 256.00 MiB");
}

TEST_CASE("cuda: a run reports what the device says at its end", "[cuda]") {
  if (!has_cuda()) return;
  models::RunOptions options;
  options.setup = text_setup("adamw");
  options.data = "synthetic";
  options.steps = 2;
  options.device = cuda();
  const models::TrainReport report = trained_test::run(options).report;
  REQUIRE(report.device_use.has_value());
  CHECK(report.device_use->used_bytes > report.device_use->context_bytes);
  CHECK(report.device_use->outside_bytes >= report.device_use->context_bytes);
  const auto figures = nn::device_figures(report);
  REQUIRE(figures.size() == 9);
  CHECK(figures[0] == std::pair<std::string, std::size_t>("device_total_bytes", report.device_use->total_bytes));
  CHECK(figures[1] == std::pair<std::string, std::size_t>("device_used_bytes", report.device_use->used_bytes));
  CHECK(figures[2] == std::pair<std::string, std::size_t>("device_outside_bytes", report.device_use->outside_bytes));
  CHECK(figures[3] == std::pair<std::string, std::size_t>("context_bytes", report.device_use->context_bytes));
  CHECK(figures[4] == std::pair<std::string, std::size_t>("handle_bytes", report.device_use->handle_bytes));
  REQUIRE(report.libraries.has_value());
  CHECK(figures[5] == std::pair<std::string, std::size_t>("cublaslt_calls", report.libraries->cublaslt.calls));
  CHECK(figures[6] == std::pair<std::string, std::size_t>("cublaslt_refusals", report.libraries->cublaslt.refusals));
  CHECK(figures[7] == std::pair<std::string, std::size_t>("cudnn_calls", report.libraries->cudnn.calls));
  CHECK(figures[8] == std::pair<std::string, std::size_t>("cudnn_refusals", report.libraries->cudnn.refusals));
  CHECK(figures[5].second + figures[6].second > 0);  // products
  options.device = cpu;
  CHECK(nn::device_figures(trained_test::run(options).report).empty());
}
