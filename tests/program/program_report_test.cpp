// Reports of `thimble` on runs in low precision, and flags without effect on a command.

#include <filesystem>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/core/ops/quant/quantize.h>
#include <thimble/models/planning/planning.h>
#include <thimble/nn/files/weights.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"

namespace program_report_test {

using namespace thimble;
using files_test::contains;
using files_test::TemporaryFolder;

const std::string model = "char-gpt --layers 4 --width 32 --heads 2 --seq 64 --batch 8 ";
const std::string train =
    "train char-gpt --layers 1 --width 16 --heads 2 --seq 16 --batch 2 --data synthetic --eval-batches 1 ";

void check_refused(const TemporaryFolder& folder, const std::string& arguments, const std::string& message) {
  INFO(arguments);
  const auto refused = program_test::run(folder, arguments);
  CHECK(refused->status == 2);
  INFO(refused->error);
  CHECK(contains(refused->error, message));
  CHECK(refused->out.empty());
}

}  // namespace program_report_test

using namespace program_report_test;

TEST_CASE("program: quantize has no flags of training, and none without effect", "[program][quant]") {
  const TemporaryFolder folder;
  const std::string images = folder / "images", text = folder / "text";
  nn::save_weights(*models::make_model("resnet18", {.image = 16, .channels = 3, .classes = 10, .width = 8}), images);
  const std::string of_images = "quantize resnet18 --image 16 --width 8 --batch 4 --eval-batches 1 --data synthetic ";
  const auto good = program_test::run(
      folder, of_images + "--weights '" + images + "' --calibrator percentile --percent 99.9 --calibration-batches 1");
  if (!good) return;
  CHECK(good->status == 0);
  for (const char* flag : {"--precision O1", "--dtype f32", "--optimizer adamw8", "--state bf16", "--fuse-optimizer",
                           "--head chunked", "--micro-batches 3", "--loss-scale dynamic", "--fp8-strict"}) {
    const std::string name = std::string(flag).substr(0, std::string(flag).find(' '));
    check_refused(folder, of_images + "--weights '" + images + "' " + flag, name);
  }
  const std::string percent = of_images + "--weights '" + images + "' --percent 99 ";
  check_refused(folder, percent, "--percent: expected --calibrator percentile, got --calibrator mse");
  check_refused(folder, percent + "--calibrator max",
                "--percent: expected --calibrator percentile, got --calibrator max");
  const std::string of_text = "quantize char-gpt --data synthetic --weights '" + text + "' ";
  for (const char* flag :
       {"--calibrator max", "--percent 99", "--symmetric", "--per-tensor", "--calibration-batches 2"}) {
    const std::string name = std::string(flag).substr(0, std::string(flag).find(' '));
    check_refused(folder, of_text + flag, name + ": ");
    check_refused(folder, of_text + flag, ": expected a model over images");
  }
}

TEST_CASE("program: a forward is planned without flags of training steps", "[program]") {
  const TemporaryFolder folder;
  const std::string plan = "plan resnet18 --image 16 --width 8 --batch 2 --inference ";
  const auto good = program_test::run(folder, plan + "--int8 --precision O0");
  if (!good) return;
  CHECK(good->status == 0);
  CHECK(program_test::run(folder, plan + "--precision O2")->status == 0);
  check_refused(folder, plan + "--int8 --precision O2", "--int8: not with --precision O2");
  check_refused(folder, plan + "--int8 --dtype bf16", "--int8: not with --dtype bf16");
  check_refused(folder, plan + "--int8 --fp8-strict", "--fp8-strict: there is no FP8 without --precision");
  for (const char* flag :
       {"--optimizer adamw8", "--state bf16", "--full-state fc", "--loss-scale dynamic", "--offload /tmp",
        "--offload-optimizer", "--offload-gradients", "--allow-lossy=i8", "--clip 5"}) {
    const std::string name = std::string(flag).substr(0, std::string(flag).find_first_of(" ="));
    check_refused(folder, plan + flag, "--inference: not with " + name);
  }
  check_refused(folder, plan + "--dropout 0.3", "--dropout: expected a training step, got --inference");
  check_refused(folder, "plan char-gpt --inference --head chunked", "--inference: not with --head chunked");
}

TEST_CASE("program: packing to a dtype that is no narrower is refused", "[program][lossy][slow]") {
  const auto refusal = [](const std::string& precision, DType dtype, DType lossy,
                          bool is_image = false) -> std::string {
    models::RunOptions options;
    options.setup.model = "char-gpt";
    options.setup.batch = 2;
    options.setup.sizes.layers = 2, options.setup.sizes.heads = 2, options.setup.sizes.width = 16;
    options.setup.sizes.sequence = 16;
    if (is_image) options.setup.model = "resnet18", options.setup.sizes = {.image = 8, .width = 4};
    options.setup.precision.dtype = dtype;
    if (!precision.empty()) models::set_precision(options.setup, precision);
    options.setup.packing.is_allowed = true, options.setup.packing.dtype = lossy;
    try {
      models::make_plan(options);
    } catch (const ValueError& error) {
      return error.what();
    }
    return {};
  };
  for (const char* precision : {"O2", "O3", "bf16", "bf16-kahan", "fp8"}) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      INFO(precision << " to " << to_string(dtype));
      const std::string message = refusal(precision, DType::f32, dtype);
      CHECK(contains(message, "`allows_lossy`: " + std::string(to_string(dtype)) + " is no narrower"));
      CHECK(contains(message, "`precision` " + std::string(precision)));
      CHECK(contains(message, "expected f8e4m3, f8e5m2, i8"));
    }
    CHECK(refusal(precision, DType::f32, DType::i8).empty());
  }
  // Under O1 a transformer's residual sums are f32, a convolutional net's f16.
  CHECK(contains(refusal("O1", DType::f32, DType::bf16, true), "`allows_lossy`: bf16 is no narrower"));
  CHECK(refusal("O1", DType::f32, DType::i8, true).empty());
  CHECK(refusal("O0", DType::f32, DType::bf16, true).empty());
  for (const char* precision : {"", "O0", "O1"}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f8e4m3, DType::i8}) {
      INFO(precision << " to " << to_string(dtype));
      CHECK(refusal(precision, DType::f32, dtype).empty());
    }
  }
  CHECK(contains(refusal("", DType::bf16, DType::f16), "`dtype` bf16"));
  CHECK(contains(refusal("", DType::f8e5m2, DType::i8), "expected nothing narrower"));
}

