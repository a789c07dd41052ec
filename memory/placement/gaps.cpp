#include <thimble/memory/placement/gaps.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/memory/placement/problem.h>

namespace thimble::memory {
namespace {

// Bytes [from, to) of a buffer during [lower, upper).
struct Piece {
  std::uint64_t lower, upper;
  std::int64_t from, to;
};
using Pieces = std::vector<Piece>;  // of one buffer, in order of time

Pieces pieces_of(const Buffer& buffer, const std::vector<Gap>& gaps, std::size_t unit) {
  const auto down = [&](std::size_t bytes) { return static_cast<std::int64_t>(bytes / unit * unit); };
  const auto up = [&](std::size_t bytes) { return down(bytes + unit - 1); };
  const auto fail = [&](const Gap& gap, const std::string& why) {
    throw ValueError("placement: gap [" + std::to_string(gap.lower) + ", " + std::to_string(gap.upper) +
                     ") of buffer " + std::to_string(buffer.id) + " " + why);
  };
  Pieces pieces;
  std::uint64_t at = buffer.lower;
  for (const Gap& gap : gaps) {
    if (gap.lower >= gap.upper) fail(gap, "is empty");
    if (gap.lower < at) fail(gap, "begins before " + std::to_string(at));
    if (gap.upper > buffer.upper) fail(gap, "ends after the lifetime");
    if (gap.from > gap.to || gap.to > buffer.bytes) fail(gap, "holds bytes that the buffer does not have");
    if (at < gap.lower) pieces.push_back({at, gap.lower, 0, up(buffer.bytes)});
    if (gap.from < gap.to) pieces.push_back({gap.lower, gap.upper, down(gap.from), up(gap.to)});
    at = gap.upper;
  }
  if (at < buffer.upper) pieces.push_back({at, buffer.upper, 0, up(buffer.bytes)});
  return pieces;
}

// Calls f(piece of a, piece of b) for the pairs that share a time.
template <class F>
void for_each_pair(const Pieces& a, const Pieces& b, F&& f) {
  for (std::size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    if (a[i].lower < b[k].upper && b[k].lower < a[i].upper) f(a[i], b[k]);
    a[i].upper < b[k].upper ? ++i : ++k;
  }
}

// The largest sum of bytes at one time.
std::int64_t load_of(const std::vector<Pieces>& all) {
  std::vector<std::pair<std::uint64_t, std::int64_t>> events;  // ends, which are negative, come first
  for (const Pieces& pieces : all) {
    for (const Piece& piece : pieces) {
      events.emplace_back(piece.lower, piece.to - piece.from);
      events.emplace_back(piece.upper, piece.from - piece.to);
    }
  }
  std::sort(events.begin(), events.end());
  std::int64_t live = 0, load = 0;
  for (const auto& [time, bytes] : events) load = std::max(load, live += bytes);
  return load;
}

class Placer {
 public:
  Placer(std::span<const Buffer> buffers, const std::vector<Pieces>& pieces, std::size_t unit)
      : buffers_(buffers), pieces_(pieces), unit_(unit) {}

  // Each buffer in turn at the lowest free offset.
  packing::Layout place(const std::vector<std::size_t>& order) const {
    packing::Layout layout;
    layout.offsets.resize(buffers_.size());
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;  // offsets in between, both excluded, would overlap
    for (std::size_t at = 0; at < order.size(); ++at) {
      const std::size_t i = order[at];
      const auto alignment = static_cast<std::int64_t>(std::max(buffers_[i].alignment, unit_));
      taken.clear();
      for (std::size_t before = 0; before < at; ++before) {
        const std::size_t other = order[before];
        for_each_pair(pieces_[i], pieces_[other], [&](const Piece& own, const Piece& placed) {
          taken.emplace_back(layout.offsets[other] + placed.from - own.to,
                             layout.offsets[other] + placed.to - own.from);
        });
      }
      std::sort(taken.begin(), taken.end());
      std::int64_t offset = 0;
      for (const auto& [above, below] : taken) {
        if (offset <= above) break;
        if (offset < below) offset = packing::align_up(below, alignment);
      }
      layout.offsets[i] = offset;
      layout.height = std::max(layout.height, offset + size_of(i));
    }
    return layout;
  }

  std::int64_t size_of(std::size_t i) const {
    return packing::align_up(static_cast<std::int64_t>(buffers_[i].bytes), static_cast<std::int64_t>(unit_));
  }

