#include <thimble/memory/remat/schedule.h>

namespace thimble::remat {

namespace schedule_detail {

/// The rest of the walk over a plan.
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

}  // namespace schedule_detail

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
  schedule_detail::check_cover(plan, chain, 0, plan.items.size(), 0, chain.size());
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const ScheduleTree::Item& item = plan.items[i];
    if (!item.is_dropped()) continue;
    if (i + 1 < plan.items.size() && plan.items[i + 1].is_dropped() && plan.items[i + 1].end == item.end) {
      throw PlanError("remat plan: " + schedule_detail::describe(item) + " is dropped as a whole by its own re-run");
    }
    schedule_detail::check_cover(plan, chain, i + 1, i + 1 + item.size, item.begin, item.end);
  }
}

Schedule to_schedule(const ScheduleTree& plan, const Chain& chain) {
  using Kind = Operation::Kind;
  using schedule_detail::Pending;
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
    // One visit: forward over all of its items, then backward over them from the last, which the stack turns around.
    std::size_t last = next.item;
    for (std::size_t i = next.item; i < next.end; i += 1 + plan.items[i].size) {
      schedule_detail::forward_of(plan.items[i], out);
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
  std::vector<std::size_t> ends;  // of the re-runs that are open
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

}  // namespace thimble::remat