TEST_CASE("program: packing is to narrower numbers than those that wait", "[program][lossy]") {
  const TemporaryFolder folder;
  const auto same = program_test::run(folder, "plan " + model + "--precision O2 --allow-lossy=bf16");
  if (!same) return;
  CHECK(same->status == 2);
  CHECK(contains(same->error, "--allow-lossy: bf16"));
  CHECK(program_test::run(folder, "plan " + model + "--precision O2 --allow-lossy=i8")->status == 0);
}

TEST_CASE("program: what is packed, to what, and the bytes before and after", "[program][lossy]") {
  const TemporaryFolder folder;
  const std::string larger = "char-gpt --layers 4 --heads 4 --width 128 --seq 64 --batch 12 --data synthetic ";
  const auto kept = program_test::run(folder, "plan " + larger + "--json");
  if (!kept) return;
  CHECK(nlohmann::json::parse(kept->out).at("packed_dtypes").empty());
  for (const auto& [name, dtype] : {std::pair("bf16", DType::bf16), std::pair("i8", DType::i8)}) {
    int budget = 0;  // MiB; the plan packs
    for (const int mib : {20, 22, 24, 26}) {
      const auto plan = program_test::run(
          folder, "plan " + larger + "--json --allow-lossy=" + name + " --budget " + std::to_string(mib) + "MiB");
      if (plan->status != 0 || nlohmann::json::parse(plan->out).at("packed_bytes") == 0) continue;
      budget = mib;
      break;
    }
    INFO(name);
    REQUIRE(budget > 0);
    const std::string flags = "--allow-lossy=" + std::string(name) + " --budget " + std::to_string(budget) + "MiB";
    const std::string run = "train " + larger + "--steps 2 --eval-batches 1 " + flags;
    for (const std::string& command : {"plan " + larger + flags, run}) {
      INFO(command);
      const auto json = nlohmann::json::parse(program_test::run(folder, command + " --json")->out);
      const auto before = json.at("packed_bytes").get<std::int64_t>();
      const auto after = json.at("packed_to_bytes").get<std::int64_t>();
      CHECK(before > 0);
      CHECK(after == static_cast<std::int64_t>(packed_bytes(before / 4, dtype)));
      CHECK(json.at("packed_dtypes") == nlohmann::json::array({name}));
    }
    CHECK(contains(program_test::run(folder, run)->out, " of " + std::string(name) + " per step\n"));
    CHECK(contains(program_test::run(folder, "plan " + larger + flags)->out, "\n    to " + std::string(name) + " "));
  }
  const std::string ample = "--steps 1 --eval-batches 1 --allow-lossy --budget 1GiB";
  CHECK(contains(program_test::run(folder, "train " + larger + ample)->out, "packed           nothing: the plan"));
}

TEST_CASE("program: train says its precision, the loss scale at the end, and skipped steps", "[program][precision]") {
  const TemporaryFolder folder;
  const auto plain = program_test::run(folder, train + "--steps 2");
  if (!plain) return;
  CHECK_FALSE(contains(plain->out, "precision"));
  CHECK_FALSE(contains(plain->out, "loss scale"));
  const auto o2 = program_test::run(folder, train + "--steps 2 --precision O2");
  CHECK(contains(o2->out, "  precision        O2, dynamic loss scale from 65536\n"));
  CHECK(contains(o2->out, "  loss scale       65536 at the end\n"));
  CHECK(contains(program_test::run(folder, train + "--steps 2 --dtype f16 --loss-scale 128")->out,
                 "  precision        all f16, loss scale 128\n"));
  // A scale that doubles after every good step soon gets too large.
  const std::string skips = train + "--steps 20 --precision O2 --loss-scale-interval 1 ";
  const auto json = nlohmann::json::parse(program_test::run(folder, skips + "--json")->out);
  const auto skipped = json.at("skipped_steps").get<std::int64_t>();
  CHECK(skipped > 1);
  CHECK(
      contains(program_test::run(folder, skips)->out, " at the end, " + std::to_string(skipped) + " steps skipped\n"));
  CHECK(json.at("is_finite") == true);
  CHECK(contains(program_test::run(folder, "plan " + model + "--precision O2")->out, "  precision: O2, dynamic loss"));
  // A run with unscaled 8 bits says so.
  const auto eight = program_test::run(folder, train + "--steps 2 --dtype f8e4m3");
  CHECK(eight->status == 0);
  CHECK(
      contains(eight->error, "--dtype f8e4m3: parameters, activations and gradients are all in 8 bits without scales"));
}

TEST_CASE("program: errors of the optimizer name the one that was asked for", "[program][optim8]") {
  const TemporaryFolder folder;
  for (const char* name : {"adam8", "adamw8", "momentum8"}) {
    const auto refused = program_test::run(folder, train + "--full-state wxe --optimizer " + name);
    if (!refused) return;
    INFO(refused->error);
    CHECK(refused->status == 2);
    CHECK(contains(refused->error, "thimble: " + std::string(name) + ": no parameter is named 'wxe'"));
  }
}
