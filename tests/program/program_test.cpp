// The program `thimble`: training, files, output and refusals. Tests call training in process, and run the program
// itself, where its path is known, for messages, exit status and JSON.

#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/bench/commands/flags.h>
#include <thimble/core/error.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/files/safetensors.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"
#include "support/trained.h"

namespace {

using namespace thimble;
using files_test::contains;
using files_test::TemporaryFolder;
using models::RunOptions;
using trained_test::refusal;
using trained_test::run;
using trained_test::Run;

RunOptions tiny(const std::string& model) {
  RunOptions options;
  options.setup.model = model;
  options.setup.batch = 2;
  options.data = "synthetic";
  options.steps = 3;
  options.eval_batches = 2;
  const bool is_text = model == "char-gpt" || model == "bert-base";
  if (is_text || model == "vit-b16") {
    options.setup.sizes.layers = 2;
    options.setup.sizes.heads = 2;
    options.setup.sizes.width = 16;
  } else {
    options.setup.sizes.width = 8;
  }
  (is_text ? options.setup.sizes.sequence : options.setup.sizes.image) = 16;
  return options;
}

}  // namespace

TEST_CASE("program: a run needs the bytes that its dry run said") {
  struct Case {
    const char* what;
    RunOptions options;
  };
  std::vector<Case> cases{{"char-gpt", tiny("char-gpt")}, {"resnet18", tiny("resnet18")}, {"mlp", tiny("mlp")}};
  for (const char* name : {"bert-base", "vit-b16", "googlenet", "sharedconv"}) cases.push_back({name, tiny(name)});
  cases.push_back({"sharedconv's plain twin", tiny("sharedconv")});
  cases.back().options.setup.sizes.shares_kernels = false;
  cases.push_back({"evaluations in between and a sample", tiny("char-gpt")});
  cases.back().options.steps = 7;
  cases.back().options.eval_every = 2;
  cases.back().options.sample = 24;  // longer than the sequence
  cases.push_back({"many granules", tiny("char-gpt")});
  cases.back().options.setup.sizes.width = 128;
  cases.back().options.setup.sizes.sequence = 64;
  cases.back().options.setup.batch = 8;
  cases.push_back({"bf16", tiny("char-gpt")});
  cases.back().options.setup.precision.dtype = DType::bf16;
  cases.push_back({"images in bf16, all of the validation part", tiny("mlp")});
  cases.back().options.setup.precision.dtype = DType::bf16;
  cases.back().options.setup.batch = 300;
  cases.back().options.eval_batches = 0;
  cases.push_back({"one step", tiny("mlp")});
  cases.back().options.steps = 1;
  for (const Case& c : cases) {
    CAPTURE(c.what);
    const Run r = run(c.options);
    CHECK(r.report.predicted_peak_bytes > 0);
    CHECK(r.report.predicted_peak_bytes == r.report.measured_peak_bytes);
    CHECK(r.report.rss_peak_bytes >= r.report.arena_rss_bytes);
    CHECK(r.losses.size() == static_cast<std::size_t>(c.options.steps));
    CHECK(r.report.loss_first == r.losses.front());
    CHECK(r.report.loss_last == r.losses.back());
    CHECK(r.report.evaluation->loss > 0);
    CHECK(r.report.evaluation->accuracy.has_value() == (c.options.setup.sizes.sequence == 0));
    CHECK(r.report.sample.size() == static_cast<std::size_t>(c.options.sample));
  }
}

TEST_CASE("program: training lowers the loss, and the same seed gives the same losses and hidden tokens") {
  for (const char* const model : {"char-gpt", "bert-base"}) {
    INFO(model);
    RunOptions options = tiny(model);
    options.steps = 60;
    options.setup.batch = 8;
    options.setup.optimizer.rate = 1e-2;
    if (options.setup.model == "char-gpt") options.setup.sizes.dropout = 0.1;
    const Run once = run(options);
    CHECK(once.report.loss_last < once.report.loss_first - 0.5);
    options.steps = 5;
    CHECK(run(options).losses == std::vector<double>(once.losses.begin(), once.losses.begin() + 5));
    options.setup.seed = 2;
    CHECK(run(options).losses[0] != once.losses[0]);
  }
}

