// Plans as files: they round-trip, a run follows one without planning, and one with another key is refused by its first
// difference.

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/memory/units.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/fit/plan_file.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/model_runs.h"
#include "support/offload_data.h"
#include "support/program.h"
#include "support/refusal.h"
#include "support/trained.h"

using namespace thimble;
using refusal_test::refusal;

namespace {

models::RunOptions filed_options() {
  models::RunOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 12;
  options.setup.sizes.layers = 4, options.setup.sizes.heads = 4, options.setup.sizes.width = 64;
  options.setup.sizes.sequence = 48, options.data = "synthetic", options.steps = 3;
  return options;
}

/// A plan for two thirds of the bytes that keeping everything needs, and its file.
struct Filed {
  explicit Filed(const std::string& file) : path(file) {
    models::RunOptions options = filed_options();
    budget = models::Engine(options).plan().peak_bytes * 2 / 3;
    models::RunOptions plan;
    plan.setup = options.setup, plan.data = options.data, plan.budget_bytes = budget;
    report = models::make_plan(plan);
    nn::write_plan(path, report.plan);
  }
  std::string path;
  std::size_t budget = 0;
  models::PlanReport report;
};

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
    const memory::StepPlacement &a = read.placement[i], &b = plan.placement[i];
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
  // Higher offsets raise the peak but not the load.
  nlohmann::ordered_json loose = nlohmann::ordered_json::parse(files_test::read_text_file(filed.path));
  for (auto& offset : loose["placement"][1]["offsets"]) offset = offset.get<std::size_t>() + (3 << 20);
  loose["placement"][1]["height"] = plan.placement[1].placement.height + (3 << 20);
  loose["figures"]["time_overhead"] = -0.25;  // faster than keeping everything
  std::string text = loose.dump();
  nn::put_plan_sum(text);
  const nn::Plan high = nn::plan_from_json(text, "loose", filed.report.run, cpu);
  CHECK(high.peak_bytes > plan.peak_bytes + (1 << 20));
  CHECK(high.lower_bound_bytes == plan.lower_bound_bytes);
  CHECK(high.time_overhead == -0.25);
  nn::Plan nameless = plan;
  nameless.key = nullptr;
  CHECK_THROWS_AS(nn::write_plan(filed.path, nameless), ValueError);
}

TEST_CASE("plan file: the text of a plan, line by line", "[plan]") {
  nn::Plan plan;
  plan.peak_bytes = 5 << 20, plan.lower_bound_bytes = 3000, plan.time_overhead = 0.1234;
  const std::string figures =
      "  peak 5.00 MiB (5242880 B), load 2.93 KiB (3000 B), 12.3 % more time by the cost model\n";
  CHECK(nn::to_text(plan) == figures + "  everything is kept\n");
  nn::PlanKey key{"1.2", "cpu, generic, 2 threads", "3 micro-batches", {}, {}};
  key.leaves.resize(2), key.nodes.resize(5);
  plan.key = std::make_shared<nn::PlanKey>(key);
  TapePlan tape;
  tape.fates = {Fate::drop, Fate::keep_output, Fate::keep_saved, Fate::keep, Fate::keep};
  tape.segments.resize(4), tape.spills.resize(6);
  plan.tape = std::make_shared<TapePlan>(tape);
  const std::string head =
      "plan of 5 nodes and 2 trained leaves\n  for cpu, generic, 2 threads, thimble 1.2\n  steps of 3 micro-batches\n" +
      figures + "  4 segments that run again; of 5 nodes 2 drop their result there; 6 tensors are spilled\n";
  CHECK(nn::to_text(plan) == head);
  memory::StepPlacement first, steady;
  first.events.resize(9), first.buffers.resize(7), first.placement.height = 2048;
  steady.events.resize(8), steady.buffers.resize(3), steady.placement.height = 100, steady.placement.is_optimal = true;
  plan.placement = {first, steady};
  const std::string of_steady = "8 events, 3 blocks in 100 B, proven least\n";
  CHECK(nn::to_text(plan) ==
        head + "  step 0: 9 events, 7 blocks in 2.00 KiB (2048 B)\n  step 1 and later: " + of_steady);
  plan.placement = {steady};
  CHECK(nn::to_text(plan) == head + "  step 0 and later: " + of_steady);

  // No figure in the file takes the place of another.
  plan.placement.clear();
  plan.description = "by hand", plan.step_s = 0.5, plan.offloaded_bytes = 6, plan.packed_bytes = 7;
  for (std::size_t c = 0; c < memory::category_count; ++c) plan.peak_by_category[c] = 100 + c;
  plan.packed = {{"gelu", DType::i8, 8, 9, 10}};
  const nn::Plan back = nn::parse_plan(nn::plan_to_json(plan), "by hand");
  const auto numbers = [](const nn::Plan& p) {
    return std::tuple(p.peak_bytes, p.lower_bound_bytes, p.step_s, p.time_overhead, p.offloaded_bytes, p.packed_bytes);
  };
  CHECK(numbers(back) == numbers(plan));
  CHECK((back.description == plan.description && back.peak_by_category == plan.peak_by_category));
  CHECK((back.packed == plan.packed));
}

