#include <thimble/bench/commands/train_output.h>

#include <cstdio>
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include <thimble/bench/commands/packing_report.h>
#include <thimble/bench/commands/plan_output.h>
#include <thimble/bench/commands/ranks.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/printable.h>
#include <thimble/memory/units.h>
#include <thimble/models/techniques/adapting.h>

namespace thimble::bench {
namespace {

void print_parts(const TrainExtra& extra) {
  if (!extra.committed) return;
  const auto line = [](std::string_view name, std::size_t bytes) {
    std::printf("    %-22s %18s\n", std::string(name).c_str(), format_grouped(bytes).c_str());
  };
  for (std::size_t i = 0; i < memory::category_count; ++i) {
    if (extra.by_category[i] > 0) line(to_string(static_cast<memory::Category>(i)), extra.by_category[i]);
  }
  line("holes between blocks", extra.committed->hole_bytes);
  line("rounding to granules", extra.committed->rounding_bytes);
}

std::vector<std::string> names_of(const std::vector<DType>& dtypes) {
  std::vector<std::string> names;
  for (const DType dtype : dtypes) names.emplace_back(to_string(dtype));
  return names;
}

nlohmann::ordered_json ranks_of(const models::TrainReport& r) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const nn::RankFigures& rank : r.ranks) {
    list.push_back({{"predicted_peak_bytes", rank.predicted_peak_bytes},
                    {"measured_peak_bytes", rank.measured_peak_bytes},
                    {"peak_by_category", categories_json(rank.peak_by_category)},
                    {"optimizer_state_bytes", rank.state_bytes},
                    {"tier_bytes", rank.tier_bytes},
                    {"process_peak_bytes", rank.process_peak_bytes},
                    {"sent_bytes", rank.sent_bytes},
                    {"messages", rank.messages}});
  }
  return list;
}

void print_ranks(const models::RunOptions& options, const models::TrainReport& r) {
  if (r.ranks.empty()) return;
  std::printf("  ranks            %zu, ZeRO stage %d", r.ranks.size(), options.setup.layout.zero);
  if (options.setup.layout.tp > 1) std::printf(", blocks in %d shards", options.setup.layout.tp);
  if (options.setup.layout.cp > 1) std::printf(", the sequence in %d shards", options.setup.layout.cp);
  if (options.setup.layout.pp > 1)
    std::printf(", %d stages, %s", options.setup.layout.pp, options.setup.layout.pipeline.c_str());
  if (options.setup.layout.chunks > 1) std::printf(", %d chunks", options.setup.layout.chunks);
  std::printf("\n");
  std::printf("    rank     predicted peak      measured peak              state           sent   process peak\n");
  for (std::size_t i = 0; i < r.ranks.size(); ++i) {
    const nn::RankFigures& rank = r.ranks[i];
    std::printf("    %4zu %18s %18s %18s %14s %14s\n", i, format_grouped(rank.predicted_peak_bytes).c_str(),
                format_grouped(rank.measured_peak_bytes).c_str(), format_grouped(rank.state_bytes).c_str(),
                format_bytes(rank.sent_bytes).c_str(), format_bytes(rank.process_peak_bytes).c_str());
  }
}

const char* end_name(nn::TrainEnd end) {
  constexpr const char* names[] = {"complete", "stopped", "diverged", "no_better"};  // in the order of TrainEnd
  return names[static_cast<std::size_t>(end)];
}

}  // namespace

