// `thimble train --cuda-graph`: captured steps match the others bit for bit. On a GPU if there is one; builds without
// CUDA use the host's emulation, which keeps recorded launches and runs them again.

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/operator_table.h"
#include "support/program.h"
#include "support/trained.h"

using namespace thimble;
using files_test::contains;
using files_test::read_text_file;
using files_test::TemporaryFolder;
using models::RunOptions;
using thimble::testing::has_cuda;
using trained_test::refusal;
using trained_test::run;
using trained_test::Run;

namespace graph_training_test {

RunOptions tiny(const char* model) {
  RunOptions options;
  options.setup.model = model, options.setup.batch = 2, options.data = "synthetic", options.steps = 6;
  options.eval_batches = 1, options.schedule = "cosine", options.warmup = 2, options.device = cuda();
  const bool is_text = options.setup.model == "char-gpt" || options.setup.model == "bert-base";
  if (is_text) {
    options.setup.sizes.layers = 1, options.setup.sizes.heads = 2, options.setup.sizes.width = 16;
    options.setup.sizes.sequence = 12, options.setup.sizes.dropout = 0.1;
  } else {
    options.setup.sizes.image = 8, options.setup.sizes.width = 4;
  }
  return options;
}

/// Trains with and without the flag and compares everything a run leaves: losses, evaluations, and the checkpoint with
/// parameters, statistics, optimizer state and counters.
Run check_same(RunOptions options) {
  const TemporaryFolder folder;
  options.save = folder / "plain";
  options.captures_steps = false;
  const Run plain = run(options);
  options.captures_steps = true;
  options.save = folder / "recorded";
  const Run recorded = run(options);
  CHECK(recorded.losses == plain.losses);
  CHECK(recorded.report.evaluation->loss == plain.report.evaluation->loss);
  CHECK(read_text_file(folder / "recorded") == read_text_file(folder / "plain"));
  CHECK(recorded.report.predicted_peak_bytes == recorded.report.measured_peak_bytes);
  CHECK(recorded.report.captured_launches > 0);
  CHECK(plain.report.captured_launches == 0);
  CHECK((recorded.report.scaler == plain.report.scaler));
  return recorded;
}

/// The values logged under a tag, in order. After the tag come the byte 0x15 and the value as f32.
std::vector<float> logged(const std::string& folder, const std::string& tag) {
  std::vector<float> values;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string bytes = read_text_file(entry.path().string());
    for (std::size_t at = bytes.find(tag); at != std::string::npos; at = bytes.find(tag, at + 1)) {
      const std::size_t value = at + tag.size();
      REQUIRE(bytes.at(value) == 0x15);
      values.emplace_back();
      std::memcpy(&values.back(), bytes.data() + value + 1, sizeof(float));
    }
  }
  return values;
}

}  // namespace graph_training_test

using namespace graph_training_test;

TEST_CASE("graph training: the bits of steps that are not recorded", "[cuda][graph]") {
  if (!has_cuda()) return;
  struct Case {
    const char *what, *model;
    std::function<void(RunOptions&)> change = [](RunOptions&) {};
  };
  const std::vector<Case> cases = {
      {"clipped, with dropout, evaluated in between", "char-gpt", [](RunOptions& o) { o.eval_every = 4; }},
      {"hidden tokens, micro-batches, a sample", "bert-base", [](RunOptions& o) { o.setup.micro_batches = 2; }},
      {"fused updates in bf16, then a sample", "char-gpt",
       [](RunOptions& o) {
         o.setup.fuses_optimizer = true, o.sample = 3;
         models::set_precision(o.setup, "bf16-stochastic");
       }},
      {"a dynamic loss scale, clipped", "char-gpt", [](RunOptions& o) { models::set_precision(o.setup, "O2"); }},
      {"batch norm's statistics", "resnet18", [](RunOptions& o) { o.eval_every = 3; }},
  };
  for (const Case& c : cases) {
    INFO(c.model << ": " << c.what);
    RunOptions options = tiny(c.model);
    c.change(options);
    check_same(options);
  }
}

TEST_CASE("graph training: within a budget", "[cuda][graph]") {
  if (!has_cuda()) return;
  RunOptions options = tiny("char-gpt");
  options.setup.sizes.layers = 4, options.setup.sizes.width = 64, options.setup.sizes.sequence = 64;
  options.setup.batch = 6, options.steps = 4;
  options.captures_steps = true;
  const Run free = run(options);
  CHECK(free.report.predicted_peak_bytes == free.report.measured_peak_bytes);
  // The refusal names the smallest budget, which then gives the same losses.
  options.budget_bytes = std::size_t{1} << 20;
  std::size_t least = 0;
  try {
    models::Engine(options).plan();
  } catch (const nn::BudgetError& error) {
    least = error.minimum_bytes();
    CHECK_FALSE(contains(error.what(), "`offload`"));  // a captured step refuses it
  }
  REQUIRE(least > 0);
  CHECK(least < free.report.measured_peak_bytes);
  options.budget_bytes = least;
  const Run planned = run(options);
  CHECK(planned.losses == free.losses);
  CHECK(planned.report.captured_launches > free.report.captured_launches);  // recomputes add launches
  CHECK(planned.report.predicted_peak_bytes == planned.report.measured_peak_bytes);
  CHECK(planned.report.measured_peak_bytes <= least);
}