TEST_CASE("plan file: a run follows it with the bytes and the losses of the run that planned", "[plan]") {
  const testing::Threads alone;
  const files_test::TemporaryFolder folder;
  const Filed filed(folder / "plan.json");
  models::RunOptions options = filed_options();
  options.budget_bytes = filed.budget;
  const trained_test::Run planned = trained_test::run(options, [](const nn::Progress&) {});
  options.plan = filed.path;
  options.is_strict = true;
  const auto follow = [&] {
    trained_test::Run followed = trained_test::run(options, [](const nn::Progress&) {});
    CHECK(followed.report.measured_peak_bytes == followed.report.predicted_peak_bytes);
    REQUIRE(followed.report.placed.has_value());
    CHECK(followed.report.placed->deviations == 0);
    return followed;
  };
  const trained_test::Run followed = follow();
  CHECK(followed.losses == planned.losses);
  CHECK(followed.report.predicted_peak_bytes == planned.report.predicted_peak_bytes);
  options.steps = 1;  // fewer than planned for
  options.schedule = "constant";
  options.save = folder / "one";
  CHECK(follow().losses.size() == 1);
  options.resume = std::exchange(options.save, ""), options.steps = 2;  // one step is left
  CHECK(follow().losses.size() == 1);
  options.budget_bytes = 1 << 20;
  CHECK_THROWS_AS(models::Engine(options).plan(), nn::BudgetError);
}

