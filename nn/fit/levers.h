#pragma once
// Levers: changes to a program, or to the options of its plans, with which a step needs fewer bytes. Dry runs find the
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
  /// Measured times are of one program, node by node; a lever makes another one.
  CostModel costs = hardware("cpu");
  std::size_t budget_bytes = 0;  ///< 0 sets no bound
  /// Processor time at which planning began (process::processor_ms), and how much of it a refusal may take as a whole;
  /// levers beyond that are not tried. 0 sets no bound.
  double begin_ms = 0, refusal_ms = 0;
  std::function<void(const std::string& text)> progress = {};  ///< called before each lever; may be empty
};

/// One change, or several together.
struct Lever {
  std::string options;               ///< that make it, as the caller's errors name them; empty: the unchanged program
  std::function<MakeRun()> program;  ///< makes the changed program
  PlannerOptions plans;
  std::string note;       ///< other changes; may be empty
  double transfer_s = 0;  ///< of transfers that no plan's time includes
};

struct LeverPrice {
  std::string options;
  std::size_t minimum_bytes = 0;  ///< the smallest feasible budget with it, segments that run again included
  double time_overhead = 0;       ///< of that smallest plan, over the plain step
  std::optional<double> time_overhead_in_budget;  ///< of the fastest plan in the budget, where there is one
  std::string note;
};

/// The price of a lever whose planner this is. Overheads are over a step of `plain_s` seconds.
LeverPrice price_of(const LeverSearch& search, const Lever& lever, Planner& planner, double plain_s);

/// Levers that make a refused budget enough.
struct LeverOffers {
  std::vector<LeverPrice> fitting;  ///< with a plan within the budget, the fastest there first
  std::size_t known = 0;            ///< levers that could be used
  std::size_t untried = 0;          ///< of these, for lack of time or of memory to plan in
  /// How to try all of them, in a sentence about the untried ones.
  std::string how_to_try_all = "a plan with `prices_techniques` tries them all";
};

/// Tries levers in turn, each in about the time that planning has taken so far. Drops one whose parameters, gradients
/// and optimizer state do not fit, or whose smallest plans hold too much at one time, without placing it, and one whose
/// program throws an Error.
LeverOffers offer_levers(const LeverSearch& search, const std::vector<Lever>& levers, double plain_s);

/// "it fits with `head` chunked, which needs 2.23 GiB (2,390,753,280 bytes), at 9.8 % more time"; "none of 14
/// techniques fits". Leaves out a technique where a faster one needs no more bytes.
std::string to_text(const LeverOffers& offers);

/// `error` with that in its message.
BudgetError with_offers(const BudgetError& error, const LeverOffers& offers);

/// Most bytes of parameters, gradients and optimizer state at one time in a step: no plan of the run needs less.
std::size_t state_bound(const MakeRun& make, memory::Device device);

}  // namespace thimble::nn
