// thimble plan: predicts a run's memory by dry runs and fits it into a budget.

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <limits>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/bench/commands/live.h>
#include <thimble/bench/commands/packing_report.h>
#include <thimble/bench/commands/plan_output.h>
#include <thimble/bench/commands/ranks.h>
#include <thimble/bench/commands/train_output.h>
#include <thimble/bench/report/plan_page.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>
#include <thimble/core/files/outputs.h>
#include <thimble/core/files/printable.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/units.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/techniques/adapting.h>
#include <thimble/models/weights/follow_weights.h>
#include <thimble/nn/fit/plan_file.h>

namespace thimble::bench {
namespace {

nlohmann::ordered_json segments_of(const models::PlanReport& report) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const nn::PlannedSegment& segment : report.segments) {
    list.push_back({{"first_node", segment.first},
                    {"end_node", segment.end},
                    {"depth", segment.depth},
                    {"path", segment.path},
                    {"kept_bytes", segment.kept_bytes},
                    {"nodes_dropped", segment.dropped}});
  }
  return list;
}

nlohmann::ordered_json ranks_of(std::span<const models::RankPlan> plans) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const models::RankPlan& plan : plans) {
    list.push_back({{"ranks", plan.ranks},
                    {"peak_bytes", plan.report.plan.peak_bytes},
                    {"peak_by_category", categories_json(plan.report.plan.peak_by_category)},
                    {"hole_bytes", plan.report.committed.hole_bytes},
                    {"rounding_bytes", plan.report.committed.rounding_bytes},
                    {"keep_everything_bytes", plan.report.keep_everything_bytes},
                    {"feasible", plan.report.is_feasible}});
    if (plan.report.planner) list.back()["minimum_feasible_bytes"] = plan.report.minimum_bytes;
  }
  return list;
}

}  // namespace

void print_plan_json(const models::RunOptions& options, const models::PlanReport& report,
                     std::span<const models::RankPlan> ranks) {
  nlohmann::ordered_json json{{"model", report.setup.model},
                              {"parameters", report.parameters},
                              {"device", to_string(dry(options.device))},
                              {"batch", report.batch},
                              {"sequence", report.sequence},
                              {"micro_batches", report.micro_batches},
                              {"fuses_optimizer", options.setup.fuses_optimizer},
                              {"chunked_head", options.setup.sizes.head == models::Head::chunked},
                              {"window", report.setup.sizes.window},
                              {"tiled_feed_forward", options.setup.sizes.feed_forward == models::FeedForward::tiled},
                              {"clip_norm", report.clip_norm},
                              {"peak_bytes", report.plan.peak_bytes},
                              {"peak_by_category", categories_json(report.plan.peak_by_category)},
                              {"hole_bytes", report.committed.hole_bytes},
                              {"rounding_bytes", report.committed.rounding_bytes},
                              {"lower_bound_bytes", report.plan.lower_bound_bytes}};
  if (!options.setup.precision.policy.empty()) json["precision"] = options.setup.precision.policy;
  if (const auto scaling = loss_scaling(options.setup); scaling && !report.request.is_inference) {
    json["loss_scale"] = scaling->scale;
    json["loss_scale_is_dynamic"] = scaling->is_dynamic;
  }
  if (const auto fp8 = fp8_layers(options.setup, options.device))
    json["fp8"] = nlohmann::ordered_json::parse(to_json_text(*fp8));
  if (report.budget_bytes > 0) {
    json["budget_bytes"] = report.budget_bytes;
    json["feasible"] = report.is_feasible;
  }
  if (report.process_budget_bytes > 0) json["process_budget_bytes"] = report.process_budget_bytes;
  if (report.outside.total() > 0) {
    json["outside_bytes"] = report.outside.total();
    for (const auto& [name, bytes] : report.outside.parts()) json["outside"][std::string(name) + "_bytes"] = bytes;
    json["process_bytes"] = report.plan.peak_bytes + report.outside.total();
  }
  json["minimum_feasible_bytes"] = report.minimum_bytes;
  json["keep_everything_bytes"] = report.keep_everything_bytes;
  json["offloaded_bytes"] = report.plan.offloaded_bytes;
  json["packed_bytes"] = report.packing.bytes;
  json["packed_to_bytes"] = report.packing.packed_bytes;
  json["packed_dtypes"] = nlohmann::ordered_json::array();
  for (const DType dtype : report.packing.dtypes) json["packed_dtypes"].push_back(to_string(dtype));
  json["packed"] = nlohmann::ordered_json::parse(to_json_text(report.plan.packed));
  json["tier_bytes"] = report.plan.tier_bytes;
  json["time_overhead"] = report.plan.time_overhead;
  json["step_seconds"] = report.plan.step_s;
  if (report.plan.least_step_s > 0) {
    json["least_step_seconds"] = report.plan.least_step_s;
    json["time_gap"] = report.plan.time_gap();
  }
  json["cost_model"] = report.cost_model;
  json["segments"] = segments_of(report);
  if (!report.techniques.empty()) json["techniques"] = nlohmann::ordered_json::parse(techniques_json_text(report));
  if (!report.is_feasible && !report.request.is_inference) {
    json["techniques_known"] = report.known_techniques;
    json["techniques_untried"] = report.untried_techniques;
  }
  json["plan_ms"] = report.ms;
  if (!ranks.empty()) {
    json.update(layout_json(report.setup));
    json["ranks"] = ranks_of(ranks);
  }
  std::cout << json.dump(2) << "\n";
}

