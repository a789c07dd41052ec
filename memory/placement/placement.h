#pragma once
// Placement: lifetimes in, offsets out (dynamic storage allocation).
//
// Policy
// - A training step repeats, so its allocations can be packed offline once, with all lifetimes known.
// - Three stages, each only if the previous one leaves room to improve: greedy orders, ejection of items that end too
//   high, exact branch and bound. A placement as low as the load is optimal, and the search ends there.
// - Periods that no buffer connects are placed separately. A period no higher than another's lower bound needs no
//   further search.
// - Deterministic: work is counted in nodes. Only a search that the limit in seconds ends depends on a clock.
//
// Terms
//   lifetime   [lower, upper), half open: a buffer freed at t and one allocated at t may share bytes
//   size       bytes rounded up to the unit
//   load       largest sum of sizes over all buffers that live at one time: no placement is lower
//   height     largest offset + size
//   capacity   a height that ends the search once it is reached
//   optimal    proven: the height is the load, or the search has excluded everything lower
//
// Sources: deciding whether a height can be reached is NP-complete (Garey and Johnson, "Computers and Intractability",
// 1979, problem SR2). Skylines, placing in order of offsets, and splitting a search where no lifetime crosses follow
// Maas et al., "TelaMalloc", ASPLOS 2023, and Moffitt, "MiniMalloc", ASPLOS 2023.

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
  std::size_t capacity_bytes = 0;        ///< ends the search at a height up to this; 0 searches for the optimum
  double seconds = 1;                    ///< ends the search with the best placement so far
  std::uint64_t node_limit = 1'000'000;  ///< ends it after this much work; 0 is unbounded
  PlacementStage last_stage = PlacementStage::exact;  ///< greedy and improvement take only milliseconds
  std::size_t unit = 64;  ///< sizes are rounded up to it, offsets are multiples of it; a power of two
};

struct Placement {
  std::vector<std::size_t> offsets;  ///< in bytes, in the order of the buffers
  std::size_t height = 0;            ///< largest offset + rounded size
  std::size_t load = 0;              ///< largest sum of rounded sizes at any time
  bool is_optimal = false;           ///< proven
  PlacementStage stage = PlacementStage::greedy;
  std::uint64_t nodes = 0;  ///< work of the search: greedy orders, items placed by the other stages
  double ms = 0;

  /// height / load; 1 without buffers.
  double ratio() const noexcept { return load == 0 ? 1.0 : static_cast<double>(height) / static_cast<double>(load); }
};

/// Throws ValueError, naming the buffer, for an empty lifetime, 0 bytes, an alignment or unit that is not a power of
/// two, sizes whose sum exceeds 2^62, and negative or NaN seconds.
Placement place(std::span<const Buffer> buffers, const PlacementOptions& options = {});

/// Proves a placement: every offset is a multiple of its buffer's alignment, no two buffers that live at the same time
/// overlap (by their requested bytes), and no buffer ends above `height_bytes`. Throws PlanError naming the buffers,
/// ValueError when offsets and buffers differ in number, and for a buffer that place() refuses (an empty lifetime, 0
/// bytes, an alignment that is not a power of two).
void check_placement(std::span<const Buffer> buffers, std::span<const std::size_t> offsets, std::size_t height_bytes);

}  // namespace thimble::memory
