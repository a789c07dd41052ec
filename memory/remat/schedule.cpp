#include <thimble/memory/remat/schedule.h>

#include <algorithm>
#include <numeric>

namespace thimble::remat {

namespace {

/// A step that remains of the walk over a plan.
struct Pending {
  bool is_backward;  // run the backward of `item`, or the forward of the items [item, end)
  std::size_t item;  // index into the items
  std::size_t end;
};

std::string describe(const ScheduleTree::Item& item) {
  return "item [" + std::to_string(item.begin) + ", " + std::to_string(item.end) + ")";
}

/// Checks that items [first, last) cover the stages [begin, end) at their outermost level.
void check_cover(const ScheduleTree& plan, const Chain& chain, std::size_t first, std::size_t last, std::size_t begin,
                 std::size_t end) {
  std::size_t stage = begin;
  for (std::size_t i = first; i < last; i += 1 + plan.items[i].size) {
    const ScheduleTree::Item& item = plan.items[i];
    if (item.begin != stage || item.end <= item.begin || item.end > end) {
      throw PlanError("remat plan: " + describe(item) + " does not continue at stage " + std::to_string(stage) +
                      " within [" + std::to_string(begin) + ", " + std::to_string(end) + ")");
    }
    if (item.size >= last - i) {
      throw PlanError("remat plan: " + describe(item) + " has a re-run of " + std::to_string(item.size) +
                      " items, but only " + std::to_string(last - i - 1) + " follow");
    }
    if (!item.is_dropped() && item.option >= chain.stages[item.begin].options.size()) {
      throw PlanError("remat plan: " + describe(item) + " is recorded with option " + std::to_string(item.option) +
                      ", the stage has " + std::to_string(chain.stages[item.begin].options.size()));
    }
    if (!item.is_dropped() && item.end != chain.end_of(item.begin, item.option)) {
      throw PlanError("remat plan: " + describe(item) + " is recorded with option " + std::to_string(item.option) +
                      ", which ends at stage " + std::to_string(chain.end_of(item.begin, item.option)));
    }
    stage = item.end;
  }
  if (stage != end) {
    throw PlanError("remat plan: the items of [" + std::to_string(begin) + ", " + std::to_string(end) +
                    ") end at stage " + std::to_string(stage));
  }
}

void forward_of(const ScheduleTree::Item& item, Schedule& out) {
  using Kind = Operation::Kind;
  if (!item.is_dropped()) {
    out.push_back({Kind::record, item.begin, item.option});
    return;
  }
  for (std::uint32_t stage = item.begin; stage < item.end; ++stage) {
    out.push_back({stage == item.begin ? Kind::checkpoint : Kind::pass, stage, 0});
  }
}

}  // namespace

std::string to_string(const Operation& operation) {
  const std::string stage = std::to_string(operation.stage);
  switch (operation.kind) {
    case Operation::Kind::pass:
      return "pass " + stage;
    case Operation::Kind::checkpoint:
      return "checkpoint " + stage;
    case Operation::Kind::record:
      return "record " + stage + " (option " + std::to_string(operation.option) + ")";
    case Operation::Kind::drop:
      return "drop a_" + stage;
    case Operation::Kind::backward:
      return "backward " + stage;
  }
  return "operation of unknown kind " + std::to_string(static_cast<int>(operation.kind));
}

void validate(const ScheduleTree& plan, const Chain& chain) {
  check_cover(plan, chain, 0, plan.items.size(), 0, chain.size());
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const ScheduleTree::Item& item = plan.items[i];
    if (!item.is_dropped()) continue;
    if (i + 1 < plan.items.size() && plan.items[i + 1].is_dropped() && plan.items[i + 1].end == item.end) {
      throw PlanError("remat plan: " + describe(item) + " is dropped as a whole by its own re-run");
    }
    check_cover(plan, chain, i + 1, i + 1 + item.size, item.begin, item.end);
  }
}

