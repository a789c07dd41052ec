#pragma once
// What can be switched on so that a step needs less: what each technique would allow and cost, and how many
// micro-batches are best for a budget. All on dry devices.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/fit/levers.h>

namespace thimble::models {

/// Makes the runs of a setup: zero_batch_run, or runs with data and evaluations.
using RunOfSetup = std::function<nn::MakeRun(const Setup& setup)>;

/// What plans are made with.
struct ChoiceOptions : nn::LeverSearch {
  RunOfSetup run_of = zero_batch_run;
  bool captures_steps = false;  ///< so that parameters cannot be away
  bool prices_away = false;     ///< what waits in a tier is priced even where something fits
};

/// Whether a technique of this list is switched on: micro-batches, the chunked head, feed-forward layers in tiles, the
/// fused optimizer.
bool has_techniques(const Setup& setup);

/// Seconds of the step that overheads are counted from: the setup's with no technique switched on and everything kept,
/// by the cost model. `planner` is of the setup; where that has techniques, a step without them is recorded. With
/// measured times it is the setup's own step that keeps everything. Throws what the run throws.
double plain_step_seconds(const ChoiceOptions& options, const Setup& setup, const nn::Planner& planner);

/// The setup as it is; then each technique that it leaves off and that can join it: the fused optimizer, the chunked
/// head, feed-forward layers in tiles, 2, 4 and 8 micro-batches where they divide the batch; then the strongest
/// combinations of these; then, where none fits the budget or it is asked for, the optimizer's state, gradients and
/// parameters that wait in a tier, with the time of their transfers. Times are by the machine's numbers, even where
/// others were measured. Takes about as long as planning each of them. Throws what the runs throw.
std::vector<nn::LeverPrice> price_techniques(const ChoiceOptions& options, const Setup& setup);

/// Tries what price_techniques lists, and tensors offloaded or packed by the plan (nn::offer_levers). Throws what the
/// runs throw.
nn::LeverOffers offer_techniques(const ChoiceOptions& options, const Setup& setup);

/// A number of micro-batches.
struct MicroBatchChoice {
  std::int64_t count = 1;
  std::shared_ptr<nn::Planner> planner;  ///< of the setup with that number
};

/// planner.fit(budget_bytes) for the setup, whose planner it is. In stage 3 of ZeRO ranks bring each other parameters
/// in the order in which operators need them: all follow one plan, with the blocks of each placed by themselves, that
/// keeps the budget on every rank. All ranks find the same one. Throws BudgetError.
nn::Plan fit_in_budget(const ChoiceOptions& options, const Setup& setup, nn::Planner& planner);

/// The number of micro-batches whose plan for the budget is the fastest by the cost model, the smaller one of two that
/// are equally fast; where no plan is within the budget, the number that needs least. Tried are 1, 2, 4, ... as far as
/// they divide the batch. Throws ValueError without a budget, with measured times, and for a setup that micro-batches
/// cannot join.
MicroBatchChoice choose_micro_batches(const ChoiceOptions& options, const Setup& setup);

}  // namespace thimble::models
