// Plans as files: what is written is read, a run follows it without planning, and one of another key is refused by the
// first thing that differs.

#include <algorithm>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/fit/plan_file.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/model_runs.h"
#include "support/program.h"
#include "support/trained.h"

using namespace thimble;

namespace {

models::TrainOptions filed_options() {
  models::TrainOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 12;
  options.setup.sizes.layers = 4, options.setup.sizes.heads = 4, options.setup.sizes.width = 64;
  options.setup.sizes.sequence = 48;
  options.data = "synthetic";
  options.steps = 3;
  return options;
}

/// A plan for two thirds of what keeping everything needs, and its file.
struct Filed {
  explicit Filed(const std::string& file) : path(file) {
    models::TrainOptions options = filed_options();
    budget = models::prepare_training(options).plan.peak_bytes * 2 / 3;
    models::PlanOptions plan;
    plan.setup = options.setup;
    plan.data = options.data;
    plan.budget_bytes = budget;
    report = models::make_plan(plan);
    nn::write_plan(path, report.plan);
  }
  std::string path;
  std::size_t budget = 0;
  models::PlanReport report;
};

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const PlanError& error) {
    return error.what();
  }
  return "no PlanError";
}

}  // namespace

TEST_CASE("plan file: what is written is read", "[plan]") {
  const testing::Threads alone;
  const files_test::TemporaryFolder folder;
  const Filed filed(folder / "plan.json");
  const nn::Plan& plan = filed.report.plan;
  REQUIRE(plan.tape);
  REQUIRE(plan.key);
  REQUIRE(plan.placement.size() == 2);
  const nn::Plan read = nn::read_plan(filed.path, filed.report.run, cpu);
  CHECK(*read.key == *plan.key);
  CHECK(nn::difference(*read.key, *plan.key).empty());
  REQUIRE(read.tape);
  CHECK(read.tape->fates == plan.tape->fates);
  CHECK(read.tape->segments == plan.tape->segments);
  CHECK(read.tape->spills == plan.tape->spills);
  CHECK(read.tape->types == plan.tape->types);
  CHECK(read.tape->sizes == plan.tape->sizes);
  REQUIRE(read.placement.size() == plan.placement.size());
  for (std::size_t i = 0; i < read.placement.size(); ++i) {
    const StepPlacement &a = read.placement[i], &b = plan.placement[i];
    CHECK(a.buffers == b.buffers);
    CHECK(a.placement.offsets == b.placement.offsets);
    CHECK(a.placement.height == b.placement.height);
    REQUIRE(a.events.size() == b.events.size());
    for (std::size_t e = 0; e < a.events.size(); ++e) {
      CHECK(a.events[e].bytes == b.events[e].bytes);
      CHECK(a.events[e].block == b.events[e].block);
      CHECK(a.events[e].category == b.events[e].category);
      CHECK(path_name(a.events[e].path) == path_name(b.events[e].path));
    }
  }
  CHECK(read.peak_bytes == plan.peak_bytes);
  CHECK(read.lower_bound_bytes == plan.lower_bound_bytes);
  CHECK(read.step_s == plan.step_s);
  CHECK(read.time_overhead == plan.time_overhead);
  CHECK(read.peak_by_category == plan.peak_by_category);
  CHECK(read.description == plan.description);
  CHECK(nn::to_text(read) == nn::to_text(plan));
  CHECK(nn::to_text(read).find("segments that run again") != std::string::npos);
  nn::Plan nameless = plan;
  nameless.key = nullptr;
  CHECK_THROWS_AS(nn::write_plan(filed.path, nameless), ValueError);
}

TEST_CASE("plan file: a run follows it with the bytes and the losses of the run that planned", "[plan]") {
  const testing::Threads alone;
  const files_test::TemporaryFolder folder;
  const Filed filed(folder / "plan.json");
  models::TrainOptions options = filed_options();
  options.budget_bytes = filed.budget;
  const trained_test::Run planned = trained_test::run(options, [](const nn::Progress&) {});
  options.plan = filed.path;
  options.is_strict = true;
  const trained_test::Run followed = trained_test::run(options, [](const nn::Progress&) {});
  CHECK(followed.losses == planned.losses);
  CHECK(followed.report.predicted_peak_bytes == planned.report.predicted_peak_bytes);
  CHECK(followed.report.measured_peak_bytes == followed.report.predicted_peak_bytes);
  REQUIRE(followed.report.placed.has_value());
  CHECK(followed.report.placed->deviations == 0);
  options.budget_bytes = 1 << 20;
  CHECK_THROWS_AS(models::prepare_training(options), nn::BudgetError);
}