void print_plan_table(const models::RunOptions& options, const models::PlanReport& report) {
  const models::Setup& setup = report.setup;
  const std::string length = report.request.finds_sequence ? ", sequence " + format_grouped(report.sequence) : "";
  std::printf("%s, batch %lld%s%s: %s parameters\n", setup.model.c_str(), static_cast<long long>(report.batch),
              length.c_str(), (techniques_in_words(report) + ranks_in_words(setup)).c_str(),
              format_grouped(report.parameters).c_str());
  if (const std::string adapting = adapting_text(setup); !adapting.empty()) {
    std::printf("  %s\n", printable(adapting).c_str());
  }
  if (const std::string precision = precision_text(setup, report.request.is_inference); !precision.empty()) {
    std::printf("  precision: %s\n", precision.c_str());
  }
  if (const std::string warning = precision_warning(setup); !warning.empty())
    std::printf("  %s\n", with_flags(warning).c_str());
  if (setup.fuses_optimizer) std::printf("  gradients are not clipped: --fuse-optimizer\n");
  if (const auto fp8 = fp8_layers(setup, options.device)) std::printf("%s", to_lines(*fp8).c_str());
  if (options.device.is_cuda()) std::printf("  in the memory of a GPU: %s\n", to_string(dry(options.device)).c_str());
  if (report.budget_bytes > 0) print_bytes("budget", report.budget_bytes);
  print_bytes("peak (committed)", report.plan.peak_bytes);
  if (report.outside.total() > 0) {
    print_bytes("outside of the arena", report.outside.total());
    for (const auto& [name, bytes] : report.outside.parts()) {
      if (bytes > 0) print_bytes("  " + std::string(name), bytes);
    }
    print_bytes("the process", report.plan.peak_bytes + report.outside.total());
  }
  if (report.process_budget_bytes > 0) print_bytes("its budget", report.process_budget_bytes);
  print_bytes("lower bound (load)", report.plan.lower_bound_bytes);
  print_bytes("keeping everything", report.keep_everything_bytes);
  print_bytes("smallest possible", report.minimum_bytes);
  std::printf("live bytes at the peak, by category\n");
  for (std::size_t i = 0; i < memory::category_count; ++i) {
    if (report.plan.peak_by_category[i] > 0) {
      print_bytes(std::string(to_string(static_cast<memory::Category>(i))), report.plan.peak_by_category[i]);
    }
  }
  print_bytes("+ holes between blocks", report.committed.hole_bytes);
  print_bytes("+ rounding to granules", report.committed.rounding_bytes);
  print_bytes("= peak (committed)", report.committed.total());
  if (!report.segments.empty()) {
    std::printf("segments that backward runs again, in part or whole\n");
    std::printf("%s", nn::to_table(report.segments).c_str());
  }
  if (report.plan.offloaded_bytes > 0) print_bytes("offloaded per step", report.plan.offloaded_bytes);
  if (report.packing.bytes > 0) {
    print_bytes(report.micro_batches > 1 ? "packed per micro-batch" : "packed per step", report.packing.bytes);
    print_bytes("  to " + models::to_string(report.packing.dtypes), report.packing.packed_bytes);
  }
  if (report.packing.bytes == 0 && setup.packing.is_allowed) {
    std::printf("  packed                           nothing: the plan does without\n");
  }
  for (const nn::PackedResults& p : report.plan.packed) {
    print_bytes("  " + p.name + " to " + std::string(to_string(p.dtype)), p.bytes);
  }
  if (report.plan.tier_bytes > 0) {
    print_bytes(options.device.is_cuda() ? "pinned on the host" : "in files", report.plan.tier_bytes);
  }
  if (!report.techniques.empty()) print_techniques(report, report.request.prices_techniques);
  const std::string overhead = report::format_percent(report.plan.time_overhead);
  std::printf("time: %s over keeping everything, by the cost model '%s'\n", overhead.c_str(),
              report.cost_model.c_str());
  if (report.plan.least_step_s > 0) {
    std::printf("      at most %s over the least possible in these bytes\n",
                report::format_most_percent(report.plan.time_gap()).c_str());
  }
  std::printf("planned in %.1f ms\n", report.ms);
}