 private:
  std::span<const Buffer> buffers_;
  const std::vector<Pieces>& pieces_;
  std::size_t unit_;
};

std::vector<Pieces> all_pieces(std::span<const Buffer> buffers, std::span<const std::vector<Gap>> gaps,
                               std::size_t unit) {
  if (gaps.size() != buffers.size()) {
    throw ValueError("placement: gaps of " + std::to_string(gaps.size()) + " buffers for " +
                     std::to_string(buffers.size()) + " buffers");
  }
  std::vector<Pieces> all;
  for (std::size_t i = 0; i < buffers.size(); ++i) all.push_back(pieces_of(buffers[i], gaps[i], unit));
  return all;
}

}  // namespace

Placement place_with_gaps(std::span<const Buffer> buffers, std::span<const std::vector<Gap>> gaps,
                          const PlacementOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  // Without the gaps: checks the arguments, and its offsets are valid for any gaps.
  PlacementOptions quick = options;
  quick.last_stage = PlacementStage::greedy;
  Placement result = memory::place(buffers, quick);
  const std::vector<Pieces> pieces = all_pieces(buffers, gaps, options.unit);
  const Placer placer(buffers, pieces, options.unit);
  packing::Budget budget(options.seconds, options.node_limit);
  result.load = static_cast<std::size_t>(load_of(pieces));
  const std::size_t target = std::max(result.load, options.capacity_bytes / options.unit * options.unit);
  std::vector<std::size_t> best(buffers.size());
  std::iota(best.begin(), best.end(), std::size_t{0});
  const auto try_order = [&](const std::vector<std::size_t>& order, PlacementStage stage) {
    const packing::Layout layout = placer.place(order);
    const auto height = static_cast<std::size_t>(layout.height);
    if (height > result.height) return;
    best = order;
    if (height == result.height) return;
    result.offsets.assign(layout.offsets.begin(), layout.offsets.end());
    result.height = height, result.stage = stage;
  };
  const auto by = [&](auto key) {
    std::vector<std::size_t> order(buffers.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) > key(b); });
    return order;
  };
  const auto length = [&](std::size_t i) { return buffers[i].upper - buffers[i].lower; };
  for (const auto& order :
       {by([&](std::size_t i) { return buffers[i].bytes; }), by([&](std::size_t i) { return length(i); }),
        by([&](std::size_t i) { return static_cast<double>(length(i)) * static_cast<double>(buffers[i].bytes); }),
        by([&](std::size_t i) { return ~buffers[i].lower; })}) {
    if (result.height > target) try_order(order, PlacementStage::greedy);
  }
  std::mt19937_64 random(1);  // the same moves in every run
  while (options.last_stage != PlacementStage::greedy && result.height > target && best.size() > 1 &&
         budget.spend(best.size())) {
    std::vector<std::size_t> order = best;
    const packing::Layout layout = placer.place(order);
    const auto ends = [&](std::size_t i) { return layout.offsets[i] + placer.size_of(i); };
    const auto top =
        std::max_element(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return ends(a) < ends(b); });
    const auto moved = random() % 2 == 0 ? top : order.begin() + static_cast<std::ptrdiff_t>(random() % order.size());
    const auto to =
        order.begin() + static_cast<std::ptrdiff_t>(random() % (static_cast<std::size_t>(moved - order.begin()) + 1));
    std::rotate(to, moved, moved + 1);
    try_order(order, PlacementStage::improvement);
  }
  result.is_optimal = result.height == result.load;
  result.nodes = budget.nodes();
  result.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return result;
}

void check_placement_with_gaps(std::span<const Buffer> buffers, std::span<const std::vector<Gap>> gaps,
                               std::span<const std::size_t> offsets, std::size_t height_bytes) {
  const std::vector<Pieces> pieces = all_pieces(buffers, gaps, 1);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    // A single buffer has no neighbours: checks its alignment and its end.
    check_placement(buffers.subspan(i, 1), offsets.subspan(i, 1), height_bytes);
    for (std::size_t k = 0; k < i; ++k) {
      for_each_pair(pieces[i], pieces[k], [&](const Piece& a, const Piece& b) {
        const auto at_i = static_cast<std::int64_t>(offsets[i]), at_k = static_cast<std::int64_t>(offsets[k]);
        if (at_i + a.from >= at_k + b.to || at_k + b.from >= at_i + a.to) return;
        throw PlanError("placement: buffer " + std::to_string(buffers[i].id) + " at " + std::to_string(offsets[i]) +
                        " overlaps buffer " + std::to_string(buffers[k].id) + " at " + std::to_string(offsets[k]));
      });
    }
  }
}

}  // namespace thimble::memory
