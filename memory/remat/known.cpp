#include <algorithm>
#include <numeric>

#include <thimble/memory/remat/known.h>

namespace thimble::remat {

namespace known_detail {

void require_stages(const char* what, std::size_t n) {
  if (n == 0) throw ValueError(std::string("remat ") + what + ": the number of stages is 0, must be >= 1");
}

ScheduleTree::Item recorded(std::size_t stage, std::uint32_t option) {
  return {static_cast<std::uint32_t>(stage), static_cast<std::uint32_t>(stage + 1), option, 0};
}

/// Either stages [begin, end) that are still to be planned, or (end = 0) the item `begin` whose re-run is now complete.
struct Pending {
  std::size_t begin, end, slots;
};

/// Plans [0, n) by splitting: split(length, slots) stages are dropped first, planned again for their re-run with the
/// same slots, and the rest is planned with one slot less. One stage is recorded.
template <class Split>
ScheduleTree split_plan(std::size_t n, std::size_t slots, Split&& split) {
  ScheduleTree plan;
  std::vector<Pending> pending{{0, n, slots}};
  while (!pending.empty()) {
    const Pending next = pending.back();
    pending.pop_back();
    if (next.end == 0) {
      plan.items[next.begin].size = static_cast<std::uint32_t>(plan.items.size() - next.begin - 1);
    } else if (next.end - next.begin == 1) {
      plan.items.push_back(recorded(next.begin, 0));
    } else {
      const std::size_t middle = next.begin + split(next.end - next.begin, next.slots);
      pending.push_back({middle, next.end, next.slots - 1});
      pending.push_back({plan.items.size(), 0, 0});
      pending.push_back({next.begin, middle, next.slots});
      plan.items.push_back({static_cast<std::uint32_t>(next.begin), static_cast<std::uint32_t>(middle), 0, 1});
    }
  }
  return plan;
}

}  // namespace known_detail

ScheduleTree keep_all(std::size_t n) {
  known_detail::require_stages("keep_all", n);
  return every_kth(n, n);
}

ScheduleTree selective(std::span<const std::uint32_t> options) {
  known_detail::require_stages("selective", options.size());
  return with_options(keep_all(options.size()), options);
}

ScheduleTree with_options(ScheduleTree plan, std::span<const std::uint32_t> options) {
  for (ScheduleTree::Item& item : plan.items) {
    if (item.is_dropped()) continue;
    if (item.begin >= options.size()) {
      throw PlanError("remat with_options: stage " + std::to_string(item.begin) + " has no option, " +
                      std::to_string(options.size()) + " were given");
    }
    item.option = options[item.begin];
  }
  return plan;
}

ScheduleTree every_kth(std::size_t n, std::size_t k) {
  known_detail::require_stages("every_kth", n);
  if (k == 0) throw ValueError("remat every_kth: k is 0, must be >= 1");
  ScheduleTree plan;
  for (std::size_t begin = 0; begin < n; begin += k) {
    const std::size_t end = std::min(n, begin + k);
    if (end < n) {
      plan.items.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end), 0,
                            static_cast<std::uint32_t>(end - begin)});
    }
    for (std::size_t stage = begin; stage < end; ++stage) plan.items.push_back(known_detail::recorded(stage, 0));
  }
  return plan;
}

ScheduleTree square_root(std::size_t n) {
  known_detail::require_stages("square_root", n);
  std::size_t k = 1;
  while (k * k < n) ++k;
  return every_kth(n, k);
}

ScheduleTree recursive_halves(std::size_t n) {
  known_detail::require_stages("recursive_halves", n);
  return known_detail::split_plan(n, 64, [](std::size_t length, std::size_t) { return (length + 1) / 2; });
}

ScheduleTree binomial(std::size_t n, std::size_t slots) {
  known_detail::require_stages("binomial", n);
  if (slots == 0) throw ValueError("remat binomial: slots is 0, must be >= 1 (the chain's input takes one)");
  return known_detail::split_plan(n, slots, [](std::size_t length, std::size_t c) -> std::size_t {
    // The largest first part for which both parts keep the repetitions of the whole: the dropped part needs one less.
    const auto l = static_cast<std::int64_t>(length);
    const auto s = static_cast<std::int64_t>(c);
    if (c == 1) return length - 1;
    const std::int64_t r = revolve_repetitions(length, c);
    const std::int64_t first =
        std::min(binomial_coefficient(s + r - 1, s), l - binomial_coefficient(s - 1 + r - 1, s - 1));
    return static_cast<std::size_t>(std::clamp<std::int64_t>(first, 1, l - 1));
  });
}

std::int64_t binomial_coefficient(std::int64_t n, std::int64_t k) {
  if (k < 0 || n < k) return 0;
  k = std::min(k, n - k);
  std::int64_t value = 1;
  for (std::int64_t i = 1; i <= k; ++i) {
    // value * (n - k + i) / i is an integer; dividing first keeps the product small.
    const std::int64_t common = std::gcd(value, i);
    const std::int64_t factor = (n - k + i) / (i / common);
    value /= common;
    if (value > largest_total / factor) return largest_total;
    value *= factor;
  }
  return value;
}

std::int64_t revolve_repetitions(std::size_t n, std::size_t slots) {
  if (slots == 0) throw ValueError("remat revolve_repetitions: slots is 0, must be >= 1");
  const auto c = static_cast<std::int64_t>(slots);
  std::int64_t r = 0;
  while (binomial_coefficient(c + r, c) < static_cast<std::int64_t>(n)) ++r;
  return r;
}

std::int64_t revolve_forward_count(std::size_t n, std::size_t slots) {
  const std::int64_t r = revolve_repetitions(n, slots);
  return r * static_cast<std::int64_t>(n) - binomial_coefficient(static_cast<std::int64_t>(slots) + r, r - 1);
}

}  // namespace thimble::remat