void print_plan_ranks(std::span<const models::RankPlan> plans) {
  std::printf("ranks, by their shares\n  %-14s %16s %16s %16s %16s %16s %16s\n", "rank", "peak (committed)",
              "parameter", "gradient", "optimizer", "communication", "the rest");
  for (const models::RankPlan& plan : plans) {
    const memory::CategoryBytes& bytes = plan.report.plan.peak_by_category;
    const auto of = [&](memory::Category c) { return static_cast<std::int64_t>(bytes[static_cast<std::size_t>(c)]); };
    std::int64_t rest = 0;
    for (const std::size_t each : bytes) rest += static_cast<std::int64_t>(each);
    for (const memory::Category c : {memory::Category::parameter, memory::Category::gradient,
                                     memory::Category::optimizer, memory::Category::communication}) {
      rest -= of(c);
    }
    std::printf(
        "  %-14s %16s %16s %16s %16s %16s %16s%s\n", ranks_in_words(plan.ranks).c_str(),
        format_grouped(plan.report.plan.peak_bytes).c_str(), format_grouped(of(memory::Category::parameter)).c_str(),
        format_grouped(of(memory::Category::gradient)).c_str(), format_grouped(of(memory::Category::optimizer)).c_str(),
        format_grouped(of(memory::Category::communication)).c_str(), format_grouped(rest).c_str(),
        plan.report.is_feasible ? "" : "  does not fit");
  }
}

namespace {

/// Output files of the plan; an empty path writes none.
struct Files {
  std::string html, trace, csv, snapshot, plan;

  bool overwrites = false;

  /// Throws ValueError before anything is planned or written.
  void check(const models::RunOptions& options) const {
    const models::CostOptions& costs = options.costs;
    check_outputs({{"--html", html, &file_kinds::page},
                   {"--trace", trace, &file_kinds::trace},
                   {"--csv", csv, &file_kinds::lifetimes},
                   {"--snapshot", snapshot, &file_kinds::snapshot},
                   {"--save", plan, &file_kinds::plan},
                   {"--profile-file", costs.measures ? costs.times : "", &file_kinds::costs}},
                  {{"--data", options.data},
                   {"--weights", options.setup.weights},
                   {"--adapters", options.setup.lora.adapters},
                   {"--tokenizer", options.setup.tokenizer},
                   {"--profile-file", costs.measures ? "" : costs.times}},
                  overwrites);
  }