void print_train_json(const models::RunOptions& options, const TrainExtra& extra, const models::TrainReport& r) {
  nlohmann::ordered_json json{{"model", options.setup.model},
                              {"parameters", r.parameters},
                              {"trained_parameters", r.trained_parameters},
                              {"first_step", r.first_step},
                              {"steps", r.steps},
                              {"end", end_name(r.end)},
                              {"loss_first", r.loss_first},
                              {"loss_last", r.loss_last},
                              {"is_finite", r.is_finite()},
                              {"validation_loss", r.evaluation ? nlohmann::ordered_json(r.evaluation->loss) : nullptr},
                              {"optimizer", r.optimizer},
                              {"optimizer_state_bytes", r.state_bytes},
                              {"full_state", r.full_state},
                              {"predicted_peak_bytes", r.predicted_peak_bytes},
                              {"measured_peak_bytes", r.measured_peak_bytes},
                              {"budget_bytes", options.budget_bytes},
                              {"micro_batches", options.setup.micro_batches},
                              {"fuses_optimizer", options.setup.fuses_optimizer},
                              {"clip_norm", r.clip_norm},
                              {"time_overhead", r.time_overhead},
                              {"cost_model", r.cost_model},
                              {"offloaded_bytes", r.offloaded_bytes},
                              {"packed_bytes", r.packing.bytes},
                              {"packed_to_bytes", r.packing.packed_bytes},
                              {"packed_dtypes", names_of(r.packing.dtypes)},
                              {"predicted_tier_bytes", r.predicted_tier_bytes},
                              {"measured_tier_bytes", r.measured_tier_bytes},
                              {"outside_bytes", r.outside.total()},
                              {"process_peak_bytes", r.process_peak_bytes},
                              {"process_budget_bytes", r.process_budget_bytes},
                              {"control_group_peak_bytes", r.control_group_peak_bytes},
                              {"rss_peak_bytes", r.rss_peak_bytes},
                              {"arena_rss_bytes", r.arena_rss_bytes},
                              {"ms_per_step", r.ms_per_step},
                              {"items_per_s", r.items_per_s}};
  for (const auto& [name, bytes] : r.outside.parts()) json["outside"][std::string(name) + "_bytes"] = bytes;
  json["differences"] = r.differences();
  json["packed"] = nlohmann::ordered_json::parse(to_json_text(extra.packed));
  if (extra.gradients) json["gradient_report"] = nlohmann::ordered_json::parse(to_json_text(*extra.gradients));
  if (!options.setup.precision.policy.empty()) json["precision"] = options.setup.precision.policy;
  if (const auto fp8 = fp8_layers(options.setup, options.device))
    json["fp8"] = nlohmann::ordered_json::parse(to_json_text(*fp8));
  if (options.device.is_cuda()) json["tf32"] = options.allows_tf32;
  if (extra.committed) {
    json["peak_by_category"] = categories_json(extra.by_category);
    json["hole_bytes"] = extra.committed->hole_bytes;
    json["rounding_bytes"] = extra.committed->rounding_bytes;
  }
  for (const auto& [key, figure] : nn::device_figures(r)) json[key] = figure;
  if (r.libraries && r.libraries->cublaslt.refusals > 0) {
    json["cublaslt_first_refused"] = r.libraries->cublaslt.first_refused;
  }
  if (r.libraries && r.libraries->cudnn.refusals > 0) json["cudnn_first_refused"] = r.libraries->cudnn.first_refused;
  if (options.captures_steps) json["captured_launches"] = r.captured_launches;
  if (r.placed) {
    json["deviations"] = r.placed->deviations;
    json["unplaced_steps"] = r.placed->dynamic_steps;
    json["bytes_above_plan"] = r.placed->bytes_above_plan;
    json["first_deviation"] = nullptr;
    if (r.placed->first_deviation) json["first_deviation"] = to_string(*r.placed->first_deviation);
  }
  if (r.scaler) {
    json["loss_scale"] = r.scaler->scale;
    json["skipped_steps"] = r.skipped_steps;
  }
  if (r.evaluation && r.evaluation->accuracy) json["validation_accuracy"] = *r.evaluation->accuracy;
  if (options.sample > 0) json["sample"] = r.sample;
  if (!r.ranks.empty()) {
    json.update(layout_json(options.setup));
    json["ranks"] = ranks_of(r);
  }
  std::cout << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
}

