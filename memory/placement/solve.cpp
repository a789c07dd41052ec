// Runs the stages of a placement, and checks placements.

#include <algorithm>
#include <bit>
#include <chrono>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/memory/placement/problem.h>
#include <thimble/memory/placement/state.h>

namespace thimble::memory {
namespace {

using packing::Budget;
using packing::Layout;
using packing::Problem;
using packing::Verdict;

std::string describe(const Buffer& buffer) {
  return "buffer " + std::to_string(buffer.id) + " ([" + std::to_string(buffer.lower) + ", " +
         std::to_string(buffer.upper) + "), " + std::to_string(buffer.bytes) + " bytes)";
}

void check_buffer(const Buffer& buffer) {
  if (buffer.lower >= buffer.upper) throw ValueError("placement: " + describe(buffer) + " has an empty lifetime");
  if (buffer.bytes == 0) throw ValueError("placement: " + describe(buffer) + " has 0 bytes; expected at least 1");
  if (!std::has_single_bit(buffer.alignment)) {
    throw ValueError("placement: " + describe(buffer) + " has alignment " + std::to_string(buffer.alignment) +
                     "; expected a power of two");
  }
}

void check_arguments(std::span<const Buffer> buffers, const PlacementOptions& options) {
  constexpr std::size_t most_bytes = std::size_t{1} << 62;
  if (!std::has_single_bit(options.unit)) {
    throw ValueError("placement: unit " + std::to_string(options.unit) + ", expected a power of two");
  }
  if (!(options.seconds >= 0)) {
    throw ValueError("placement: " + std::to_string(options.seconds) + " seconds, expected at least 0");
  }
  std::size_t sum = 0;
  for (const Buffer& buffer : buffers) {
    check_buffer(buffer);
    const std::size_t alignment = std::max(buffer.alignment, options.unit);
    // With alignments included, no order of placing makes an offset that exceeds the sum.
    const bool is_small = buffer.bytes < most_bytes / 4 && alignment < most_bytes / 4;
    if (is_small) sum += buffer.bytes + 2 * alignment;
    if (!is_small || sum > most_bytes) {
      throw ValueError("placement: " + describe(buffer) + ": all sizes together exceed 2^62 bytes");
    }
  }
}

/// One connected problem during the stages.
struct Part {
  Problem problem;
  Layout best;
  std::int64_t lower_bound = 0;  // proven
  PlacementStage stage = PlacementStage::greedy;

