// `thimble plan` and `train` under precision policies: what they train in, resume and refuse.

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"
#include "support/trained.h"

namespace {

using namespace thimble;
using files_test::contains;
using files_test::TemporaryFolder;
using trained_test::refusal;
using trained_test::run;
using trained_test::Run;

models::TrainOptions tiny(const std::string& precision) {
  models::TrainOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 2;
  options.setup.sizes.layers = 2, options.setup.sizes.heads = 2, options.setup.sizes.width = 16;
  options.setup.sizes.sequence = 16;
  options.data = "synthetic";
  options.steps = 6;
  options.eval_batches = 2;
  if (!precision.empty()) models::set_precision(options.setup, precision);
  return options;
}

}  // namespace

TEST_CASE("program: every policy trains in the predicted bytes, and goes on from a checkpoint bit by bit",
          "[precision][program]") {
  struct Case {
    const nn::Precision* precision;
    const char* optimizer;
  };
  std::vector<Case> cases;
  for (const nn::Precision& precision : nn::precisions()) cases.push_back({&precision, "adamw"});
  for (const char* const name : {"O2", "bf16", "bf16-stochastic", "bf16-kahan"}) {
    for (const char* const optimizer : {"adamw8", "adafactor"}) cases.push_back({&nn::precision(name), optimizer});
  }
  for (const auto& [precision, optimizer] : cases) {
    INFO(precision->name << ", " << optimizer);
    const TemporaryFolder folder;
    const auto options = [&, name = std::string(precision->name), optimizer = optimizer] {
      models::TrainOptions made = tiny(name);
      made.setup.optimizer = optimizer;
      if (made.setup.optimizer == "adamw8") made.setup.sizes.width = 32;  // matrices that have state in 8 bits
      return made;
    };
    const models::TrainOptions whole = options();
    models::TrainOptions first = options(), second = options();
    const Run all = run(whole);
    CHECK(all.report.predicted_peak_bytes == all.report.measured_peak_bytes);
    CHECK(all.losses.back() < all.losses.front());
    CHECK(all.report.scaler.has_value() == precision->scales_loss);
    first.steps = 3;
    first.save = folder / "c";
    run(first);
    second.resume = first.save;
    const Run rest = run(second);
    CHECK(rest.losses == std::vector<double>(all.losses.begin() + 3, all.losses.end()));
    CHECK(rest.report.evaluation->loss == all.report.evaluation->loss);
    CHECK(rest.report.scaler == all.report.scaler);
    models::TrainOptions without = options();
    without.setup.precision.clear();
    without.setup.dtype = precision->parameters;
    without.resume = first.save;
    // One dtype for everything is the same by either name.
    CHECK(refusal(without).empty() == (precision->name == "O0" || precision->name == "O3"));
  }
}

TEST_CASE("program: --precision and --dtype", "[precision][program]") {
  const TemporaryFolder folder;
  const std::string plan = "plan char-gpt --layers 1 --width 16 --heads 2 --seq 8 --json ";
  const auto told = program_test::run(folder, plan + "--precision O2");
  if (!told) return;
  CHECK(told->status == 0);
  CHECK(nlohmann::json::parse(told->out).at("precision") == "O2");
  CHECK(program_test::run(folder, plan + "--precision O2 --dtype f16")->status == 0);
  CHECK(program_test::run(folder, plan + "--precision bf16 --optimizer adamw8")->status == 0);
  for (const char* fp8 : {"fp8", "fp8-current", "fp8-block"}) {
    const auto on_gpu = program_test::run(folder, plan + "--device cuda --precision " + fp8);
    CHECK(on_gpu->status == 0);
    CHECK(nlohmann::json::parse(on_gpu->out).at("fp8").at("layers").size() == 4);
  }
  struct Row {
    const char *flags, *error;
  };
  for (const Row& row : {Row{"--precision O2 --dtype bf16", "--dtype: bf16 contradicts --precision O2"},
                         {"--dtype f16 --precision bf16", "--dtype: f16 contradicts --precision bf16"},
                         {"--precision fp4", "--precision: expected one of O0, O1"},
                         {"--fp8-strict", "--fp8-strict: there is no FP8 without --precision; expected fp8"},
                         {"--precision bf16 --fp8-strict", "--fp8-strict: there is no FP8 under --precision bf16"},
                         {"--precision fp8 --dtype f32", "--dtype: f32 contradicts --precision fp8"},
                         {"--precision O1 --fuse-optimizer", "--fuse-optimizer: not with --precision O1"},
                         {"--precision O2 --offload /tmp --offload-gradients", "--offload-gradients: not with"},
                         {"--precision O3 --head chunked", "--head: chunked is not for --precision O3"}}) {
    INFO(row.flags);
    const auto refused = program_test::run(folder, plan + row.flags);
    CHECK(refused->status == 2);
    CHECK(contains(refused->error, row.error));
    CHECK(refused->out.empty());
  }
}

TEST_CASE("program: FP8 says what runs in it and what does not", "[precision][program][fp8]") {
  const TemporaryFolder folder;
  const auto gpt =
      program_test::run(folder, "plan char-gpt --layers 2 --width 32 --heads 2 --seq 8 --precision fp8 --json");
  if (!gpt) return;
  CHECK(gpt->status == 0);
  const nlohmann::json fp8 = nlohmann::json::parse(gpt->out).at("fp8");
  CHECK(fp8.at("layers").size() == 8);
  CHECK(fp8.at("fallbacks").empty());
  CHECK(fp8.at("higher_precision").front() == "gpt.wte");
  CHECK(fp8.at("products") == "of bf16 values, in which FP8 ones are exact");
  // Scales of blocks have units on some machines.
  const std::string block =
      "plan char-gpt --layers 1 --width 32 --heads 2 --seq 8 --precision fp8-block --device cuda ";
  for (const auto& [machine, products] : {std::pair("h200-141gb", "of codes: y and dx"),
                                          std::pair("a100-40gb", "of bf16 values: compute capability 8.0")}) {
    const auto planned = program_test::run(folder, block + "--hardware " + machine);
    CHECK(planned->status == 0);
    CHECK(contains(planned->out, std::string("  its products     ") + products));
  }
  const auto told = program_test::run(folder, "plan resnet18 --image 32 --batch 1 --precision fp8-block");
  CHECK(told->status == 0);
  CHECK(contains(told->out, "  in FP8           nothing\n"));
  CHECK(contains(told->out, "falls back       resnet.conv*, resnet.layer*.*.conv* (16), "));
  CHECK(contains(told->out, ": convolutions have no FP8 form\n"));
  const std::string train =
      "train mlp --data synthetic --steps 1 --batch 2 --image 8 --precision fp8 --eval-batches 1 ";
  const auto odd = program_test::run(folder, train + "--width 40");
  CHECK(odd->status == 0);
  CHECK(contains(odd->error, "falls back       mlp.fc*: 64 to 40 features, and both must be multiples of 16\n"));
  CHECK(program_test::run(folder, train + "--width 32")->error.find("falls back") == std::string::npos);
  const auto strict = program_test::run(folder, train + "--width 40 --fp8-strict");
  CHECK(strict->status == 2);
  CHECK(contains(strict->error, "fp8: mlp.fc1 would fall back to a higher precision"));
}