  bool wants_pictures() const { return !(html + trace + csv + snapshot).empty(); }

  void write(const PlanView& view) const {
    // Makes all contents before writing the first.
    std::vector<std::pair<std::string, std::string>> contents;
    if (!html.empty()) contents.emplace_back(html, report::write_plan_page(view));
    if (!trace.empty()) contents.emplace_back(trace, report::write_chrome_trace(view));
    if (!csv.empty()) contents.emplace_back(csv, to_csv(view.planned().events));
    if (!snapshot.empty()) contents.emplace_back(snapshot, report::write_snapshot(view));
    for (const auto& [path, content] : contents) write_output(path, content);
  }
};

void add_file_flags(CLI::App& command, Files& files) {
  command.add_option("--save", files.plan, "Write the plan, for 'thimble train --plan'")->type_name("FILE");
  command.add_option("--html", files.html, "Write a page that shows the plan")->type_name("FILE");
  command.add_option("--trace", files.trace, "Write the step for Perfetto, in Chrome's trace event format")
      ->type_name("FILE");
  command.add_option("--csv", files.csv, "Write the lifetimes of the step, for 'thimble pack'")->type_name("FILE");
  command.add_option("--snapshot", files.snapshot, "Write the step for pytorch.org/memory_viz")->type_name("FILE");
  add_overwrite_flag(command, files.overwrites);
}

[[noreturn]] void refuse_planning(std::size_t bytes) {
  throw OutOfMemory("planning: it needs more than the " + memory::exact_bytes(bytes) +
                        " that a limit of the machine leaves beside code",
                    {.requested_bytes = bytes + 1, .capacity_bytes = bytes});
}

std::string hardware_names() {
  std::string names;
  for (const nn::Hardware& h : nn::hardware_list()) names += (names.empty() ? "" : ", ") + h.name;
  return names;
}

}  // namespace