TEST_CASE("program: a resumed run goes on bit by bit") {
  for (const char* model : {"char-gpt", "bert-base", "resnet18"}) {
    CAPTURE(model);
    const TemporaryFolder folder;
    RunOptions options = tiny(model);
    options.schedule = "cosine";
    options.steps = 5;
    options.save = folder / "whole.safetensors";
    if (options.setup.model == "char-gpt") options.setup.sizes.dropout = 0.2;
    const Run whole = run(options);

    options.save = folder / "part.safetensors";
    options.save_every = 3;
    // The schedule depends on the total steps, so throwing cuts the run off after it has saved.
    models::Engine engine(options);
    CHECK_THROWS_WITH(engine.run([](const nn::Progress& p) {
      if (p.step == 4) throw ValueError("cut off");
    }),
                      "cut off");
    options.resume = options.save;
    options.save = folder / "resumed.safetensors";
    const Run rest = run(options);
    CHECK(rest.report.first_step == 3);
    CHECK(rest.losses == std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
    CHECK(rest.report.evaluation->loss == whole.report.evaluation->loss);
    CHECK(rest.report.predicted_peak_bytes == rest.report.measured_peak_bytes);
    CHECK(files_test::read_text_file(folder / "resumed.safetensors") ==
          files_test::read_text_file(folder / "whole.safetensors"));
  }
}

TEST_CASE("program: a run with 8-bit state says what it takes, and which state is f32") {
  RunOptions options = tiny("char-gpt");
  options.setup.sizes.width = 64;
  options.steps = 3;
  const models::TrainReport full = run(options).report;
  options.setup.optimizer.name = "adamw8";
  const models::TrainReport narrow = run(options).report;
  CHECK(full.optimizer == "adamw");
  CHECK(full.state_bytes == 8 * static_cast<std::size_t>(full.parameters));
  CHECK(full.full_state.empty());
  CHECK(narrow.optimizer == "adamw8");
  CHECK(narrow.state_bytes < full.state_bytes / 3);
  CHECK(!narrow.full_state.empty());
  CHECK(narrow.predicted_peak_bytes == narrow.measured_peak_bytes);
  CHECK(narrow.loss_first == full.loss_first);
  CHECK(std::fabs(narrow.loss_last / full.loss_last - 1) < 0.05);
}

TEST_CASE("program: numbers in flags") {
  CHECK(bench::parse_integer("--n", "12", 1, 12) == 12);
  CHECK(bench::parse_number("--x", "1e-3", 0, 1) == 1e-3);
  for (const std::string text : {"", "0", "13", "-1", "1.5", "1e3", "abc", " 1", "1 ", "99999999999999999999"}) {
    CHECK_THROWS_WITH(bench::parse_integer("--n", text, 1, 12), Catch::EndsWith("got '" + text + "'"));
  }
  for (const std::string text : {"", "2", "-0.1", "nan", "inf", "x", "1x"}) {
    CHECK_THROWS_WITH(bench::parse_number("--x", text, 0, 1), Catch::EndsWith("got '" + text + "'"));
  }
}

TEST_CASE("program: what is wrong is told before anything is written") {
  const TemporaryFolder folder;
  struct Case {
    const char* message;  // part of it
    void (*change)(RunOptions&, const TemporaryFolder&);
  };
  const std::vector<Case> cases{
      {"char-gpt", [](RunOptions& o, const TemporaryFolder&) { o.setup.model = "gpt-9"; }},
      {"heads", [](RunOptions& o, const TemporaryFolder&) { o.setup.sizes.heads = 3; }},
      {"adamw", [](RunOptions& o, const TemporaryFolder&) { o.setup.optimizer.name = "lion"; }},
      {"cosine", [](RunOptions& o, const TemporaryFolder&) { o.schedule = "linear"; }},
      {"missing.txt", [](RunOptions& o, const TemporaryFolder& f) { o.data = f / "missing.txt"; }},
      {"missing.safetensors", [](RunOptions& o, const TemporaryFolder& f) { o.resume = f / "missing.safetensors"; }},
      {"no folder", [](RunOptions& o, const TemporaryFolder& f) { o.save = f / "none/x"; }},
      {"is a folder", [](RunOptions& o, const TemporaryFolder& f) { o.save = f.path(); }},
      {"no folder", [](RunOptions& o, const TemporaryFolder& f) { o.save_weights = f / "none/x"; }},
      {"`log`", [](RunOptions& o, const TemporaryFolder&) { o.log = "/proc/self/status/x"; }},
      {"cuda", [](RunOptions& o, const TemporaryFolder&) { o.device = cuda(7); }},
      {"tokens", [](RunOptions& o, const TemporaryFolder&) { o.setup.sizes.sequence = 1 << 21; }},
      {"steps", [](RunOptions& o, const TemporaryFolder&) { o.steps = 0; }},
      {"not an option of this model", [](RunOptions& o, const TemporaryFolder&) { o.setup.model = "resnet18"; }},
      {"gpt2", [](RunOptions& o, const TemporaryFolder&) { o.setup.model = "gpt2", o.data = "/etc/passwd"; }},
  };
  for (const Case& c : cases) {
    RunOptions options = tiny("char-gpt");
    options.save = folder / "x.safetensors";
    options.log = folder / "log";
    c.change(options, folder);
    CAPTURE(c.message);
    CHECK(contains(refusal(options), c.message));
    CHECK(folder.entries() == 0);
  }
}

TEST_CASE("program: exit status and the one line of an error") {
  const TemporaryFolder folder;
  const std::string run = "train char-gpt --data synthetic --layers 1 --width 16 --seq 8 --steps 2 ";
  const std::string save = "--save '" + (folder / "x.safetensors") + "' ";
  const std::vector<std::pair<std::string, const char*>> refused{
      {"", "expected a command, got none; commands: "},
      {run + save + "--bogus 3", "--bogus"},
      {run + save + "--steps 3", "--steps"},
      {"train gpt9 --data synthetic", "'gpt9' is not one of"},
      {"train char-gpt", "--data"},
      {"train char-gpt --data /no/such/file " + save, "/no/such/file"},
      {"plan resnet18 --image 2", "image 2"},
      {"train gpt2 --data synthetic --layers= ", "--layers: expected a value, got an empty text"},
      {run + "--save= --steps 2", "--save: expected a value, got an empty text"},
      {run + save + "--tokenizer ''", "--tokenizer: expected a value, got an empty text"},
      {"--version x", "--version: expected no further argument, got 'x'"},
      {"inspect ''", "expected a value, got an empty text"},
      {"plan mlp --allow-lossy= --budget 1GiB", "--allow-lossy: expected a value, got an empty text"},
  };
  for (const auto& [arguments, message] : refused) {
    const auto result = program_test::run(folder, arguments);
    if (!result) return;  // only the library was built
    CAPTURE(arguments);
    CHECK(result->status == 2);
    CHECK(result->out.empty());
    CHECK(result->error.starts_with("thimble: "));
    CHECK(contains(result->error, message));
    CHECK(result->error.find('\n') + 1 == result->error.size());
    CHECK(folder.entries() == 2);  // the two streams
  }
  for (const char* arguments : {"--help", "--version", "train --help"}) {
    CHECK(program_test::run(folder, arguments)->status == 0);
  }
}

TEST_CASE("program: JSON of train, inspect, devices and models") {
  const TemporaryFolder folder;
  const std::string file = folder / "x.safetensors";
  const auto trained =
      program_test::run(folder,
                        "train char-gpt --data synthetic --layers 1 --heads 2 --width 16 --seq 8 --batch 2 "
                        "--steps 2 --sample 5 --json --save '" +
                            file + "' --log '" + (folder / "log") + "'");
  if (!trained) return;  // only the library was built
  REQUIRE(trained->status == 0);
  const auto train = nlohmann::json::parse(trained->out);
  for (const char* key : {"loss_first", "loss_last", "predicted_peak_bytes", "measured_peak_bytes", "rss_peak_bytes",
                          "arena_rss_bytes", "validation_loss", "ms_per_step", "items_per_s", "parameters", "steps"}) {
    CAPTURE(key);
    CHECK(train.at(key).is_number());
  }
  CHECK(train["predicted_peak_bytes"] == train["measured_peak_bytes"]);
  CHECK(train["sample"].get<std::string>().size() == 5);
  CHECK(folder.entries() == 4);  // the streams, the checkpoint and the log

  const auto inspected = program_test::run(folder, "inspect '" + file + "' --json");
  REQUIRE(inspected->status == 0);
  const auto inspect = nlohmann::json::parse(inspected->out);
  CHECK(inspect["tensors"].size() == SafetensorsReader(file).header().tensors.size());
  CHECK(inspect["metadata"]["model"] == "char-gpt");
  CHECK(inspect["tensors"][0].contains("shape"));
  CHECK(contains(program_test::run(folder, "inspect '" + file + "'")->out, "model.wte.weight"));
  CHECK(contains(program_test::run(folder, "inspect '" + file + "'")->out, "checksums hold"));
  CHECK(inspect["checksums"] == "hold");
  // A changed bit in a tensor is reported with the tensor's name.
  const SafetensorsHeader header = SafetensorsReader(file).header();
  const std::string whole = files_test::read_text_file(file);
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.bytes() == 0) continue;
    std::string broken = whole;
    broken[header.data_offset + entry.begin + entry.bytes() / 2] ^= 16;
    files_test::write_text_file(folder / "broken", broken);
    const auto told = program_test::run(folder, "inspect '" + (folder / "broken") + "'");
    CHECK(told->status == 2);
    CHECK(told->out.empty());
    CHECK(contains(told->error, "'" + entry.name + "'"));
  }

  const auto models = nlohmann::json::parse(program_test::run(folder, "models --json")->out);
  bool has_resnet50 = false;
  for (const auto& model : models["models"]) {
    has_resnet50 = has_resnet50 || (model["name"] == "resnet50" && model["parameters"] == 25'557'032);
  }
  CHECK(has_resnet50);

  const auto devices = nlohmann::json::parse(program_test::run(folder, "devices --json")->out);
  CHECK(devices["cpu"]["threads"] >= 1);
  CHECK(devices["cpu"]["memory_bytes"] > 0);
  CHECK(devices["cuda"]["built"].is_boolean());
}
