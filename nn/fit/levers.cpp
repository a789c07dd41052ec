#include <thimble/nn/fit/levers.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include <thimble/core/error.h>
#include <thimble/memory/policies/trace.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/units.h>

namespace thimble::nn {
namespace {

/// Whether a refusal has time for `ms` more of work.
bool has_time(const LeverSearch& search, double ms) {
  return search.refusal_ms == 0 || process::processor_ms() - search.begin_ms + ms <= search.refusal_ms;
}

/// Returns the result of `work`, and raises `most_ms` to its time.
template <class Work>
auto timed(double& most_ms, Work&& work) {
  const double begin = process::processor_ms();
  auto result = work();
  most_ms = std::max(most_ms, process::processor_ms() - begin);
  return result;
}

}  // namespace

LeverPrice price_of(const LeverSearch& search, const Lever& lever, Planner& planner, double plain_s) {
  const Plan& least = planner.smallest();
  LeverPrice price{lever.options, least.peak_bytes, (least.step_s + lever.transfer_s) / plain_s - 1, {}, lever.note};
  if (least.peak_bytes <= search.budget_bytes) {
    price.time_overhead_in_budget = (planner.fit(search.budget_bytes).step_s + lever.transfer_s) / plain_s - 1;
  }
  return price;
}

std::size_t state_bound(const MakeRun& make, memory::Device device) {
  const MemoryProfile profile = profile_training(dry(device), make, 1, true);
  std::size_t most = 0;
  for (const memory::CategoryBytes& live : timeline(profile.events)) {
    std::size_t bytes = 0;
    for (const memory::Category c :
         {memory::Category::parameter, memory::Category::gradient, memory::Category::optimizer}) {
      bytes += live[static_cast<std::size_t>(c)];
    }
    most = std::max(most, bytes);
  }
  return most;
}

LeverOffers offer_levers(const LeverSearch& search, const std::vector<Lever>& levers, double plain_s) {
  LeverOffers offers;
  offers.known = offers.untried = levers.size();
  double lever_ms = process::processor_ms() - search.begin_ms, bound_ms = 0;
  std::size_t number = 0;
  for (const Lever& lever : levers) {
    if (search.progress) {
      search.progress("technique " + std::to_string(++number) + " of " + std::to_string(offers.known) + ": " +
                      lever.options);
    }
    if (!has_time(search, bound_ms)) break;
    try {
      if (timed(bound_ms, [&] { return state_bound(lever.program(), search.device); }) <= search.budget_bytes) {
        if (!has_time(search, lever_ms)) continue;  // the bound may still drop a later one
        timed(lever_ms, [&] {
          Planner planner(lever.program(), search.device, search.costs, lever.plans);
          if (planner.least_load() > search.budget_bytes) return false;
          LeverPrice price = price_of(search, lever, planner, plain_s);
          if (price.time_overhead_in_budget) offers.fitting.push_back(std::move(price));
          return true;
        });
      }
    } catch (const std::bad_alloc&) {
      break;  // the rest stays untried
    } catch (const OutOfMemory&) {
      break;
    } catch (const Error&) {  // the program refuses it
    }
    --offers.untried;
  }
  std::stable_sort(offers.fitting.begin(), offers.fitting.end(), [](const LeverPrice& a, const LeverPrice& b) {
    return *a.time_overhead_in_budget < *b.time_overhead_in_budget;
  });
  return offers;
}

std::string to_text(const LeverOffers& offers) {
  std::string text;
  std::size_t least_bytes = std::numeric_limits<std::size_t>::max();
  for (const LeverPrice& price : offers.fitting) {
    if (price.minimum_bytes >= least_bytes) continue;  // a faster technique needs no more
    least_bytes = price.minimum_bytes;
    text += (text.empty() ? "it fits with " : ", or with ") + price.options + ", which needs " +
            memory::exact_bytes(price.minimum_bytes) + ", at " +
            std::to_string(std::llround(100 * *price.time_overhead_in_budget)) + " % more time";
  }
  const std::size_t tried = offers.known - offers.untried;
  const std::string of = std::to_string(offers.known) + (offers.known == 1 ? " technique" : " techniques");
  if (text.empty() && tried > 0 && offers.untried == 0) return "none of " + of + " fits";
  if (text.empty() && tried > 0) text = "none of the " + std::to_string(tried) + " techniques fits that were tried";
  if (offers.untried > 0) {
    text += (text.empty() ? "" : "; ") + std::to_string(offers.untried) + " of " + of +
            " were not tried, for want of time or memory: " + offers.how_to_try_all;
  }
  return text;
}

BudgetError with_offers(const BudgetError& error, const LeverOffers& offers) {
  const std::string text = to_text(offers);
  return {error.what() + (text.empty() ? "" : "; " + text), error.budget_bytes(), error.minimum_bytes()};
}

}  // namespace thimble::nn
