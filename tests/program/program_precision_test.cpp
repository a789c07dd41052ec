// `thimble plan` and `train` under precision policies: dtypes, resumed runs and refusals.

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/files/safetensors.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/operator_table.h"
#include "support/program.h"
#include "support/trained.h"

namespace {

using namespace thimble;
using files_test::contains;
using files_test::TemporaryFolder;
using trained_test::refusal;
using trained_test::run;
using trained_test::Run;

models::RunOptions tiny(const std::string& precision) {
  models::RunOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 2;
  options.setup.sizes.layers = 2, options.setup.sizes.heads = 2, options.setup.sizes.width = 16;
  options.setup.sizes.sequence = 16, options.data = "synthetic", options.steps = 6, options.eval_batches = 2;
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
      models::RunOptions made = tiny(name);
      made.setup.optimizer.name = optimizer;
      if (made.setup.optimizer.name == "adamw8") made.setup.sizes.width = 32;  // matrices whose state is in 8 bits
      return made;
    };
    const models::RunOptions whole = options();
    models::RunOptions first = options(), second = options();
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
    models::RunOptions without = options();
    without.setup.precision.policy.clear();
    without.setup.precision.dtype = precision->parameters;
    without.resume = first.save;
    // A single dtype is the same run by either name.
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
  // Some machines multiply with scales of blocks in hardware.
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

// ---- The loss scale and the FP8 recipe of `thimble plan` and `train`: their effects, and which settings a run must
// share with the checkpoint it resumes.

namespace {

using files_test::contains;
using files_test::read_text_file;
using files_test::TemporaryFolder;
using trained_test::refusal;
using trained_test::run;
using trained_test::Run;

models::RunOptions with_dropout(const std::string& precision) {
  models::RunOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 2;
  options.setup.sizes.layers = 2, options.setup.sizes.heads = 2, options.setup.sizes.width = 16;
  options.setup.sizes.sequence = 16, options.setup.sizes.dropout = 0.1;
  options.data = "synthetic", options.steps = 12, options.eval_batches = 2;
  if (!precision.empty()) models::set_precision(options.setup, precision);
  return options;
}

/// Trains in one run and again from a checkpoint at `middle`: losses, rates and the final file are equal.
void check_resumes(models::RunOptions options, std::int64_t middle) {
  const TemporaryFolder folder;
  std::vector<double> rates, rest_rates;
  options.schedule = "cosine", options.warmup = 2;
  options.save = folder / "whole";
  const Run whole = run(options, [&](const nn::Progress& p) { rates.push_back(p.rate); });
  REQUIRE(whole.report.scaler.has_value());
  CHECK(whole.report.scaler->skipped_steps > 0);
  CHECK(whole.report.scaler->skipped_steps < middle);
  // The schedule depends on the total steps, so throwing in the step after the save cuts the run off.
  options.save = folder / "part", options.save_every = middle;
  models::Engine engine(options);
  CHECK_THROWS_WITH(engine.run([&](const nn::Progress& p) {
    if (p.step == middle + 1) throw ValueError("cut off");
  }),
                    "cut off");
  options.resume = options.save;
  options.save = folder / "rest", options.save_every = 0;
  const Run rest = run(options, [&](const nn::Progress& p) { rest_rates.push_back(p.rate); });
  CHECK(rest.report.first_step == middle);
  CHECK(rest.losses == std::vector<double>(whole.losses.begin() + middle, whole.losses.end()));
  CHECK(rest_rates == std::vector<double>(rates.begin() + middle, rates.end()));
  CHECK(rest.report.evaluation->loss == whole.report.evaluation->loss);
  CHECK(rest.report.scaler == whole.report.scaler);
  CHECK(whole.report.skipped_steps == whole.report.scaler->skipped_steps);
  CHECK(rest.report.skipped_steps == 0);  // all skips came before the middle
  CHECK(read_text_file(folder / "rest") == read_text_file(folder / "whole"));
}

}  // namespace

TEST_CASE("program: a run with skipped steps goes on where it stopped", "[precision][program]") {
  models::RunOptions options = with_dropout("O2");
  options.setup.precision.loss_scale = optim::GradScalerOptions{.scale = 0x1p24};  // too large at first
  check_resumes(options, 8);
  SECTION("a checkpoint that has done all steps, skipped ones among them, has none left") {
    const TemporaryFolder folder;
    options.steps = 8;
    options.save = folder / "all";
    run(options);
    options.resume = options.save;
    options.save.clear();
    CHECK(contains(refusal(options), "has done 8 steps; `steps` 8 must be more"));
  }
}

TEST_CASE("program: a recorded run with skipped steps goes on where it stopped", "[precision][cuda][graph]") {
  if (!thimble::testing::has_cuda()) return;
  models::RunOptions options = with_dropout("O2");
  options.device = cuda();
  options.captures_steps = true;
  options.setup.precision.loss_scale = optim::GradScalerOptions{.scale = 0x1p24};
  check_resumes(options, 8);
}

TEST_CASE("program: a static loss scale goes with a fused optimizer, recorded or not", "[precision][cuda][graph]") {
  std::vector<double> losses;  // without any of these
  for (const memory::Device device : {cpu, cuda()}) {
    if (device.is_cuda() && !thimble::testing::has_cuda()) continue;
    losses.clear();
    for (const bool fuses : {false, true}) {
      for (const bool records : {false, true}) {
        if (records && !device.is_cuda()) continue;
        INFO(to_string(device) << (fuses ? " fused" : "") << (records ? " recorded" : ""));
        models::RunOptions options = with_dropout("O2");
        options.device = device, options.steps = 5, options.setup.optimizer.clip_norm = 0;
        options.setup.precision.loss_scale = {.scale = 4096, .is_dynamic = false};
        options.setup.fuses_optimizer = fuses;
        options.captures_steps = records;
        const Run one = run(options);
        CHECK(one.report.predicted_peak_bytes == one.report.measured_peak_bytes);
        CHECK(one.report.scaler == optim::GradScalerState{4096, 0, 0});
        if (losses.empty()) losses = one.losses;
        CHECK(one.losses == losses);
      }
    }
  }
}

TEST_CASE("program: a run goes on with the recipe of its checkpoint alone", "[precision][program]") {
  struct Row {
    const char *precision, *message;
    void (*change)(models::Setup&);
  };
  const Row rows[] = {
      {"O2", "`loss_scale` 1024",
       [](models::Setup& s) { s.precision.loss_scale = {.scale = 1024, .is_dynamic = false}; }},
      {"O2", "`loss_scale_interval` 2", [](models::Setup& s) { s.precision.loss_scale_interval = 2; }},
      {"bf16", "`loss_scale` dynamic", [](models::Setup& s) { s.precision.loss_scale.emplace(); }},
      {"fp8", "`fp8_history` 3", [](models::Setup& s) { s.precision.fp8_history = 3; }},
      {"fp8", "`fp8_margin` 2", [](models::Setup& s) { s.precision.fp8_margin = 2; }},
      {"fp8-block", "`fp8_hybrid` on", [](models::Setup& s) { s.precision.fp8_hybrid = true; }},
  };
  for (const Row& row : rows) {
    INFO(row.precision << " " << row.message);
    const TemporaryFolder folder;
    models::RunOptions usual = with_dropout(row.precision), other = usual;
    usual.setup.sizes.layers = other.setup.sizes.layers = 1;
    usual.steps = other.steps = 4;
    row.change(other.setup);
    usual.save = folder / "usual", other.save = folder / "other";
    run(usual);
    const Run begun = run(other);
    CHECK(begun.report.predicted_peak_bytes == begun.report.measured_peak_bytes);
    models::RunOptions whole = other, rest = other, from_usual = other, from_other = usual;
    whole.save.clear(), rest.save.clear(), from_usual.save.clear(), from_other.save.clear();
    whole.steps = rest.steps = from_usual.steps = from_other.steps = 6;
    rest.resume = from_other.resume = other.save;
    from_usual.resume = usual.save;
    const Run all = run(whole);
    CHECK(run(rest).losses == std::vector<double>(all.losses.begin() + 4, all.losses.end()));
    CHECK(contains(refusal(from_other), "was trained with " + std::string(row.message)));
    CHECK(contains(refusal(from_usual), "; expected the same, got a run with " + std::string(row.message)));
  }
}

TEST_CASE("program: a checkpoint in one dtype says nothing that an older one does not", "[precision][program]") {
  const TemporaryFolder folder;
  models::RunOptions options = with_dropout("O2");
  options.steps = 1, options.save = folder / "c";
  run(options);
  const auto metadata = SafetensorsReader(options.save).header().metadata;
  CHECK(metadata.at("precision") == "O2");
  CHECK(metadata.count("loss_scale") + metadata.count("loss_scale_interval") == 0);
}

TEST_CASE("program: O0 and O3 are f32 and f16 alone, and go on from each other", "[precision][program]") {
  for (const auto& [name, dtype] : {std::pair("O0", DType::f32), std::pair("O3", DType::f16)}) {
    INFO(name);
    const TemporaryFolder folder;
    models::RunOptions named = with_dropout(name), plain = with_dropout("");
    plain.setup.precision.dtype = dtype;
    named.steps = plain.steps = 3;
    named.save = folder / "named", plain.save = folder / "plain";
    run(named), run(plain);
    models::RunOptions from_plain = named, from_named = plain;
    from_plain.resume = plain.save, from_named.resume = named.save;
    from_plain.save.clear(), from_named.save.clear();
    from_plain.steps = from_named.steps = 6;
    CHECK(run(from_plain).losses == run(from_named).losses);
    from_named.setup.precision.dtype = dtype == DType::f32 ? DType::f16 : DType::f32;
    CHECK(contains(refusal(from_named), std::string(to_string(dtype))));
    CHECK(contains(refusal([&] {
                     models::RunOptions o2 = with_dropout("O2");
                     o2.resume = plain.save;
                     return o2;
                   }()),
                   "was trained without `precision`"));
  }
}

TEST_CASE("program: flags of the loss scale and of FP8", "[precision][program]") {
  const TemporaryFolder folder;
  const std::string model = "char-gpt --layers 2 --width 16 --heads 2 --seq 16 --batch 2 ";
  const std::string plan = "plan " + model + "--json ";
  const auto plain = program_test::run(folder, plan + "--precision fp8");
  if (!plain) return;
  REQUIRE(plain->status == 0);
  const auto parameters = [](const program_test::Output& out) {
    return nlohmann::json::parse(out.out).at("peak_by_category").at("parameter").get<std::int64_t>();
  };
  const auto longer = program_test::run(folder, plan + "--precision fp8 --fp8-history 32");
  REQUIRE(longer->status == 0);
  CHECK(parameters(*longer) - parameters(*plain) == 8 * 3 * 16 * 4);  // layers, tensors, additional steps, f32
  CHECK(program_test::run(folder, plan + "--precision fp8 --fp8-margin 2 --fp8-hybrid off")->status == 0);
  const auto scaled = program_test::run(folder, plan + "--precision O3 --loss-scale 512");
  REQUIRE(scaled->status == 0);
  CHECK(nlohmann::json::parse(scaled->out).at("loss_scale") == 512);
  CHECK(nlohmann::json::parse(scaled->out).at("loss_scale_is_dynamic") == false);
  const auto fused = program_test::run(folder, plan + "--precision O2 --loss-scale 512 --fuse-optimizer");
  CHECK(fused->status == 0);  // a static scale skips nothing

  struct Row {
    const char *flags, *error;
  };
  for (const Row& row : {
           Row{"--loss-scale 0", "--loss-scale: expected a finite number from 1 to 16777216 or dynamic, got '0'"},
           {"--loss-scale static", "16777216 or dynamic, got 'static'"},
           {"--loss-scale-interval 0", "--loss-scale-interval: expected a whole number from 1 to 2147483647, got '0'"},
           {"--loss-scale-interval 5", "--loss-scale-interval: 5 is for a dynamic scale, and the loss is not scaled"},
           {"--loss-scale 8 --loss-scale-interval 5", "not for --loss-scale 8; expected --loss-scale dynamic"},
           {"--loss-scale dynamic --fuse-optimizer", "--fuse-optimizer: not with --loss-scale dynamic"},
           {"--dtype f16 --loss-scale 8 --head chunked", "--head: chunked is not for --loss-scale 8"},
           {"--loss-scale 8 --offload /tmp --offload-gradients", "--offload-gradients: not with --loss-scale 8"},
           {"--fp8-history 8", "--fp8-history: there is no FP8 without --precision; expected fp8"},
           {"--precision bf16 --fp8-margin 1", "--fp8-margin: there is no FP8 under --precision bf16"},
           {"--precision bf16 --fp8-hybrid on", "--fp8-hybrid: there is no FP8 under --precision bf16"},
           {"--precision fp8 --fp8-hybrid yes", "--fp8-hybrid: expected on or off, got 'yes'"},
           {"--precision fp8 --fp8-history 1025", "--fp8-history: expected a whole number from 1 to 1024, got '1025'"},
           {"--precision fp8 --fp8-margin 17", "--fp8-margin: expected a whole number from 0 to 16, got '17'"},
           {"--precision fp8-current --fp8-history 8", "--fp8-history: 8 is for delayed scaling, not for --precision"},
           {"--precision fp8-block --fp8-margin 1", "--fp8-margin: 1 is not for the blocks of --precision fp8-block"},
       }) {
    INFO(row.flags);
    const auto refused = program_test::run(folder, plan + row.flags);
    CHECK(refused->status == 2);
    CHECK(contains(refused->error, row.error));
    CHECK(refused->out.empty());
  }

  // A static scale that is a power of two changes no bit in f32; changed settings of a policy change training.
  const std::string train = "train " + model + "--data synthetic --steps 6 --eval-batches 1 --json ";
  const auto last = [&](const std::string& flags) {
    const auto out = program_test::run(folder, train + flags);
    INFO(flags << ": " << out->error);
    REQUIRE(out->status == 0);
    return nlohmann::json::parse(out->out).at("loss_last").get<double>();
  };
  CHECK(last("--loss-scale 1024") == last(""));
  CHECK(last("--precision fp8 --fp8-hybrid off") != last("--precision fp8"));
  CHECK(last("--precision fp8 --fp8-history 1") != last("--precision fp8"));
  CHECK(last("--precision fp8 --fp8-margin 8") != last("--precision fp8"));
}
