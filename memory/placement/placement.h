#pragma once
// Placement: lifetimes in, offsets out (dynamic storage allocation).
//
// Policy
// - A training step repeats, so its allocations can be packed offline once, with all lifetimes known.
// - Three stages, each only where the previous one can be improved: greedy orders, local search over orders, exact
//   branch and bound. A placement as low as the load is optimal, and the search ends there.
// - Periods that no buffer connects are placed one by one; a period that is already no higher than the tightest one's
//   lower bound is not searched further.
// - Deterministic: work is counted in nodes. Only the limit in seconds, where it ends a search, depends on a clock.
//
// Terms
//   lifetime   [lower, upper), half open: a buffer freed at t and one allocated at t may share bytes
//   size       bytes rounded up to the unit
//   load       largest sum of sizes over all buffers that live at one time: no placement is lower
//   height     largest offset + size
//   capacity   a height to reach: the search ends as soon as it is reached
//   optimal    proven: the height is the load, or the search has excluded everything lower
//
// Sources: deciding whether a height can be reached is NP-complete (Garey and Johnson, "Computers and Intractability",
// 1979, problem SR2). The ideas of skylines and of placing in order of offsets, and of splitting a search where no
// lifetime crosses: Maas et al., "TelaMalloc", ASPLOS 2023; Moffitt, "MiniMalloc", ASPLOS 2023.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace thimble::memory {

/// A buffer to place. 0 <= lower < upper; bytes > 0; alignment is a power of two.
struct Buffer {
  std::uint64_t id = 0;
  std::uint64_t lower = 0, upper = 0;
  std::size_t bytes = 0;
  std::size_t alignment = 1;

  friend bool operator==(const Buffer&, const Buffer&) = default;
};

enum class PlacementStage : std::uint8_t { greedy, improvement, exact };
/// "greedy", "improvement", "exact".
std::string_view to_string(PlacementStage stage) noexcept;

struct PlacementOptions {
  std::size_t capacity_bytes = 0;        ///< the search ends at a height of at most this; 0 searches for the optimum
  double seconds = 1;                    ///< the search ends after this time with the best placement so far
  std::uint64_t node_limit = 1'000'000;  ///< and after this much work; 0 is unbounded
  PlacementStage last_stage = PlacementStage::exact;  ///< greedy and improvement take only milliseconds
  std::size_t unit = 64;  ///< sizes are rounded up to it, offsets are multiples of it; a power of two
};

struct Placement {
  std::vector<std::size_t> offsets;  ///< in bytes, in the order of the buffers
  std::size_t height = 0;            ///< largest offset + rounded size
  std::size_t load = 0;              ///< largest sum of rounded sizes at one time
  bool is_optimal = false;           ///< proven: no placement is lower
  PlacementStage stage = PlacementStage::greedy;
  std::uint64_t nodes = 0;  ///< work done by the search: orders tried and buffers placed by the exact stage
  double ms = 0;

  /// height / load; 1 without buffers.
  double ratio() const noexcept { return load == 0 ? 1.0 : static_cast<double>(height) / static_cast<double>(load); }
};

/// Places the buffers. Throws ValueError (a lifetime that is empty, 0 bytes, an alignment or a unit that is not a power
/// of two, sizes whose sum exceeds 2^62, seconds that are negative or not a number), naming the buffer.
Placement place(std::span<const Buffer> buffers, const PlacementOptions& options = {});

/// Proves a placement: every offset is a multiple of its buffer's alignment, no two buffers that live at the same time
/// overlap (by their requested bytes), and no buffer ends above `height_bytes`. Throws PlanError naming the buffers,
/// ValueError when offsets and buffers differ in number, and for a buffer that place() refuses (an empty lifetime, 0
/// bytes, an alignment that is not a power of two).
void check_placement(std::span<const Buffer> buffers, std::span<const std::size_t> offsets, std::size_t height_bytes);

}  // namespace thimble::memory
