// Captured steps of a user's program (TrainerOptions::captures_steps): bits and predicted bytes match uncaptured steps.

#include <string>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/optim/schedule.h>

#include "nn/own_program.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace own_program;
using files_test::contains;
using files_test::TemporaryFolder;

namespace {

Sizes small_sizes() {
  Sizes sizes;
  sizes.width = 12, sizes.depth = 2;
  sizes.samples = [](std::int64_t) { return std::int64_t{6}; };
  return sizes;
}

Program cut_program() {
  Program own = program(small_sizes());
  own.micro_batch = [](const Batch& batch, std::int64_t index, std::int64_t count) {
    const std::int64_t n = batch.x.size(0), begin = n * index / count, end = n * (index + 1) / count;
    return Batch{slice(batch.x, 0, begin, end), slice(batch.y, 0, begin, end)};
  };
  return own;
}

nn::TrainerOptions options_of(bool captures) {
  nn::TrainerOptions options;
  options.device = cuda();
  options.hardware = "h100-80gb";
  options.seed = 5;
  options.steps = 7, options.evaluate_every = 4;  // the capture is dropped in between
  options.rate = [](std::int64_t step) { return 1e-3 / static_cast<double>(step + 2); };
  options.captures_steps = captures;
  return options;
}

struct Result {
  std::vector<double> losses;
  std::vector<std::vector<float>> parameters;
  friend bool operator==(const Result&, const Result&) = default;
};

Result trained(const nn::TrainerOptions& options) {
  nn::Trainer<Net, Batch> trainer(cut_program(), options);
  Result result;
  const nn::RunReport report = trainer.run([&](const nn::Progress& p) {
    result.losses.push_back(p.loss);
    if (p.evaluation) result.losses.push_back(p.evaluation->loss);
  });
  CHECK(report.end == nn::TrainEnd::complete);
  CHECK(trainer.peak_bytes() == trainer.plan().peak_bytes);
  if (options.captures_steps) CHECK(trainer.placed().deviations + trainer.placed().dynamic_steps == 0);
  for (const nn::NamedTensor& p : trainer.model().parameters()) {
    result.parameters.push_back(to_host<float>(p.tensor.detach()));
  }
  return result;
}

}  // namespace

TEST_CASE("trainer: captured steps of an own program have the bits of others, in the bytes of their plan",
          "[cuda][graph][trainer]") {
  if (!testing::has_cuda()) return;
  struct Case {
    std::string name;
    std::function<void(nn::TrainerOptions&)> change = [](nn::TrainerOptions&) {};
  };
  const std::vector<Case> cases{
      {"plain"},
      {"clipped", [](nn::TrainerOptions& o) { o.step.clip_norm = 0.3; }},
      {"three micro-batches", [](nn::TrainerOptions& o) { o.step.micro_batches = 3; }},
      {"fused", [](nn::TrainerOptions& o) { o.step.fuses_optimizer = nn::FusedUpdate::secured; }},
      {"scaled", [](nn::TrainerOptions& o) { o.loss_scale = optim::GradScalerOptions{.is_dynamic = true}; }},
      {"in a budget", [](nn::TrainerOptions& o) { o.budget_bytes = std::size_t{2} << 30; }},
  };
  for (const Case& one : cases) {
    INFO(one.name);
    nn::TrainerOptions plain = options_of(false), captured = options_of(true);
    one.change(plain), one.change(captured);
    const Result expected = trained(plain);
    REQUIRE(expected.losses.size() == 9);
    CHECK((trained(captured) == expected));
  }
}

TEST_CASE("trainer: a run with captured steps resumes with its bits", "[cuda][graph][trainer]") {
  if (!testing::has_cuda()) return;
  const TemporaryFolder folder;
  nn::TrainerOptions options = options_of(true);
  const Result whole = trained(options);
  options.steps = 4, options.save = folder / "run";
  trained(options);
  options.steps = 7, options.resume = folder / "run";
  CHECK((trained(options).parameters == whole.parameters));
}

TEST_CASE("trainer: captured steps refuse batches that differ in more than values", "[cuda][graph][trainer]") {
  if (!testing::has_cuda()) return;
  Sizes sizes = small_sizes();
  sizes.samples = [](std::int64_t step) { return step < 4 ? std::int64_t{6} : std::int64_t{5}; };
  nn::Trainer<Net, Batch> trainer(program(sizes), options_of(true));
  for (int step = 0; step < 4; ++step) trainer.step();
  CHECK_THROWS_WITH(trainer.step(), Catch::Contains("options.captures_steps") && Catch::Contains("(5, 12)"));
}

TEST_CASE("trainer: what captured steps do not go with is refused by name", "[trainer]") {
  const auto refusal = [](Program own, const std::function<void(nn::TrainerOptions&)>& change) -> std::string {
    nn::TrainerOptions options = options_of(true);
    change(options);
    try {
      nn::Trainer<Net, Batch>(std::move(own), options);
    } catch (const ValueError& error) {
      return error.what();
    }
    return {};
  };
  const Program own = program(small_sizes());
  Program with_average = own;
  with_average.after_update = [](Net&) {};
  const std::string begin = "options.captures_steps: ";
  CHECK(contains(refusal(own, [](nn::TrainerOptions& o) { o.device = cpu; }), begin + "steps on the cpu"));
  CHECK(contains(refusal(with_average, [](nn::TrainerOptions&) {}), begin + "expected no after_update"));
  CHECK(contains(refusal(own, [](nn::TrainerOptions& o) { o.step.on_gradients = [](const auto&) {}; }),
                 begin + "expected no step.on_gradients"));
  CHECK(
      contains(refusal(own, [](nn::TrainerOptions& o) { o.offload.optimizer = true; }), begin + "expected no offload"));
}

TEST_CASE("trainer: a captured batch takes tensors of the same shapes and values", "[trainer]") {
  std::vector<Tensor> own{zeros({2})}, next{full({2}, 3)};
  nn::BatchOutline to{.shapes = "f32 (2)", .values = "1"}, from{.shapes = "f32 (2)", .values = "1"};
  to.tensors = &own, from.tensors = &next;
  nn::copy_batch(to, from);
  CHECK(to_host<float>(own[0]) == std::vector<float>{3, 3});
  from.values = "2";
  CHECK_THROWS_WITH(nn::copy_batch(to, from),
                    Catch::Contains("expected batches with f32 (2); 1, got one with f32 (2); 2"));
}