void print_train_table(const models::RunOptions& options, const TrainExtra& extra, const models::TrainReport& r) {
  std::printf("%s: %s parameters, steps %lld to %lld\n", options.setup.model.c_str(),
              format_grouped(r.parameters).c_str(), static_cast<long long>(r.first_step) + 1,
              static_cast<long long>(r.steps));
  if (const std::string adapting = adapting_text(options.setup); !adapting.empty()) {
    std::printf("  adapters         %s: %s parameters\n", printable(adapting).c_str(),
                format_grouped(r.trained_parameters).c_str());
  }
  if (const std::string precision = precision_text(options.setup); !precision.empty()) {
    std::printf("  precision        %s\n", precision.c_str());
  }
  if (const auto fp8 = fp8_layers(options.setup, options.device)) std::printf("%s", to_lines(*fp8).c_str());
  std::printf("  loss             %.4f -> %.4f", r.loss_first, r.loss_last);
  r.evaluation ? std::printf(", validation %.4f\n", r.evaluation->loss) : std::printf("\n");
  if (r.end == nn::TrainEnd::diverged) {
    std::printf("                   training diverged\n");
  } else if (!r.is_finite()) {
    std::printf("                   the last loss is not finite\n");
  }
  if (r.scaler) {
    std::printf("  loss scale       %.9g at the end", r.scaler->scale);
    if (r.skipped_steps > 0) {
      std::printf(", %lld step%s skipped", static_cast<long long>(r.skipped_steps), r.skipped_steps == 1 ? "" : "s");
    }
    std::printf("\n");
  }
  if (r.evaluation && r.evaluation->accuracy) std::printf("  accuracy         %.4f\n", *r.evaluation->accuracy);
  std::printf("  optimizer        %s, %s of state\n", r.optimizer.c_str(), format_grouped(r.state_bytes).c_str());
  if (!r.full_state.empty()) {
    constexpr std::size_t shown = 3;  // --json prints all
    std::string names;
    for (std::size_t i = 0; i < std::min(shown, r.full_state.size()); ++i) {
      names += (i == 0 ? "" : ", ") + r.full_state[i];
    }
    if (r.full_state.size() > shown) names += ", ...";
    std::printf("                   in f32 that of %zu parameters: %s\n", r.full_state.size(), names.c_str());
  }
  if (options.allows_tf32) std::printf("  f32 products     in TF32\n");
  if (options.captures_steps) std::printf("  captured step    %zu launches in one call\n", r.captured_launches);
  if (options.setup.micro_batches > 1) {
    std::printf("  micro-batches    %lld of %lld samples\n", static_cast<long long>(options.setup.micro_batches),
                static_cast<long long>(options.setup.batch /
                                       (models::data_ranks(options.setup) * options.setup.micro_batches)));
  }
  if (options.setup.fuses_optimizer)
    std::printf("                   fused into backward; gradients were not clipped\n");
  std::printf("  predicted peak   %s (%s)\n", format_grouped(r.predicted_peak_bytes).c_str(),
              format_bytes(r.predicted_peak_bytes).c_str());
  if (options.budget_bytes > 0) {
    std::printf("  budget           %s, at %.1f %% more time by the cost model%s\n",
                format_bytes(options.budget_bytes).c_str(), 100 * r.time_overhead,
                r.cost_model.empty() ? "" : (" '" + r.cost_model + "'").c_str());
  }
  if (r.offloaded_bytes > 0) std::printf("  offloaded        %s per step\n", format_bytes(r.offloaded_bytes).c_str());
  if (r.packing.bytes > 0) {
    std::printf("  packed           %s to %s of %s per %s\n", format_bytes(r.packing.bytes).c_str(),
                format_bytes(r.packing.packed_bytes).c_str(), models::to_string(r.packing.dtypes).c_str(),
                options.setup.micro_batches > 1 ? "micro-batch" : "step");
  } else if (options.setup.packing.is_allowed) {
    std::printf("  packed           nothing: the plan for this budget does without\n");
  }
  if (r.predicted_tier_bytes > 0) {
    std::printf("  %s %s predicted, %s measured\n", options.device.is_cuda() ? "pinned on host  " : "in files        ",
                format_grouped(r.predicted_tier_bytes).c_str(), format_grouped(r.measured_tier_bytes).c_str());
  }
  std::printf("  measured peak    %s\n", format_grouped(r.measured_peak_bytes).c_str());
  if (r.placed && r.placed->deviations + r.placed->dynamic_steps > 0) {
    std::printf("  left its plan    %llu of %llu steps, by up to %s\n",
                static_cast<unsigned long long>(r.placed->deviations) + r.placed->dynamic_steps,
                static_cast<unsigned long long>(r.placed->steps), format_bytes(r.placed->bytes_above_plan).c_str());
    if (r.placed->first_deviation)
      std::printf("                   %s\n", to_string(*r.placed->first_deviation).c_str());
  }
  print_parts(extra);
  if (r.device_use) std::printf("  device           %s\n", memory::to_string(*r.device_use).c_str());
  if (r.device_use) {
    std::printf("  handles          %s of libraries\n", format_bytes(r.device_use->handle_bytes).c_str());
  }
  if (r.libraries) std::printf("  libraries        %s\n", memory::to_string(*r.libraries).c_str());
  if (r.outside.total() > 0) {
    std::printf("  outside of it    at most %s\n", to_string(r.outside).c_str());
    const std::size_t promised = r.predicted_peak_bytes + r.outside.total();
    std::printf("  process peak     %s, promised %s\n",
                r.process_peak_bytes > 0 ? format_bytes(r.process_peak_bytes).c_str() : "not known",
                format_bytes(promised).c_str());
  } else {
    std::printf("  process peak     %s\n", format_bytes(r.rss_peak_bytes).c_str());
  }
  print_ranks(options, r);
  std::printf("  speed            %.2f ms per step, %.0f items/s\n", r.ms_per_step, r.items_per_s);
  if (options.sample > 0) std::printf("\n%s\n", printable(r.sample, "\n\t").c_str());
}

}  // namespace thimble::bench