TEST_CASE("plan file: a plan of another key names the first thing that differs", "[plan]") {
  const testing::Threads alone;
  const files_test::TemporaryFolder folder;
  const Filed filed(folder / "plan.json");
  const auto with = [&](const std::function<void(models::RunOptions&)>& change) {
    models::RunOptions options = filed_options();
    options.plan = filed.path;
    change(options);
    return refusal<PlanError>([&] { models::Engine(options).plan(); });
  };
  const auto says = [](const std::string& message, const std::string& part) {
    INFO(message);
    CHECK(message.find(part) != std::string::npos);
  };
  CHECK(with([](models::RunOptions&) {}) == "");
  says(with([](auto& o) { o.setup.batch = 13; }),
       "the plan has 'embedding f32 (12, 48, 64)', here it is 'embedding f32 (13, 48, 64)'");
  says(with([](auto& o) { o.setup.sizes.layers = 5; }), "step: the plan has");
  says(with([](auto& o) { o.setup.sizes.sequence = 47; }),
       "(48, 64)', here it is 'f32 (47, 64)'; expected the dtype, the");
  says(with([](auto& o) { o.setup.optimizer.clip_norm = 0; }), "step: the plan has '1 micro-batches, clipped");
  says(with([](auto& o) { o.setup.optimizer.name = "sgd"; }), "adamw");
  says(with([](auto& o) { o.setup.micro_batches = 2; }), "2 micro-batches");
  {
    const testing::Threads two(2);
    says(with([](models::RunOptions&) {}), "machine: the plan has 'cpu, ");
    nn::StepOptions step;
    CHECK_THROWS_AS(filed.report.plan.apply(step, cpu), PlanError);
  }
  const kernels::Isa before = kernels::isa();
  kernels::set_isa(kernels::Isa::generic);
  if (before != kernels::Isa::generic) says(with([](models::RunOptions&) {}), "generic");
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
  using Json = nlohmann::ordered_json;
  const testing::Threads alone;
  const files_test::TemporaryFolder folder;
  const Filed filed(folder / "plan.json");
  const std::string written = files_test::read_text_file(filed.path);
  const Json good = Json::parse(written);
  const auto message = [&](const std::string& text) -> std::string {
    const std::string path = folder / "other.json";
    files_test::write_text_file(path, text);
    try {
      nn::read_plan(path, filed.report.run, cpu);
      return "read";
    } catch (const FileError& error) {
      return std::string("FileError ") + error.what();
    } catch (const PlanError& error) {
      return std::string("PlanError ") + error.what();
    }
  };
  CHECK(message(written) == "read");
  CHECK_THROWS_AS(nn::read_plan(folder / "none.json", filed.report.run, cpu), FileError);
  for (const std::string& text : {std::string(), std::string("{}"), std::string("[1]"), good.dump().substr(0, 1000)}) {
    CHECK(message(text).starts_with("FileError "));
  }
  // A changed digit, another space, or a format older than the checksum: such files are refused.
  std::string changed = written;
  const std::size_t digit = changed.find_last_of("0123456789");
  changed[digit] = changed[digit] == '9' ? '8' : '9';
  CHECK(files_test::contains(message(changed), "checksum"));
  CHECK(files_test::contains(message(written + " "), "checksum"));
  std::string before = written;
  before.replace(before.find("thimble plan 2"), 14, "thimble plan 1");
  CHECK(files_test::contains(message(before), "earlier version"));

  std::size_t taken = 0;  // indices of a free and of an allocation
  const Json& events = good["placement"][0]["events"];
  while (events[taken].size() != 1) ++taken;
  std::size_t made = 0;
  while (events[made].size() == 1 || events[made][2] != 0) ++made;
  struct Row {
    std::function<void(Json&)> change;
    const char* says;
  };
  const auto event = [](Json& j, std::size_t at) -> Json& { return j["placement"][0]["events"][at]; };
  const Row rows[] = {
      {[](Json& j) { j["format"] = "thimble plan 3"; }, "FileError"},
      {[](Json& j) { j.erase("key"); }, "it has no 'key'"},
      {[](Json& j) { j["author"] = "me"; }, "it has 'author', which is none of its keys: "},
      {[](Json& j) { j["figures"]["note"] = 1; }, "figures has 'note'"},
      {[](Json& j) { j["tape"]["fates"] = "7"; }, "fate 0"},
      {[](Json& j) {
         j["tape"]["segments"][0] = {4294967296, 4294967300, -1};
       },
       "segment 0"},
      {[](Json& j) { j["tape"]["segments"][0][2] = -2; }, "segment 0"},
      {[](Json& j) { j["tape"]["segments"][0][0] = 1.5; }, "segment 0"},
      {[](Json& j) { j["tape"]["segments"][0][1] = true; }, "segment 0"},
      {[](Json& j) {
         j["tape"]["stores"] = {{0, -1, "i64", 0, 0, 0}};
       },
       "PlanError"},
      {[](Json& j) {
         j["tape"]["stores"] = {{0, -1, "bf17", 0, 0, 0}};
       },
       "store 0: expected a dtype"},
      {[](Json& j) {
         j["tape"]["stores"] = {{0, -1, "bf16", 40, 40, 40}};
       },
       "contradicts itself"},
      {[](Json& j) { j["key"]["nodes"][0][3] = "x"; }, "the digest of node 0"},
      {[](Json& j) { j["key"]["nodes"][0][3] = "99999999999999999999"; }, "the digest of node 0"},
      {[](Json& j) { j["key"]["leaves"][0][1][0] = -4; }, "leaf 0"},
      {[](Json& j) { j["figures"]["step_s"] = nullptr; }, "step_s"},
      {[](Json& j) { j["figures"]["time_overhead"] = -2; }, "time_overhead"},
      {[](Json& j) { j["figures"]["packed_bytes"] = 64; }, "contradicts itself"},
      {[](Json& j) { j["figures"]["offloaded_bytes"] = 64; }, "contradicts itself"},
      {[](Json& j) {
         j["figures"]["packed"] = {{"gelu", "bf16", 1, 64, 32}};
       },
       "contradicts itself"},
      {[](Json& j) {  // fewer bytes than the right results have
         j["tape"]["stores"] = {{0, -1, "bf16", 40, 40, 40}};
         j["figures"]["packed"] = {{"slice", "bf16", 1, 12288, 6144}};
         j["figures"]["packed_bytes"] = 12287;
       },
       "packed have other bytes (0 and 12288) than its figures (0 and 12287)"},
      {[](Json& j) { j["placement"].push_back(j["placement"][0]); }, "more than two steps"},
      {[](Json& j) { j["placement"][0]["height"] = 1; }, "a height of 1"},
      {[](Json& j) { j["placement"][1]["is_optimal"] = 1; }, "step 1, is_optimal: expected true or false"},
      {[](Json& j) { j["placement"][1]["offsets"].push_back(0); }, "step 1, offsets"},
      {[](Json& j) { j["placement"][0]["offsets"][0] = 1ull << 63; }, "step 0, offset 0"},
      {[&](Json& j) { event(j, made)[3] = 99; }, "event"},
      {[&](Json& j) { event(j, made)[4] = 4096; }, "event"},
      {[&](Json& j) { event(j, made)[0] = 0; }, "event"},
      {[&](Json& j) { event(j, made)[1] = 0; }, "event"},
      {[&](Json& j) { event(j, made)[1] = 48; }, "a power of two"},
      {[&](Json& j) { event(j, made)[2] = 7; }, "makes block 7; the next one is 0"},
      {[&](Json& j) { event(j, taken)[0] = 4'000'000; }, "frees block 4000000 before it is there"},
      {[&](Json& j) { j["placement"][0]["events"].push_back(event(j, taken)); }, "again"},
      {[&](Json& j) { event(j, taken)[0] = -1; }, "event"},
      {[&](Json& j) { j["placement"][0]["events"].erase(taken); }, "never frees block"},
      // A plan that contradicts itself, and plans that the dry run contradicts.
      {[](Json& j) { j["tape"]["fates"] = "0"; }, "PlanError"},
      {[](Json& j) { j["placement"][0]["offsets"][0] = 1; }, "PlanError"},
      {[](Json& j) { j["tape"] = nullptr; }, "PlanError"},
  };
  for (const Row& row : rows) {
    Json json = good;
    row.change(json);
    std::string text = json.dump();
    nn::put_plan_sum(text);
    const std::string is = message(text);
    INFO(row.says << " in: " << is);
    CHECK(is != "read");
    CHECK(files_test::contains(is, row.says));
    CHECK_FALSE(files_test::contains(is, "json.exception"));
  }
}