TEST_CASE("plan file: a plan of another key names the first thing that differs", "[plan]") {
  const testing::Threads alone;
  const files_test::TemporaryFolder folder;
  const Filed filed(folder / "plan.json");
  const auto with = [&](const std::function<void(models::TrainOptions&)>& change) {
    models::TrainOptions options = filed_options();
    options.plan = filed.path;
    change(options);
    return message_of([&] { models::prepare_training(options); });
  };
  const auto says = [](const std::string& message, const std::string& part) {
    INFO(message);
    CHECK(message.find(part) != std::string::npos);
  };
  CHECK(with([](models::TrainOptions&) {}) == "no PlanError");
  says(with([](auto& o) { o.setup.batch = 13; }),
       "the plan has 'embedding f32 (12, 48, 64)', here it is 'embedding f32 (13, 48, 64)'");
  says(with([](auto& o) { o.setup.sizes.layers = 5; }), "step: the plan has");
  says(with([](auto& o) { o.setup.sizes.sequence = 47; }), "bytes of state', here it is '1 micro-batches");
  says(with([](auto& o) { o.setup.clip_norm = 0; }), "step: the plan has '1 micro-batches, clipped");
  says(with([](auto& o) { o.setup.optimizer = "sgd"; }), "adamw");
  says(with([](auto& o) { o.setup.micro_batches = 2; }), "2 micro-batches");
  {
    const testing::Threads two(2);
    says(with([](models::TrainOptions&) {}), "machine: the plan has 'cpu, ");
    nn::StepOptions step;
    CHECK_THROWS_AS(filed.report.plan.apply(step, cpu), PlanError);
  }
  const kernels::Isa before = kernels::isa();
  kernels::set_isa(kernels::Isa::generic);
  if (before != kernels::Isa::generic) says(with([](models::TrainOptions&) {}), "generic");
  kernels::set_isa(before);

  nn::PlanKey other = *filed.report.plan.key;
  other.library = "0.0.0";
  CHECK(nn::difference(*filed.report.plan.key, other).find("version of the library") == 0);
  other = *filed.report.plan.key;
  other.nodes[3].size.operands ^= 1;
  CHECK(nn::difference(*filed.report.plan.key, other).find("node 3, ") == 0);
  other = *filed.report.plan.key;
  other.nodes.pop_back();
  CHECK(nn::difference(*filed.report.plan.key, other).find("here it is 'none'") != std::string::npos);
}

TEST_CASE("plan file: files that hold no plan", "[plan]") {
  const testing::Threads alone;
  const files_test::TemporaryFolder folder;
  const Filed filed(folder / "plan.json");
  const nlohmann::json good = nlohmann::json::parse(files_test::read_text_file(filed.path));
  const auto read = [&](const std::string& text) {
    const std::string path = folder / "other.json";
    files_test::write_text_file(path, text);
    nn::read_plan(path, filed.report.run, cpu);
  };
  const auto with = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json json = good;
    change(json);
    return json.dump();
  };
  CHECK_NOTHROW(read(good.dump()));
  CHECK_THROWS_AS(nn::read_plan(folder / "none.json", filed.report.run, cpu), FileError);
  for (const std::string& text : {std::string(), std::string("{}"), std::string("[1]"), good.dump().substr(0, 1000)}) {
    CHECK_THROWS_AS(read(text), FileError);
  }
  CHECK_THROWS_AS(read(with([](auto& j) { j["format"] = "thimble plan 2"; })), FileError);
  CHECK_THROWS_AS(read(with([](auto& j) { j.erase("key"); })), FileError);
  CHECK_THROWS_AS(read(with([](auto& j) { j["tape"]["fates"] = "7"; })), FileError);
  CHECK_THROWS_AS(read(with([](auto& j) { j["key"]["nodes"][0][3] = "x"; })), FileError);
  CHECK_THROWS_AS(read(with([](auto& j) { j["placement"][0]["events"][0][3] = 99; })), FileError);
  CHECK_THROWS_AS(read(with([](auto& j) { j["placement"][0]["events"][0] = {4'000'000}; })), FileError);
  // A plan that contradicts itself, and one that the dry run does not keep.
  CHECK_THROWS_AS(read(with([](auto& j) { j["tape"]["fates"] = "0"; })), PlanError);
  CHECK_THROWS_AS(read(with([](auto& j) { j["placement"][0]["offsets"][0] = 1; })), PlanError);
  CHECK_THROWS_AS(read(with([](auto& j) { j["tape"] = nullptr; })), PlanError);
}

TEST_CASE("plan file: the program's plan --save and train --plan", "[plan]") {
  const files_test::TemporaryFolder folder;
  const std::string sizes = " char-gpt --batch 12 --layers 4 --heads 4 --width 64 --seq 48 --data synthetic ";
  const std::string file = folder / "p.json";
  const auto saved = program_test::run(folder, "plan" + sizes + "--budget 9MiB --save '" + file + "' --json");
  if (!saved) {
    WARN("THIMBLE_PROGRAM is not set: the commands were not run");
    return;
  }
  INFO(saved->error);
  REQUIRE(saved->status == 0);
  const auto trained = program_test::run(folder, "train" + sizes + "--steps 2 --strict --plan '" + file + "' --json");
  INFO(trained->error);
  REQUIRE(trained->status == 0);
  const nlohmann::json plan = nlohmann::json::parse(saved->out), run = nlohmann::json::parse(trained->out);
  CHECK(run.at("predicted_peak_bytes") == plan.at("peak_bytes"));
  CHECK(run.at("measured_peak_bytes") == plan.at("peak_bytes"));
  CHECK(run.at("deviations") == 0);
  CHECK(run.at("first_deviation").is_null());
  CHECK(program_test::run(folder, "train" + sizes + "--batch 16 --steps 2 --plan '" + file + "'")->status == 2);
  CHECK(program_test::run(folder, "plan" + sizes + "--inference --save '" + file + "'")->status == 2);
}