TEST_CASE("graph training: a budget that the step keeps and its recording does not", "[cuda][graph]") {
  if (!has_cuda()) return;
  RunOptions options = tiny("char-gpt");
  options.setup.sizes.layers = 8, options.setup.sizes.width = 32, options.setup.sizes.sequence = 64;
  options.setup.batch = 3, options.setup.sizes.dropout = 0;
  options.budget_bytes = std::size_t{4} << 20;
  CHECK(models::Engine(options).plan().peak_bytes <= options.budget_bytes);
  options.captures_steps = true;  // finds another plan, or none, but never one that does not fit
  std::size_t bytes = 0;
  try {
    models::Engine engine(options);
    CHECK(engine.plan().peak_bytes <= options.budget_bytes);
    bytes = engine.plan().peak_bytes;
  } catch (const nn::BudgetError& error) {
    CHECK(error.minimum_bytes() > options.budget_bytes);
    CHECK(contains(error.what(), "`captures_steps`: no plan of a captured step needs as little as 4"));
    bytes = options.budget_bytes = error.minimum_bytes();
    CHECK(models::Engine(options).plan().peak_bytes == bytes);
  }
  CHECK(bytes > 0);
}

TEST_CASE("graph training: a run that goes on, and one that is over before there is a recording", "[cuda][graph]") {
  if (!has_cuda()) return;
  const TemporaryFolder folder;
  RunOptions options = tiny("char-gpt");
  options.save = folder / "half", options.save_every = 2;
  options.warmup = 0, options.schedule = "constant";
  const Run whole = run(options);  // not captured
  options.captures_steps = true;
  options.steps = 2;
  const Run half = run(options);
  CHECK(half.report.captured_launches == 0);
  options.steps = 6;
  options.resume = options.save;
  options.save.clear(), options.save_every = 0;
  const Run rest = run(options);
  CHECK(rest.report.captured_launches > 0);
  CHECK(half.losses == std::vector<double>(whole.losses.begin(), whole.losses.begin() + 2));
  CHECK(rest.losses == std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
  CHECK(rest.report.evaluation->loss == whole.report.evaluation->loss);
}

TEST_CASE("graph training: the log has the bytes of the step that is replayed", "[cuda][graph]") {
  if (!has_cuda()) return;
  const TemporaryFolder folder;
  RunOptions options = tiny("char-gpt");
  options.captures_steps = true;
  options.log = folder / "log";
  run(options);
  const std::vector<float> bytes = logged(options.log, "bytes/activation");
  REQUIRE(bytes.size() == 6);
  CHECK(bytes[1] > 0);
  CHECK(std::vector<float>(bytes.begin() + 1, bytes.end()) == std::vector<float>(5, bytes[1]));
}

TEST_CASE("graph training: what a recording cannot carry is refused before the first step", "[graph]") {
  RunOptions here = tiny("char-gpt");
  here.captures_steps = true;
  here.device = cpu;
  CHECK(contains(refusal(here), "`captures_steps`: the cpu records no steps; expected `device` cuda"));
  const auto refused = [](const std::function<void(models::Setup&)>& change) {
    models::Setup there = tiny("char-gpt").setup;
    change(there);
    try {
      models::refuse_uncaptured(there, "`captures_steps`");
    } catch (const ValueError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refused([](models::Setup&) {}).empty());
  CHECK(contains(refused([](models::Setup& s) { s.offload.to = "x"; }), "not with `offload` x, "));
  CHECK(contains(refused([](models::Setup& s) { s.offload.to = "x", s.offload.optimizer = true; }),
                 "not with `offloads_optimizer`"));
  CHECK(contains(refused([](models::Setup& s) { s.offload.to = "x", s.offload.gradients = true; }),
                 "not with `offloads_gradients`"));
  CHECK(refused([](models::Setup& s) { models::set_precision(s, "O2"); }).empty());
  const TemporaryFolder folder;
  if (const auto output = program_test::run(folder, "train mlp --data synthetic --steps 3 --cuda-graph")) {
    CHECK(output->status == 2);
    CHECK(output->out.empty());
    CHECK(output->error == "thimble: --cuda-graph: the cpu records no steps; expected --device cuda\n");
  }
}

TEST_CASE("graph training: a batch is loaded into the tensors that stay", "[cuda][graph]") {
  const Tensor from = from_host(std::vector<float>{1, 2, 3}, {3});
  CHECK_THROWS_AS(nn::load_input(Tensor::empty({3}, DType::f32), from), DeviceError);
  const Tensor dry_one = Tensor::empty({3}, DType::f32, dry(cuda()));
  nn::load_input(dry_one, from);
  CHECK_THROWS_AS(nn::load_input(Tensor::empty({2}, DType::f32, dry(cuda())), from), ShapeError);
  CHECK_THROWS_AS(nn::load_input(Tensor::empty({3}, DType::f64, dry(cuda())), from), DTypeError);
  if (!has_cuda()) return;
  const Tensor to = zeros({3}, DType::f32, cuda());
  nn::load_input(to, from);
  CHECK(to_host<float>(to) == std::vector<float>{1, 2, 3});
  CHECK_THROWS_AS(nn::load_input(to, Tensor::empty({3}, DType::f32, dry(cpu))), DeviceError);
}
