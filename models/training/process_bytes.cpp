#include <thimble/models/training/process_bytes.h>

#include <algorithm>

#include <thimble/core/threads/parallel.h>
#include <thimble/memory/bytes.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/nn/files/staging.h>

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

std::size_t arena_budget(std::size_t process_budget_bytes, const memory::OutsideBytes& outside) {
  if (process_budget_bytes > outside.total()) return process_budget_bytes - outside.total();
  throw nn::BudgetError("`process_budget_bytes`: " + memory::exact_bytes(process_budget_bytes) +
                            " leave nothing for an arena: outside of it the process takes " + to_string(outside),
                        process_budget_bytes, outside.total() + 1);
}

nn::BudgetError of_process(const nn::BudgetError& error, std::size_t process_budget_bytes,
                           const memory::OutsideBytes& outside) {
  const std::size_t least = error.minimum_bytes() + outside.total();
  return {"`process_budget_bytes`: " + memory::exact_bytes(process_budget_bytes) + ", of which " + to_string(outside) +
              " are outside of the arena; in all at least " + memory::exact_bytes(least) +
              " are needed: " + error.what(),
          process_budget_bytes, least};
}

void fit_process(PreparedTraining& prepared, const std::function<void()>& plan) {
  TrainOptions& options = prepared.options;
  const std::size_t budget = options.process_budget_bytes;
  const std::size_t own_budget = options.budget_bytes;
  constexpr int most_tries = 4;  // planning leaves something on the heap, which the next plan knows of
  memory::OutsideBytes outside;
  for (int tries = 0; tries < most_tries; ++tries) {
    outside = memory::outside_bytes(memory::ProcessBase::measure(), outside_facts(prepared));
    const std::size_t left = arena_budget(budget, outside);
    options.budget_bytes = own_budget > 0 ? std::min(own_budget, left) : left;
    try {
      plan();
    } catch (const nn::BudgetError& error) {
      throw of_process(error, budget, outside);
    }
    outside = memory::outside_bytes(memory::ProcessBase::measure(), outside_facts(prepared));
    if (prepared.plan.peak_bytes + outside.total() <= budget) return;
  }
  throw of_process(nn::BudgetError("planning itself leaves too much on the heap", budget, prepared.plan.peak_bytes),
                   budget, outside);
}

}  // namespace thimble::models
