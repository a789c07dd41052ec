// The run itself: training in an arena of its own, and what is measured of it.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/memory/process/host_limits.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/stack.h>
#include <thimble/memory/units.h>
#include <thimble/models/training/checkpoints.h>
#include <thimble/models/training/plan_training.h>
#include <thimble/models/training/training.h>

namespace thimble::models {

std::vector<std::pair<std::string, std::size_t>> device_figures(const TrainReport& report) {
  if (!report.device_use) return {};
  const memory::DeviceUse& use = *report.device_use;
  const kernels::LibraryUse& libraries = *report.libraries;
  return {{"device_total_bytes", use.total_bytes},
          {"device_used_bytes", use.used_bytes},
          {"device_outside_bytes", use.outside_bytes},
          {"context_bytes", use.context_bytes},
          {"handle_bytes", use.handle_bytes},
          {"cublaslt_calls", libraries.cublaslt.calls},
          {"cublaslt_refusals", libraries.cublaslt.refusals},
          {"cudnn_calls", libraries.cudnn.calls},
          {"cudnn_refusals", libraries.cudnn.refusals}};
}

std::string TrainReport::differences() const {
  std::string list;
  const auto differs = [&list](const std::string& what, std::size_t measured, const char* than, std::size_t told) {
    list += (list.empty() ? "" : "; ") + what + " measured " + memory::exact_bytes(measured) + than +
            memory::exact_bytes(told);
  };
  const bool is_less_for_skipping = skipped_steps > 0 && measured_peak_bytes < predicted_peak_bytes;
  if (ranks.empty() && measured_peak_bytes != predicted_peak_bytes && !is_less_for_skipping) {
    differs("the arena's peak", measured_peak_bytes, ", predicted ", predicted_peak_bytes);
  }
  if (measured_tier_bytes > predicted_tier_bytes) {
    differs("the offloaded bytes", measured_tier_bytes, ", predicted ", predicted_tier_bytes);
  }
  const std::size_t promised = predicted_peak_bytes + outside.total();
  if (outside.total() > 0 && process_peak_bytes > promised) {
    differs("the process", process_peak_bytes, ", promised ", promised);
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::size_t measured = ranks[r].measured_peak_bytes, predicted = ranks[r].predicted_peak_bytes;
    if (measured == predicted || (skipped_steps > 0 && measured < predicted)) continue;
    differs("the arena's peak of rank " + std::to_string(r), measured, ", predicted ", predicted);
  }
  if (process_budget_bytes > 0 && process_peak_bytes > process_budget_bytes) {
    differs("the process", process_peak_bytes, ", its budget ", process_budget_bytes);
  }
  return list;
}

namespace {

/// What is known before the first step: refused where it cannot be.
void promise(const PreparedTraining& prepared, const memory::ProcessWatch& watch, TrainReport& report) {
  report.outside = memory::outside_bytes(watch.base(), outside_facts(prepared));
  report.process_budget_bytes = prepared.options.process_budget_bytes;
  memory::require_room({prepared.plan.peak_bytes, report.outside});
}

/// Every rank's, on every rank.
std::vector<RankFigures> gather_figures(const TrainReport& report, const memory::Stack& stack,
                                        const dist::Communicator::Volume& volume, dist::Communicator* ranks) {
  if (ranks == nullptr) return {};
  const RankFigures own{report.predicted_peak_bytes,
                        report.measured_peak_bytes,
                        stack.ledger->peak_by_category(),
                        report.state_bytes,
                        report.measured_tier_bytes,
                        report.process_peak_bytes,
                        volume.bytes_sent,
                        volume.messages};
  std::vector<RankFigures> all(static_cast<std::size_t>(ranks->size()));
  ranks->all_gather(&own, sizeof(own), all.data());
  return all;
}

}  // namespace

TrainReport train(const PreparedTraining& prepared, const nn::TrainObserver& observer, const TrainWatcher& watcher,
                  const nn::TrainControl& control) {
  const TrainOptions& options = prepared.options;
  TrainReport report;
  report.predicted_peak_bytes = prepared.plan.peak_bytes;
  report.time_overhead = prepared.plan.time_overhead;
  report.cost_model = prepared.cost_model;
  report.offloaded_bytes = prepared.plan.offloaded_bytes;
  report.packing = prepared.packing;
  report.predicted_tier_bytes = prepared.plan.tier_bytes;
  report.first_step = prepared.first_step;
  report.clip_norm = clip_norm(options.setup, prepared.is_text);
  std::optional<memory::ProcessWatch> watch;
  if (options.device == cpu) {
    watch.emplace();
    if (options.setup.ranks == 1) promise(prepared, *watch, report);
  }
  memory::Options stack_options;
  stack_options.arena.capacity_bytes = options.budget_bytes;
  if (memory::has_address_limit()) stack_options.arena.reserve_bytes = prepared.plan.peak_bytes;
  stack_options.plans = prepared.plan.placement;
  const memory::Stack stack = memory::make_resource(options.device, std::move(stack_options));
  if (stack.placed) stack.placed->set_strict(options.is_strict);
  if (watcher) watcher(stack);
  const ResourceScope scope(stack.top);
  const Tf32Scope products(options.allows_tf32);
  Training training(options, *prepared.data, options.device, prepared.plan, prepared.first_step);
  if (!options.resume.empty()) training.load(options.resume);
  report.parameters = training.model().parameter_count();
  for (const nn::Named& p : training.model().trainable()) report.trained_parameters += p.tensor.elements();
  report.optimizer = training.optimizer().name();
  report.state_bytes = training.optimizer().state_bytes();
  report.full_state = training.optimizer().kept_full();
  const Setup& setup = options.setup;
  nn::LoopOptions looped = nn::loop_options(trainer_options(options, options.device),
                                            setup.ranks > 1 ? std::optional<int>(setup.rank) : std::nullopt);
  looped.first_step = looped.resumed_steps = prepared.first_step;
  looped.items_per_step = static_cast<double>(setup.batch * prepared.data->items_per_sample());
  dist::Communicator* const ranks = setup.ranks > 1 ? options.ranks : nullptr;
  const nn::TrainControl agreed = nn::agreed_control(control, ranks);
  nn::TrainingLoop loop(training, looped, stack, report, agreed);
  loop.run(observer);
  report.captured_launches = training.captured_launches();
  if (training.scaler() != nullptr) report.scaler = training.scaler()->state();
  const bool is_complete = report.end == nn::TrainEnd::complete;
  if (is_complete) training.save_weights();
  loop.rethrow_failed_save();
  training.rest();
  if (is_complete && options.sample > 0) report.sample = prepared.data->decode(training.sample());
  report.measured_peak_bytes = stack.arena->statistics().peak_committed_bytes;
  if (stack.placed) report.placed = stack.placed->statistics();
  report.measured_tier_bytes = training.tier_bytes();
  report.rss_peak_bytes = process::peak_rss_bytes();
  if (watch) report.process_peak_bytes = watch->peak_bytes();
  if (watch) report.control_group_peak_bytes = memory::control_group_peak_bytes();
  if (options.device.is_cuda()) {
    const std::size_t others = memory::statistics(options.device).committed_bytes;  // outside of the run
    report.device_use = memory::device_use(options.device, stack.arena->statistics().committed_bytes + others);
    report.libraries = kernels::device_runtime(options.device).library_use();
  }
  if (options.device == cpu) {
    report.arena_rss_bytes = process::mapping_rss_bytes(stack.arena->base(), stack.arena->reserved_bytes());
  }
  report.ranks = gather_figures(report, stack, training.volume(), ranks);
  return report;
}

}  // namespace thimble::models