TEST_CASE("plan file: the bytes in a tier are read", "[plan]") {
  models::RunOptions options;
  options.setup = filed_options().setup, options.data = "synthetic";
  options.setup.offload.to = offload_test::disk_folder(), options.setup.offload.optimizer = true;
  if (options.setup.offload.to.empty()) return;
  const files_test::TemporaryFolder folder;
  const models::PlanReport report = models::make_plan(options);
  nn::write_plan(folder / "plan.json", report.plan);
  CHECK(report.plan.tier_bytes > 0);
  CHECK(nn::read_plan(folder / "plan.json", report.run, cpu).tier_bytes == report.plan.tier_bytes);
}

TEST_CASE("plan file: other digits under a right checksum are refused, or the plan is kept", "[plan][slow]") {
  const testing::Threads alone;
  const files_test::TemporaryFolder folder;
  const Filed filed(folder / "plan.json");
  const std::string written = files_test::read_text_file(filed.path);
  std::vector<std::size_t> digits;
  for (std::size_t i = written.find("figures"); i < written.size(); ++i) {
    if (written[i] >= '0' && written[i] <= '9') digits.push_back(i);
  }
  std::mt19937 draw(5);  // NOLINT(cert-msc51-cpp): the same changes each time
  int refused = 0, kept = 0;
  for (int i = 0; i < 240; ++i) {
    std::string text = written;
    for (int change = 0; change <= i % 3; ++change) {
      const std::size_t at = digits[draw() % digits.size()];
      text[at] = static_cast<char>('0' + draw() % 10);
    }
    nn::put_plan_sum(text);
    INFO("change " << i);
    nn::Plan plan;
    try {
      plan = nn::plan_from_json(text, "changed", filed.report.run, cpu);
    } catch (const Error&) {
      ++refused;
      continue;
    }
    ++kept;
    CHECK(plan.tier_bytes == 0);
    CHECK(plan.lower_bound_bytes <= plan.peak_bytes);
    if (kept > 6) continue;
    const std::string path = folder / "changed.json";
    files_test::write_text_file(path, text);
    models::RunOptions options = filed_options();
    const trained_test::Run plain = trained_test::run(options, [](const nn::Progress&) {});
    options.plan = path;
    options.is_strict = true;
    const trained_test::Run followed = trained_test::run(options, [](const nn::Progress&) {});
    CHECK(followed.losses == plain.losses);
    CHECK(followed.report.measured_peak_bytes == followed.report.predicted_peak_bytes);
  }
  CHECK(refused > 100);
  CHECK(kept > 0);
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
  // Beside a budget for the process the arena keeps the plan, or the run is refused with both figures.
  const std::string bounded = "train" + sizes + "--steps 2 --plan '" + file + "' --json --process-budget ";
  const auto within = program_test::run(folder, bounded + "8GiB");
  REQUIRE(within->status == 0);
  const nlohmann::json kept = nlohmann::json::parse(within->out);
  CHECK(kept.at("predicted_peak_bytes") == plan.at("peak_bytes"));
  CHECK(kept.at("loss_last") == run.at("loss_last"));
  const auto outside = kept.at("outside_bytes").get<std::size_t>(), peak = plan.at("peak_bytes").get<std::size_t>();
  CHECK(kept.at("budget_bytes") == (std::size_t{8} << 30) - outside);
  const auto refused = program_test::run(folder, bounded + std::to_string(outside + peak / 2));
  CHECK(refused->status == 3);
  CHECK(refused->error.find("--plan: it needs " + memory::exact_bytes(peak) + ", the budget is") != std::string::npos);
  CHECK(program_test::run(folder, "train" + sizes + "--batch 16 --steps 2 --plan '" + file + "'")->status == 2);
  CHECK(program_test::run(folder, "plan" + sizes + "--inference --save '" + file + "'")->status == 2);
}
