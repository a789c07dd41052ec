#include <thimble/models/training/process_bytes.h>

#include <thimble/core/threads/parallel.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/nn/files/staging.h>
#include <thimble/nn/fit/process_budget.h>

namespace thimble::models {

memory::OutsideFacts outside_facts(const Setup& setup, bool has_budget, bool has_files, std::size_t nodes,
                                   std::size_t data_bytes) {
  const bool plans_offload = !setup.offload.empty() && has_budget;
  const int tiers = (setup.offloads_optimizer ? 1 : 0) + (setup.offloads_parameters ? 1 : 0) +
                    (setup.offloads_gradients ? 1 : 0) + (plans_offload ? 1 : 0);
  return {.threads = thread_count(),
          .tier_threads = tiers * FileTier::Options().workers,
          .nodes = nodes,
          .staging = has_files ? nn::file_staging_bytes : 0,
          .data = data_bytes};
}

memory::OutsideFacts outside_facts(const PreparedTraining& prepared) {
  const TrainOptions& options = prepared.options;
  // A checkpoint is written from where its tensors lie. What is read is checked, and what others read is turned, in
  // pieces.
  const bool has_files = !options.resume.empty() || !options.save_weights.empty() || !options.setup.weights.empty() ||
                         !options.save_adapters.empty();
  const bool has_budget = options.budget_bytes > 0 || options.process_budget_bytes > 0;
  return outside_facts(options.setup, has_budget, has_files, prepared.nodes, prepared.data->heap_bytes());
}

std::size_t count_nodes(PreparedTraining& prepared) {
  Setup& setup = prepared.options.setup;
  const std::int64_t asked = setup.micro_batches;
  if (asked == auto_micro_batches) setup.micro_batches = 1;
  const std::size_t nodes = nn::profile_training(dry(prepared.options.device), training_program(prepared), 1).nodes;
  setup.micro_batches = asked;
  return nodes;
}

void fit_process(PreparedTraining& prepared, const std::function<void()>& plan) {
  TrainOptions& options = prepared.options;
  nn::fit_process(
      options.process_budget_bytes, options.budget_bytes,
      [&] { return memory::outside_bytes(memory::ProcessBase::measure(), outside_facts(prepared)); },
      [&](std::size_t arena_bytes) {
        options.budget_bytes = arena_bytes;
        plan();
        return prepared.plan.peak_bytes;
      });
}

}  // namespace thimble::models