  void take(Layout layout, PlacementStage found_by) {
    if (layout.height >= best.height) return;
    best = std::move(layout);
    stage = found_by;
  }
};

/// Tries to reach `capacity` with a fraction of the budget, and at most `most_nodes` unless that is 0.
Verdict probe(Part& part, std::int64_t capacity, double fraction, std::size_t unit, Budget& budget,
              std::uint64_t most_nodes = 0) {
  Layout layout;
  Budget spent = budget.share(fraction, most_nodes);
  const Verdict verdict = packing::search(part.problem, capacity, spent, layout);
  budget.charge(spent);
  if (verdict == Verdict::found) part.take(std::move(layout), PlacementStage::exact);
  if (verdict == Verdict::impossible) {
    part.lower_bound = std::max(part.lower_bound, capacity + static_cast<std::int64_t>(unit));
  }
  return verdict;
}

/// The exact stage: tries the load, then the target if a capacity set it higher, then bisects the heights above it,
/// then tries the target again.
void search_exactly(Part& part, std::int64_t load, std::int64_t target, std::size_t unit, Budget& budget) {
  constexpr std::size_t most_items = 20'000;
  constexpr std::uint64_t most_neighbours = 1 << 26;  // 256 MiB of the host
  if (part.problem.items.size() > most_items) return;
  if (packing::State::count_neighbours(part.problem) > most_neighbours) return;
  const auto step = static_cast<std::int64_t>(unit);
  const auto goal = [&] { return std::max(target, part.lower_bound); };
  if (load < target && part.lower_bound < target) {  // the load is often no harder
    probe(part, load, 0.1, unit, budget, 16 * part.problem.items.size());
  }
  std::int64_t doubtful = 0;  // heights below it were tried in vain, but are not excluded
  for (double fraction = 0.4; part.best.height > goal() && !budget.is_spent(); fraction = 0.2) {
    const std::int64_t low = std::max(goal(), doubtful);
    if (low >= part.best.height) break;
    const std::int64_t half = (part.best.height - low) / 2 / step * step;
    const std::int64_t capacity = doubtful == 0 ? low : std::min(low + half, part.best.height - step);
    if (probe(part, capacity, fraction, unit, budget) == Verdict::unknown) doubtful = capacity + step;
  }
  while (part.best.height > goal() && !budget.is_spent()) probe(part, goal(), 1.0, unit, budget);
}

/// Takes the parts above the target through the later stages, the highest first: no part needs to be lower than
/// another's lower bound.
void search_parts(std::vector<Part>& parts, std::int64_t load, std::int64_t target, const PlacementOptions& options,
                  Budget& budget) {
  if (options.last_stage == PlacementStage::greedy) return;
  std::vector<Part*> high;
  for (Part& part : parts) {
    if (part.best.height > target) high.push_back(&part);
  }
  std::sort(high.begin(), high.end(), [](const Part* a, const Part* b) { return a->best.height > b->best.height; });
  for (std::size_t i = 0; i < high.size(); ++i) {
    Part& part = *high[i];
    if (part.best.height <= target) continue;
    part.take(packing::improve(part.problem, part.best, target, budget), PlacementStage::improvement);
    if (options.last_stage == PlacementStage::improvement) continue;
    Budget own = budget.share(1.0 / static_cast<double>(high.size() - i));
    search_exactly(part, load, target, options.unit, own);
    budget.charge(own);
    target = std::max(target, part.lower_bound);
  }
}

}  // namespace

std::string_view to_string(PlacementStage stage) noexcept {
  switch (stage) {
    case PlacementStage::greedy:
      return "greedy";
    case PlacementStage::improvement:
      return "improvement";
    case PlacementStage::exact:
      break;
  }
  return "exact";
}

Placement place(std::span<const Buffer> buffers, const PlacementOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  check_arguments(buffers, options);
  Budget budget(options.seconds, options.node_limit);
  std::vector<Part> parts;
  std::int64_t load = 0;
  for (Problem& problem : packing::split(buffers, options.unit)) {
    load = std::max(load, problem.load);
    parts.push_back({.problem = std::move(problem), .best = {}});
    parts.back().lower_bound = parts.back().problem.load;
  }
  const auto capacity = static_cast<std::int64_t>(options.capacity_bytes / options.unit * options.unit);
  const std::int64_t target = std::max(load, capacity);
  for (Part& part : parts) {
    part.best = packing::place_greedily(part.problem, target, budget);
  }
  search_parts(parts, load, target, options, budget);

  Placement result;
  result.offsets.resize(buffers.size());
  std::int64_t height = 0, lower_bound = load;
  for (const Part& part : parts) {
    for (std::size_t i = 0; i < part.problem.buffers.size(); ++i) {
      result.offsets[part.problem.buffers[i]] = static_cast<std::size_t>(part.best.offsets[i]);
    }
    height = std::max(height, part.best.height);
    lower_bound = std::max(lower_bound, part.lower_bound);
    result.stage = std::max(result.stage, part.stage);
  }
  result.height = static_cast<std::size_t>(height);
  result.load = static_cast<std::size_t>(load);
  result.is_optimal = height == lower_bound;
  result.nodes = budget.nodes();
  result.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return result;
}

void check_placement(std::span<const Buffer> buffers, std::span<const std::size_t> offsets, std::size_t height_bytes) {
  if (offsets.size() != buffers.size()) {
    throw ValueError("check_placement: " + std::to_string(offsets.size()) + " offsets for " +
                     std::to_string(buffers.size()) + " buffers");
  }
  const auto at = [&](std::size_t i) { return describe(buffers[i]) + " at " + std::to_string(offsets[i]); };
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    check_buffer(buffers[i]);
    if (offsets[i] % buffers[i].alignment != 0) {
      throw PlanError("placement: " + at(i) + " is not aligned to " + std::to_string(buffers[i].alignment));
    }
    if (offsets[i] > height_bytes || buffers[i].bytes > height_bytes - offsets[i]) {
      throw PlanError("placement: " + at(i) + " ends above the height of " + std::to_string(height_bytes) + " bytes");
    }
  }
  // Sweep through time. Live buffers are sorted by offset, so the first overlap is between neighbours.
  struct Event {
    std::uint64_t time;
    bool is_begin;
    std::size_t buffer;
  };
  std::vector<Event> events;
  events.reserve(2 * buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    events.push_back({buffers[i].lower, true, i});
    events.push_back({buffers[i].upper, false, i});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    if (a.time != b.time) return a.time < b.time;
    return a.is_begin != b.is_begin ? b.is_begin : a.buffer < b.buffer;
  });
  const auto is_below = [&](std::size_t a, std::size_t b) { return offsets[a] < offsets[b]; };
  std::vector<std::size_t> live;  // by offset
  for (const Event& event : events) {
    const auto above = std::lower_bound(live.begin(), live.end(), event.buffer, is_below);
    if (!event.is_begin) {
      live.erase(above);  // live buffers do not overlap, so their offsets differ
      continue;
    }
    if (above != live.end() && offsets[*above] - offsets[event.buffer] < buffers[event.buffer].bytes) {
      throw PlanError("placement: " + at(event.buffer) + " overlaps " + at(*above));
    }
    if (above != live.begin()) {
      const std::size_t below = *(above - 1);
      if (offsets[event.buffer] - offsets[below] < buffers[below].bytes) {
        throw PlanError("placement: " + at(event.buffer) + " overlaps " + at(below));
      }
    }
    live.insert(above, event.buffer);
  }
}

}  // namespace thimble::memory
