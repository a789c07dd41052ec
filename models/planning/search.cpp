// The search for the largest size that fits a budget.

#include <thimble/models/planning/planning.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <thimble/core/error.h>

namespace thimble::models {
namespace search_detail {

constexpr std::int64_t most_of_extent = std::int64_t{1} << 24;

/// The option that searches, and its unit, for errors.
struct ExtentWords {
  const char *option, *one, *many;
};
constexpr ExtentWords words_of(Extent extent) {
  return extent == Extent::batch ? ExtentWords{"`finds_batch`", "a batch of 1", "samples"}
                                 : ExtentWords{"`finds_sequence`", "a sequence of 1", "tokens"};
}

struct Probe {
  std::int64_t size;
  double bytes;
};

/// Where the line through two probes meets the budget, strictly between `fits` and `fails`.
std::int64_t by_line(const Probe& a, const Probe& b, double budget, std::int64_t fits, std::int64_t fails) {
  const double per_one = (b.bytes - a.bytes) / static_cast<double>(b.size - a.size);
  if (!(per_one > 0)) return fits + (fails - fits) / 2;
  const double at = static_cast<double>(a.size) + std::floor((budget - a.bytes) / per_one);
  return static_cast<std::int64_t>(std::clamp(at, static_cast<double>(fits + 1), static_cast<double>(fails - 1)));
}

}  // namespace search_detail

Largest search_largest(const std::function<std::size_t(std::int64_t size)>& peak, std::size_t budget_bytes,
                       Extent extent) {
  using search_detail::Probe;
  Largest found;
  const search_detail::ExtentWords words = search_detail::words_of(extent);
  const auto budget = static_cast<double>(budget_bytes);
  const auto probe = [&](std::int64_t size) {
    ++found.probes;
    return Probe{size, static_cast<double>(peak(size))};
  };
  Probe fits = probe(1);
  if (fits.bytes > budget) {
    const auto one = static_cast<std::size_t>(fits.bytes);
    throw nn::BudgetError(std::string(words.option) + ": " + words.one + " needs " + std::to_string(one) +
                              " bytes, more than the budget of " + std::to_string(budget_bytes),
                          budget_bytes, one);
  }
  // Upwards, until one fails: where the line of the last two leads, and at least twice as far as before; at first no
  // further than 16 times, as the line of two small batches says little.
  Probe before = fits, fails = probe(2);
  while (fails.bytes <= budget) {
    before = fits;
    fits = fails;
    if (fits.size >= search_detail::most_of_extent) {
      throw ValueError(std::string(words.option) + ": even " + std::to_string(fits.size) + " " + words.many +
                       " are within the budget of " + std::to_string(budget_bytes) + " bytes");
    }
    const std::int64_t most = std::min(fits.size * 16, search_detail::most_of_extent);
    const std::int64_t ahead = search_detail::by_line(before, fits, budget, fits.size, most + 1);
    // One beyond the place where the line ends would be the first to fail.
    fails = probe(std::clamp(ahead + 1, fits.size + 1, most));
  }
  // Between: by the line through the two, from the second try without progress by halving.
  for (int tries = 0; fails.size - fits.size > 1; ++tries) {
    const std::int64_t middle = tries % 3 == 2 ? fits.size + (fails.size - fits.size) / 2
                                               : search_detail::by_line(fits, fails, budget, fits.size, fails.size);
    const Probe next = probe(middle);
    (next.bytes <= budget ? fits : fails) = next;
  }
  found.size = fits.size;
  found.peak_bytes = static_cast<std::size_t>(fits.bytes);
  found.next_peak_bytes = static_cast<std::size_t>(fails.bytes);
  return found;
}

Largest search_in_a_third(const std::function<nn::Planner(std::int64_t size)>& planner, std::size_t budget_bytes) {
  constexpr double most_overhead = 1.0 / 3;
  Largest found;
  const auto fits = [&](std::int64_t size) {
    ++found.probes;
    try {
      nn::Planner plans = planner(size);
      const nn::Plan& plan = plans.fit(budget_bytes);
      if (plan.time_overhead > most_overhead) return false;
      found.size = size;
      found.peak_bytes = plan.peak_bytes;
      found.time_overhead = plan.time_overhead;
      return true;
    } catch (const nn::BudgetError&) {
      if (size == 1) throw;
      return false;
    }
  };
  std::int64_t fails = 1;
  while (fails <= search_detail::most_of_extent && fits(fails)) fails *= 2;
  while (fails - found.size > 1) {
    const std::int64_t middle = found.size + (fails - found.size) / 2;
    if (!fits(middle)) fails = middle;
  }
  return found;
}

}  // namespace thimble::models