Schedule to_schedule(const ScheduleTree& plan, const Chain& chain) {
  using Kind = Operation::Kind;
  validate(plan, chain);
  Schedule out;
  std::vector<Pending> pending{{false, 0, plan.items.size()}};
  while (!pending.empty()) {
    const Pending next = pending.back();
    pending.pop_back();
    const ScheduleTree::Item& item = plan.items[next.item];
    if (next.is_backward) {
      if (item.is_dropped()) {
        pending.push_back({false, next.item + 1, next.item + 1 + item.size});
      } else {
        out.push_back({Kind::backward, item.begin, 0});
      }
      continue;
    }
    // One visit: forward over all of its items, then backward from the last. The stack reverses their order.
    std::size_t last = next.item;
    for (std::size_t i = next.item; i < next.end; i += 1 + plan.items[i].size) {
      forward_of(plan.items[i], out);
      pending.push_back({true, i, 0});
      last = i;
    }
    const ScheduleTree::Item& end = plan.items[last];
    if (!end.is_dropped()) {
      if (!chain.stages[end.begin].options[end.option].keeps_output) out.push_back({Kind::drop, end.end, 0});
    } else {
      out.push_back({Kind::drop, end.end, 0});
    }
  }
  return out;
}

std::string to_string(const ScheduleTree& plan) {
  std::string out = "[";
  std::vector<std::size_t> ends;  // of open re-runs
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const ScheduleTree::Item& item = plan.items[i];
    if (out.back() != '[') out += ' ';
    if (item.is_dropped()) {
      out += '{' + std::to_string(item.begin) + ".." + std::to_string(item.end - 1) + " -> [";
      ends.push_back(i + item.size);
    } else {
      out += std::to_string(item.begin);
      if (item.end > item.begin + 1) out += '-' + std::to_string(item.end - 1);
      if (item.option != 0) out += '.' + std::to_string(item.option);
    }
    while (!ends.empty() && ends.back() == i) {
      out += "]}";
      ends.pop_back();
    }
  }
  return out + ']';
}

namespace {

void require_stages(const char* what, std::size_t n) {
  if (n == 0) throw ValueError(std::string("remat ") + what + ": the number of stages is 0, must be >= 1");
}

ScheduleTree::Item recorded(std::size_t stage, std::uint32_t option) {
  return {static_cast<std::uint32_t>(stage), static_cast<std::uint32_t>(stage + 1), option, 0};
}

/// Either stages [begin, end) left to plan, or (end = 0) the item `begin` whose re-run is now complete.
struct Unplanned {
  std::size_t begin, end, slots;
};

/// Plans [0, n) by splitting: drops the first split(length, slots) stages, plans their re-run with as many slots, and
/// the rest with one slot less. A single stage is recorded.
template <class Split>
ScheduleTree split_plan(std::size_t n, std::size_t slots, Split&& split) {
  ScheduleTree plan;
  std::vector<Unplanned> pending{{0, n, slots}};
  while (!pending.empty()) {
    const Unplanned next = pending.back();
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

}  // namespace

ScheduleTree keep_all(std::size_t n) {
  require_stages("keep_all", n);
  return every_kth(n, n);
}

ScheduleTree every_kth(std::size_t n, std::size_t k) {
  require_stages("every_kth", n);
  if (k == 0) throw ValueError("remat every_kth: k is 0, must be >= 1");
  ScheduleTree plan;
  for (std::size_t begin = 0; begin < n; begin += k) {
    const std::size_t end = std::min(n, begin + k);
    if (end < n) {
      plan.items.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end), 0,
                            static_cast<std::uint32_t>(end - begin)});
    }
    for (std::size_t stage = begin; stage < end; ++stage) plan.items.push_back(recorded(stage, 0));
  }
  return plan;
}

ScheduleTree square_root(std::size_t n) {
  require_stages("square_root", n);
  std::size_t k = 1;
  while (k * k < n) ++k;
  return every_kth(n, k);
}

ScheduleTree recursive_halves(std::size_t n) {
  require_stages("recursive_halves", n);
  return split_plan(n, 64, [](std::size_t length, std::size_t) { return (length + 1) / 2; });
}

ScheduleTree binomial(std::size_t n, std::size_t slots) {
  require_stages("binomial", n);
  if (slots == 0) throw ValueError("remat binomial: slots is 0, must be >= 1 (the chain's input takes one)");
  return split_plan(n, slots, [](std::size_t length, std::size_t c) -> std::size_t {
    // The largest first part with which both parts keep to the repetitions of the whole: the dropped part needs one
    // less.
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
