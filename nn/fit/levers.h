#pragma once
// Levers: changes to a program, or to the options of its plans, that make a step need fewer bytes. Dry runs find the
// bytes and the time of each.

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <thimble/nn/fit/fit.h>

namespace thimble::nn {

/// Options for trying levers.
struct LeverSearch {
  memory::Device device = cpu;
  /// Not measured ones: measured times match one program node by node, and a lever makes another program.
  CostModel costs = hardware("cpu");
  std::size_t budget_bytes = 0;  ///< 0 sets no bound
  /// Processor time at which planning began (process::processor_ms), and the limit for the whole refusal, after which
  /// no more levers are tried. 0 sets no bound.
  double begin_ms = 0, refusal_ms = 0;
  std::function<void(const std::string& text)> progress = {};  ///< called before each lever; may be empty
};

/// One change, or several together.
struct Lever {
  std::string options;               ///< that make the change, as errors name them; empty for the unchanged program
  std::function<MakeRun()> program;  ///< makes the changed program
  PlannerOptions plans;
  std::string note;       ///< other changes; may be empty
  double transfer_s = 0;  ///< of transfers that the plan's time leaves out
};

struct LeverPrice {
  std::string options;
  std::size_t minimum_bytes = 0;                  ///< smallest feasible budget, recomputed segments included
  double time_overhead = 0;                       ///< of the smallest plan, over the plain step
  std::optional<double> time_overhead_in_budget;  ///< of the fastest plan in the budget, if any
  std::string note;
};

/// The price of a lever, from the planner of its program. Overheads are relative to a step of `plain_s` seconds.
LeverPrice price_of(const LeverSearch& search, const Lever& lever, Planner& planner, double plain_s);

/// Levers that make a refused budget enough.
struct LeverOffers {
  std::vector<LeverPrice> fitting;  ///< with a plan within the budget, fastest first
  std::size_t known = 0;            ///< levers that could be used
  std::size_t untried = 0;          ///< of these, skipped for lack of time or of memory to plan in
  /// Completes a sentence about untried levers.
  std::string how_to_try_all = "a plan with `prices_techniques` tries them all";
};

/// Tries levers in order, each in about the time that planning has taken so far. Without placing it, drops a lever
/// whose parameters, gradients and optimizer state do not fit, or whose smallest plans exceed the budget in live bytes.
/// Also drops one whose program throws an Error.
LeverOffers offer_levers(const LeverSearch& search, const std::vector<Lever>& levers, double plain_s);

/// "it fits with `head` chunked, which needs 2.23 GiB (2,390,753,280 bytes), at 9.8 % more time"; "none of 14
/// techniques fits". Omits a technique if a faster one needs no more bytes.
std::string to_text(const LeverOffers& offers);

/// `error` with the offers in its message.
BudgetError with_offers(const BudgetError& error, const LeverOffers& offers);

/// Largest sum of parameter, gradient and optimizer state bytes in a step: no plan of the run needs less.
std::size_t state_bound(const MakeRun& make, memory::Device device);

}  // namespace thimble::nn