void add_plan(CLI::App& program) {
  CLI::App* const command = program.add_subcommand("plan", "Show the bytes that a run needs, and how it fits a budget");
  const auto options = std::make_shared<models::RunOptions>();
  const auto request = std::make_shared<models::PlanRequest>();
  const auto is_json = std::make_shared<bool>(false);
  add_setup_flags(*command, std::shared_ptr<models::Setup>(options, &options->setup));
  command
      ->add_option("--data", options->data,
                   "Training data of the run: it sets the vocabulary or the images (the model's)")
      ->type_name("PATH");
  const CLI::Option* const dropout = add_number(*command, "--dropout", options->setup.sizes.dropout, 0, 0.99,
                                                "Dropout of text models (the model's own)");
  add_size(*command, "--budget", options->budget_bytes,
           "Bytes that the arena may commit in training (those of --hardware, else no limit)");
  add_size(*command, "--process-budget", options->process_budget_bytes,
           "Bytes that the whole process may hold: arena, code, heap, threads, data (no limit)");
  command->add_flag("--max-batch", request->finds_batch, "Find the largest batch that fits the budget");
  command->add_flag("--max-seq", request->finds_sequence,
                    "Text models: find the longest sequence that fits the budget");
  command->add_flag("--techniques", request->prices_techniques,
                    "List the savings and costs of all further techniques, even of ones that exceed the budget");
  command->add_flag("--inference", request->is_inference,
                    "Plan a forward pass without a tape instead of a training step");
  command->add_flag("--int8", request->is_int8, "With --inference: plan the 8-bit model of 'thimble quantize'");
  add_technique_flags(*command, std::shared_ptr<models::Setup>(options, &options->setup),
                      {models::FlagSet::ranks, models::FlagSet::plans});
  add_cost_flags(*command, std::shared_ptr<models::CostOptions>(options, &options->costs));
  add_compute_flags(*command);
  command->add_option("--hardware", options->costs.hardware,
                      "Cost model of: " + hardware_names() + " (cpu; cuda: h100-80gb)");
  command
      ->add_option_function<std::string>(
          "--device", [options](const std::string& text) { options->device = parse_device_flag("--device", text); },
          "Device to plan for, present or not: cpu, cuda or cuda:N (cpu)")
      ->type_name("DEVICE");
  command->add_flag("--tf32", options->allows_tf32, "CUDA: take the times of f32 products in TF32");
  command->add_flag("--json", *is_json, "Print JSON");
  const auto files = std::make_shared<Files>();
  add_file_flags(*command, *files);
  const auto graph = std::make_shared<std::string>();
  add_graph_flag(*command, graph);
  const auto generation = std::make_shared<GenerationFlags>();
  add_generation_flags(*command, generation);
  const auto layout = std::make_shared<LayoutFlags>();
  add_layout_flags(*command, layout);
  command->callback([command, options, request, is_json, files, dropout, graph, generation, layout] {
    if (plan_graph(*command, {*graph, files->html, options->budget_bytes, *is_json, files->overwrites})) return;
    models::Setup& setup = options->setup;
    if (!setup.weights.empty() && !generation->is_asked) {
      follow_weights(setup.model, setup.sizes, models::read_weight_facts(setup.weights), models::WeightUse::training);
    }
    // A plan for other --hardware assumes its compute capability.
    const std::string& name = options->costs.hardware;
    const AssumedCapability units(name.empty() ? 0 : nn::hardware(name).capability);
    if (layout->cluster.memory_bytes > 0) return plan_layout(*command, *layout, *options, *is_json);
    for (const char* flag : {"--dp", "--per-node", "--inside", "--between"}) {
      if (command->get_option(flag)->count() > 0) throw ValueError(std::string(flag) + ": expected --memory; add it");
    }
    if (generation->is_asked) {
      return plan_generation(*command, *generation, options->setup, options->device, options->budget_bytes, *is_json);
    }
    for (const char* flag : {"--context", "--cache", "--prompt-tokens"}) {
      if (command->get_option(flag)->count() > 0) throw ValueError(std::string(flag) + ": expected --generate; add it");
    }
    for (const auto& [search, size] : {std::pair("--max-batch", "--batch"), std::pair("--max-seq", "--seq")}) {
      if (command->get_option(search)->count() > 0 && command->get_option(size)->count() > 0) {
        throw ValueError(std::string(size) + ": not with " + search + ", which finds it; leave out one of them");
      }
    }
    require_shared_batch(*command, options->setup);
    files->check(*options);
    if (request->is_inference && !files->plan.empty()) {
      throw ValueError("--save: expected a training plan, got --inference; leave out one of them");
    }
    if (request->is_inference && dropout->count() > 0) {
      throw ValueError("--dropout: expected a training step, got --inference; leave out one of them");
    }
    models::PlanReport alone;
    std::vector<models::RankPlan> ranks;
    const PlanningLine planning;
    options->progress = [&planning](const std::string& text) { planning.show(text); };
    const memory::HeapBound bound(memory::heap_room());
    try {
      if (options->setup.layout.ranks > 1) {
        if (!files->plan.empty()) {
          throw ValueError("--save: expected one rank, got --ranks " + std::to_string(options->setup.layout.ranks));
        }
        ranks = plan_ranks(*options, *request);
        options->setup.layout.rank = ranks.front().ranks.front();
      } else {
        alone = make_plan(*options, *request);
      }
    } catch (const std::bad_alloc&) {
      refuse_planning(bound.bytes());
    } catch (const OutOfMemory&) {
      refuse_planning(bound.bytes());
    }
    options->progress = nullptr;
    const models::PlanReport& report = ranks.empty() ? alone : ranks.front().report;
    if (files->wants_pictures()) files->write(see_plan(*options, report));
    if (!files->plan.empty() && report.is_feasible) nn::write_plan(files->plan, report.plan);
    *is_json ? print_plan_json(*options, report, ranks) : print_plan_table(*options, report);
    if (!*is_json && !ranks.empty()) print_plan_ranks(ranks);
    if (!report.is_feasible) throw report.why_infeasible;
  });
}

}  // namespace thimble::bench
